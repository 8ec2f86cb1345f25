"""How a parting is judged when the reference runtime is not asked, or when the engine computes otherwise anyway."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from toy_engines import ToyEngine, wide
from toy_models import ToyTrunk

from nextn.runtime.engines.engine import Asked, Continuation, Outcome, Prompts
from nextn.runtime.identity.certificate import Certificate
from nextn.runtime.identity.check import check
from nextn.runtime.identity.observe import Settings
from nextn.runtime.identity.prompts import Prompt
from nextn.runtime.identity.rescore import Rescorer
from nextn.runtime.identity.strayed import Strayed, first_difference, places

TRUNK = ToyTrunk()
PROMPT = Prompt("p", "kind", (3, 5, 8))
Best = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Fixed:
    """Says `plain` without a draft and `drafted` with one; `best` are its log-probabilities at the second place."""

    plain: tuple[int, ...]
    drafted: tuple[int, ...]
    best: Best = ()
    name: str = "fixed"
    context: int | None = None

    def describe(self) -> dict[str, str]:
        return {}

    def run(self, prompts: Prompts, asked: Asked) -> Outcome:
        tokens = self.drafted if asked.n_max else self.plain
        top = tuple(self.best if place == 1 else () for place in range(len(tokens))) if asked.top else None
        made = Continuation(tokens, "limit", asked.n_max, asked.n_max, top=top)
        return Outcome("ok", "", (made,) * len(prompts))

    def run_together(self, _: Prompts, __: Asked) -> None:
        return None

    def close(self) -> None:
        pass


def judged(engine: Fixed, *, rescored: bool = False) -> Certificate:
    rescorer = Rescorer(TRUNK, lambda: wide(TRUNK)) if rescored else None
    return check([engine], [PROMPT], Settings((1, 2), 4), rescorer=rescorer)


@pytest.mark.parametrize(
    ("best", "verdict", "margin"),
    [
        (((2, -0.7), (9, -0.7004), (4, -3.0)), "near_tie", 0.0004),
        (((2, -0.7), (9, -0.8)), "logic", 0.1),
        # What was said instead is none of the best two: a near tie of others is no excuse.
        (((2, -0.7), (4, -0.7004)), "logic", 0.0004),
        ((), "logic", None),
    ],
)
def test_without_the_reference_the_engine_s_own_log_probabilities_decide(
    best: Best, verdict: str, margin: float | None
) -> None:
    certificate = judged(Fixed((1, 2, 3, 4), (1, 9, 3, 4), best))
    assert certificate.verdict == verdict
    parted = [run for run in certificate.runs if run.n_max]
    assert {run.first_divergence for run in parted} == {1}
    assert {run.margins for run in parted} == {None}
    assert parted[0].margin == (None if margin is None else pytest.approx(margin))


def test_an_engine_that_differs_without_a_draft_is_told_and_its_later_tokens_are_not_held_against_it() -> None:
    right = ToyEngine(TRUNK, ends=()).run([PROMPT.tokens], Asked(0, 4)).continuations[0].tokens
    other = tuple((token + 1) % 24 for token in right)
    certificate = judged(Fixed(other, other), rescored=True)
    assert certificate.verdict == "identical"
    (told,) = [finding for finding in certificate.findings if finding.rule == "engine-differs"]
    assert "without a draft it already says what the reference runtime would not" in told.message
    certificate = judged(Fixed(right, right), rescored=True)
    assert "engine-differs" not in {finding.rule for finding in certificate.findings}


def test_wrong_plain_text_beside_right_drafted_text_is_no_fault_of_the_draft() -> None:
    right = ToyEngine(TRUNK, ends=()).run([PROMPT.tokens], Asked(0, 4)).continuations[0].tokens
    other = (right[0], (right[1] + 1) % 24, *right[2:])
    assert judged(Fixed(other, right), rescored=True).verdict == "logic"


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1, 2), (1, 2, 3), 2), ((), (1,), 0), ((), (), None)],
)
def test_the_first_difference_of_two_streams(
    first: tuple[int, ...], second: tuple[int, ...], place: int | None
) -> None:
    assert first_difference(first, second) == place


def test_tokens_of_rounds_are_found_in_the_stream() -> None:
    """A prompt of 3 rows; the first token comes with it, then rounds of 2 accepted of 3, and of none of 2."""
    run = Strayed((7, 7, 7), (), (1, 2, 3, 4, 5, 6), 0, 3, rounds=((3, 3, 2), (6, 2, 0)))
    assert [(p.first, p.rejected_before) for p in run.places] == [(1, 0), (4, 1)]
    assert run.place_of(0) is None
    assert [run.places.index(place) for i in (1, 2, 3, 4) if (place := run.place_of(i))] == [0, 0, 0, 1]
    assert [run.places[0].is_own(i) for i in (1, 2, 3)] == [False, False, True]


def test_an_engine_that_counts_rejected_rows_too_is_understood() -> None:
    found = places([(3, 3, 1), (7, 3, 0), (11, 3, 3)], 3, 9)
    assert [p.first for p in found] == [1, 3, 4]
