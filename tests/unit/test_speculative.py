"""The speculative loop: how it verifies, goes back and counts; with a toy trunk and heads that are told what to say."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from stub_heads import Guess, StubHeads, fails_at, right, right_before, right_up_to, wrong
from toy_models import ToyTrunk
from watching import Watch, assert_same

from nextn.gguf_schema.errors import InputError, VerdictError
from nextn.runtime.drafting import Options
from nextn.runtime.greedy import greedy
from nextn.runtime.model import Chunk
from nextn.runtime.runs import Round, Run
from nextn.runtime.speculative import Speculator, accepted
from nextn.runtime.state import RollbackError

TRUNK = ToyTrunk()
PROMPT = [3, 1, 4, 1, 5]
A, B, C, END = 5, 6, 7, 0


def run(guess: Guess, count: int, ends: tuple[int, ...] = (), **options: Any) -> tuple[Run, StubHeads]:
    """Generate behind PROMPT, every round watched."""
    stub = StubHeads(guess)
    speculator = Speculator(TRUNK, stub, Options(**options), Watch(TRUNK, StubHeads(guess)))
    [made] = speculator.generate([PROMPT], count, ends)
    assert made.tokens == greedy(TRUNK, PROMPT, count, ends)
    return made, stub


def counts(made: Run) -> list[tuple[int, int]]:
    return [(each.submitted, each.accepted) for each in made.rounds]


@pytest.mark.parametrize(
    ("chosen", "draft", "said"),
    [
        ([A], [], [A]),
        ([A, B, C], [A, B], [A, B, C]),
        ([A, B, C], [A, C], [A, B]),
        ([B, B, C], [A, B], [B]),
        ([END, B, C], [END, B], [END]),  # an end token within the draft ends it
        ([A, END, C], [A, END], [A, END, C]),  # as the last drafted token it does not: the bonus token is sampled
        ([A, END, C], [A, B], [A, END]),
        ([END], [], [END]),
    ],
)
def test_what_is_accepted(chosen: list[int], draft: list[int], said: list[int]) -> None:
    assert accepted(chosen, draft, {END}) == said


def test_drafts_are_cut_to_what_may_still_be_said() -> None:
    """12 tokens: one with the prompt, 3 + 1, 3 + 1, 2 + 1."""
    made, stub = run(right(TRUNK), 12, n_max=3)
    assert counts(made) == [(3, 3), (3, 3), (2, 2)]
    assert (made.n_drafted, made.n_accepted) == (8, 8)
    # The head drafts as far as it may all the same.
    assert [len(each.drafted) for each in made.rounds] == [3, 3, 3]
    assert [each.rows for each in made.rounds] == [5, 9, 13]
    assert len(stub.asked) == 9


def test_what_llama_cpp_counts_when_nothing_is_accepted() -> None:
    """Seen there: 12 tokens at n_max 2 give draft_n 19. Nine whole drafts, one of one token, and a plain decode."""
    made, _ = run(wrong(TRUNK), 12, n_max=2)
    assert (made.n_drafted, made.n_accepted, len(made.rounds)) == (19, 0, 10)
    assert made.accepted_by_position == [0, 0]
    assert made.mean_accepted_length == 1


@pytest.mark.parametrize(("count", "rounds"), [(1, []), (2, []), (3, [(1, 1)]), (4, [(2, 2)]), (5, [(3, 3)])])
def test_without_room_for_a_draft_no_round_is_counted(count: int, rounds: list[tuple[int, int]]) -> None:
    made, stub = run(right(TRUNK), count, n_max=3)
    assert counts(made) == rounds
    assert len(stub.asked) == 3 * len(rounds)


def test_the_context_cuts_drafts_and_ends_the_sequence() -> None:
    """5 rows of a prompt in 12: seven tokens. The first; then a draft of min(40 - 1 - 1, 12 - 5 - 2) = 5 at most; then
    of 12 - 10 - 2 = 0: a plain decode."""
    stub = StubHeads(right(TRUNK))
    [made] = Speculator(TRUNK, stub, Options(n_max=4, context=12)).generate([PROMPT], 40)
    assert made.tokens == greedy(TRUNK, PROMPT, 7)
    assert counts(made) == [(4, 4)]
    assert made.stop == "limit"
    [plain] = Speculator(TRUNK, None, Options(context=12)).generate([PROMPT], 40)
    assert plain.tokens == made.tokens
    [cut] = Speculator(TRUNK, stub, Options(n_max=8, context=12)).generate([PROMPT], 40)
    assert counts(cut) == [(5, 5)]
    with pytest.raises(InputError, match="no room"):
        Speculator(TRUNK, stub, Options(context=5)).generate([PROMPT], 40)


def test_end_tokens() -> None:
    """The fourth token is an end. The first comes with the prompt, so that it is the third of the first draft."""
    said = greedy(TRUNK, PROMPT, 4)
    assert said[3] not in said[:3]
    ends = (said[3],)
    within, _ = run(right(TRUNK), 40, ends, n_max=5)
    assert counts(within) == [(5, 2)]
    last, _ = run(right(TRUNK), 40, ends, n_max=3)
    assert counts(last) == [(3, 3)]
    bonus, _ = run(right(TRUNK), 40, ends, n_max=2)
    assert counts(bonus) == [(2, 2)]
    undrafted, _ = run(wrong(TRUNK), 40, ends, n_max=5)
    assert counts(undrafted) == [(5, 0)] * 3
    for made in (within, last, bonus, undrafted):
        assert (made.tokens, made.stop) == (said, "eos")


def test_an_end_token_with_the_prompt_ends_it() -> None:
    made, stub = run(right(TRUNK), 40, tuple(greedy(TRUNK, PROMPT, 1)))
    assert (len(made.tokens), made.stop, made.rounds, stub.asked) == (1, "eos", [], [])


@pytest.mark.parametrize("step", range(5))
def test_case_r18_a_rejection_at_each_place_leaves_nothing_behind(step: int) -> None:
    """Rejected drafts stayed in a recurrent state. `Watch` holds states against ones that never saw a draft."""
    made, _ = run(right_before(TRUNK, step), 20, n_max=4)
    assert made.accepted_by_position[:4] == [1.0] * step + [0.0] * (4 - step)


def test_case_r19_a_whole_batch_is_undone_or_refused() -> None:
    """A removal returned true and restored nothing when all of the last batch was to go."""
    state = TRUNK.new_state(rollback=4)
    TRUNK.forward([Chunk(state, PROMPT)])
    TRUNK.forward([Chunk(state, [7, 8, 9, 2])])
    state.truncate(len(PROMPT))
    again, fresh = TRUNK.forward([Chunk(state, [9, 9])]), TRUNK.new_state()
    assert torch.equal(TRUNK.forward([Chunk(fresh, [*PROMPT, 9, 9])])[-2:], again)
    assert_same(state, fresh)
    with pytest.raises(RollbackError, match="cannot go back"):
        state.truncate(1)
    assert_same(state, fresh)


def test_case_r10_errors_of_heads_are_counted_beside_acceptance() -> None:
    """Every step of a head failed, the text went on, and the acceptance that was printed looked good."""
    made, stub = run(fails_at(right(TRUNK), 4), 14, n_max=3)
    assert made.draft_errors == ["RuntimeError: inconsistent sequence positions"]
    # One round is a plain decode; the next drafts again.
    assert counts(made) == [(3, 3), (3, 3), (3, 3)]
    assert len(stub.asked) == 3 + 1 + 3 + 3
    shown = made.as_json()
    assert (shown["draft_errors"], shown["first_draft_error"]) == (1, made.draft_errors[0])


def test_case_r10_strict_drafting_stops() -> None:
    with pytest.raises(VerdictError, match="a head failed: RuntimeError: inconsistent sequence positions") as caught:
        run(fails_at(right(TRUNK), 4), 14, n_max=3, strict=True)
    assert (caught.value.exit_status, caught.value.code) == (1, "draft-error")


def test_heads_that_fail_to_catch_up_draft_no_more() -> None:
    """Their state lacks rows for good: what they would draft is not what they should."""
    stub = StubHeads(right(TRUNK), catch_up_fails=3)
    [made] = Speculator(TRUNK, stub, Options(n_max=3), Watch(TRUNK, None)).generate([PROMPT], 30)
    assert made.tokens == greedy(TRUNK, PROMPT, 30)
    assert made.draft_errors == ["RuntimeError: no room in the cache; no draft from here on"]
    assert counts(made) == [(3, 3), (3, 3)]
    assert stub.caught_up == 3


def test_logits_that_are_no_numbers_are_an_error_of_the_head() -> None:
    made, _ = run(lambda _: (1, float("nan")), 4, n_max=3)
    assert len(made.draft_errors) == 2
    assert set(made.draft_errors) == {"draft head: the logits are not numbers"}
    assert made.rounds == []


def test_case_i13_errors_past_a_place_show_by_place() -> None:
    made, _ = run(right_up_to(TRUNK, 30), 60, n_max=2)
    assert all(each.accepted == 2 for each in made.rounds if each.rows + 2 <= 30)
    assert all(each.accepted == 0 for each in made.rounds if each.rows >= 30)
    assert {each.rows >= 30 for each in made.rounds} == {True, False}


def test_case_i08_no_random_number_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A greedy path consulted a number that was seeded by the clock."""

    def poisoned(*_: object, **__: object) -> None:
        raise AssertionError("a random number was asked for")

    trunk = ToyTrunk()
    for name in (
        "multinomial",
        "rand",
        "randn",
        "randint",
        "rand_like",
        "randn_like",
        "bernoulli",
        "manual_seed",
        "seed",
    ):
        monkeypatch.setattr(torch, name, poisoned)
    monkeypatch.setattr(torch.Tensor, "multinomial", poisoned)
    monkeypatch.setattr(torch.Tensor, "exponential_", poisoned)
    for module in (random, np.random):
        for name in ("random", "randint", "seed"):
            monkeypatch.setattr(module, name, poisoned)
    state = torch.get_rng_state()
    Speculator(trunk, StubHeads(right_before(trunk, 2)), Options(n_max=4)).generate([PROMPT], 20)
    assert torch.equal(torch.get_rng_state(), state)


