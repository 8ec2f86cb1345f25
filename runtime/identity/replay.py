"""Replays: whether a stream is what the reference runtime says when its rows stand at other positions.

A fault of positions cannot be told from other faults of the trunk by looking at a stream; it can by repeating it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nextn.runtime.identity.strayed import Strayed
from nextn.runtime.model import Chunk, Trunk

# A replay explains streams when at most this part of what was wrong stays wrong.
UNEXPLAINED = 0.1
# One token may be right by chance; so many places must have been wrong before.
FEWEST_PLACES = 3
# Streams that are replayed: more would only take longer.
REPLAYED = 6


@dataclass(frozen=True)
class Shift:
    """Positions of the rows of each round: `constant`, and more for each round and each rejected row before it."""

    told: str
    constant: int = 0
    by_round: int = 0
    by_rejected: int = 0

    def parts(self, run: Strayed) -> list[tuple[int, int]]:
        """(First row, shift) of the prompt and of what was said behind it, round by round."""
        parts, rejected = [(0, 0), (len(run.prompt), self.constant)], 0
        for number, place in enumerate(run.places):
            shift = self.constant + self.by_round * (number + 1) + self.by_rejected * rejected
            parts.append((len(run.prompt) + place.first - 1, shift))
            rejected += place.submitted - place.accepted
        return parts


SHIFTS = (
    *(Shift(f"every row behind the prompt stands {by:+d} from where it belongs", by) for by in (1, -1, 2, 3, 4, 5)),
    Shift("positions go up by one more with every round", by_round=1),
    Shift("positions of rejected rows are not given back", by_rejected=1),
)


def shift_of(trunk: Trunk, runs: Sequence[Strayed], bound: float) -> Shift | None:
    """The shift under which the reference runtime says what the streams say; None when there is none."""
    # Those with the most wrong places tell the hypotheses apart best.
    runs = sorted((run for run in runs if run.wrong), key=lambda run: -len(run.wrong or ()))[:REPLAYED]
    wrong = sum(len(run.wrong or ()) for run in runs)
    if wrong < FEWEST_PLACES:
        return None
    left = {shift: sum(_wrong_places(trunk, run, shift, bound) for run in runs) for shift in SHIFTS}
    best = min(left, key=lambda shift: left[shift])
    return best if left[best] <= UNEXPLAINED * wrong else None


def _wrong_places(trunk: Trunk, run: Strayed, shift: Shift, bound: float) -> int:
    logits = torch.cat(list(_logits(trunk, run, shift)))[len(run.prompt) - 1 :]
    tokens = torch.tensor(run.drafted, device=logits.device)
    said = logits.gather(1, tokens[:, None])[:, 0]
    return int((logits.max(dim=1).values - said > bound).sum())


def _logits(trunk: Trunk, run: Strayed, shift: Shift) -> Iterator[Tensor]:
    """Logits behind each row, with the rows of each part moved."""
    state = trunk.new_state()
    rows = [*run.prompt, *run.drafted[:-1]]
    parts, moved = shift.parts(run), 0
    for (start, by), (end, _) in zip(parts, [*parts[1:], (len(rows), 0)], strict=True):
        if rows[start:end]:
            state.position += by - moved
            moved = by
            yield trunk.logits(trunk.forward([Chunk(state, rows[start:end])]))
