"""Residual streams: what is read of them, what is written to them, and with what weights."""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nextn.kernels.glm5_next import Glm5NextOperations
from nextn.kernels.qwen4exp import Qwen4ExpOperations
from nextn.kernels.triton import functions
from nextn.kernels.triton.elementwise import applied
from nextn.kernels.triton.functions import read, rows_of, sigmoid, step_of, write
from nextn.kernels.triton.launch import ROW_TYPES, Build, kernel, launch
from nextn.kernels.weight import Weight


@triton.jit
def _sinkhorn(scores: tl.tensor, there: tl.tensor, iterations: tl.tensor, eps: tl.tensor) -> tl.tensor:
    """As defined, of scores [from, to], which are zeros where there are none."""
    top = tl.max(tl.where(there, scores, float("-inf")), axis=1)
    weight = tl.where(there, tl.exp(scores - top[:, None]), 0)
    weight = weight / tl.sum(weight, axis=1)[:, None] + eps
    weight = tl.where(there, weight, 0)
    weight = weight / (tl.sum(weight, axis=0)[None, :] + eps)
    for _ in range(iterations - 1):
        weight = tl.where(there, weight, 0)
        weight = weight / (tl.sum(weight, axis=1)[:, None] + eps)
        weight = tl.where(there, weight, 0)
        weight = weight / (tl.sum(weight, axis=0)[None, :] + eps)
    return weight


@kernel
def sinkhorn_kernel(
    scores: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    iterations: tl.tensor,
    eps: tl.tensor,
    FROM: tl.constexpr,
    TO: tl.constexpr,
) -> None:
    """One matrix [rows, columns] of scores."""
    i, j = tl.arange(0, FROM)[:, None], tl.arange(0, TO)[None, :]
    there = (i < rows) & (j < columns)
    place = tl.program_id(0).to(tl.int64) * rows * columns + i * columns + j
    write(out, place, _sinkhorn(read(scores, place, there), there, iterations, eps), there)


@kernel
def stream_weights_kernel(
    mixed: tl.tensor,
    scale: tl.tensor,
    base: tl.tensor,
    reads: tl.tensor,
    writes: tl.tensor,
    passes: tl.tensor,
    n: tl.tensor,
    iterations: tl.tensor,
    eps: tl.tensor,
    STREAMS: tl.constexpr,
) -> None:
    """The weights of n streams that follow from a row of `mixed`."""
    row = tl.program_id(0).to(tl.int64)
    mixed += row * (2 + n) * n
    stream = tl.arange(0, STREAMS)
    is_stream = stream < n
    value = read(mixed, stream, is_stream) * tl.load(scale).to(tl.float32) + read(base, stream, is_stream)
    write(reads, row * n + stream, sigmoid(value) + eps, is_stream)
    value = read(mixed, n + stream, is_stream) * tl.load(scale + 1).to(tl.float32) + read(base, n + stream, is_stream)
    write(writes, row * n + stream, 2 * sigmoid(value), is_stream)
    both = is_stream[:, None] & is_stream[None, :]
    place = stream[:, None] * n + stream[None, :]
    value = read(mixed, 2 * n + place, both) * tl.load(scale + 2).to(tl.float32) + read(base, 2 * n + place, both)
    write(passes, row * n * n + place, _sinkhorn(value, both, iterations, eps), both)


@triton.jit
def _collapsed(
    streams: tl.tensor,
    reads: tl.tensor,
    row: tl.tensor,
    width: tl.tensor,
    column: tl.tensor,
    STREAMS: tl.constexpr,
) -> tl.tensor:
    """Columns of a row's streams by their weights, summed in their order."""
    total = tl.zeros(column.shape, tl.float32)
    for stream in tl.static_range(STREAMS):
        share = tl.load(reads + row * STREAMS + stream).to(tl.float32)
        total += share * read(streams, (row * STREAMS + stream) * width + column, column < width)
    return total


@kernel
def collapse_kernel(
    streams: tl.tensor,
    reads: tl.tensor,
    norm: tl.tensor,
    out: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    NORMED: tl.constexpr,
    STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The weighted sum of a row's streams [STREAMS, width], NORMED or not."""
    row = tl.program_id(0).to(tl.int64)
    scale = 1.0
    if NORMED:
        squares = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, width, BLOCK):
            # What is normed is the sum in the type of the streams.
            value = _collapsed(streams, reads, row, width, start + tl.arange(0, BLOCK), STREAMS)
            value = value.to(out.dtype.element_ty).to(tl.float32)
            squares += value * value
        scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / width + eps)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = _collapsed(streams, reads, row, width, column, STREAMS)
        if NORMED:
            value = value.to(out.dtype.element_ty).to(tl.float32) * scale * read(norm, column, column < width)
        write(out, row * width + column, value, column < width)


