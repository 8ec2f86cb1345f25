"""How heads draft: which head is asked for what, what it sees, and when a draft ends."""

from __future__ import annotations

import math

import pytest
import torch
from stub_heads import Asked, StubHeads, right
from toy_models import ToyHeads, ToyTrunk
from watching import Watch

from nextn.runtime.drafting import DRAFTED_ANYWAY, Drafter, Options, probability_of_best
from nextn.runtime.greedy import greedy
from nextn.runtime.model import Chunk
from nextn.runtime.runs import Run
from nextn.runtime.session import Session
from nextn.runtime.speculative import Speculator

TRUNK = ToyTrunk()
PROMPT = [3, 1, 4, 1, 5]


def prefilled(stub: StubHeads | ToyHeads, **options: int) -> tuple[Speculator, Session]:
    speculator = Speculator(TRUNK, stub, Options(**options))
    session = speculator.open()
    speculator.prefill([session], [PROMPT], [Run("", len(PROMPT))])
    return speculator, session


def drafted(stub: StubHeads, **options: float) -> list[int]:
    speculator, session = prefilled(stub)
    [draft] = Drafter(stub, Options(**options)).drafts([session])  # type: ignore[arg-type]
    assert speculator.trunk is TRUNK
    return draft.tokens


def one_two_three(asked: Asked) -> int:
    return asked.head + 1


def test_case_r22_head_i_serves_step_i() -> None:
    """Three heads, of which only the first was used, looped."""
    assert drafted(StubHeads(one_two_three, 3), n_max=3) == [1, 2, 3]
    assert drafted(StubHeads(one_two_three, 3), n_max=2) == [1, 2]


def test_chained_heads_draft_no_more_tokens_than_there_are_heads() -> None:
    assert drafted(StubHeads(one_two_three, 3), n_max=8) == [1, 2, 3]
    assert Drafter(StubHeads(one_two_three, 3), Options(n_max=8)).longest == 3


def test_reusing_the_last_head_is_asked_for() -> None:
    assert drafted(StubHeads(one_two_three, 3), n_max=5, reuse_last_head=True) == [1, 2, 3, 3, 3]


def test_one_head_is_looped() -> None:
    assert drafted(StubHeads(lambda asked: asked.step), n_max=5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [1, 3])
def test_case_r23_every_head_sees_all_places_before(count: int) -> None:
    """Head k attended to cells that only head k - 1 had written."""
    stub = StubHeads(lambda asked: 10 + asked.step, count)
    _, session = prefilled(stub, ubatch=2)
    Drafter(stub, Options(n_max=3)).drafts([session])
    hidden = torch.cat((torch.zeros(1, 16), TRUNK.forward([Chunk(TRUNK.new_state(), PROMPT)])))
    assert session.last is not None
    tokens = [*PROMPT, session.last, 10, 11]
    assert [each.head for each in stub.asked] == ([0, 1, 2] if count == 3 else [0, 0, 0])
    for step, asked in enumerate(stub.asked):
        end = len(PROMPT) + 1 + step
        assert asked.tokens == tuple(tokens[:end])
        # True rows of the trunk up to the sampled token; behind it what the steps before made, each at its place.
        assert torch.equal(asked.hidden[: len(PROMPT) + 1], hidden)
        chain = [[10 + i, i if count == 3 else 0, len(PROMPT) + 1 + i] for i in range(step)]
        assert asked.hidden[len(PROMPT) + 1 :, [0, 2, 3]].tolist() == chain


