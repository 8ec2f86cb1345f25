"""Rotation of heads by positions, normed or as they are."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.kernels.reference import Reference, frequencies
from nextn.kernels.triton.functions import read, whole_rows_of, write
from nextn.kernels.triton.launch import ROW_TYPES, Build, kernel, launch

# A quarter turn in two parts: quarters times the first are exact up to 2^20 of them.
QUARTER_HIGH = tl.constexpr(math.floor(math.pi / 2 * 2**32) / 2**32)
QUARTER_LOW = tl.constexpr(math.pi / 2 - math.floor(math.pi / 2 * 2**32) / 2**32)
QUARTERS = tl.constexpr(2 / math.pi)
# Terms of a Taylor series behind which float64 has no places up to half of a quarter turn.
TERMS = tl.constexpr(8)


@triton.jit
def turned(angle: tl.tensor) -> tl.tuple:
    """cos and sin of angles in float64, as float32.

    Those of math libraries have a slow path for large angles, which takes memory of every thread.
    """
    quarters = tl.floor(angle * QUARTERS + 0.5)
    rest = angle - quarters * QUARTER_HIGH - quarters * QUARTER_LOW
    square = rest * rest
    cos = square * 0 + 1
    sin = square * 0 + 1
    for k in tl.static_range(TERMS):
        cos = 1 - square * cos * (1 / ((2 * (TERMS - k) - 1) * 2 * (TERMS - k)))
        sin = 1 - square * sin * (1 / (2 * (TERMS - k) * (2 * (TERMS - k) + 1)))
    sin *= rest
    quadrant = quarters.to(tl.int64) & 3
    swapped = (quadrant & 1) == 1
    x, y = tl.where(swapped, sin, cos), tl.where(swapped, cos, sin)
    x = tl.where((quadrant == 1) | (quadrant == 2), -x, x)
    y = tl.where(quadrant >= 2, -y, y)
    return x.to(tl.float32), y.to(tl.float32)


@kernel
def rotate_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    positions: tl.tensor,
    turns: tl.tensor,
    out: tl.tensor,
    heads: tl.tensor,
    n: tl.tensor,
    half: tl.tensor,
    x_row: tl.tensor,
    x_head: tl.tensor,
    position_row: tl.tensor,
    position_step: tl.tensor,
    eps: tl.tensor,
    NORMED: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """A head [n] of a row, NORMED with weight [n], its first 2 * half values rotated; steps are given in values."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x += row * x_row + head * x_head
    out += (row * heads + head) * n
    column = tl.arange(0, BLOCK)
    there = column < n
    value = read(x, column, there)
    scale = 1.0
    if NORMED:
        scale = 1 / tl.sqrt(tl.sum(value * value, axis=0) / n + eps)
        value = value * scale * read(weight, column, there)
    write(out, column, value, there & (column >= 2 * half))
    pair = tl.arange(0, HALF)
    there = pair < half
    position = tl.load(positions + row * position_row + pair * position_step, mask=there, other=0)
    cos, sin = turned(position.to(tl.float64) * tl.load(turns + pair, mask=there, other=0.0))
    first, second = read(x, pair, there), read(x, half + pair, there)
    if NORMED:
        first = first * scale * read(weight, pair, there)
        second = second * scale * read(weight, half + pair, there)
    write(out, pair, first * cos - second * sin, there)
    write(out, half + pair, second * cos + first * sin, there)


class Rotation(Reference):
    """Rotation of heads, normed or as they are."""

    def rope(self, x: Tensor, positions: Tensor, dims: int, base: float, factors: Tensor | None = None) -> Tensor:
        """As defined."""
        return _rotated(x, None, 0.0, positions, _turns(dims, x.shape[-1], base, factors, x.device))

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
        return _rotated(x, weight, eps, positions, _turns(dims, x.shape[-1], base, factors, x.device))


# Tensors are keys by their identity: the cache keeps those that it knows, so that none is taken for another.
@lru_cache(maxsize=64)
def _turns(dims: int, width: int, base: float, factors: Tensor | None, device: torch.device) -> Tensor:
    return frequencies(dims, width, base, factors).to(device)


def _rotated(x: Tensor, weight: Tensor | None, eps: float, positions: Tensor, turns: Tensor) -> Tensor:
    x = whole_rows_of(x)
    (rows, heads, n), half = x.shape, len(turns)
    out = x.new_empty(x.shape)
    arguments = x, x if weight is None else weight.contiguous(), positions, turns, out, heads, n, half, *x.stride()[:2]
    steps = positions.stride() if positions.dim() > 1 else (positions.stride(0), 0)
    launch(rotate_kernel, (rows, heads), *arguments, *steps, float(eps), **_constants(n, half, weight is not None))
    return out


def _constants(n: int, half: int, normed: bool) -> dict[str, Any]:
    return {"NORMED": normed, "BLOCK": triton.next_power_of_2(n), "HALF": triton.next_power_of_2(max(half, 1))}


def _build(name: str, x: str, n: int, half: int, normed: bool) -> Build:
    pointers = {"x": x, "weight": x, "positions": "*i64", "turns": "*fp64", "out": x}
    numbers = ("heads", "n", "half", "x_row", "x_head", "position_row", "position_step")
    types = pointers | dict.fromkeys(numbers, "i32") | {"eps": "fp32"}
    return Build(f"{name} {x}", rotate_kernel, types, _constants(n, half, normed))


BUILDS = tuple(
    build
    for x in ROW_TYPES.values()
    for build in (
        _build("rope", x, 128, 64, normed=False),
        _build("normed and rotated", x, 128, 32, normed=True),
        _build("normed and rotated wide", x, 256, 32, normed=True),
    )
)
