"""Residual streams on the CPU: what blocks read of them, and how they are mixed."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from nextn.kernels.cpu import functions
from nextn.kernels.cpu.elementwise import softmax
from nextn.kernels.cpu.memory import compiled, dot, float32, floats, fresh, like, sized, whole
from nextn.kernels.cpu.norms import rms_norm
from nextn.kernels.glm5_next import Glm5NextOperations
from nextn.kernels.qwen4exp import Qwen4ExpOperations
from nextn.kernels.weight import Weight


class SinkhornStreams(Glm5NextOperations):
    """The streams of glm5-next."""

    def stream_weights(
        self, mixed: Tensor, scale: Tensor, base: Tensor, iterations: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As defined."""
        mixed = whole(mixed)
        rows, width = mixed.shape
        n = math.isqrt(width + 1) - 1
        scale, base = sized(scale, 3), sized(base, width)
        reads, writes, passes = fresh(rows, n), fresh(rows, n), fresh(rows, n, n)
        addresses = (mixed.data_ptr(), scale.data_ptr(), base.data_ptr())
        results = (reads.data_ptr(), writes.data_ptr(), passes.data_ptr())
        _stream_weights(*addresses, *results, rows, n, iterations, eps)
        return reads, writes, passes

    def read_streams(self, streams: Tensor, reads: Tensor, norm: Tensor, eps: float) -> Tensor:
        """As defined."""
        (rows, n, width), streams = streams.shape, whole(streams)
        reads, norm, out = sized(reads, rows * n), sized(norm, width), fresh(rows, width)
        _read_streams(streams.data_ptr(), reads.data_ptr(), norm.data_ptr(), out.data_ptr(), rows, n, width, eps)
        return out

    def spread(self, streams: Tensor, y: Tensor, writes: Tensor, passes: Tensor) -> Tensor:
        """As defined."""
        (rows, n, width), streams = streams.shape, whole(streams)
        y, writes, passes = sized(y, rows * width), sized(writes, rows * n), sized(passes, rows * n * n)
        out = like(streams)
        addresses = (streams.data_ptr(), y.data_ptr(), writes.data_ptr(), passes.data_ptr())
        _spread(*addresses, out.data_ptr(), rows, n, width)
        return out


class GatedStreams(Qwen4ExpOperations):
    """The streams of qwen4exp."""

    def hyper_connection_read(
        self, streams: Tensor, norm: Tensor, down: Weight, up: Weight, eps: float
    ) -> tuple[Tensor, Tensor]:
        """As defined."""
        rows, count, width = streams.shape
        normed = self.rms_norm(streams, norm, eps)
        flat = normed.view(rows, count * width)
        low = self.linear(flat, down)
        _silu_of_part(low.data_ptr(), low.numel(), count)
        gates, mixed = self.linear(low, up), fresh(rows, width)
        _gated_mean(normed.data_ptr(), gates.data_ptr(), mixed.data_ptr(), rows, count, width)
        return mixed, flat

    def hyper_connection_strengths(self, normed: Tensor, inject: Weight, count: int) -> Tensor:
        """As defined."""
        strengths = self.linear(normed, inject)
        _strengths(strengths.data_ptr(), strengths.numel(), count)
        return strengths

    def hyper_connection_write(self, streams: Tensor, strengths: Tensor, y: Tensor) -> Tensor:
        """As defined."""
        (rows, count, width), streams = streams.shape, whole(streams)
        strengths, y, out = sized(strengths, rows * count), sized(y, rows * width), like(streams)
        _write(streams.data_ptr(), strengths.data_ptr(), y.data_ptr(), out.data_ptr(), rows, count, width)
        return out

    def ngram_gates(self, keys: Tensor, queries: Tensor) -> Tensor:
        """As defined."""
        keys, queries = whole(keys), sized(queries, keys.numel())
        rows, count, width = keys.shape
        gates = fresh(rows, count)
        _ngram_gates(keys.data_ptr(), queries.data_ptr(), gates.data_ptr(), rows * count, width)
        return gates


@compiled
def _stream_weights(
    mixed_at: int,
    scale_at: int,
    base_at: int,
    reads_at: int,
    writes_at: int,
    passes_at: int,
    rows: int,
    n: int,
    iterations: int,
    small: float,
) -> None:
    scale, base, eps = floats(scale_at), floats(base_at), float32(small)
    for row in range(rows):
        mixed = floats(mixed_at + 4 * row * (2 + n) * n)
        reads, writes = floats(reads_at + 4 * row * n), floats(writes_at + 4 * row * n)
        for i in range(n):
            reads[i] = functions.sigmoid(mixed[i] * scale[0] + base[i]) + eps
            writes[i] = functions.TWO * functions.sigmoid(mixed[n + i] * scale[1] + base[n + i])
        own_at = passes_at + 4 * row * n * n
        passes = floats(own_at)
        for i in range(n * n):
            passes[i] = mixed[2 * n + i] * scale[2] + base[2 * n + i]
        _sinkhorn(own_at, n, iterations, eps)