@pytest.mark.parametrize("count", [1, 2, 3])
def test_case_r23_caches_grow_as_if_computed_at_once(count: int) -> None:
    """Incremental against full: `Watch` builds the caches anew from true tokens and true hidden rows."""
    heads = ToyHeads(count)
    speculator = Speculator(TRUNK, heads, Options(n_max=4, reuse_last_head=True), Watch(TRUNK, ToyHeads(count)))
    [made] = speculator.generate([PROMPT], 24)
    assert made.tokens == greedy(TRUNK, PROMPT, 24)
    session = speculator.open()
    speculator.prefill([session], [[*PROMPT, *made.tokens[:8]]], [Run("", 0)])
    assert session.last is not None
    assert session.heads is not None
    [draft] = Drafter(heads, Options(n_max=3)).drafts([session])
    # Each step in one forward of all rows on an empty cache.
    true = TRUNK.forward([Chunk(TRUNK.new_state(), session.tokens)])
    tokens, hidden = [*session.tokens, session.last], torch.cat((torch.zeros(1, 16), true))
    for step, token in enumerate(draft.tokens):
        head = min(step, count - 1)
        row = heads.forward([Chunk(heads.new_state(), tokens, hidden=hidden)], head)[-1:]
        assert int(heads.logits(row, head).argmax()) == token
        tokens, hidden = [*tokens, token], torch.cat((hidden, row))


def sure_until(step: int) -> StubHeads:
    return StubHeads(lambda asked: (asked.step, 0.9 if asked.step < step else 0.4))


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"p_min": 0.0}, [0, 1, 2, 3]),
        ({"p_min": 0.39}, [0, 1, 2, 3]),
        ({"p_min": 0.41}, [0, 1]),
        ({"p_min": 0.95}, []),
    ],
)
def test_a_draft_ends_below_the_probability(options: dict[str, float], tokens: list[int]) -> None:
    """The token that is too improbable is not drafted, and no further head is asked."""
    stub = sure_until(2)
    assert drafted(stub, n_max=4, **options) == tokens
    assert len(stub.asked) == min(len(tokens) + 1, 4)


def test_probabilities_are_among_the_ten_best() -> None:
    """Of 1000 equal candidates each has a tenth."""
    assert probability_of_best(torch.zeros(1000)) == pytest.approx(0.1)
    logits = torch.tensor([math.log(3), 0, -math.inf])
    assert probability_of_best(logits) == pytest.approx(0.75)


@pytest.mark.parametrize(("n_min", "rounds"), [(2, [2, 2, 2]), (3, [])])
def test_short_drafts_are_not_used(n_min: int, rounds: list[int]) -> None:
    """Two tokens are drafted each time; too short a draft is no round but a plain decode."""
    stub = StubHeads(lambda asked: (right(TRUNK)(asked), 0.9 if asked.step < 2 else 0.1))  # type: ignore[arg-type, return-value]
    [made] = Speculator(TRUNK, stub, Options(n_max=4, n_min=n_min, p_min=0.5)).generate([PROMPT], 10)
    assert [each.submitted for each in made.rounds] == rounds
    assert made.tokens == greedy(TRUNK, PROMPT, 10)


def test_drafts_are_too_short_before_they_are_cut() -> None:
    """A draft of three, of which one fits, is long enough for an n_min of three."""
    [made] = Speculator(TRUNK, StubHeads(right(TRUNK)), Options(n_max=3, n_min=3)).generate([PROMPT], 3)
    assert [(len(each.drafted), each.submitted) for each in made.rounds] == [(3, 1)]


@pytest.mark.parametrize("count", [1, 3])
def test_no_more_is_drafted_than_can_matter(count: int) -> None:
    """A draft of a million tokens for ten; llama.cpp's counts are those of a draft that is as long as there is room."""
    stub, short = (StubHeads(right(TRUNK), count) for _ in range(2))
    [made] = Speculator(TRUNK, stub, Options(n_max=10**6, reuse_last_head=True)).generate([PROMPT], 40)
    [wanted] = Speculator(TRUNK, short, Options(n_max=39, reuse_last_head=True)).generate([PROMPT], 40)
    assert (made.tokens, made.n_drafted, made.n_accepted) == (wanted.tokens, wanted.n_drafted, wanted.n_accepted)
    assert len(stub.asked) <= 39 + DRAFTED_ANYWAY
    session = Speculator(TRUNK, stub, Options(n_max=10**6, reuse_last_head=True)).open(40)
    for n in range(100):
        TRUNK.forward([Chunk(session.trunk, [n % 10])])
    assert all(len([*trail.kept()]) <= 41 for trail in session.trunk.trails.values())
