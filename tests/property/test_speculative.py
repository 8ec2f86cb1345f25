"""Laws of the speculative loop: no draft changes what is said, and none leaves a trace in a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stub_heads import Guess, StubHeads, by_chance, fails_at, right, right_before, right_up_to, wrong
from toy_models import VOCABULARY, ToyHeads, ToyTrunk
from watching import Watch

from nextn.runtime.drafting import Options
from nextn.runtime.greedy import greedy
from nextn.runtime.runs import Run
from nextn.runtime.speculative import Speculator

TRUNKS = [ToyTrunk(6), ToyTrunk(2)]
GUESSES: dict[str, Callable[[ToyTrunk, int], Guess]] = {
    "right": lambda trunk, _: right(trunk),
    "wrong": lambda trunk, _: wrong(trunk),
    "by chance": by_chance,
    "right before": lambda trunk, n: right_before(trunk, n % 8),
    "right up to": lambda trunk, n: right_up_to(trunk, n % 20),
    "fails": lambda trunk, n: fails_at(right(trunk), n % 20 + 1),
}


@dataclass(frozen=True)
class Case:
    trunk: ToyTrunk
    stub: str
    number: int
    heads: int
    options: Options
    prompts: list[list[int]]
    count: int
    ends: frozenset[int]

    def make_heads(self) -> StubHeads | ToyHeads:
        if self.stub == "computes":
            return ToyHeads(self.heads, self.number)
        return StubHeads(GUESSES[self.stub](self.trunk, self.number), self.heads)


tokens = st.integers(0, VOCABULARY - 1)
options = st.builds(
    Options,
    n_max=st.integers(1, 8),
    n_min=st.integers(0, 4),
    p_min=st.sampled_from([0.0, 0.0, 0.3, 0.6, 0.95]),
    reuse_last_head=st.booleans(),
    ubatch=st.integers(1, 9),
    context=st.none() | st.integers(14, 40),
)
cases = st.builds(
    Case,
    trunk=st.sampled_from(TRUNKS),
    stub=st.sampled_from([*GUESSES, "computes"]),
    number=st.integers(0, 99),
    heads=st.integers(1, 3),
    options=options,
    prompts=st.lists(st.lists(tokens, min_size=1, max_size=12), min_size=1, max_size=3),
    count=st.integers(1, 20),
    ends=st.frozensets(tokens, max_size=3),
)


def check_counts(run: Run, case: Case, longest: int) -> None:
    """Rounds again, from drafts and text alone, by the server's rules."""
    place = 1  # tokens said before the round
    for each in run.rounds:
        # What is said before was read, but for the last of it; rounds without a draft say one token each.
        place = each.rows - run.prompt_tokens + 1
        room = case.count - place - 1
        if case.options.context is not None:
            room = min(room, case.options.context - each.rows - 2)
        assert case.options.n_min <= len(each.drafted) <= longest
        assert each.submitted == min(len(each.drafted), room) > 0
        said = run.tokens[place : place + each.accepted + 1]
        matched = each.drafted[: each.accepted]
        assert said[: each.accepted] == list(matched)[: len(said)]
        if each.accepted < each.submitted:
            stopped = each.accepted < len(said) and said[each.accepted] != each.drafted[each.accepted]
            assert stopped or said[-1] in case.ends
    if run.rounds:
        assert len(run.tokens) <= place + run.rounds[-1].accepted + 1 + case.count


@settings(max_examples=60, deadline=None)
@given(cases)
def test_no_draft_changes_what_is_said(case: Case) -> None:
    """The text is plain greedy decoding's, and after each round all states are those of sequences without drafts."""
    heads = case.make_heads()
    watch = Watch(case.trunk, ToyHeads(case.heads, case.number) if case.stub == "computes" else case.make_heads())
    speculator = Speculator(case.trunk, heads, case.options, watch)
    runs = speculator.generate(case.prompts, case.count, case.ends)
    for run, prompt in zip(runs, case.prompts, strict=True):
        room = case.count if case.options.context is None else min(case.count, case.options.context - len(prompt))
        assert run.tokens == greedy(case.trunk, prompt, room, case.ends)
        check_counts(run, case, speculator.longest)
        assert case.stub == "fails" or run.draft_errors == []


@pytest.mark.long
@settings(max_examples=1500, deadline=None)
@given(cases)
def test_no_draft_changes_what_is_said_at_length(case: Case) -> None:
    test_no_draft_changes_what_is_said.hypothesis.inner_test(case)  # type: ignore[attr-defined]


@settings(max_examples=25, deadline=None)
@given(cases)
def test_drafts_of_several_sequences_are_as_alone(case: Case) -> None:
    if case.stub == "fails":  # counts its calls
        return
    runs = Speculator(case.trunk, case.make_heads(), case.options).generate(case.prompts, case.count, case.ends)
    for run, prompt in zip(runs, case.prompts, strict=True):
        alone = Speculator(case.trunk, case.make_heads(), case.options).generate([prompt], case.count, case.ends)
        assert [run.tokens, run.rounds] == [alone[0].tokens, alone[0].rounds]