@compiled
def _sinkhorn(passes_at: int, n: int, iterations: int, eps: float) -> None:
    """Scores [from, to] become a nearly doubly stochastic matrix, where they are; `eps` is a float32."""
    passes = floats(passes_at)
    for i in range(n):
        softmax(passes_at + 4 * i * n, passes_at + 4 * i * n, n)
    for i in range(n * n):
        passes[i] = passes[i] + eps
    for iteration in range(iterations):
        if iteration:
            _divide_by_sums(passes_at, n, n, 1, eps)
        _divide_by_sums(passes_at, n, 1, n, eps)


@compiled
def _divide_by_sums(passes_at: int, n: int, step: int, inner: int, eps: float) -> None:
    """n lines, `step` apart, of n values, `inner` apart, each over its sum and eps."""
    passes = floats(passes_at)
    for line in range(n):
        summed = passes[line * step]
        for i in range(1, n):
            summed = summed + passes[line * step + i * inner]
        summed = summed + eps
        for i in range(n):
            passes[line * step + i * inner] = passes[line * step + i * inner] / summed


@compiled
def _read_streams(
    streams_at: int, reads_at: int, norm_at: int, out_at: int, rows: int, n: int, width: int, eps: float
) -> None:
    for row in range(rows):
        reads, out = floats(reads_at + 4 * row * n), floats(out_at + 4 * row * width)
        for stream in range(n):
            x, read = floats(streams_at + 4 * (row * n + stream) * width), reads[stream]
            if stream == 0:
                for i in range(width):
                    out[i] = x[i] * read
            else:
                for i in range(width):
                    out[i] = out[i] + x[i] * read
        rms_norm(out_at + 4 * row * width, norm_at, out_at + 4 * row * width, width, eps)


@compiled
def _spread(
    streams_at: int, y_at: int, writes_at: int, passes_at: int, out_at: int, rows: int, n: int, width: int
) -> None:
    for row in range(rows):
        y, writes, passes = floats(y_at + 4 * row * width), floats(writes_at), floats(passes_at)
        for to in range(n):
            out, write = floats(out_at + 4 * (row * n + to) * width), writes[row * n + to]
            for stream in range(n):
                x, share = floats(streams_at + 4 * (row * n + stream) * width), passes[(row * n + stream) * n + to]
                if stream == 0:
                    for i in range(width):
                        out[i] = x[i] * share
                else:
                    for i in range(width):
                        out[i] = out[i] + x[i] * share
            for i in range(width):
                out[i] = out[i] + y[i] * write


@compiled
def _silu_of_part(x_at: int, n: int, parts: int) -> None:
    x, divisor = floats(x_at), float32(parts)
    for i in range(n):
        x[i] = functions.silu(x[i] / divisor)


@compiled
def _strengths(x_at: int, n: int, parts: int) -> None:
    x, divisor = floats(x_at), float32(parts)
    for i in range(n):
        x[i] = functions.TWO * functions.sigmoid(x[i] / divisor)


@compiled
def _gated_mean(normed_at: int, gates_at: int, out_at: int, rows: int, count: int, width: int) -> None:
    for row in range(rows):
        out = floats(out_at + 4 * row * width)
        for i in range(width):
            out[i] = float32(0)
        for stream in range(count):
            skipped = 4 * (row * count + stream) * width
            normed, gates = floats(normed_at + skipped), floats(gates_at + skipped)
            for i in range(width):
                out[i] = out[i] + functions.sigmoid(gates[i]) * normed[i]
        for i in range(width):
            out[i] = out[i] / float32(count)


@compiled
def _write(streams_at: int, strengths_at: int, y_at: int, out_at: int, rows: int, count: int, width: int) -> None:
    strengths = floats(strengths_at)
    for stream in range(rows * count):
        x, y = floats(streams_at + 4 * stream * width), floats(y_at + 4 * (stream // count) * width)
        out, strength = floats(out_at + 4 * stream * width), strengths[stream]
        for i in range(width):
            out[i] = x[i] + strength * y[i]


@compiled
def _ngram_gates(keys_at: int, queries_at: int, out_at: int, count: int, width: int) -> None:
    out, root = floats(out_at), float32(1.0 / math.sqrt(width))
    for i in range(count):
        score = dot(floats(keys_at + 4 * i * width), floats(queries_at + 4 * i * width), width) * root
        size = abs(score)
        size = float32(1e-6) if size < float32(1e-6) else size
        signed = math.sqrt(size) * np.sign(score)
        out[i] = functions.sigmoid(float32(signed))
