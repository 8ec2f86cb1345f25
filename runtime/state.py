"""The state of one sequence: everything that must go back when drafts are rejected, in one list.

A state is `length` rows long. What a layer keeps for each row (keys, latents, token ids) is `Rows`: going back means
that `length` shrinks, and later rows are written over. What is made anew with each row and cannot be computed backwards
(recurrent and convolution states) is a `Trail`: the values after each of the last rows are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from nextn.gguf_schema.errors import NextnError

# Rows that can be taken back when nothing else is asked for: a verified draft is not longer.
ROLLBACK = 16
# Rows that there is room for from the first write on.
SMALLEST_BUFFER = 32


class RollbackError(NextnError):
    """A state cannot go back as far as was asked."""


class Rows:
    """One value of `shape` for each row of the sequence."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> None:
        self._buffer = torch.empty((0, *shape), dtype=dtype, device=device)
        self._written = 0
        self._shared = False

    def write(self, at: int, values: Tensor) -> None:
        """Put values [rows, ...] at row `at` and behind it; rows before `at` stay.

        ValueError when rows before `at` are missing, or a value is of another shape.
        """
        if not 0 <= at <= self._written:
            raise ValueError(f"row {at} cannot be written behind {self._written} rows")
        if values.shape[1:] != self._buffer.shape[1:]:
            raise ValueError(f"values of shape {list(values.shape[1:])}, want {list(self._buffer.shape[1:])}")
        end = at + len(values)
        if self._shared or end > len(self._buffer):
            self._buffer = self._copied(at, end)
            self._shared = False
        self._buffer[at:end] = values
        self._written = end

    def _copied(self, kept: int, end: int) -> Tensor:
        """A buffer of its own with the first rows, and room for `end` rows: for twice as many when it must grow."""
        size = len(self._buffer)
        if end > size:
            size = max(end, 2 * size, SMALLEST_BUFFER)
        buffer = self._buffer.new_empty((size, *self._buffer.shape[1:]))
        buffer[:kept] = self._buffer[:kept]
        return buffer

    def first(self, count: int) -> Tensor:
        """The values of the first rows: [count, ...]; not to be written to. ValueError when there are fewer."""
        if count > self._written:
            raise ValueError(f"{count} rows asked for, {self._written} are written")
        return self._buffer[:count]

    def cut(self, count: int) -> None:
        """Forget the rows behind the first ones: to read them before they are written again is an error."""
        self._written = min(self._written, count)

    def fork(self) -> Rows:
        """A copy; the memory is shared until one of the two is written to."""
        copy = Rows((), self._buffer.dtype)
        copy._buffer, copy._written = self._buffer, self._written
        copy._shared = self._shared = True
        return copy

    def check(self, values: Tensor, count: int) -> None:
        """ValueError unless these are values for `count` rows."""
        _check(values, (count, *self._buffer.shape[1:]), self._buffer.dtype)


class Trail:
    """A value after each of the last rows, by the length of the sequence then."""

    def __init__(self, initial: Tensor, keep: int = ROLLBACK) -> None:
        """`initial` is the value of an empty sequence; `keep` rows can be taken back."""
        self._shape, self._dtype, self._device = tuple(initial.shape), initial.dtype, initial.device
        self._values: dict[int, Tensor] = {0: initial}
        self.keep = keep

    def at(self, length: int) -> Tensor:
        """The value when the sequence was `length` rows long; never written to, but replaced. KeyError if not kept."""
        return self._values[length]

    def put(self, length: int, value: Tensor) -> None:
        """The value when the sequence is `length` rows long."""
        self._values[length] = value
        for earlier in [n for n in self._values if n < length - self.keep]:
            del self._values[earlier]

    @property
    def kept_values(self) -> int:
        """Values that are kept: one more than rows that can be taken back."""
        return self.keep + 1

    def reaches(self, length: int) -> bool:
        """Whether the value of that length is kept."""
        return length in self._values

    def cut(self, length: int) -> None:
        """Forget the values of greater lengths."""
        for later in [n for n in self._values if n > length]:
            del self._values[later]

    def fork(self) -> Trail:
        """A copy; values are never written to, so they are shared."""
        copy = Trail(torch.empty(self._shape, dtype=self._dtype, device="meta"), self.keep)
        copy._device, copy._values = self._device, dict(self._values)
        return copy

    def kept(self) -> Iterator[tuple[int, Tensor]]:
        """Lengths and values."""
        return iter(self._values.items())

    def check(self, values: Mapping[int, Tensor], length: int) -> None:
        """ValueError unless these are values of a sequence that is `length` rows long."""
        if length not in values or max(values) > length or min(values) < 0:
            raise ValueError(f"values after {sorted(values)} rows, want one after {length}, the last")
        for value in values.values():
            _check(value, self._shape, self._dtype)

    def load(self, values: Mapping[int, Tensor], length: int) -> None:
        """Take over values, as many as are kept."""
        first = length - self.keep
        self._values = {n: values[n].to(self._device) for n in sorted(values) if n >= first}


