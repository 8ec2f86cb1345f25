"""How an output tensor is made from source tensors: pure descriptions, executed chunk by chunk.

A recipe gathers runs of source rows in output order and applies a function to each chunk of them, so that no tensor is
ever held whole and each row of a source is read for the one output that it goes into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from nextn.convert.source_tensor import SourceTensor
from nextn.gguf_schema.contents import MemoryFile

Floats = npt.NDArray[np.float32]
Function = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Run:
    """`rows` consecutive rows from row `start` of one source, or of several laid side by side."""

    sources: tuple[SourceTensor, ...]
    start: int
    rows: int


@dataclass(frozen=True)
class Recipe:
    """An output tensor of torch shape `shape`: its rows in order, each `width` elements of one source.

    `function` maps a chunk of rows in float32 to as many float32 values; None means that values pass unchanged, so
    that bytes may be copied when types agree. A chunk holds a multiple of `group` rows.
    """

    shape: tuple[int, ...]
    runs: tuple[Run, ...]
    width: int
    function: Function | None = None
    group: int = 1
    note: str = "copy"

    @property
    def sources(self) -> tuple[SourceTensor, ...]:
        """Every tensor of the checkpoint that goes in, once, in order of first use; computed values have none."""
        every = dict.fromkeys(source for run in self.runs for source in run.sources)
        return tuple(source for source in every if not isinstance(source.source, MemoryFile))

    def chunks(self, elements: int) -> Iterator[tuple[Run, ...]]:
        """Runs cut and joined into pieces of at most about `elements` elements, at least one group each."""
        room = limit = max(elements // (self.width * len(self.runs[0].sources)) // self.group, 1) * self.group
        piece: list[Run] = []
        for run in self.runs:
            start, rows = run.start, run.rows
            while rows:
                taken = min(rows, room)
                piece.append(Run(run.sources, start, taken))
                start, rows, room = start + taken, rows - taken, room - taken
                if not room:
                    yield tuple(piece)
                    piece, room = [], limit
        if piece:
            yield tuple(piece)


def rows_of(shape: Sequence[int]) -> int:
    """Rows of a row-major tensor: the product of all dimensions but the last."""
    return prod(shape[:-1])


def copy(source: SourceTensor, shape: tuple[int, ...] | None = None) -> Recipe:
    """The tensor as it is, its values in the same order under another shape when one is given."""
    width = source.shape[-1] if source.shape else 1
    return Recipe(shape or source.shape, (Run((source,), 0, rows_of(source.shape)),), width)


def map_values(source: SourceTensor, function: Function, note: str) -> Recipe:
    """Every value through `function`, in float32."""
    return replace(copy(source), function=function, note=note)


def constant(name: str, values: Sequence[float]) -> Recipe:
    """A vector that is computed, not read."""
    data = np.asarray(values, dtype="<f4")
    return replace(copy(SourceTensor(name, "F32", data.shape, MemoryFile(data.tobytes(), name), 0)), note="computed")


def add_one(source: SourceTensor) -> Recipe:
    """1 + w: the weight of a norm that is stored around zero."""
    return map_values(source, lambda x: x + np.float32(1), "1 + w")


def negative_exp(values: Floats) -> Floats:
    """-exp(x): a decay from its logarithm.

    Computed in double precision and rounded once: the vector code of libraries is off by a unit in the last place for
    some values, each in its own way, and the files of the upstream converter hold the correctly rounded ones.
    """
    return -np.exp(values.astype(np.float64)).astype(np.float32)


def _alike(shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise ValueError when tensors that are to be joined do not fit each other."""
    if len(set(shapes)) > 1:
        raise ValueError(f"tensors to be joined have different shapes: {sorted(set(shapes))}")


def concatenate_rows(sources: Sequence[SourceTensor]) -> Recipe:
    """Tensors of equal width, one below the other."""
    _alike([source.shape[1:] for source in sources])
    runs = tuple(Run((source,), 0, source.shape[0]) for source in sources)
    width = sources[0].shape[1]
    return Recipe((sum(run.rows for run in runs), width), runs, width, note="rows joined")


def stack(sources: Sequence[SourceTensor]) -> Recipe:
    """Matrices of equal shape along a new leading axis, for example the experts of a layer."""
    _alike([source.shape for source in sources])
    shape = sources[0].shape
    runs = tuple(Run((source,), 0, rows_of(shape)) for source in sources)
    return Recipe((len(sources), *shape), runs, shape[-1], note="stacked")


