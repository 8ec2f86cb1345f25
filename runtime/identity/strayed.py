"""A run that said something else than the plain one, and where in its rounds each of its tokens was said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise


@dataclass(frozen=True)
class Place:
    """One round: the place of its first token in the stream, tokens verified and accepted, and rejected before it.

    The accepted tokens of the draft come first, then the trunk's own.
    """

    first: int
    submitted: int
    accepted: int
    rejected_before: int

    def is_own(self, index: int) -> bool:
        """Whether the token at a place of the stream was the trunk's own, and not of the draft."""
        return index == self.first + self.accepted


@dataclass(frozen=True)
class Strayed:
    """A prompt, what was said behind it without and with a draft, and the first place where they differ.

    `plain_stopped` tells whether an end token ended the plain one. `rounds` has (rows before, submitted, accepted)
    of each draft, None when the engine does not say. `wrong` are the places at which the reference runtime would have
    said something else than the drafted stream, given what that has said before; None when it was not asked.
    """

    prompt: tuple[int, ...]
    plain: tuple[int, ...]
    drafted: tuple[int, ...]
    index: int
    n_max: int
    together: int = 1
    plain_stopped: bool = False
    rounds: tuple[tuple[int, int, int], ...] | None = None
    wrong: tuple[int, ...] | None = None

    @property
    def first_wrong(self) -> int:
        """The first place that is certainly wrong."""
        return self.wrong[0] if self.wrong else self.index

    @cached_property
    def places(self) -> list[Place]:
        """The rounds; none when they are not known."""
        return places(self.rounds or (), len(self.prompt), len(self.drafted))

    def place_of(self, index: int) -> Place | None:
        """The round in which the token at a place was said; None for one that was not behind a draft."""
        return next((p for p in self.places if p.first <= index <= p.first + p.accepted), None)


def places(rounds: Sequence[tuple[int, int, int]], prompt_rows: int, said: int) -> list[Place]:
    """Where in a stream the rounds stand.

    An engine whose count of rows does not fit what it said has lost count of them; then rounds follow each other.
    """
    starts = [rows - prompt_rows + 1 for rows, _, _ in rounds]
    overlap = any(b < a + accepted + 1 for (a, b), (_, _, accepted) in zip(pairwise(starts), rounds, strict=False))
    if starts and (overlap or starts[0] < 1 or starts[-1] >= said):
        starts = [1]
        for _, _, accepted in rounds[:-1]:
            starts.append(starts[-1] + accepted + 1)
    found, rejected = [], 0
    for start, (_, submitted, accepted) in zip(starts, rounds, strict=True):
        found.append(Place(start, submitted, accepted, rejected))
        rejected += submitted - accepted
    return found


def first_difference(without: Sequence[int], with_: Sequence[int]) -> int | None:
    """The first place at which two streams differ, the end of the shorter included; None when they are equal."""
    for index, (a, b) in enumerate(zip(without, with_, strict=False)):
        if a != b:
            return index
    return None if len(without) == len(with_) else min(len(without), len(with_))