def test_heads_of_another_width_are_refused() -> None:
    with pytest.raises(VerdictError, match="takes hidden rows of 32 values, the trunk gives 16"):
        Speculator(TRUNK, StubHeads(right(TRUNK), hidden_width=32))


@pytest.mark.parametrize("heads", [None, StubHeads(right(TRUNK))])
def test_without_drafts_it_is_plain_decoding(heads: StubHeads | None) -> None:
    [made] = Speculator(TRUNK, heads, Options(n_max=0)).generate([PROMPT], 10)
    assert made.tokens == greedy(TRUNK, PROMPT, 10)
    assert (made.rounds, made.accepted_by_position, made.mean_accepted_length) == ([], [], None)
    assert heads is None or heads.caught_up == 0


def test_figures_of_a_run() -> None:
    made = Run("", 1, [1, 2, 3, 4, 5])
    made.rounds = [Round((1, 2, 3), (1, 1, 1), 3, 1), Round((1, 2, 3), (1, 1, 1), 2, 2), Round((1,), (1,), 1, 0)]
    assert (made.n_drafted, made.n_accepted) == (6, 3)
    assert made.accepted_by_position == [2 / 3, 1 / 2, 0]
    assert made.mean_accepted_length == 2
    assert made.as_json("text") == {
        "name": "",
        "prompt_tokens": 1,
        "tokens": [1, 2, 3, 4, 5],
        "text": "text",
        "stop": "limit",
        "n_drafted": 6,
        "n_accepted": 3,
        "accepted_by_position": [0.6667, 0.5, 0.0],
        "mean_accepted_length": 2.0,
        "draft_errors": 0,
        "first_draft_error": None,
        "rounds": 3,
        "seconds_prefill": 0.0,
        "seconds_decode": 0.0,
    }