class Jump(NamedTuple):
    """A row that stands elsewhere than behind the row before it, and the position that would have followed."""

    row: int
    position: int


@dataclass
class State:
    """One sequence: `length` rows are in it, and the next one of text stands at `position`.

    The two differ where rows share positions, as those of an image do: `jumps` tell where.
    """

    rows: Mapping[str, Rows]
    trails: Mapping[str, Trail] = field(default_factory=dict)
    length: int = 0
    position: int = 0
    jumps: tuple[Jump, ...] = ()

    def advance(self, places: Sequence[int]) -> None:
        """Rows more were written, which stand at these positions, by the last of them where a row has several."""
        for place in places:
            if place != self.position:
                self.jumps = (*self.jumps, Jump(self.length, self.position))
            # The last row of an image is not always the one that reaches farthest.
            self.length, self.position = self.length + 1, max(self.position, place + 1)

    def truncate(self, length: int) -> None:
        """Go back to the first `length` rows and the position that was then; nothing changes unless all of it can.

        Raises RollbackError when a trail does not reach so far back, or the state is shorter.
        """
        if not 0 <= length <= self.length:
            raise RollbackError("rollback", f"{self.length} rows cannot be cut to {length}")
        short = [name for name, trail in self.trails.items() if not trail.reaches(length)]
        if short:
            kept = max(min(n for n, _ in self.trails[name].kept()) for name in short)
            message = f"cannot go back from {self.length} to {length} rows: {short[0]} is kept from row {kept} on"
            raise RollbackError("rollback", message, remedy="keep a snapshot, or open the state for more rows")
        for trail in self.trails.values():
            trail.cut(length)
        for rows in self.rows.values():
            rows.cut(length)
        later = [jump for jump in self.jumps if jump.row >= length]
        row, position = later[0] if later else (self.length, self.position)
        self.jumps = self.jumps[: len(self.jumps) - len(later)]
        self.length, self.position = length, position - (row - length)

    def fork(self) -> State:
        """A second sequence that begins like this one."""
        return State(
            {name: rows.fork() for name, rows in self.rows.items()},
            {name: trail.fork() for name, trail in self.trails.items()},
            self.length,
            self.position,
            self.jumps,
        )

    snapshot = fork

    def restore(self, snapshot: State) -> None:
        """Become what `snapshot` is, which can be restored again."""
        again = snapshot.fork()
        self.rows, self.trails, self.jumps = again.rows, again.trails, again.jumps
        self.length, self.position = again.length, again.position

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by names that `load_tensors` knows."""
        held = {f"rows.{name}": rows.first(self.length).contiguous() for name, rows in self.rows.items()}
        for name, trail in self.trails.items():
            held |= {f"trail.{name}.{n}": value.contiguous() for n, value in trail.kept()}
        place = [self.length, self.position, *(number for jump in self.jumps for number in jump)]
        return held | {"place": torch.tensor(place)}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Become what the tensors of another state of the same model say; nothing changes unless all of them fit.

        KeyError when one is missing; ValueError when one is of another shape or type, or of no part of this state.
        """
        length, position, jumps = _place(tensors["place"])
        rows = {name: tensors[f"rows.{name}"] for name in self.rows}
        trails: dict[str, dict[int, Tensor]] = {name: {} for name in self.trails}
        for key in sorted(tensors.keys() - {"place"} - {f"rows.{name}" for name in rows}):
            name, _, n = key.removeprefix("trail.").rpartition(".")
            if name not in trails or key != f"trail.{name}.{n}" or not n.isdecimal():
                raise ValueError(f"{key} is no part of it")
            trails[name][int(n)] = tensors[key]
        for name, values in rows.items():
            self.rows[name].check(values, length)
        for name, kept in trails.items():
            self.trails[name].check(kept, length)
        for name, values in rows.items():
            self.rows[name].cut(0)
            self.rows[name].write(0, values)
        for name, kept in trails.items():
            self.trails[name].load(kept, length)
        self.length, self.position, self.jumps = length, position, jumps


def _check(values: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(values.shape) != shape or values.dtype != dtype:
        raise ValueError(f"{values.dtype} {list(values.shape)}, want {dtype} {list(shape)}")


def _place(tensor: Tensor) -> tuple[int, int, tuple[Jump, ...]]:
    """Length, position and jumps of a sequence."""
    numbers = tensor.tolist() if tensor.dtype == torch.int64 and tensor.dim() == 1 else []
    if len(numbers) < 2 or len(numbers) % 2 or min(numbers) < 0:
        raise ValueError("place is no length with a position")
    length, position, *rest = numbers
    return length, position, tuple(Jump(*rest[i : i + 2]) for i in range(0, len(rest), 2))
