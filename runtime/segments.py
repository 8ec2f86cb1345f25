"""Prompts of tokens and embedding rows, cut into what goes through a model at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from nextn.gguf_schema.errors import UsageError
from nextn.runtime.model import Chunk, Position, latest, time_of
from nextn.runtime.state import State

# Stands in a list of tokens for a row that came as an embedding.
NO_TOKEN = -1


@dataclass(frozen=True)
class EmbeddingRows:
    """Rows of a prompt that are no tokens, as those of an image: `rows` [n, width] and their positions.

    Positions are places in the whole sequence, one number or one for each axis (time, height, width); several rows may
    share one. Without them each row has the next.
    """

    rows: Tensor
    positions: Sequence[Position] | None = None


# What a prompt is made of: ids of tokens, and embedding rows between them.
Item = int | EmbeddingRows


@dataclass(frozen=True)
class Segment:
    """Rows of one kind that follow each other: token ids, or embedding rows [rows, width]."""

    tokens: Sequence[int] = ()
    embeddings: Tensor | None = None
    positions: Sequence[Position] | None = None

    def __len__(self) -> int:
        return len(self.tokens) if self.embeddings is None else len(self.embeddings)

    @property
    def ids(self) -> list[int]:
        """A token id for each row, NO_TOKEN for those that are none."""
        return list(self.tokens) if self.embeddings is None else [NO_TOKEN] * len(self)

    def chunk(self, state: State, hidden: Tensor | None = None) -> Chunk:
        """The rows behind those of a state, with the hidden rows that a head takes beside them."""
        return Chunk(state, self.tokens, self.embeddings, hidden, self.positions)


def segments(prompt: Sequence[Item], most: int) -> Iterator[Segment]:
    """A prompt in segments of at most so many rows."""
    tokens: list[int] = []
    for item in prompt:
        if not isinstance(item, EmbeddingRows):
            tokens.append(item)
            continue
        yield from _of_tokens(tokens, most)
        yield from _of_rows(item, most)
        tokens = []
    yield from _of_tokens(tokens, most)


def length_of(prompt: Sequence[Item]) -> int:
    """The number of rows of a prompt."""
    return sum(len(item.rows) if isinstance(item, EmbeddingRows) else 1 for item in prompt)


def check_positions(prompt: Sequence[Item], position: int) -> None:
    """UsageError when rows have too few or too many positions, or begin before what is ahead of them.

    `position` is that of the prompt's first row. A chunk of rows cannot tell: an image may have begun before it.
    """
    for item in prompt:
        if not isinstance(item, EmbeddingRows) or item.positions is None:
            position += length_of([item])
            continue
        if len(item.positions) != len(item.rows):
            raise UsageError("positions", f"{len(item.positions)} positions for {len(item.rows)} embedding rows")
        if len(item.positions) and time_of(item.positions[0]) < position - 1:
            message = f"embedding rows begin at {item.positions[0]}, behind rows that reach position {position - 1}"
            raise UsageError("positions", message, remedy="positions are places in the whole sequence")
        position = max([position, *(latest(place) + 1 for place in item.positions)])


def _of_tokens(tokens: Sequence[int], most: int) -> Iterator[Segment]:
    for start in range(0, len(tokens), most):
        yield Segment(tokens[start : start + most])


def _of_rows(item: EmbeddingRows, most: int) -> Iterator[Segment]:
    for start in range(0, len(item.rows), most):
        part = slice(start, start + most)
        yield Segment(
            embeddings=item.rows[part], positions=item.positions[part] if item.positions is not None else None
        )
