"""What a runtime should accept, by what a probe saw at each place: the rounds of `speculative` without a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Drafts:
    """Tokens of drafts that would be verified, and accepted."""

    n_drafted: int
    n_accepted: int

    @property
    def rate(self) -> float | None:
        """The part that would be accepted; None when nothing would be drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else None


def drafts_of(said: Sequence[int], right: Sequence[int], n_max: int, count: int, ends: Collection[int] = ()) -> Drafts:
    """The drafts behind one prompt that was continued by `said`, of at most `count` tokens.

    `right` has for each token but the last how many tokens of a draft that begins with it are right. Source: `accepted`
    and `_Task` in speculative.py.
    """
    place = drafted = accepted = 0
    while place < len(said) - 1:
        submitted = min(n_max, count - place - 2)
        if submitted <= 0:
            break
        fitting = min(right[place], submitted)
        # An end token ends the round before it is counted, unless it is the last of the draft.
        stops = next((step for step in range(min(fitting, submitted - 1)) if said[place + step + 1] in ends), fitting)
        drafted, accepted = drafted + submitted, accepted + stops
        place += stops + 1
    return Drafts(drafted, accepted)
