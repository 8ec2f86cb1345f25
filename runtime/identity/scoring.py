"""How well heads foretell what the trunk says, without a runtime: they are given the true tokens, whatever they guess.

A place is a token that the trunk said, and that a draft would begin with. At each position of the draft the heads are
asked for the token behind; they are given the trunk's hidden row once, and their own from then on, as in `drafting`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nextn.runtime.drafting import Options
from nextn.runtime.greedy import UBATCH, forwards
from nextn.runtime.model import Chunk, Heads, Trunk
from nextn.runtime.session import rows_of
from nextn.runtime.speculative import Speculator
from nextn.runtime.state import State

# Rows whose logits are in memory at once: a row of a large vocabulary takes half a megabyte.
LOGIT_ROWS = 64
Rows = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Stream:
    """Tokens of a prompt and what the trunk said behind it, from place `start` on; its hidden rows [tokens, width]."""

    tokens: tuple[int, ...]
    start: int
    hidden: Tensor

    @property
    def places(self) -> range:
        """The tokens that a draft begins with and that one follows."""
        return range(self.start, len(self.tokens) - 1)

    def before(self, rows: Rows) -> Tensor:
        """What a head takes beside each token but the last: the hidden row of the one before, zeros for the first."""
        return torch.cat((torch.zeros_like(self.hidden[:1]), rows(self.hidden[:-2])))


@dataclass(frozen=True)
class Guesses:
    """How the true token fared at each place that has one: its rank (0: it would be drafted), its log-probability."""

    rank: tuple[int, ...]
    log_probability: tuple[float, ...]

    @property
    def hits(self) -> list[bool]:
        """Whether it would have been drafted."""
        return [rank == 0 for rank in self.rank]

    @property
    def rate(self) -> float:
        """The part of the places at which it would have been drafted."""
        return sum(self.hits) / len(self.rank)

    @property
    def mean_log_probability(self) -> float:
        """Of the true token, over all places."""
        return sum(self.log_probability) / len(self.log_probability)


def said_by(trunk: Trunk, prompts: Sequence[Sequence[int]], count: int, ends: Collection[int] = ()) -> list[Stream]:
    """What a trunk says greedily behind prompts, up to `count` tokens each, with its hidden rows."""
    speculator = Speculator(trunk, None, Options(n_max=0))
    streams = []
    for prompt in prompts:
        [run] = speculator.generate([prompt], count, ends)
        streams.append(stream_of(trunk, prompt, run.tokens))
    return streams


def stream_of(trunk: Trunk, prompt: Sequence[int], said: Sequence[int], ubatch: int = UBATCH) -> Stream:
    """A prompt and what was said behind it, with a trunk's hidden rows."""
    tokens = (*prompt, *said)
    return Stream(tokens, len(prompt), torch.cat(list(forwards(trunk, trunk.new_state(1), tokens, ubatch))))


def unchanged(rows: Tensor) -> Tensor:
    """The hidden rows as they are."""
    return rows


def first_position(heads: Heads, streams: Sequence[Stream], rows: Rows = unchanged) -> Guesses:
    """The first position of drafts at all places, in one forward; `rows` is done to the trunk's hidden rows."""
    chunks = [Chunk(heads.new_state(), s.tokens[:-1], hidden=s.before(rows)) for s in streams]
    hidden = rows_of([len(chunk) for chunk in chunks], heads.forward(chunks, 0))
    wanted = torch.cat([part[s.start :] for part, s in zip(hidden, streams, strict=True)])
    return _guesses(heads, wanted, 0, [s.tokens[place + 1] for s in streams for place in s.places])


def all_positions(heads: Heads, streams: Sequence[Stream], longest: int, rows: Rows = unchanged) -> list[Guesses]:
    """Each position of drafts of `longest` tokens: at all places, of which there are fewer for later positions.

    `rows` is done to the trunk's hidden rows, and to those that the heads hand on.
    """
    found: list[tuple[list[Tensor], list[int]]] = [([], []) for _ in range(longest)]
    for stream in streams:
        beside = stream.before(rows)
        state = heads.new_state()
        heads.catch_up([Chunk(state, stream.tokens[: stream.start], hidden=beside[: stream.start])])
        for place in stream.places:
            given = [beside[place]]
            for step in range(min(longest, len(stream.tokens) - 1 - place)):
                made = heads.forward([_drafted(heads, state, stream, place, step, given)], min(step, heads.count - 1))
                found[step][0].append(made[-1])
                found[step][1].append(stream.tokens[place + step + 1])
                given.append(rows(made[-1:])[0])
            heads.catch_up([Chunk(state, stream.tokens[place : place + 1], hidden=beside[place : place + 1])])
    return [
        _guesses(heads, torch.stack(made), min(step, heads.count - 1), true)
        for step, (made, true) in enumerate(found)
        if made
    ]


def _drafted(heads: Heads, state: State, stream: Stream, place: int, step: int, given: list[Tensor]) -> Chunk:
    """The rows of one step: a chained head has none of the draft's rows yet, a looped one all but the last."""
    first = 0 if heads.count > 1 else step
    tokens = stream.tokens[place + first : place + step + 1]
    return Chunk(state, tokens, hidden=torch.stack(given[first:]), start=state.length + first)


def _guesses(heads: Heads, hidden: Tensor, head: int, true: Sequence[int]) -> Guesses:
    ranks: list[int] = []
    probabilities: list[float] = []
    for at in range(0, len(true), LOGIT_ROWS):
        logits = heads.logits(hidden[at : at + LOGIT_ROWS], head)
        ids = torch.tensor(true[at : at + LOGIT_ROWS], device=logits.device)[:, None]
        own = logits.gather(1, ids)
        # Of equal logits the one with the lowest id is drafted.
        ahead = (logits > own) | ((logits == own) & (torch.arange(logits.shape[1], device=logits.device) < ids))
        ranks += ahead.sum(1).tolist()
        probabilities += torch.log_softmax(logits.float(), 1).gather(1, ids)[:, 0].tolist()
    return Guesses(tuple(ranks), tuple(probabilities))