def fuse_columns(sources: Sequence[SourceTensor]) -> Recipe:
    """Matrices with equally many rows, side by side: row i is row i of each, in order."""
    _alike([source.shape for source in sources])
    height, width = sources[0].shape
    return Recipe((height, width * len(sources)), (Run(tuple(sources), 0, height),), width, note="columns joined")


def select_rows(source: SourceTensor, spans: Sequence[tuple[int, int]], width: int | None = None) -> Recipe:
    """The rows named by `spans`, pairs of first row and number of rows, in that order; rows are `width` wide."""
    width = width or source.shape[-1]
    runs = tuple(Run((source,), start, rows) for start, rows in spans)
    return Recipe((sum(rows for _, rows in spans), width), runs, width, note="rows selected")


def split_rows(source: SourceTensor, start: int, rows: int) -> Recipe:
    """`rows` rows from row `start` of each matrix of the tensor: one part of a fused projection.

    A source of shape [..., height, width] gives [..., rows, width].
    """
    *lead, height, width = source.shape
    spans = [(matrix * height + start, rows) for matrix in range(prod(lead))]
    note = f"rows {start}…{start + rows - 1} of each {height}"
    return replace(select_rows(source, spans), shape=(*lead, rows, width), note=note)


def split_kv_b_keys(source: SourceTensor, heads: int, key: int, value: int) -> Recipe:
    """The key rows of `kv_b_proj`, transposed per head.

    The source [heads·(key+value), rank] has each head's `key` rows before its `value` rows; gives [heads, rank, key].
    """
    rank = source.shape[1]
    runs = tuple(Run((source,), head * (key + value), key) for head in range(heads))

    def transpose(rows: Floats) -> Floats:
        return rows.reshape(-1, key, rank).transpose(0, 2, 1)

    return Recipe((heads, rank, key), runs, rank, transpose, group=key, note="key rows, transposed per head")


def split_kv_b_values(source: SourceTensor, heads: int, key: int, value: int) -> Recipe:
    """The value rows of `kv_b_proj`: the source as in `split_kv_b_keys`; gives [heads, value, rank]."""
    rank = source.shape[1]
    runs = tuple(Run((source,), head * (key + value) + key, value) for head in range(heads))
    return Recipe((heads, value, rank), runs, rank, note="value rows")


def tiled_head_order(key_heads: int, value_heads: int) -> list[int]:
    """Old index of each value head in tiled order: new head r·K + k is old head k·(V/K) + r."""
    repeats = value_heads // key_heads
    return [k * repeats + r for r in range(repeats) for k in range(key_heads)]


def reorder_row_heads(
    source: SourceTensor, order: Sequence[int], rows: int, *, first: int = 0, function: Function | None = None
) -> Recipe:
    """Groups of `rows` rows, from row `first` on, in the given order of heads; rows before `first` stay.

    One-dimensional tensors count as one element a row.
    """
    width = source.shape[-1] if len(source.shape) > 1 else 1
    spans = [(0, first)] if first else []
    spans += [(first + head * rows, rows) for head in order]
    note = "heads reordered" + (", -exp" if function else "")
    return replace(select_rows(source, spans, width), shape=source.shape, function=function, note=note)


def reorder_column_heads(source: SourceTensor, order: Sequence[int], columns: int) -> Recipe:
    """Groups of `columns` columns in the given order of heads."""
    picked = np.concatenate([np.arange(head * columns, (head + 1) * columns) for head in order])

    def pick(rows: Floats) -> Floats:
        return rows[:, picked]

    return map_values(source, pick, "column heads reordered")


def llama3_frequency_factors(
    dims: int, base: float, *, factor: float, low: float, high: float, context: int
) -> list[float]:
    """Divisors of the `dims`/2 rotary frequencies by the llama3 rule, in double precision.

    Wavelengths under `context`/`high` keep 1, those over `context`/`low` get `factor`, between them it is interpolated
    in the inverse. They are rounded once, when written as float32: computing in float32 differs by one unit in the last
    place for some entries.
    """
    factors = []
    for m in range(dims // 2):
        wavelength = 2 * np.pi * float(base) ** (2 * m / dims)
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(float(factor))
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return factors
