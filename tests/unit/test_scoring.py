"""Places, ranks and positions by stub heads; and what an engine should accept, by what llama.cpp did accept."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from stub_heads import Guess, StubHeads, by_chance, next_token, right, right_before, wrong
from toy_models import VOCABULARY, ToyTrunk

from nextn.gguf_schema.architecture import Role
from nextn.runtime.drafting import Options
from nextn.runtime.identity.expected import Drafts, drafts_of
from nextn.runtime.identity.probe import leading
from nextn.runtime.identity.scoring import all_positions, first_position, said_by, stream_of
from nextn.runtime.load import load_pair
from nextn.runtime.speculative import Speculator
from nextn.runtime.text import Text

torch.set_num_threads(1)

Converted = Callable[[str], dict[Role, Path]]
PROMPTS = [[1, 2, 3], [5], [7, 7, 7, 7, 7]]
COUNT = 9
TRUNK = ToyTrunk()


def test_streams_are_what_the_trunk_says() -> None:
    for prompt, stream in zip(PROMPTS, said_by(TRUNK, PROMPTS, COUNT), strict=True):
        assert list(stream.tokens[: stream.start]) == prompt
        assert len(stream.tokens) == len(prompt) + COUNT
        for place in stream.places:
            assert stream.tokens[place + 1] == next_token(TRUNK, stream.tokens[: place + 1])
        assert len(stream.places) == COUNT - 1
        assert len(stream.hidden) == len(stream.tokens)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("guess", "rates"), [(right(TRUNK), (1, 1, 1)), (wrong(TRUNK), (0, 0, 0)), (right_before(TRUNK, 1), (1, 0, 0))]
)
def test_each_position_is_scored_by_itself(guess: Guess, rates: tuple[int, ...], count: int) -> None:
    streams = said_by(TRUNK, PROMPTS, COUNT)
    found = all_positions(StubHeads(guess, count), streams, 3)
    assert [each.rate for each in found] == list(rates)
    # A position has no place behind the end of a text.
    assert [len(each.rank) for each in found] == [3 * (COUNT - 1), 3 * (COUNT - 2), 3 * (COUNT - 3)]


def test_ranks_and_probabilities_of_the_true_token() -> None:
    """The stub gives the drafted token 0.99 and nine others the rest in equal parts: token 0 to 9 without it."""
    [stream] = said_by(TRUNK, [[1, 2, 3]], COUNT)
    true = stream.tokens[stream.start + 1 :]
    found = first_position(StubHeads(lambda asked: 23), [stream])
    for rank, probability, token in zip(found.rank, found.log_probability, true, strict=True):
        if token == 23:
            assert (rank, probability) == (0, pytest.approx(math.log(0.99), abs=1e-5))
        elif token < 9:
            # Of equal logits the lowest id comes first.
            assert (rank, probability) == (1 + token, pytest.approx(math.log(0.01 / 9), abs=1e-4))
        else:
            assert probability < -50


def test_heads_are_given_true_tokens_and_their_own_rows() -> None:
    [stream] = said_by(TRUNK, [[1, 2, 3]], 4)
    heads = StubHeads(wrong(TRUNK), 1)
    all_positions(heads, [stream], 3)
    assert [(asked.tokens, asked.step) for asked in heads.asked] == [
        (stream.tokens[: place + step + 1], step) for place in stream.places for step in range(min(3, 6 - place))
    ]
    first = next(asked for asked in heads.asked if len(asked.tokens) == 5 and asked.step == 0)
    assert torch.equal(first.hidden[4], stream.hidden[3])
    later = next(asked for asked in heads.asked if len(asked.tokens) == 5 and asked.step == 1)
    # What the stub itself made of the row before: the wrong token, its certainty, the head, the rows.
    assert later.hidden[4][:4].tolist() == pytest.approx([(stream.tokens[4] + 1) % VOCABULARY, 0.99, 0, 4])


def test_one_forward_and_one_at_a_time_see_the_same(converted: Converted) -> None:
    pair = load_pair(converted("qwen4exp")[Role.COMBINED])
    assert pair.heads is not None
    streams = said_by(pair.trunk, [prompt["ids"] for prompt in FAMILIES["qwen4exp"].prompts[:2]], 8)
    assert first_position(pair.heads, streams) == all_positions(pair.heads, streams, 1)[0]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_expected_is_what_the_loop_does(seed: int) -> None:
    """Also with end tokens within a draft, at its end and behind it."""
    guess, prompt = by_chance(TRUNK, seed), PROMPTS[seed % 3]
    [stream] = said_by(TRUNK, [prompt], 40)
    ends = {stream.tokens[stream.start + 5 + seed]}
    for n_max in (1, 2, 3, 5):
        [run] = Speculator(TRUNK, StubHeads(guess), Options(n_max=n_max)).generate([prompt], 30, ends)
        said = stream_of(TRUNK, prompt, run.tokens)
        [right_drafts] = leading([said], all_positions(StubHeads(guess), [said], n_max))
        assert drafts_of(run.tokens, right_drafts, n_max, 30, ends) == Drafts(run.n_drafted, run.n_accepted)


@pytest.mark.parametrize("prompts", [2, pytest.param(None, marks=pytest.mark.long)])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_expected_is_what_llama_cpp_accepted(converted: Converted, family: str, prompts: int | None) -> None:
    pair = load_pair(converted(family)[Role.COMBINED])
    assert pair.heads is not None
    ends = Text(pair.file.contents).ends
    told = zip(FAMILIES[family].prompts, FAMILIES[family].read("llama_cpp.json")["prompts"], strict=True)
    for prompt, golden in sorted(told, key=lambda each: len(each[0]["ids"]) + len(each[1]["tokens"]))[:prompts]:
        stream = stream_of(pair.trunk, prompt["ids"], golden["tokens"])
        [drafts] = leading([stream], all_positions(pair.heads, [stream], 3))
        for n_max in (1, 2, 3):
            counted = golden["draft"][f"combined n_max={n_max}"]
            expected = drafts_of(golden["tokens"], drafts, n_max, 64, ends)
            assert (expected.n_drafted, expected.n_accepted) == (counted["drafted"], counted["accepted"])


def test_nothing_drafted_has_no_rate() -> None:
    assert drafts_of([4], [], 3, 1) == Drafts(0, 0)
    assert Drafts(0, 0).rate is None
    assert Drafts(4, 1).rate == 0.25
