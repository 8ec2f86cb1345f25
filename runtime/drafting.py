"""How heads draft: chained ones, each of which drafts one token, or one that is looped.

Source: `draft-mtp` in common/speculative.cpp of llama.cpp b11549.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nextn.runtime.greedy import UBATCH, best
from nextn.runtime.model import Chunk, Heads
from nextn.runtime.session import Session, rows_of

# A probability is one among so many candidates.
CANDIDATES = 10
# llama.cpp drafts on behind what may still be said. That shows in its rounds and changes no count, so it ends here.
DRAFTED_ANYWAY = 16


@dataclass(frozen=True)
class Options:
    """How to draft: tokens at most and at least, and the probability below which a draft ends.

    Chained heads draft one token each; `reuse_last_head` lets the last of them draft on. A draft shorter than `n_min`
    is not used. With `strict` an error of a head is raised; else it is counted, and the text goes on without the draft.
    `ubatch` rows of a prompt go through the model at once. `context` limits the rows of a sequence, said tokens
    included.
    """

    n_max: int = 3
    n_min: int = 0
    p_min: float = 0.0
    reuse_last_head: bool = False
    strict: bool = False
    ubatch: int = UBATCH
    context: int | None = None


@dataclass
class Draft:
    """Tokens drafted behind the one that was sampled last, with their probabilities among the best candidates."""

    tokens: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)


class Drafter:
    """Heads, and how long they draft."""

    def __init__(self, heads: Heads, options: Options) -> None:
        self.heads = heads
        self.p_min, self.n_min = options.p_min, options.n_min
        self.chained = heads.count > 1
        capped = self.chained and not options.reuse_last_head
        # Tokens of a draft at most.
        self.longest = min(options.n_max, heads.count) if capped else options.n_max

    def drafts(self, sessions: Sequence[Session], rooms: Sequence[int] = ()) -> list[Draft]:
        """A draft for each of the sessions, all of them in the same steps; their states count no row of it.

        `rooms` are the tokens of a draft that can be verified: of what is longer, no more is drafted than can matter.
        VerdictError when a head's logits are not numbers.
        """
        most = [max(room, self.n_min, DRAFTED_ANYWAY) for room in rooms or [self.longest] * len(sessions)]
        growing = [_Growing(session) for session in sessions]
        for step in range(self.longest):
            active = [each for each, end in zip(growing, most, strict=True) if not each.ended and step < end]
            if not active:
                break
            head = min(step, self.heads.count - 1)
            chunks = [each.chained_rows() if self.chained else each.newest_row() for each in active]
            hidden = rows_of([len(chunk) for chunk in chunks], self.heads.forward(chunks, head))
            newest = torch.stack([rows[-1] for rows in hidden])
            for each, row, logits in zip(active, newest, self.heads.logits(newest, head), strict=True):
                each.grow(row, logits, self.p_min)
        return [each.draft for each in growing]


class _Growing:
    """A draft while it grows: `tokens` go in, each beside the hidden row of the token before it.

    The first row is the trunk's, the others are what the heads made in the steps before.
    """

    def __init__(self, session: Session) -> None:
        if session.heads is None or session.last is None:
            raise ValueError("a session without heads, or before its prompt, cannot draft")
        self.state = session.heads
        self.tokens, self.hidden = [session.last], [session.pending]
        self.draft = Draft()
        self.ended = False

    def chained_rows(self) -> Chunk:
        """All rows of the draft: the head that is next has none of them yet."""
        return Chunk(self.state, list(self.tokens), hidden=torch.stack(self.hidden), start=self.state.length)

    def newest_row(self) -> Chunk:
        """The last row of the draft: the head has those before from the steps before."""
        start = self.state.length + len(self.tokens) - 1
        return Chunk(self.state, self.tokens[-1:], hidden=self.hidden[-1][None], start=start)

    def grow(self, row: Tensor, logits: Tensor, p_min: float) -> None:
        """Take the best token of logits [vocabulary], unless it is too improbable, and its hidden row."""
        [token], probability = best(logits[None], "draft head"), probability_of_best(logits)
        if probability < p_min:
            self.ended = True
            return
        self.draft.tokens.append(token)
        self.draft.probabilities.append(probability)
        self.tokens.append(token)
        self.hidden.append(row)


def probability_of_best(logits: Tensor) -> float:
    """The probability of the largest of logits [vocabulary], among the ten largest."""
    return float(torch.softmax(logits.topk(min(CANDIDATES, len(logits))).values, dim=0)[0])
