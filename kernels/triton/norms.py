"""What is summed over a row: products, norms, softmax, and gates that follow from a product."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from torch import Tensor

from nextn.kernels.qwen4exp import Qwen4ExpOperations
from nextn.kernels.reference import inverse_sqrt
from nextn.kernels.triton.functions import at_least, read, rows_of, sigmoid, step_of, write
from nextn.kernels.triton.launch import ROW_TYPES, Build, kernel, launch


@kernel
def dot_kernel(
    a: tl.tensor, b: tl.tensor, out: tl.tensor, n: tl.tensor, scale: tl.tensor, ROOT: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """The products of rows [n] of a and b, summed and scaled; or sigmoid of the ROOT of the sum's size, signed."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total += read(a, row * n + column, column < n) * read(b, row * n + column, column < n)
    result = tl.sum(total, axis=0) * scale
    if ROOT:
        root = tl.sqrt(at_least(tl.abs(result), 1e-6))
        result = sigmoid(tl.where(result > 0, root, tl.where(result < 0, -root, 0 * root)))
    write(out, row, result, True)


@kernel
def norm_kernel(
    x: tl.tensor,
    y: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    gates: tl.tensor,
    added: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    parts: tl.tensor,
    divisor: tl.tensor,
    eps: tl.tensor,
    ADDED: tl.constexpr,
    CENTRED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Rows [n] over the root of their sum of squares, over a divisor, plus eps.

    Before that y is ADDED, or their mean taken away (CENTRED); behind it they are WEIGHTED by the row's of `parts`
    weights, given a bias if they are CENTRED, or GATED by sigmoid of rows [n].
    """
    row = tl.program_id(0).to(tl.int64)
    mean = 0.0
    if CENTRED:
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, n, BLOCK):
            column = start + tl.arange(0, BLOCK)
            total += read(x, row * n + column, column < n)
        mean = tl.sum(total, axis=0) / n
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        there = column < n
        value = read(x, row * n + column, there)
        if ADDED:
            # What is normed is the sum in the type that it is kept in.
            value = (value + read(y, row * n + column, there)).to(added.dtype.element_ty).to(tl.float32)
            write(added, row * n + column, value, there)
        if CENTRED:
            value = tl.where(there, value - mean, 0)
        squares += value * value
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / divisor + eps)
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        there = column < n
        value = read(x, row * n + column, there)
        if ADDED:
            value = (value + read(y, row * n + column, there)).to(added.dtype.element_ty).to(tl.float32)
        if CENTRED:
            value -= mean
        value *= scale
        if WEIGHTED:
            value *= read(weight, row % parts * n + column, there)
        if CENTRED:
            value += read(bias, column, there)
        if GATED:
            value *= sigmoid(read(gates, row * n + column, there))
        write(out, row * n + column, value, there)


@kernel
def softmax_kernel(x: tl.tensor, out: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Rows [n]."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * n + column, mask=column < n, other=float("-inf")).to(tl.float32)
        largest = tl.maximum(largest, value)
    top = tl.max(largest, axis=0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total += tl.where(column < n, tl.exp(read(x, row * n + column, column < n) - top), 0)
    share = 1 / tl.sum(total, axis=0)
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.exp(read(x, row * n + column, column < n) - top)
        write(out, row * n + column, value * share, column < n)


@kernel
def add_gated_kernel(
    x: tl.tensor,
    y: tl.tensor,
    inputs: tl.tensor,
    gate: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """x + y sigmoid(inputs · gate) for rows [n], and gate [n]."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total += read(inputs, row * n + column, column < n) * read(gate, column, column < n)
    share = sigmoid(tl.sum(total, axis=0))
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = read(x, row * n + column, column < n) + share * read(y, row * n + column, column < n)
        write(out, row * n + column, value, column < n)


class Norms(Qwen4ExpOperations):
    """Products of rows, norms and softmax."""

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """As defined."""
        return _products(a, b, 1.0, root=False)

    def ngram_gates(self, keys: Tensor, queries: Tensor) -> Tensor:
        """As defined."""
        return _products(keys, queries, inverse_sqrt(keys.shape[-1]), root=True)

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """As defined."""
        return _normed(x, eps, x.shape[-1], weight=weight)

    def l2_norm(self, x: Tensor, eps: float) -> Tensor:
        """As defined."""
        return _normed(x, eps, 1)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """As defined."""
        return _normed(x, eps, x.shape[-1], weight=weight, bias=bias)

    def added_and_normed(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """As defined."""
        added = x.new_empty(x.shape)
        return added, _normed(x, eps, x.shape[-1], weight=weight, added=(rows_of(y), added))

    def normed_gated_heads(self, x: Tensor, weight: Tensor, eps: float, gates: Tensor) -> Tensor:
        """As defined."""
        return _normed(x, eps, x.shape[-1], weight=weight, gates=rows_of(gates)).reshape(gates.shape)

    def softmax(self, x: Tensor) -> Tensor:
        """As defined."""
        x = rows_of(x)
        out, n = x.new_empty(x.shape), x.shape[-1]
        launch(softmax_kernel, (x.numel() // n,), x, out, n, BLOCK=step_of(n))
        return out

    def add_gated(self, x: Tensor, y: Tensor, inputs: Tensor, gate: Tensor) -> Tensor:
        """As defined."""
        x, y, inputs = rows_of(x), rows_of(y), rows_of(inputs)
        out, (rows, n) = x.new_empty(x.shape), x.shape
        launch(add_gated_kernel, (rows,), x, y, inputs, gate.contiguous(), out, n, BLOCK=step_of(n))
        return out


def _products(a: Tensor, b: Tensor, scale: float, *, root: bool) -> Tensor:
    """The kernel's result for a and b [..., n]: [...]."""
    a, b = rows_of(a), rows_of(b)
    out, n = a.new_empty(a.shape[:-1]), a.shape[-1]
    launch(dot_kernel, (out.numel(),), a, b, out, n, float(scale), ROOT=root, BLOCK=step_of(n))
    return out


def _normed(
    x: Tensor,
    eps: float,
    divisor: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    gates: Tensor | None = None,
    added: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The kernel's result for x [..., n]; `added` is what is added to it, and where the sum goes."""
    x = rows_of(x)
    out, n = x.new_empty(x.shape), x.shape[-1]
    y, total = added or (x, x)
    weights = x if weight is None else weight.contiguous()
    arguments = x, y, weights, x if bias is None else bias, x if gates is None else gates, total, out
    parts = 1 if weight is None else weight.numel() // n
    constants = _form(added is not None, bias is not None, weight is not None, gates is not None, n)
    launch(norm_kernel, (x.numel() // n,), *arguments, n, parts, float(divisor), float(eps), **constants)
    return out


def _form(added: bool, centred: bool, weighted: bool, gated: bool, n: int) -> dict[str, Any]:
    return {"ADDED": added, "CENTRED": centred, "WEIGHTED": weighted, "GATED": gated, "BLOCK": step_of(n)}


def _builds(x: str) -> tuple[Build, ...]:
    """The kernels for rows of a type and a few thousand columns."""
    names = ("x", "y", "weight", "bias", "gates", "added", "out")
    norm = dict.fromkeys(names, x) | {"n": "i32", "parts": "i32", "divisor": "fp32", "eps": "fp32"}
    block = {"BLOCK": step_of(4096)}
    forms = {
        "rms norm": _form(False, False, True, False, 4096),
        "l2 norm": _form(False, False, False, False, 128),
        "layer norm": _form(False, True, True, False, 128),
        "added and normed": _form(True, False, True, False, 4096),
        "normed gated heads": _form(False, False, True, True, 128),
    }
    product = {"a": x, "b": x, "out": x, "n": "i32", "scale": "fp32"}
    gated = dict.fromkeys(("x", "y", "inputs", "gate", "out"), x) | {"n": "i32"}
    return (
        *(Build(f"{name} {x}", norm_kernel, norm, form) for name, form in forms.items()),
        *(
            Build(f"{name} {x}", dot_kernel, product, block | {"ROOT": root})
            for name, root in (("dot", False), ("ngram gates", True))
        ),
        Build(f"softmax {x}", softmax_kernel, {"x": x, "out": x, "n": "i32"}, block),
        Build(f"add gated {x}", add_gated_kernel, gated, block),
    )


BUILDS = tuple(build for x in ROW_TYPES.values() for build in _builds(x))