@kernel
def spread_kernel(
    streams: tl.tensor,
    y: tl.tensor,
    writes: tl.tensor,
    passes: tl.tensor,
    out: tl.tensor,
    width: tl.tensor,
    PASSED: tl.constexpr,
    STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """A row's streams with y by their weights added: as they are, or what is PASSED from stream to stream of them."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < width
    added = read(y, row * width + column, there)
    for to in tl.static_range(STREAMS):
        stream = row * STREAMS + to
        if PASSED:
            total = tl.zeros((BLOCK,), tl.float32)
            for origin in tl.static_range(STREAMS):
                share = tl.load(passes + (row * STREAMS + origin) * STREAMS + to).to(tl.float32)
                total += share * read(streams, (row * STREAMS + origin) * width + column, there)
        else:
            total = read(streams, stream * width + column, there)
        total += tl.load(writes + stream).to(tl.float32) * added
        write(out, stream * width + column, total, there)


@kernel
def mixture_kernel(
    gates: tl.tensor,
    normed: tl.tensor,
    out: tl.tensor,
    width: tl.tensor,
    STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The mean of a row's streams, each value gated by sigmoid."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < width
    total = tl.zeros((BLOCK,), tl.float32)
    for stream in tl.static_range(STREAMS):
        place = (row * STREAMS + stream) * width + column
        total += sigmoid(read(gates, place, there)) * read(normed, place, there)
    write(out, row * width + column, total / STREAMS, there)


class SinkhornStreams(Glm5NextOperations):
    """Streams of glm5-next."""

    def sinkhorn(self, scores: Tensor, iterations: int, eps: float) -> Tensor:
        """As defined."""
        scores = rows_of(scores)
        out, (count, rows, columns) = scores.new_empty(scores.shape), scores.shape
        constants = {"FROM": triton.next_power_of_2(rows), "TO": triton.next_power_of_2(columns)}
        launch(sinkhorn_kernel, (count,), scores, out, rows, columns, iterations, float(eps), **constants)
        return out

    def stream_weights(
        self, mixed: Tensor, scale: Tensor, base: Tensor, iterations: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As defined."""
        mixed = rows_of(mixed)
        n = math.isqrt(mixed.shape[1] + 1) - 1
        out = tuple(mixed.new_empty(len(mixed), *shape) for shape in ((n,), (n,), (n, n)))
        arguments = mixed, scale.contiguous(), base.contiguous(), *out, n, iterations, float(eps)
        launch(stream_weights_kernel, (len(mixed),), *arguments, STREAMS=triton.next_power_of_2(n))
        return out[0], out[1], out[2]

    def collapse(self, streams: Tensor, reads: Tensor) -> Tensor:
        """As defined."""
        return _collapse(streams, reads, None, 0.0)

    def read_streams(self, streams: Tensor, reads: Tensor, norm: Tensor, eps: float) -> Tensor:
        """As defined."""
        return _collapse(streams, reads, norm.contiguous(), eps)

    def spread(self, streams: Tensor, y: Tensor, writes: Tensor, passes: Tensor) -> Tensor:
        """As defined."""
        return _spread(streams, y, writes, passes)


class GatedStreams(Qwen4ExpOperations):
    """Streams of Qwen3.8-Flash-Next."""

    def hyper_connection_read(
        self, streams: Tensor, norm: Tensor, down: Weight, up: Weight, eps: float
    ) -> tuple[Tensor, Tensor]:
        """As defined."""
        rows, count, width = streams.shape
        normed = self.rms_norm(streams, norm, eps).reshape(rows, count * width)
        low = applied(functions.silu, self.linear(normed, down), divisor=count)
        gates = rows_of(self.linear(low, up))
        out, block = normed.new_empty(rows, width), step_of(width)
        grid = rows, triton.cdiv(width, block)
        launch(mixture_kernel, grid, gates, normed, out, width, STREAMS=count, BLOCK=block)
        return out, normed

    def hyper_connection_strengths(self, normed: Tensor, inject: Weight, count: int) -> Tensor:
        """As defined."""
        return applied(functions.sigmoid, self.linear(normed, inject), divisor=count, factor=2)

    def hyper_connection_write(self, streams: Tensor, strengths: Tensor, y: Tensor) -> Tensor:
        """As defined."""
        return _spread(streams, y, strengths, None)


def _collapse(streams: Tensor, reads: Tensor, norm: Tensor | None, eps: float) -> Tensor:
    streams, reads = rows_of(streams), rows_of(reads)
    rows, count, width = streams.shape
    out = streams.new_empty(rows, width)
    constants = {"NORMED": norm is not None, "STREAMS": count, "BLOCK": step_of(width)}
    arguments = streams, reads, streams if norm is None else norm, out, width, float(eps)
    launch(collapse_kernel, (rows,), *arguments, **constants)
    return out


def _spread(streams: Tensor, y: Tensor, writes: Tensor, passes: Tensor | None) -> Tensor:
    streams, y, writes = rows_of(streams), rows_of(y), rows_of(writes)
    (rows, count, width), out = streams.shape, streams.new_empty(streams.shape)
    block = step_of(width)
    arguments = streams, y, writes, writes if passes is None else rows_of(passes), out, width
    constants = {"PASSED": passes is not None, "STREAMS": count, "BLOCK": block}
    launch(spread_kernel, (rows, triton.cdiv(width, block)), *arguments, **constants)
    return out


def _builds(x: str) -> tuple[Build, ...]:
    """The kernels for four streams of a type, of a few thousand columns."""
    names = ("scores", "out", "mixed", "scale", "base", "reads", "writes", "passes", "streams", "norm", "y", "gates")
    sizes = dict.fromkeys(("rows", "columns", "iterations", "n", "width"), "i32")
    types = dict.fromkeys((*names, "normed"), x) | sizes | {"eps": "fp32"}
    wide = {"STREAMS": 4, "BLOCK": step_of(4096)}
    forms: tuple[tuple[str, Any, dict[str, Any]], ...] = (
        ("sinkhorn", sinkhorn_kernel, {"FROM": 4, "TO": 4}),
        ("stream weights", stream_weights_kernel, {"STREAMS": 4}),
        ("collapse", collapse_kernel, wide | {"NORMED": False}),
        ("read streams", collapse_kernel, wide | {"NORMED": True}),
        ("spread", spread_kernel, wide | {"PASSED": True}),
        ("write streams", spread_kernel, wide | {"PASSED": False}),
        ("mixture", mixture_kernel, wide),
    )
    return tuple(Build(f"{name} {x}", function, types, constants) for name, function, constants in forms)


BUILDS = tuple(build for x in ROW_TYPES.values() for build in _builds(x))
