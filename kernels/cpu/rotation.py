"""Rotation by positions, on the CPU."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from nextn.kernels.cpu.memory import (
    compiled,
    doubles,
    float32,
    float64,
    floats,
    fresh,
    longs,
    sized,
    with_whole_rows,
)
from nextn.kernels.cpu.norms import rms_norm
from nextn.kernels.reference import Reference, frequencies


class Rotation(Reference):
    """Rotation of heads, normed or as they are."""

    def rope(self, x: Tensor, positions: Tensor, dims: int, base: float, factors: Tensor | None = None) -> Tensor:
        """As defined."""
        return _rotated(x, None, 0.0, positions, dims, base, factors)

    def normed_and_rotated(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        positions: Tensor,
        dims: int,
        base: float,
        factors: Tensor | None = None,
    ) -> Tensor:
        """As defined."""
        return _rotated(x, weight, eps, positions, dims, base, factors)


# Tensors are keys by their identity: the cache keeps those that it knows, so that none is taken for another.
_frequencies = lru_cache(maxsize=64)(frequencies)


def _rotated(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    positions: Tensor,
    dims: int,
    base: float,
    factors: Tensor | None,
) -> Tensor:
    rows, heads, n = x.shape
    turns = _frequencies(dims, n, base, factors)
    x = with_whole_rows(x)
    row_step, head_step, _ = x.stride()
    out, positions = fresh(rows, heads, n), positions.contiguous()
    if positions.dtype is not torch.int64:
        raise TypeError(f"positions are int64, not {positions.dtype}")
    if positions.numel() != rows * (dims // 2 if positions.dim() > 1 else 1):
        raise ValueError(f"positions {list(positions.shape)} are not for {rows} rows of {dims // 2} pairs")
    weight = None if weight is None else sized(weight, n)
    _rotate(
        *(x.data_ptr(), 0 if weight is None else weight.data_ptr(), positions.data_ptr(), turns.data_ptr()),
        *(out.data_ptr(), rows, heads, n, row_step, head_step, dims // 2),
        positions.dim() > 1,
        eps,
    )
    return out


@compiled
def _rotate(
    x_at: int,
    weight_at: int,
    positions_at: int,
    turns_at: int,
    out_at: int,
    rows: int,
    heads: int,
    n: int,
    row_step: int,
    head_step: int,
    half: int,
    by_frequency: bool,
    eps: float,
) -> None:
    positions, turns = longs(positions_at), doubles(turns_at)
    cos, sin = np.empty(half, np.float32), np.empty(half, np.float32)
    for row in range(rows):
        for m in range(half):
            angle = float64(positions[row * half + m if by_frequency else row]) * turns[m]
            cos[m], sin[m] = float32(math.cos(angle)), float32(math.sin(angle))
        for head in range(heads):
            from_at = x_at + 4 * (row * row_step + head * head_step)
            to_at = out_at + 4 * (row * heads + head) * n
            if weight_at:
                rms_norm(from_at, weight_at, to_at, n, eps)
                from_at = to_at
            x, out = floats(from_at), floats(to_at)
            for m in range(half):
                first, second = x[m], x[half + m]
                out[m] = first * cos[m] - second * sin[m]
                out[half + m] = second * cos[m] + first * sin[m]
            for i in range(2 * half, n):
                out[i] = x[i]
