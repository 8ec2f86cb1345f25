"""What is done to values one by one: activations, gates, and decays of recurrences."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nextn.kernels.glm5_next import Glm5NextOperations
from nextn.kernels.qwen4exp import Qwen4ExpOperations
from nextn.kernels.routing import NO_LIMIT, PLAIN, Gate, Routing
from nextn.kernels.triton import functions
from nextn.kernels.triton.functions import at_least, at_most, read, rows_of, sigmoid, silu, softplus, step_of, write
from nextn.kernels.triton.launch import ROW_TYPES, Build, kernel, launch


@kernel
def function_kernel(
    x: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    divisor: tl.tensor,
    factor: tl.tensor,
    FUNCTION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """A factor times a function of x over a divisor, for rows [n]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < n
    value = read(x, row * n + column, there)
    write(out, row * n + column, FUNCTION(value / divisor) * factor, there)


@kernel
def gated_kernel(
    gate: tl.tensor,
    up: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    limit: tl.tensor,
    LIMITED: tl.constexpr,
    BEHIND: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """silu(gate) * up of rows [n]; LIMITED as `Gate` says, the gate BEHIND its silu."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < n
    value, other = read(gate, row * n + column, there), read(up, row * n + column, there)
    if LIMITED:
        other = at_least(at_most(other, limit), -limit)
        value = at_most(silu(value), limit) if BEHIND else silu(at_most(value, limit))
    else:
        value = silu(value)
    write(out, row * n + column, value * other, there)


@kernel
def gated_heads_kernel(
    x: tl.tensor,
    gates: tl.tensor,
    out: tl.tensor,
    heads: tl.tensor,
    n: tl.tensor,
    ONE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Heads x [rows, heads, n] times sigmoid of gates of the same shape, or of ONE a head."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < heads * n
    value = read(x, row * heads * n + column, there)
    gate = row * heads + column // n if ONE else row * heads * n + column
    write(out, row * heads * n + column, value * sigmoid(read(gates, gate, there)), there)


@kernel
def decay_kernel(
    f: tl.tensor,
    bias: tl.tensor,
    a: tl.tensor,
    out: tl.tensor,
    heads: tl.tensor,
    n: tl.tensor,
    bound: tl.tensor,
    BIASED: tl.constexpr,
    BOUNDED: tl.constexpr,
    AS_FACTOR: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """How much states decay for f [rows, heads, n] + bias [heads, n]: the logarithm, or AS_FACTOR.

    It is a [heads] times softplus, or when BOUNDED the bound times sigmoid of -a times.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < heads * n
    value, rate = read(f, row * heads * n + column, there), read(a, column // n, there)
    if BIASED:
        value += read(bias, column, there)
    value = bound * sigmoid(-rate * value) if BOUNDED else rate * softplus(value)
    write(out, row * heads * n + column, tl.exp(value) if AS_FACTOR else value, there)


class Elementwise(Qwen4ExpOperations, Glm5NextOperations, Routing):
    """Activations, gates and decays."""

    def sigmoid(self, x: Tensor) -> Tensor:
        """As defined."""
        return applied(functions.sigmoid, x)

    def silu(self, x: Tensor) -> Tensor:
        """As defined."""
        return applied(functions.silu, x)

    def exp(self, x: Tensor) -> Tensor:
        """As defined."""
        return applied(functions.exp, x)

    def softplus(self, x: Tensor) -> Tensor:
        """As defined."""
        return applied(functions.softplus, x)

    def gated(self, gate: Tensor, up: Tensor, form: Gate = PLAIN) -> Tensor:
        """As defined."""
        gate, up = rows_of(gate), rows_of(up)
        out, (rows, n) = gate.new_empty(gate.shape), gate.shape
        block, limited = step_of(n), form.limit > NO_LIMIT
        constants = {"LIMITED": limited, "BEHIND": form.behind and limited, "BLOCK": block}
        launch(gated_kernel, (rows, triton.cdiv(n, block)), gate, up, out, n, float(form.limit), **constants)
        return out

    def gated_heads(self, x: Tensor, gates: Tensor) -> Tensor:
        """As defined."""
        x, gates = rows_of(x), rows_of(gates)
        rows, heads, n = x.shape
        out, block = x.new_empty(rows, heads * n), step_of(heads * n)
        grid, one = (rows, triton.cdiv(heads * n, block)), gates.shape[1] == heads
        launch(gated_heads_kernel, grid, x, gates, out, heads, n, ONE=one, BLOCK=block)
        return out

    def decays(self, x: Tensor, rates: Tensor, bias: Tensor) -> Tensor:
        """As defined."""
        return _decayed(x[..., None], rates, bias, None, as_factor=True)[..., 0]

    def channel_decays(self, f: Tensor, bias: Tensor, a: Tensor, lower_bound: float | None) -> Tensor:
        """As defined."""
        return _decayed(f.reshape(len(f), len(a), -1), a, bias, lower_bound, as_factor=True)

    def log_decay(self, f: Tensor, a: Tensor, lower_bound: float | None) -> Tensor:
        """As defined."""
        return _decayed(f, a, None, lower_bound, as_factor=False)


def applied(function: Any, x: Tensor, divisor: float = 1.0, factor: float = 1.0) -> Tensor:
    """A factor times a function of x [..., n] over a divisor."""
    x = rows_of(x)
    out, n = x.new_empty(x.shape), x.shape[-1]
    block = step_of(n)
    grid = x.numel() // max(n, 1), triton.cdiv(n, block)
    launch(function_kernel, grid, x, out, n, float(divisor), float(factor), FUNCTION=function, BLOCK=block)
    return out


def _decayed(f: Tensor, a: Tensor, bias: Tensor | None, bound: float | None, *, as_factor: bool) -> Tensor:
    """The kernel's result for f [rows, heads, n]: of the same shape."""
    f, a, bias = rows_of(f), a.contiguous(), None if bias is None else bias.contiguous()
    rows, heads, n = f.shape
    out, block = f.new_empty(f.shape), step_of(heads * n)
    arguments = f, f if bias is None else bias, a, out, heads, n, 0.0 if bound is None else float(bound)
    constants = {"BIASED": bias is not None, "BOUNDED": bound is not None, "AS_FACTOR": as_factor, "BLOCK": block}
    launch(decay_kernel, (rows, triton.cdiv(heads * n, block)), *arguments, **constants)
    return out


def _builds(x: str) -> tuple[Build, ...]:
    """The kernels for rows of a type and a few thousand columns."""
    block = {"BLOCK": step_of(4096)}
    numbers = {"n": "i32", "heads": "i32", "limit": "fp32", "divisor": "fp32", "factor": "fp32", "bound": "fp32"}
    pointers = dict.fromkeys(("x", "out", "gate", "up", "gates", "f", "bias", "a"), x)
    types = numbers | pointers
    named = {name: getattr(functions, name) for name in ("sigmoid", "silu", "exp", "softplus")}
    decays = {"decays": (True, False, True), "channel decays": (True, True, True), "log decay": (False, False, False)}
    parts = ("BIASED", "BOUNDED", "AS_FACTOR")
    return (
        *(Build(f"{name} {x}", function_kernel, types, block | {"FUNCTION": f}) for name, f in named.items()),
        Build(f"gated {x}", gated_kernel, types, block | {"LIMITED": True, "BEHIND": True}),
        Build(f"gated heads {x}", gated_heads_kernel, types, block | {"ONE": True}),
        *(
            Build(f"{name} {x}", decay_kernel, types, block | dict(zip(parts, flags, strict=True)))
            for name, flags in decays.items()
        ),
    )


BUILDS = tuple(build for x in ROW_TYPES.values() for build in _builds(x))
