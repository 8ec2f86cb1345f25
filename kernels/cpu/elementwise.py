"""Functions of values, on the CPU."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from nextn.kernels.cpu import functions
from nextn.kernels.cpu.memory import compiled, dot, float32, floats, fresh, largest, like, sized, total, whole
from nextn.kernels.routing import NO_LIMIT, PLAIN, Gate, Routing


class Elementwise(Routing):
    """Activations, softmax, and gates."""

    def sigmoid(self, x: Tensor) -> Tensor:
        """As defined."""
        x = whole(x)
        out = like(x)
        _sigmoid(x.data_ptr(), out.data_ptr(), x.numel())
        return out

    def silu(self, x: Tensor) -> Tensor:
        """As defined."""
        x = whole(x)
        out = like(x)
        _silu(x.data_ptr(), out.data_ptr(), x.numel())
        return out

    def exp(self, x: Tensor) -> Tensor:
        """As defined."""
        x = whole(x)
        out = like(x)
        _exp(x.data_ptr(), out.data_ptr(), x.numel())
        return out

    def softplus(self, x: Tensor) -> Tensor:
        """As defined."""
        x = whole(x)
        out = like(x)
        _softplus(x.data_ptr(), out.data_ptr(), x.numel())
        return out

    def softmax(self, x: Tensor) -> Tensor:
        """As defined."""
        x = whole(x)
        out, n = like(x), x.shape[-1]
        _softmax(x.data_ptr(), out.data_ptr(), x.numel() // n, n)
        return out

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """As defined."""
        a, b, n = whole(a), sized(b, a.numel()), a.shape[-1]
        out = fresh(*a.shape[:-1])
        _dots(a.data_ptr(), b.data_ptr(), out.data_ptr(), out.numel(), n)
        return out

    def gated(self, gate: Tensor, up: Tensor, form: Gate = PLAIN) -> Tensor:
        """As defined."""
        gate, up = whole(gate), sized(up, gate.numel())
        out, limit = like(gate), form.limit if form.limit > NO_LIMIT else np.inf
        _gated(gate.data_ptr(), up.data_ptr(), out.data_ptr(), gate.numel(), float(limit), form.behind)
        return out

    def gated_heads(self, x: Tensor, gates: Tensor) -> Tensor:
        """As defined."""
        (rows, heads, n), x = x.shape, whole(x)
        shared = n if gates.shape[-1] == heads else 1  # values that have one gate
        gates, out = sized(gates, rows * heads * n // shared), fresh(rows, heads * n)
        _gated_heads(x.data_ptr(), gates.data_ptr(), out.data_ptr(), gates.numel(), shared)
        return out

    def add_gated(self, x: Tensor, y: Tensor, inputs: Tensor, gate: Tensor) -> Tensor:
        """As defined."""
        (rows, n), x = x.shape, whole(x)
        y, inputs, gate, out = sized(y, rows * n), sized(inputs, rows * n), sized(gate, n), like(x)
        _add_gated(x.data_ptr(), y.data_ptr(), inputs.data_ptr(), gate.data_ptr(), out.data_ptr(), rows, n)
        return out


@compiled
def _sigmoid(x_at: int, out_at: int, n: int) -> None:
    x, out = floats(x_at), floats(out_at)
    for i in range(n):
        out[i] = functions.sigmoid(x[i])


@compiled
def _silu(x_at: int, out_at: int, n: int) -> None:
    x, out = floats(x_at), floats(out_at)
    for i in range(n):
        out[i] = functions.silu(x[i])


@compiled
def _exp(x_at: int, out_at: int, n: int) -> None:
    x, out = floats(x_at), floats(out_at)
    for i in range(n):
        out[i] = functions.exp(x[i])


@compiled
def _softplus(x_at: int, out_at: int, n: int) -> None:
    x, out = floats(x_at), floats(out_at)
    for i in range(n):
        out[i] = functions.softplus(x[i])


@compiled
def softmax(x_at: int, out_at: int, n: int) -> None:
    """One vector of n values."""
    x, out = floats(x_at), floats(out_at)
    most = largest(x, n)
    for i in range(n):
        out[i] = functions.exp(x[i] - most)
    summed = total(out, n)
    for i in range(n):
        out[i] = out[i] / summed


@compiled
def _softmax(x_at: int, out_at: int, rows: int, n: int) -> None:
    for row in range(rows):
        softmax(x_at + 4 * row * n, out_at + 4 * row * n, n)


@compiled
def _dots(a_at: int, b_at: int, out_at: int, rows: int, n: int) -> None:
    out = floats(out_at)
    for row in range(rows):
        out[row] = dot(floats(a_at + 4 * row * n), floats(b_at + 4 * row * n), n)


@compiled
def _gated(gate_at: int, up_at: int, out_at: int, n: int, bound: float, behind: bool) -> None:
    gate, up, out, limit = floats(gate_at), floats(up_at), floats(out_at), float32(bound)
    before, after = (float32(np.inf), limit) if behind else (limit, float32(np.inf))
    for i in range(n):
        g, u = gate[i], up[i]
        # NaN is neither above nor below a limit, and stays.
        g = before if g > before else g
        g = functions.silu(g)
        g = after if g > after else g
        u = limit if u > limit else u
        u = -limit if u < -limit else u
        out[i] = g * u


@compiled
def _gated_heads(x_at: int, gates_at: int, out_at: int, count: int, shared: int) -> None:
    gates = floats(gates_at)
    if shared == 1:
        x, out = floats(x_at), floats(out_at)
        for i in range(count):
            out[i] = x[i] * functions.sigmoid(gates[i])
        return
    for head in range(count):
        gate = functions.sigmoid(gates[head])
        x, out = floats(x_at + 4 * head * shared), floats(out_at + 4 * head * shared)
        for i in range(shared):
            out[i] = x[i] * gate


@compiled
def _add_gated(x_at: int, y_at: int, inputs_at: int, gate_at: int, out_at: int, rows: int, n: int) -> None:
    for row in range(rows):
        skipped = 4 * row * n
        gate = functions.sigmoid(dot(floats(inputs_at + skipped), floats(gate_at), n))
        x, y, out = floats(x_at + skipped), floats(y_at + skipped), floats(out_at + skipped)
        for i in range(n):
            out[i] = x[i] + gate * y[i]
