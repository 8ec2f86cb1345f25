"""Norms, on the CPU."""

from __future__ import annotations

import math

from torch import Tensor

from nextn.kernels.cpu import functions
from nextn.kernels.cpu.memory import compiled, dot, float32, float64, floats, fresh, like, sized, total, whole
from nextn.kernels.reference import Reference


class Norms(Reference):
    """Norms of rows and of heads."""

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """As defined."""
        x = whole(x)
        out, n = like(x), x.shape[-1]
        address, weights = 0, 1
        if weight is not None:
            weights = 1 if weight.dim() == 1 else x.shape[-2]
            weight = sized(weight, weights * n)
            address = weight.data_ptr()
        _rms_norm(x.data_ptr(), address, out.data_ptr(), x.numel() // n, n, weights, eps)
        return out

    def added_and_normed(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """As defined."""
        (rows, n), x = x.shape, whole(x)
        y, weight, added, out = sized(y, rows * n), sized(weight, n), like(x), like(x)
        addresses = (x.data_ptr(), y.data_ptr(), weight.data_ptr(), added.data_ptr(), out.data_ptr())
        _added_and_normed(*addresses, rows, n, eps)
        return added, out

    def normed_gated_heads(self, x: Tensor, weight: Tensor, eps: float, gates: Tensor) -> Tensor:
        """As defined."""
        (rows, heads, n), x = x.shape, whole(x)
        weight, gates, out = sized(weight, n), sized(gates, x.numel()), fresh(rows, heads * n)
        addresses = (x.data_ptr(), weight.data_ptr(), gates.data_ptr(), out.data_ptr())
        _normed_gated_heads(*addresses, rows * heads, n, eps)
        return out

    def l2_norm(self, x: Tensor, eps: float) -> Tensor:
        """As defined."""
        x = whole(x)
        out, n = like(x), x.shape[-1]
        _l2_norm(x.data_ptr(), out.data_ptr(), x.numel() // n, n, eps)
        return out

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """As defined."""
        x = whole(x)
        out, n = like(x), x.shape[-1]
        weight, bias = sized(weight, n), sized(bias, n)
        _layer_norm(x.data_ptr(), weight.data_ptr(), bias.data_ptr(), out.data_ptr(), x.numel() // n, n, eps)
        return out


@compiled
def inverse_root(x_at: int, n: int, divisor: int, eps: float) -> float:
    """1 over the root of the sum of n squares over a divisor, to which eps is added."""
    x = floats(x_at)
    return float32(1.0 / math.sqrt(float64(dot(x, x, n)) / divisor + eps))


@compiled
def rms_norm(x_at: int, weight_at: int, out_at: int, n: int, eps: float) -> None:
    """One vector of n values; `weight_at` may be 0."""
    scale = inverse_root(x_at, n, n, eps)
    x, out = floats(x_at), floats(out_at)
    if weight_at:
        weight = floats(weight_at)
        for i in range(n):
            out[i] = x[i] * scale * weight[i]
    else:
        for i in range(n):
            out[i] = x[i] * scale


@compiled
def _rms_norm(x_at: int, weight_at: int, out_at: int, rows: int, n: int, weights: int, eps: float) -> None:
    for row in range(rows):
        own_weight = weight_at + 4 * (row % weights) * n if weight_at else 0
        rms_norm(x_at + 4 * row * n, own_weight, out_at + 4 * row * n, n, eps)


@compiled
def _added_and_normed(
    x_at: int, y_at: int, weight_at: int, added_at: int, out_at: int, rows: int, n: int, eps: float
) -> None:
    for row in range(rows):
        skipped = 4 * row * n
        x, y, added = floats(x_at + skipped), floats(y_at + skipped), floats(added_at + skipped)
        for i in range(n):
            added[i] = x[i] + y[i]
        rms_norm(added_at + skipped, weight_at, out_at + skipped, n, eps)


@compiled
def _normed_gated_heads(x_at: int, weight_at: int, gates_at: int, out_at: int, heads: int, n: int, eps: float) -> None:
    for head in range(heads):
        skipped = 4 * head * n
        rms_norm(x_at + skipped, weight_at, out_at + skipped, n, eps)
        out, gates = floats(out_at + skipped), floats(gates_at + skipped)
        for i in range(n):
            out[i] = out[i] * functions.sigmoid(gates[i])


@compiled
def _l2_norm(x_at: int, out_at: int, rows: int, n: int, eps: float) -> None:
    for row in range(rows):
        scale = inverse_root(x_at + 4 * row * n, n, 1, eps)
        x, out = floats(x_at + 4 * row * n), floats(out_at + 4 * row * n)
        for i in range(n):
            out[i] = x[i] * scale


@compiled
def _layer_norm(x_at: int, weight_at: int, bias_at: int, out_at: int, rows: int, n: int, eps: float) -> None:
    bias = floats(bias_at)
    for row in range(rows):
        x, out = floats(x_at + 4 * row * n), floats(out_at + 4 * row * n)
        mean = float32(total(x, n) / float32(n))
        for i in range(n):
            out[i] = x[i] - mean
        rms_norm(out_at + 4 * row * n, weight_at, out_at + 4 * row * n, n, eps)
        for i in range(n):
            out[i] = out[i] + bias[i]
