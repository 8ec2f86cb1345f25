"""Sixteen lanes of float32 as LLVM code: how they are multiplied, added and folded into one, for every sum there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

LANES = 16


def fused(builder: ir.IRBuilder, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once, of floats or of lanes; llvmlite's own `fma` takes no vectors."""
    name = f"llvm.fma.v{LANES}f32" if isinstance(c.type, ir.VectorType) else "llvm.fma.f32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(c.type, [c.type] * 3), name)
    return builder.call(function, [a, b, c])


def folded(builder: ir.IRBuilder, lanes: Any, join: Callable[[ir.IRBuilder, Any, Any], Any]) -> Any:
    """All lanes as one: halves are joined until one is left."""
    count = LANES
    while count > 1:
        count //= 2
        nothing, kind = ir.Constant(lanes.type, ir.Undefined), ir.VectorType(ir.IntType(32), count)
        halves = (ir.Constant(kind, list(range(start, start + count))) for start in (0, count))
        lanes = join(builder, *(builder.shuffle_vector(lanes, nothing, half) for half in halves))
    return builder.extract_element(lanes, ir.Constant(ir.IntType(32), 0))


def added(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    """a + b, of floats or of lanes."""
    return builder.fadd(a, b)
