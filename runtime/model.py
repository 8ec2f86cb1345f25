"""What models have in common: rows go in for several sequences at once, hidden rows come out.

A trunk makes a hidden row for each token, from which its logits follow and which a head takes. A head makes hidden rows
of the same width, which it, or the head after it, takes for the next token of a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nextn.gguf_schema.architecture import Architecture, Hyperparameters, Without
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.errors import InputError, UsageError
from nextn.gguf_schema.reading import read_hyperparameters
from nextn.runtime.state import State

# Where a row stands: a number, or for rows of an image in models that tell them apart one for each of three axes.
AXES = ("time", "height", "width")
Position = int | tuple[int, int, int]
POSITIONS_END = 2**31


@dataclass(frozen=True)
class Chunk:
    """Rows of one sequence that follow what its state holds: token ids, or embedding rows [rows, width] in their place.

    `hidden` [rows, hidden width] is what a head takes beside them. `positions`, of text one after the other, are given
    when rows are of an image. `start` is the place of the first row when it is not behind those that are counted: a
    draft's later rows stand behind uncounted ones.
    """

    state: State
    tokens: Sequence[int] = ()
    embeddings: Tensor | None = None
    hidden: Tensor | None = None
    positions: Sequence[Position] | None = None
    start: int | None = None

    def __len__(self) -> int:
        return len(self.tokens) if self.embeddings is None else len(self.embeddings)

    @property
    def first(self) -> int:
        """The place of the first row in the sequence."""
        return self.state.length if self.start is None else self.start

    def places(self) -> list[Position]:
        """The position of each row. UsageError when given ones are not as many, or go back."""
        if self.positions is None:
            first = self.state.position + self.first - self.state.length
            return list(range(first, first + len(self)))
        given, position = list(self.positions), self.state.position
        times = [time_of(place) for place in given]
        # The first rows of an image's second part stand where the last ones of its first part do.
        start = max(position - 1, 0) if given and isinstance(given[0], int) else 0
        steps = zip([start, *times], times, strict=False)
        if len(given) != len(self) or any(later < earlier for earlier, later in steps) or not all(map(_is_one, given)):
            message = f"positions {given} for {len(self)} rows from {position} on"
            raise UsageError("positions", message, remedy="give one for each row, none before the one ahead of it")
        is_text = self.embeddings is None and given
        if is_text and given != list(range(max(times[0], position), times[-1] + 1)):
            raise UsageError("positions", f"positions {given} of text are not consecutive, from {position} on or later")
        return given

    def advance(self) -> None:
        """Count the rows as part of the sequence."""
        self.state.advance([latest(place) for place in self.places()])


def latest(position: Position) -> int:
    """The largest of a position's numbers: text behind an image stands after all of it."""
    return position if isinstance(position, int) else max(position)


def time_of(position: Position) -> int:
    """A position on the first axis."""
    return position if isinstance(position, int) else position[0]


def _is_one(position: Position) -> bool:
    numbers = (position,) if isinstance(position, int) else position
    return len(numbers) in (1, len(AXES)) and all(0 <= number < POSITIONS_END for number in numbers)


class Trunk(Protocol):
    """The main model."""

    contents: Contents
    vocab_size: int
    hidden_width: int
    dtype: torch.dtype
    device: str

    def new_state(self, rollback: int = ...) -> State:
        """The state of an empty sequence, of which so many rows can be taken back."""
        ...

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Hidden rows [all rows of all chunks, hidden width] in their order; the states then hold them."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocabulary] from hidden rows."""
        ...


class Heads(Protocol):
    """The draft heads of a model: several chained ones, or one that is looped."""

    contents: Contents
    count: int
    hidden_width: int

    def new_state(self) -> State:
        """The state of an empty sequence: the caches of all heads, which hold rows at the same places."""
        ...

    def catch_up(self, chunks: Sequence[Chunk]) -> None:
        """Write into the caches of all heads what later steps read of these rows, and count them.

        The hidden row of a token is the trunk's for the token before it; zeros for the first.
        """
        ...

    def forward(self, chunks: Sequence[Chunk], head: int) -> Tensor:
        """Hidden rows [rows, hidden width] of one head; its caches hold the rows, which are not counted."""
        ...

    def logits(self, hidden: Tensor, head: int) -> Tensor:
        """Logits [rows, vocabulary] from hidden rows of a head."""
        ...


def embedded(chunks: Sequence[Chunk], gather: Callable[[Sequence[int]], Tensor], width: int) -> Tensor:
    """The embedding rows of all chunks, of tokens by `gather`: [rows, width].

    UsageError for given rows of another width.
    """
    for chunk in chunks:
        if chunk.embeddings is not None and chunk.embeddings.shape != (len(chunk), width):
            message = f"embedding rows of shape {list(chunk.embeddings.shape)}, want {[len(chunk), width]}"
            raise UsageError("embedding-rows", message)
    return joined([gather(c.tokens) if c.embeddings is None else c.embeddings for c in chunks])


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of several sequences, one behind the other; those of one as they are."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def spans(chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, slice]]:
    """Each chunk with its place among the rows of all."""
    start = 0
    for chunk in chunks:
        yield chunk, slice(start, start + len(chunk))
        start += len(chunk)


def joined_positions(chunks: Sequence[Chunk]) -> Tensor:
    """The positions of all rows, [rows], of a model that knows one axis; UsageError for rows with three."""
    places = [place for chunk in chunks for place in chunk.places()]
    if any(not isinstance(place, int) for place in places):
        raise UsageError("positions", "positions on three axes: this model has one", remedy="give one for each row")
    return torch.tensor(places, dtype=torch.int64)


def joined_axes(chunks: Sequence[Chunk]) -> Tensor:
    """The positions of all rows on each of the axes, [rows, 3]: those of text are alike."""
    places = (place for chunk in chunks for place in chunk.places())
    on_axes = [(place,) * len(AXES) if isinstance(place, int) else place for place in places]
    return torch.tensor(on_axes, dtype=torch.int64).reshape(-1, len(AXES))


def hyperparameters(architecture: Architecture, contents: Contents) -> Hyperparameters:
    """The hyper-parameters of a file; InputError for a key that no loader does without, or would not take."""
    held, problems = read_hyperparameters(architecture, contents)
    for problem in problems:
        if problem.without is Without.REFUSES:
            remedy = "nextn validate says what else is wrong with the file"
            raise InputError("bad-key", f"{problem.key} {problem.message}", subject=contents.name, remedy=remedy)
    return held
