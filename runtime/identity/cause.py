"""Why a text changed when it was drafted: what the places of its wrong tokens say.

The trunk's own token of a round follows from everything that is in its state; an accepted token from a comparison. So:
* only accepted tokens are wrong, and the trunk is right about all that was said: the comparison is wrong;
* all is right up to the first round behind a rejected draft: something of the rejected rows is left;
* the reference runtime says the same when its rows stand elsewhere: positions are wrong;
* wrong before anything was rejected, or only from some draft length on: rows of a wide batch are computed otherwise;
* wrong only beside other sequences, or what belongs behind another prompt: something of theirs leaked;
* equal up to an end token or the limit: what ends a text is wrong.
Source: cases I03 and I04, R14, R18.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nextn.gguf_schema.errors import counted
from nextn.runtime.identity.certificate import Cause
from nextn.runtime.identity.replay import shift_of
from nextn.runtime.identity.rescore import Rescorer
from nextn.runtime.identity.strayed import Place, Strayed

# More tokens than these behind a place show whether one was left out there, or said twice.
RESUMED = 4


@dataclass(frozen=True)
class Kept:
    """A drafted run that said what the plain one said."""

    n_max: int
    places: Sequence[Place]


@dataclass(frozen=True)
class Evidence:
    """All drafted runs of an engine: those that strayed, by more than a near tie, and those that did not."""

    strayed: Sequence[Strayed]
    kept: Sequence[Kept]
    n_predict: int
    bound: float
    rescorer: Rescorer | None

    @property
    def knows_rounds(self) -> bool:
        """Whether the engine told what it drafted in every run that strayed."""
        return all(run.rounds is not None for run in self.strayed)

    @property
    def threshold(self) -> int | None:
        """The shortest draft with which a text strays, when shorter ones never do."""
        lengths = {run.n_max for run in self.strayed}
        shorter = {run.n_max for run in self.kept} - lengths
        return min(lengths) if any(n < min(lengths) for n in shorter) else None


# What speaks for a cause, in words; None when something speaks against it.
Test = Callable[[Evidence], str | None]


def cause_of(evidence: Evidence) -> tuple[Cause, str]:
    """The cause of the runs that strayed, and what speaks for it."""
    alone = [run for run in evidence.strayed if run.together == 1]
    if not alone:
        return "leak", f"every prompt alone is right; {counted(len(evidence.strayed), 'run')} beside others strayed"
    evidence = Evidence(alone, evidence.kept, evidence.n_predict, evidence.bound, evidence.rescorer)
    for cause, test in TESTS:
        if (told := test(evidence)) is not None:
            return cause, told
    return "unknown", depth_test(alone)


def _of_others(evidence: Evidence) -> str | None:
    """Every text is the one that belongs behind another prompt."""
    plain = {run.plain: run.prompt for run in evidence.strayed if len(run.plain) > RESUMED}
    if all(plain.get(run.drafted, run.prompt) != run.prompt for run in evidence.strayed):
        return "each text is the plain one of another prompt"
    return None


def _at_an_end(evidence: Evidence) -> str | None:
    """Every stream is right as far as it goes, and ends at the wrong place."""
    if all(_ends_wrongly(run, evidence) for run in evidence.strayed):
        return "the texts differ only in where they end"
    return None


def _ends_wrongly(run: Strayed, evidence: Evidence) -> bool:
    if run.index == min(len(run.plain), len(run.drafted)) or len(run.drafted) > evidence.n_predict:
        return True
    at_end = run.plain_stopped and run.index == len(run.plain) - 1
    if not at_end or evidence.rescorer is None:
        return False
    # What is said in the place of the end token is what would follow it.
    return evidence.rescorer.best(run.prompt, [*run.plain, 0])[-1] == run.drafted[run.index]


def _accepted_wrongly(evidence: Evidence) -> str | None:
    """What is wrong was drafted, and the trunk is right about everything that was said."""
    thinned = {_skips_or_repeats(run) for run in evidence.strayed} - {None}
    if thinned == {True}:
        return "the text goes on as before, behind a token that is missing or said twice"
    if not evidence.knows_rounds:
        return None
    # Without the reference runtime only the first place is known to be wrong.
    wrong = [
        (run.place_of(index), index)
        for run in evidence.strayed
        for index in ((run.index,) if run.wrong is None else run.wrong)
    ]
    if wrong and all(place is not None and not place.is_own(index) for place, index in wrong):
        number = counted(len(wrong), "wrong token")
        return f"{number}, each drafted and accepted, and the trunk's own tokens all right"
    return None


def _skips_or_repeats(run: Strayed) -> bool | None:
    """Whether single tokens were left out, or said twice; None where too little follows to see it."""
    rest, said = run.plain[run.index :], run.drafted[run.index :]
    if min(len(rest), len(said)) <= RESUMED:
        return None
    return _is_thinned(rest, said) or (said[0] == run.drafted[run.index - 1] and _is_thinned(said, rest))


def _is_thinned(whole: Sequence[int], part: Sequence[int]) -> bool:
    """Whether a stream is another one without some of its tokens, never two in a row, as far as the other one goes."""
    # Where the next token may stand: equal tokens can be taken for each other.
    nexts = {0}
    for token in part:
        if max(nexts) >= len(whole) - 1:
            return True
        nexts = {at + 1 for next_ in nexts for at in (next_, next_ + 1) if token in whole[at : at + 1]}
        if not nexts:
            return False
    return True


def _elsewhere(evidence: Evidence) -> str | None:
    """The reference runtime says the same with its rows at other positions."""
    if evidence.rescorer is None:
        return None
    shift = shift_of(evidence.rescorer.trunk, evidence.strayed, evidence.bound)
    return f"the reference runtime says the same when {shift.told}" if shift else None


def _after_rejection(evidence: Evidence) -> str | None:
    """Nothing is wrong before a draft was rejected, in any run."""
    if not evidence.knows_rounds or any(run.wrong == () for run in evidence.strayed):
        return None
    behind = [_most_rejected(run.places, run.first_wrong) for run in evidence.strayed]
    if not all(behind):
        return None
    if evidence.threshold is not None:
        # Shorter drafts were rejected too, and did no harm: only going back farther could.
        harmless = max((_most_rejected(run.places) for run in evidence.kept), default=0)
        if min(behind) <= harmless:
            return None
    return f"all {len(behind)} runs are right up to a round behind a rejected draft"


def _most_rejected(rounds: Sequence[Place], index: int | None = None) -> int:
    """The most rows that one round rejected; of those before the one that the token at a place is of."""
    before = [p for p in rounds if index is None or p.first + p.accepted < index]
    return max((p.submitted - p.accepted for p in before), default=0)


def _in_wide_batches(evidence: Evidence) -> str | None:
    """Wrong from some draft length on, or before anything was rejected."""
    if all(run.wrong == () for run in evidence.strayed):
        return "the reference runtime agrees with the drafted texts: single rows are computed otherwise"
    if evidence.threshold is not None:
        return f"no text strays with drafts shorter than {evidence.threshold}"
    if evidence.knows_rounds:
        return "tokens are wrong before any draft was rejected"
    return None


def depth_test(runs: Sequence[Strayed]) -> str:
    """What the first different place of each prompt says when drafts are longer (case I04)."""
    if _moves(runs):
        return (
            "the first different place moves with the draft length, which by itself speaks for rollback or acceptance"
        )
    if len({run.n_max for run in runs}) > 1:
        return "the first different place does not move with the draft length, which by itself speaks for numerics"
    return "one draft length alone strays: whether the place would move cannot be seen"


def _moves(runs: Sequence[Strayed]) -> bool:
    found: dict[tuple[int, ...], set[int]] = {}
    for run in runs:
        found.setdefault(run.prompt, set()).add(run.index)
    return any(len(places) > 1 for places in found.values())


TESTS: tuple[tuple[Cause, Test], ...] = (
    ("leak", _of_others),
    ("token_limit", _at_an_end),
    ("accept", _accepted_wrongly),
    ("position", _elsewhere),
    ("rollback", _after_rejection),
    ("width", _in_wide_batches),
)
