"""Heads that draft what a test wants: always right, always wrong, by chance, failing; and that record what they see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor
from toy_models import CONTENTS, VOCABULARY, WIDTH, ToyTrunk

from nextn.gguf_schema.contents import Contents
from nextn.runtime.model import Chunk
from nextn.runtime.state import Rows, State


@dataclass(frozen=True)
class Asked:
    """What a head is asked: the tokens that it sees, of which `step` + 1 are not counted."""

    tokens: tuple[int, ...]
    hidden: Tensor
    step: int
    head: int


# The token to draft, and its probability among the ten best.
Guess = Callable[[Asked], int | tuple[int, float]]


@dataclass
class StubHeads:
    """Heads that draft what `guess` says of what their caches hold; all that they were asked is in `asked`."""

    guess: Guess
    count: int = 1
    hidden_width: int = WIDTH
    vocabulary: int = VOCABULARY
    catch_up_fails: int | None = None
    contents: Contents = CONTENTS
    asked: list[Asked] = field(default_factory=list)
    caught_up: int = 0

    def new_state(self) -> State:
        rows = {f"tokens.{k}": Rows((), torch.int64) for k in range(self.count)}
        return State(rows | {f"hidden.{k}": Rows((self.hidden_width,), torch.float32) for k in range(self.count)})

    def catch_up(self, chunks: Sequence[Chunk]) -> None:
        self.caught_up += 1
        if self.caught_up == self.catch_up_fails:
            raise RuntimeError("no room in the cache")
        for head in range(self.count):
            self._write(chunks, head)
        for chunk in chunks:
            chunk.advance()

    def forward(self, chunks: Sequence[Chunk], head: int) -> Tensor:
        self._write(chunks, head)
        rows = []
        for chunk in chunks:
            for end in range(chunk.first + 1, chunk.first + len(chunk) + 1):
                seen = chunk.state.rows[f"tokens.{head}"].first(end).tolist()
                hidden = chunk.state.rows[f"hidden.{head}"].first(end).clone()
                rows.append(Asked(tuple(seen), hidden, end - chunk.state.length - 1, head))
            self.asked.append(rows[-1])
        return torch.stack([self._hidden(asked) for asked in rows])

    def _hidden(self, asked: Asked) -> Tensor:
        """A row that says which token to draft, how probable it is, and which head made it at which place."""
        said = self.guess(asked)
        token, probability = said if isinstance(said, tuple) else (said, 0.99)
        told = torch.tensor([token, probability, asked.head, len(asked.tokens)], dtype=torch.float32)
        return torch.cat((told, torch.zeros(self.hidden_width - len(told))))

    def logits(self, hidden: Tensor, head: int) -> Tensor:
        """The drafted token has its probability, nine others share the rest, all else is far below."""
        logits = torch.full((len(hidden), self.vocabulary), -100.0)
        for row, (token, probability) in zip(logits, hidden[:, :2], strict=True):
            others = [i for i in range(10) if i != int(token)][:9]
            row[others] = torch.log((1 - probability) / 9)
            row[int(token)] = torch.log(probability)
        return logits

    def _write(self, chunks: Sequence[Chunk], head: int) -> None:
        for chunk in chunks:
            assert chunk.hidden is not None
            assert chunk.hidden.shape == (len(chunk), self.hidden_width)
            tokens = list(chunk.tokens) if chunk.embeddings is None else [-1] * len(chunk)
            chunk.state.rows[f"tokens.{head}"].write(chunk.first, torch.tensor(tokens, dtype=torch.int64))
            chunk.state.rows[f"hidden.{head}"].write(chunk.first, chunk.hidden)


@cache
def _read(trunk: ToyTrunk, tokens: tuple[int, ...]) -> tuple[State, Tensor]:
    """The state and the last hidden row behind tokens."""
    state = _read(trunk, tokens[:-1])[0].fork() if tokens[:-1] else trunk.new_state(1)
    return state, trunk.forward([Chunk(state, tokens[-1:])])


@cache
def next_token(trunk: ToyTrunk, tokens: tuple[int, ...]) -> int:
    """What a toy trunk says behind tokens, computed one by one."""
    return int(trunk.logits(_read(trunk, tokens)[1])[0].argmax())


def right(trunk: ToyTrunk) -> Guess:
    """Peeks: what the trunk will say."""
    return lambda asked: next_token(trunk, asked.tokens)


def wrong(trunk: ToyTrunk) -> Guess:
    """Anything else."""
    return lambda asked: (next_token(trunk, asked.tokens) + 1) % VOCABULARY


def right_before(trunk: ToyTrunk, step: int) -> Guess:
    """Right up to a place in the draft, wrong from there on."""
    return lambda asked: right(trunk)(asked) if asked.step < step else wrong(trunk)(asked)


def right_up_to(trunk: ToyTrunk, rows: int) -> Guess:
    """Errs past a place in the sequence."""
    return lambda asked: right(trunk)(asked) if len(asked.tokens) <= rows else wrong(trunk)(asked)


def by_chance(trunk: ToyTrunk, seed: int) -> Guess:
    """Right, wrong and sure or not by a number made of what is before; no random number is taken."""

    def guess(asked: Asked) -> tuple[int, float]:
        mixed = hash((seed, asked.tokens, asked.head)) % 997
        token = next_token(trunk, asked.tokens) if mixed % 3 else mixed % VOCABULARY
        return token, 0.2 + 0.79 * (mixed % 7) / 6

    return guess


def follows(said: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]], right_steps: int) -> Guess:
    """For any trunk, of which it is known what it says behind prompts: right in so many steps of each draft."""

    def guess(asked: Asked) -> int:
        for prompt, tokens in zip(prompts, said, strict=True):
            if list(asked.tokens[: len(prompt)]) == list(prompt) and len(asked.tokens) - len(prompt) < len(tokens):
                token = tokens[len(asked.tokens) - len(prompt)]
                return token if asked.step < right_steps else token + 1 if token == 0 else token - 1
        return 0

    return guess


def fails_at(guess: Guess, call: int) -> Guess:
    """Raises an error when it is asked for the n-th time."""
    calls = 0

    def failing(asked: Asked) -> int | tuple[int, float]:
        nonlocal calls
        calls += 1
        if calls == call:
            raise RuntimeError("inconsistent sequence positions")
        return guess(asked)

    return failing
