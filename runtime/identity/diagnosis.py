"""What is wrong with a head, by how it guesses as it is, under each correction, and with hidden rows of elsewhere.

A correction that restores a head names its fault. When none does, the trunk's hidden rows tell whether the head belongs
to the trunk, and its matrices whether it was ever trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nextn.runtime.identity.corrections import HIDDEN, MISSING, SURE, SWAPPED, TWICE
from nextn.runtime.identity.noise import Spectra
from nextn.validators.findings import Findings

# What a head that fits its trunk guesses right at least; and what a fault must cost to be an error.
FITS, COSTLY = 0.5, 0.1
# Corrections do equally well when they differ by less than this: of those that the weights speak for, or else of all,
# the first is believed.
SAME = 0.02
# A head that fits loses less than this from the first position of a draft to a later one, given true tokens.
LATE = 0.5

WRONG = {
    MISSING: "as if the 1 of 1 + w was not added",
    TWICE: "as if a 1 was added once too often",
    SWAPPED: "as if its halves were joined in the wrong order: the embedding comes first",
    HIDDEN: "as if the head was trained with hidden rows on the other side of the trunk's output norm",
}
REMEDY = {
    MISSING: "convert the head again; nextn convert adds the 1 where the family stores norms without it",
    TWICE: "convert the head again; nextn convert adds the 1 once, and only where the family stores norms without it",
    SWAPPED: "convert the head again; nextn convert joins the halves in the right order",
    HIDDEN: "give the head the rows of the other side, or convert the head of this very model",
}


@dataclass(frozen=True)
class Tried:
    """The head otherwise than it is: the part of first guesses that are then right, and how many became so, or wrong.

    `fault`, `where` and `needed` are those of the correction.
    """

    fault: str
    where: str
    right: float
    gained: int
    lost: int
    needed: float = SURE

    @property
    def sigmas(self) -> float:
        """How far more guesses became right than wrong, in standard deviations of chance (McNemar's test)."""
        changed = self.gained + self.lost
        return (self.gained - self.lost) / changed**0.5 if changed else 0.0

    @property
    def restores(self) -> bool:
        """Whether the head then fits its trunk, and chance does not explain it."""
        return self.right >= FITS and self.sigmas >= self.needed


@dataclass(frozen=True)
class Scored:
    """A head as it is: the part of guesses that are right at each position, and that the most frequent token would be.

    `elsewhere` is the head with the hidden rows of other places. `alike` is the cosine between a token's rows in both
    files' embeddings, None when the head borrows the trunk's.
    """

    right: tuple[float, ...]
    chance: float
    elsewhere: Tried
    alike: float | None
    spectra: Spectra

    @property
    def is_at_home(self) -> bool:
        """Whether the trunk's hidden rows help it: they mean nothing to the head of another model."""
        return -self.elsewhere.sigmas >= SURE


def diagnosed(scored: Scored, tried: Sequence[Tried], subject: str) -> Findings:
    """The fault that a correction undoes; else what a head is that does not fit. Nothing for one that does."""
    findings = Findings()
    helping = [each for each in tried if each.restores]
    if helping:
        best = max(each.right for each in helping)
        _add_fault(next(each for each in helping if each.right >= best - SAME), scored.right[0], subject, findings)
    elif scored.right[0] < FITS:
        _add_unknown(scored, subject, findings)
    else:
        _add_late(scored.right, subject, findings)
    return findings


def _add_fault(found: Tried, right: float, subject: str, findings: Findings) -> None:
    """A head that a correction makes fit."""
    change = f"corrected, {found.right:.1%} of first guesses are right, as it is {right:.1%}"
    add = findings.error if found.right - right >= COSTLY else findings.warn
    add(f"head-{found.fault}", subject, f"{found.where}: {WRONG[found.fault]}; {change}", REMEDY[found.fault])


def _add_unknown(scored: Scored, subject: str, findings: Findings) -> None:
    """A head that no correction makes fit."""
    guesses = f"{scored.right[0]:.0%} of first guesses are right, {scored.chance:.0%} by one token always"
    elsewhere = f"{scored.elsewhere.right:.0%} with the hidden rows of other places"
    if scored.spectra.is_noise:
        message = f"{guesses}; its {scored.spectra.looked_at} matrices are as noise of their sizes: it was not trained"
        findings.error("head-random", subject, message, "get a checkpoint whose head was trained, and convert that")
    elif not scored.is_at_home:
        message = f"{guesses}, {elsewhere}: it was trained, but makes nothing of this trunk's hidden rows"
        if scored.alike is not None:
            message += f"; the embeddings of both files have a cosine of {scored.alike:.2f}"
        remedy = "give the head of the same checkpoint; if it is, it has a fault that the probe does not know"
        findings.error("head-foreign", subject, message, remedy)
    else:
        message = f"{guesses}, {elsewhere}: it belongs to this trunk, but is weak"
        findings.warn("head-weak", subject, message, "compare it with one in a wider type")


def _add_late(right: Sequence[float], subject: str, findings: Findings) -> None:
    """A head that guesses right at first, and later does not."""
    for step, part in enumerate(right):
        if part < right[0] * LATE:
            message = f"{part:.0%} of guesses at position {step + 1} are right, {right[0]:.0%} at position 1"
            remedy = "look at the block of that head, or at the rows that a looped head hands on"
            findings.warn("head-late", subject, message, remedy)
            return
