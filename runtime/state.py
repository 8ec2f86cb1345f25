"""The state of one sequence: everything that must go back when drafts are rejected, in one list.

A state is `length` rows long. What a layer keeps for each row (keys, latents, token ids) is `Rows`: going back means
that `length` shrinks, and later rows are written over. What is made anew with each row and cannot be computed backwards
(recurrent and convolution states) is a `Trail`: the values after each of the last rows are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nextn.gguf_schema.errors import NextnError

# Rows that can be taken back when nothing else is asked for: a verified draft is not longer.
ROLLBACK = 16


class RollbackError(NextnError):
    """A state cannot go back as far as was asked."""


class Rows:
    """One value of `shape` for each row of the sequence."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> None:
        self._buffer = torch.empty((0, *shape), dtype=dtype, device=device)
        self._shared = False

    def write(self, at: int, values: Tensor) -> None:
        """Put values [rows, ...] at row `at` and behind it; rows before `at` stay."""
        end = at + len(values)
        if self._shared or end > len(self._buffer):
            size = max(end, 2 * len(self._buffer), 32) if end > len(self._buffer) else len(self._buffer)
            grown = self._buffer.new_empty((size, *self._buffer.shape[1:]))
            grown[:at] = self._buffer[:at]
            self._buffer, self._shared = grown, False
        self._buffer[at:end] = values

    def first(self, count: int) -> Tensor:
        """The values of the first rows: [count, ...]."""
        return self._buffer[:count]

    def fork(self) -> Rows:
        """A copy; the memory is shared until one of the two is written to."""
        copy = Rows((), self._buffer.dtype)
        copy._buffer, copy._shared, self._shared = self._buffer, True, True
        return copy


class Trail:
    """A value after each of the last rows, by the length of the sequence then."""

    def __init__(self, initial: Tensor, keep: int = ROLLBACK) -> None:
        self._values: dict[int, Tensor] = {0: initial}
        self._keep = keep

    def at(self, length: int) -> Tensor:
        """The value when the sequence was `length` rows long; never written to, but replaced."""
        return self._values[length]

    def put(self, length: int, value: Tensor) -> None:
        """The value when the sequence is `length` rows long."""
        self._values[length] = value
        self._values.pop(length - self._keep - 1, None)

    def reaches(self, length: int) -> bool:
        """Whether the value of that length is kept."""
        return length in self._values

    def cut(self, length: int) -> None:
        """Forget the values of greater lengths."""
        for later in [n for n in self._values if n > length]:
            del self._values[later]

    def fork(self) -> Trail:
        """A copy; values are never written to, so they are shared."""
        copy = Trail(torch.empty(0), self._keep)
        copy._values = dict(self._values)
        return copy

    def kept(self) -> Iterator[tuple[int, Tensor]]:
        """Lengths and values."""
        return iter(self._values.items())


@dataclass
class State:
    """One sequence: `length` rows are in it, and the next one stands at `position`.

    The two differ where rows share positions, as those of an image do.
    """

    rows: Mapping[str, Rows]
    trails: Mapping[str, Trail] = field(default_factory=dict)
    length: int = 0
    position: int = 0

    def advance(self, count: int, position: int | None = None) -> None:
        """`count` rows more were written; the next one stands at `position`, which follows unless it is given."""
        self.length += count
        self.position = self.position + count if position is None else position

    def truncate(self, length: int, position: int | None = None) -> None:
        """Go back to the first `length` rows; nothing changes unless all of the state can.

        Raises RollbackError when a trail does not reach so far back, or the state is shorter.
        """
        if length > self.length or length < 0:
            raise RollbackError("rollback", f"{self.length} rows cannot be cut to {length}")
        short = [name for name, trail in self.trails.items() if not trail.reaches(length)]
        if short:
            kept = max(min(n for n, _ in self.trails[name].kept()) for name in short)
            message = f"cannot go back from {self.length} to {length} rows: {short[0]} is kept from row {kept} on"
            raise RollbackError("rollback", message, remedy="keep a snapshot, or more rows (--rollback)")
        for trail in self.trails.values():
            trail.cut(length)
        self.position = self.position - (self.length - length) if position is None else position
        self.length = length

    def fork(self) -> State:
        """A second sequence that begins like this one."""
        return State(
            {name: rows.fork() for name, rows in self.rows.items()},
            {name: trail.fork() for name, trail in self.trails.items()},
            self.length,
            self.position,
        )

    snapshot = fork

    def restore(self, snapshot: State) -> None:
        """Become what `snapshot` is, which can be restored again."""
        again = snapshot.fork()
        self.rows, self.trails = again.rows, again.trails
        self.length, self.position = again.length, again.position

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by names that `load_tensors` knows."""
        held = {f"rows.{name}": rows.first(self.length).contiguous() for name, rows in self.rows.items()}
        for name, trail in self.trails.items():
            held |= {f"trail.{name}.{n}": value.contiguous() for n, value in trail.kept()}
        return held | {"place": torch.tensor([self.length, self.position])}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Become what the tensors of another state of the same model say; KeyError when one is missing."""
        self.length, self.position = tensors["place"].tolist()
        for name, rows in self.rows.items():
            rows.write(0, tensors[f"rows.{name}"])
        for name, trail in self.trails.items():
            prefix = f"trail.{name}."
            found = {int(key.removeprefix(prefix)): value for key, value in tensors.items() if key.startswith(prefix)}
            trail._values = found or {}
