"""Toy engines that draft and verify by a loop of their own, each with one planted fault or none.

The trunk is `ToyTrunk`; what is drafted is the truth with errors here and there, so that drafts are accepted and
rejected. A fault sits where a real one would: in the forward of wide batches, the comparison, the rollback, the
positions, the end, or between sequences.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from stub_heads import next_token
from torch import Tensor
from toy_models import VOCABULARY, ToyTrunk, noise

from nextn.runtime.engines.engine import Asked, Continuation, Outcome, Prompts
from nextn.runtime.identity.prompts import TOGETHER, Prompt
from nextn.runtime.model import Chunk
from nextn.runtime.state import State

# These two tie almost always, and the first is said often: a fault of rounding can only show there.
TIED = (22, 9)


def tied_trunk(seed: int = 6, apart: float = 2e-4) -> ToyTrunk:
    """A trunk that cannot tell two tokens apart but by the last bits."""
    trunk = ToyTrunk(seed)
    first, second = TIED
    trunk.output.values[second] = trunk.output.values[first] + apart * noise(seed, trunk.output.values.shape[1])
    trunk.embedding[second] = trunk.embedding[first]
    return trunk


def wide(trunk: ToyTrunk) -> ToyTrunk:
    """The same trunk in float64."""
    copy = ToyTrunk()
    vars(copy).update(vars(trunk))
    copy.dtype = torch.float64
    return copy


def drafted(trunk: ToyTrunk, tokens: Sequence[int], count: int, errs: int) -> list[int]:
    """What a head drafts behind tokens: the truth, but for one place in `errs`, by a number made of what is before."""
    found: list[int] = []
    for _ in range(count):
        context = (*tokens, *found)
        token = next_token(trunk, context)
        mixed = hash(context) % 9973
        found.append((token + 1 + mixed % (VOCABULARY - 1)) % VOCABULARY if mixed % errs == 0 else token)
    return found


@dataclass
class Growing:
    """One sequence while it is continued."""

    prompt: list[int]
    state: State
    said: list[int] = field(default_factory=list)
    rounds: list[tuple[int, int, int]] = field(default_factory=list)
    stop: str = ""
    rejected: int = 0

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.said]


@dataclass
class ToyEngine:
    """Greedy continuation with drafts that err once in `errs` places; methods are where faults are planted."""

    trunk: ToyTrunk = field(default_factory=ToyTrunk)
    errs: int = 5
    ends: tuple[int, ...] = (0,)
    name: str = "toy"
    context: int | None = None
    tells_rounds: bool = True

    def describe(self) -> dict[str, str]:
        return {"version": "toy", "vocabulary": str(VOCABULARY)}

    def close(self) -> None:
        pass

    def run(self, prompts: Prompts, asked: Asked) -> Outcome:
        return Outcome("ok", "", tuple(self.continued([prompt], asked)[0] for prompt in prompts))

    def run_together(self, prompts: Prompts, asked: Asked) -> Outcome | None:
        return Outcome("ok", "", tuple(self.continued(prompts, asked)))

    def continued(self, prompts: Prompts, asked: Asked) -> list[Continuation]:
        sequences = [Growing(list(prompt), self.trunk.new_state()) for prompt in prompts]
        for each in sequences:
            hidden = self.trunk.forward([Chunk(each.state, each.prompt)])
            self.say(each, [self.choose(self.trunk.logits(hidden[-1:])[0])], [], asked)
        while active := [each for each in sequences if not each.stop]:
            for each in active:
                self.round(each, sequences, asked)
        return [self.continuation(each) for each in sequences]

    def continuation(self, each: Growing) -> Continuation:
        rounds = tuple(each.rounds)
        counts = sum(m for _, m, _ in rounds), sum(a for _, _, a in rounds)
        return Continuation(tuple(each.said), each.stop, *counts, rounds=rounds if self.tells_rounds else None)

    def round(self, each: Growing, sequences: Sequence[Growing], asked: Asked) -> None:
        room = asked.n_predict - len(each.said) - 1
        draft = drafted(self.trunk, each.tokens, min(asked.n_max, room), self.errs)
        before = each.state.length
        hidden = self.verify(each, [each.said[-1], *draft], sequences)
        chosen = [self.choose(row) for row in self.logits(hidden)]
        accepted = self.accept(draft, chosen)
        if draft:
            each.rounds.append((before, len(draft), accepted))
        self.roll_back(each, before, accepted, len(draft))
        self.say(each, [*draft[:accepted], chosen[accepted]], draft, asked)

    def verify(self, each: Growing, batch: Sequence[int], _: Sequence[Growing]) -> Tensor:
        return self.trunk.forward([Chunk(each.state, batch)])

    def logits(self, hidden: Tensor) -> Tensor:
        return self.trunk.logits(hidden)

    def choose(self, logits: Tensor) -> int:
        return int(logits.argmax())

    def accept(self, draft: Sequence[int], chosen: Sequence[int]) -> int:
        place = 0
        while place < len(draft) and draft[place] == chosen[place] and chosen[place] not in self.ends:
            place += 1
        return place

    def roll_back(self, each: Growing, before: int, accepted: int, submitted: int) -> None:
        each.rejected += submitted - accepted
        each.state.truncate(before + 1 + accepted)

    def say(self, each: Growing, tokens: Sequence[int], _: Sequence[int], asked: Asked) -> None:
        for token in tokens:
            each.said.append(token)
            if token in self.ends:
                each.stop = "eos"
            elif len(each.said) == asked.n_predict:
                each.stop = "limit"
            if each.stop:
                return


@dataclass
class RoundsByWidth(ToyEngine):
    """Logits of a batch of at least `width` rows are rounded otherwise, by about `by`."""

    width: int = 2
    by: float = 2e-3

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        return logits if len(hidden) < self.width else logits + self.by * noise(len(hidden), *logits.shape)


class AcceptsOneMore(ToyEngine):
    """The first rejected token is accepted too."""

    def accept(self, draft: Sequence[int], chosen: Sequence[int]) -> int:
        return min(super().accept(draft, chosen) + 1, len(draft))


class AcceptsLastUnseen(ToyEngine):
    """The last token of a draft is not compared."""

    def accept(self, draft: Sequence[int], chosen: Sequence[int]) -> int:
        right = super().accept(draft, chosen)
        return len(draft) if draft and right == len(draft) - 1 else right


class SkipsOne(ToyEngine):
    """The last token of a draft that is accepted as a whole is not said, though the trunk has read it."""

    def say(self, each: Growing, tokens: Sequence[int], draft: Sequence[int], asked: Asked) -> None:
        whole = draft and len(tokens) == len(draft) + 1
        super().say(each, [*tokens[:-2], tokens[-1]] if whole else tokens, draft, asked)


class KeepsRecurrent(ToyEngine):
    """Recurrent and convolution states are not taken back with the rows of the attention."""

    def roll_back(self, each: Growing, before: int, accepted: int, submitted: int) -> None:
        newest = {name: trail.at(before + 1 + submitted) for name, trail in each.state.trails.items()}
        super().roll_back(each, before, accepted, submitted)
        for name, trail in each.state.trails.items():
            trail.put(before + 1 + accepted, newest[name])


class KeepsRows(ToyEngine):
    """Nothing is taken back."""

    def roll_back(self, each: Growing, before: int, accepted: int, submitted: int) -> None:
        pass


class KeepsPosition(ToyEngine):
    """States go back, the position does not."""

    def roll_back(self, each: Growing, before: int, accepted: int, submitted: int) -> None:
        position = each.state.position
        super().roll_back(each, before, accepted, submitted)
        each.state.position = position


@dataclass
class ShiftsPosition(ToyEngine):
    """Rows of verified batches stand `by` positions from where they belong; with `drift` more so with each round."""

    by: int = 1
    drift: bool = False

    def verify(self, each: Growing, batch: Sequence[int], _: Sequence[Growing]) -> Tensor:
        if len(batch) > 1 and (self.drift or not each.rounds):
            each.state.position += self.by
        return super().verify(each, batch, _)


class GoesOnBehindEnd(ToyEngine):
    """An end token that was drafted ends nothing."""

    def accept(self, draft: Sequence[int], chosen: Sequence[int]) -> int:
        place = 0
        while place < len(draft) and draft[place] == chosen[place]:
            place += 1
        return place

    def say(self, each: Growing, tokens: Sequence[int], draft: Sequence[int], asked: Asked) -> None:
        for place, token in enumerate(tokens):
            each.said.append(token)
            if token in self.ends and not (place < len(draft) and token == draft[place]):
                each.stop = "eos"
            elif len(each.said) == asked.n_predict:
                each.stop = "limit"
            if each.stop:
                return


class DropsEnd(ToyEngine):
    """An end token in a draft is accepted, not shown, and the text goes on behind it."""

    def accept(self, draft: Sequence[int], chosen: Sequence[int]) -> int:
        return GoesOnBehindEnd.accept(self, draft, chosen)  # type: ignore[arg-type]

    def say(self, each: Growing, tokens: Sequence[int], draft: Sequence[int], asked: Asked) -> None:
        kept = [t for i, t in enumerate(tokens) if not (t in self.ends and i < len(tokens) - 1)]
        super().say(each, kept, draft, asked)


class SaysTooMuch(ToyEngine):
    """All of an accepted draft is said, whatever the limit was."""

    def round(self, each: Growing, sequences: Sequence[Growing], asked: Asked) -> None:
        super().round(each, sequences, Asked(asked.n_max, asked.n_predict + (asked.n_max > 1)))


class BreaksTies(ToyEngine):
    """Of two tokens that tie almost, one is taken at random."""

    def choose(self, logits: Tensor) -> int:
        best = logits.topk(2)
        if best.values[0] - best.values[1] < 0.3:
            return int(best.indices[int(random.random() < 0.5)])  # noqa: S311 - this is the fault
        return super().choose(logits)


class Leaks(ToyEngine):
    """With others beside it a sequence that drafts gets the recurrent states of its neighbour."""

    def verify(self, each: Growing, batch: Sequence[int], sequences: Sequence[Growing]) -> Tensor:
        hidden = super().verify(each, batch, sequences)
        others = [other for other in sequences if other is not each]
        if others and len(batch) > 1:
            other = others[0].state
            for name, trail in each.state.trails.items():
                trail.put(each.state.length, other.trails[name].at(other.length))
        return hidden


def toy_prompts(count: int = 6, seed: int = 3) -> list[Prompt]:
    """Prompts of tokens that end nothing; the last two are also run together."""
    numbers = torch.Generator().manual_seed(seed)
    found = []
    for index in range(count):
        length = 3 + index * 2
        tokens = torch.randint(1, VOCABULARY, (length,), generator=numbers).tolist()
        together = index >= count - 2
        found.append(Prompt(f"p{index}", TOGETHER if together else f"kind{index % 2}", tuple(tokens)))
    return found
