"""How compiled functions reach memory, and sums over a vector in an order that its length alone decides.

Functions get addresses, not arrays: to hand over a tensor as an array costs more than many an operation on a small
model takes. Sums have sixteen lanes, whatever the processor's vectors are; the last n mod 16 values follow one by one.
Nothing is reordered by the compiler, so that a result has the same bits in a vector loop and in what it leaves over.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from itertools import chain
from types import FunctionType
from typing import Any, Protocol, TypeVar, cast

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from torch import Tensor

from nextn.kernels.cpu.lanes import LANES, added, folded, fused

# numba's own threads: those of OpenMP wait for each other by spinning, which on a busy machine takes ten times as long.
# They serve one caller at a time.
if "NUMBA_THREADING_LAYER" not in os.environ:
    numba.config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]
_THREADS = threading.Lock()
# Multiplications from which on threads are worth being woken.
WORTH_THREADS = 1 << 20

FLOAT_BYTES = 4
LONG_BYTES = 8
FLOAT32 = torch.float32

F = TypeVar("F", bound=Callable[..., object])


class Floats(Protocol):
    """Values behind an address."""

    def __getitem__(self, index: int) -> float: ...
    def __setitem__(self, index: int, value: float) -> None: ...


class Longs(Protocol):
    """Integers behind an address."""

    def __getitem__(self, index: int) -> int: ...
    def __setitem__(self, index: int, value: int) -> None: ...


def compiled(function: F) -> F:
    """A function compiled on its first call, or read from numba's cache. Divisions by zero give what IEEE 754 says."""
    return _compiled(function)


def shared_by_threads(function: Callable[..., None]) -> Callable[..., None]:
    """A compiled function with a loop over `numba.prange`, which takes how many multiplications it does first.

    From `WORTH_THREADS` on several threads share the loop. What they do must not depend on who does it.
    """
    # numba's cache tells functions apart by their names alone, not by what they are compiled for.
    copy = FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__qualname__, copy.__module__ = f"{function.__qualname__}_by_threads", function.__module__
    alone, together = _compiled(function), _compiled(copy, parallel=True)

    @wraps(function)
    def run(work: int, *arguments: Any) -> None:
        if work < WORTH_THREADS:
            alone(*arguments)
            return
        with _THREADS:
            together(*arguments)

    return run


def _compiled(function: F, parallel: bool = False) -> F:
    try:
        dispatcher: Any = numba.njit(cache=True, nogil=True, error_model="numpy", parallel=parallel)(function)
    except RuntimeError:
        # There is no folder that a cache could be kept in.
        return cast(F, numba.njit(nogil=True, error_model="numpy", parallel=parallel)(function))
    _forgive(dispatcher._cache)
    return cast(F, dispatcher)


def _forgive(cache: Any) -> None:
    """Let what is wrong with a cache of numba's, files that are cut or a full disk, cost no more than to compile."""
    load, save = cache.load_overload, cache.save_overload

    def loaded(*arguments: Any) -> Any:
        try:
            return load(*arguments)
        except Exception:
            with suppress(OSError):
                cache.flush()
            return None

    def saved(*arguments: Any) -> None:
        with suppress(OSError):
            save(*arguments)

    cache.load_overload, cache.save_overload = loaded, saved


def fresh(*shape: int) -> Tensor:
    """A float32 tensor to be filled: numpy hands out small memory faster than torch."""
    return torch.from_numpy(np.empty(shape, np.float32))


def fresh_numbers(*shape: int) -> Tensor:
    """An int64 tensor to be filled."""
    return torch.from_numpy(np.empty(shape, np.int64))


def like(x: Tensor) -> Tensor:
    """A float32 tensor of the shape of x, without gaps, to be filled."""
    return torch.from_numpy(np.empty(x.shape, np.float32))


def whole(x: Tensor) -> Tensor:
    """x without gaps. TypeError unless it is of float32: `operations` gives these forms for nothing else."""
    if x.dtype is not FLOAT32:
        raise TypeError(f"operations on the CPU compute in float32, not in {x.dtype}")
    return x if x.is_contiguous() else x.contiguous()


def sized(x: Tensor, count: int) -> Tensor:
    """`whole` of x. ValueError unless it has so many values: what is compiled would read on behind fewer."""
    if x.numel() != count:
        raise ValueError(f"{list(x.shape)} values are given where {count} are read")
    return whole(x)


def with_whole_rows(x: Tensor) -> Tensor:
    """x as it is if its last dimension has no gaps. TypeError as `whole` raises it."""
    return whole(x) if x.dtype is not FLOAT32 or x.stride(-1) != 1 else x


def address_of(values: array[int]) -> int:
    """Where integers of `numbers` are."""
    return values.buffer_info()[0]


def numbers(*parts: Iterable[int]) -> array[int]:
    """Int64 values, one sequence behind the other."""
    return array("q", chain(*parts))


def _pointer_to(element: Any, kind: ir.Type) -> Any:
    def pointer(context: Any, address: Any) -> Any:
        def code(_: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], kind.as_pointer())

        return types.CPointer(element)(address), code

    return pointer


def _bits_of(context: Any, value: Any) -> Any:
    def code(_: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), code


def _float_of(context: Any, bits: Any) -> Any:
    def code(_: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), code


def _reduced(
    first: float,
    step: Callable[[ir.IRBuilder, Any, Sequence[Any]], Any],
    join: Callable[[ir.IRBuilder, Any, Any], Any],
) -> Callable[[Any, ir.IRBuilder, Any, Sequence[Any]], Any]:
    """Code that goes over vectors behind pointers, whose common length is the last argument, in lanes."""
    scalar, lanes = ir.FloatType(), ir.VectorType(ir.FloatType(), LANES)

    def code(_: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[Any]) -> Any:
        *pointers, n = arguments
        whole = builder.and_(n, ir.Constant(n.type, -LANES))
        held = cgutils.alloca_once_value(builder, ir.Constant(lanes, [ir.Constant(scalar, first)] * LANES))
        with cgutils.for_range_slice(builder, n.type(0), whole, n.type(LANES)) as (i, _):
            places = [builder.bitcast(builder.gep(p, [i]), lanes.as_pointer()) for p in pointers]
            values = [builder.load(place, align=FLOAT_BYTES) for place in places]
            builder.store(step(builder, builder.load(held), values), held)
        total = cgutils.alloca_once_value(builder, folded(builder, builder.load(held), join))
        with cgutils.for_range_slice(builder, whole, n, n.type(1)) as (i, _):
            values = [builder.load(builder.gep(p, [i])) for p in pointers]
            builder.store(step(builder, builder.load(total), values), total)
        return builder.load(total)

    return code


def _larger(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", b, a), b, a)


_dot_code = _reduced(0.0, lambda b, held, v: fused(b, v[0], v[1], held), added)
_total_code = _reduced(0.0, lambda b, held, v: b.fadd(held, v[0]), added)
_largest_code = _reduced(float("-inf"), lambda b, held, v: _larger(b, held, v[0]), _larger)
_VECTOR = types.CPointer(types.float32)


def _add_weighted_code(_: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[Any]) -> Any:
    rows, weights, out, count, n, step = arguments
    done = n.type(0)
    # Several vectors at once, so that one addition need not wait for the other; every column has one order anyway.
    for vectors, lanes in ((4, LANES), (1, LANES), (1, 1)):
        scalar = ir.FloatType()
        kind = scalar if lanes == 1 else ir.VectorType(scalar, lanes)
        width = vectors * lanes
        end = builder.and_(n, n.type(-width))
        with cgutils.for_range_slice(builder, done, end, n.type(width)) as (column, _count):
            offsets = [builder.add(column, n.type(i * lanes)) for i in range(vectors)]
            places = [builder.bitcast(builder.gep(out, [offset]), kind.as_pointer()) for offset in offsets]
            held = [cgutils.alloca_once(builder, kind) for _ in places]
            for place, slot in zip(places, held, strict=True):
                builder.store(builder.load(place, align=FLOAT_BYTES), slot)
            with cgutils.for_range(builder, count) as loop:
                weight = builder.load(builder.gep(weights, [loop.index]))
                if lanes > 1:
                    first = builder.insert_element(ir.Constant(kind, ir.Undefined), weight, ir.IntType(32)(0))
                    zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)
                    weight = builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)
                row = builder.gep(rows, [builder.mul(loop.index, step)])
                for offset, slot in zip(offsets, held, strict=True):
                    at = builder.bitcast(builder.gep(row, [offset]), kind.as_pointer())
                    value = builder.load(at, align=FLOAT_BYTES)
                    builder.store(fused(builder, weight, value, builder.load(slot)), slot)
            for place, slot in zip(places, held, strict=True):
                builder.store(builder.load(slot), place, align=FLOAT_BYTES)
        done = end
    return ir.Constant(ir.IntType(8).as_pointer(), None)


def _add_weighted(context: Any, rows: Any, weights: Any, out: Any, count: Any, n: Any, step: Any) -> Any:
    return types.none(_VECTOR, _VECTOR, _VECTOR, types.int64, types.int64, types.int64), _add_weighted_code


def _dot(context: Any, a: Any, b: Any, n: Any) -> Any:
    return types.float32(_VECTOR, _VECTOR, types.int64), _dot_code


def _total(context: Any, a: Any, n: Any) -> Any:
    return types.float32(_VECTOR, types.int64), _total_code


def _largest(context: Any, a: Any, n: Any) -> Any:
    return types.float32(_VECTOR, types.int64), _largest_code


floats = cast(Callable[[int], Floats], intrinsic(_pointer_to(types.float32, ir.FloatType())))
doubles = cast(Callable[[int], Floats], intrinsic(_pointer_to(types.float64, ir.DoubleType())))
longs = cast(Callable[[int], Longs], intrinsic(_pointer_to(types.int64, ir.IntType(64))))
bits_of = cast(Callable[[float], int], intrinsic(_bits_of))
float_of = cast(Callable[[int], float], intrinsic(_float_of))
# Numbers of a width. Only what is written so keeps it: float32 with a number of Python's is float64.
float32, float64 = cast(Callable[[float], float], np.float32), cast(Callable[[float], float], np.float64)
int32, int64 = cast(Callable[[int], int], np.int32), cast(Callable[[int], int], np.int64)
# The products of two vectors, summed; the sum of one; the largest value, of which NaN is none.
dot = cast(Callable[[Floats, Floats, int], float], intrinsic(_dot))
total = cast(Callable[[Floats, int], float], intrinsic(_total))
largest = cast(Callable[[Floats, int], float], intrinsic(_largest))
# out[j] + the sum over i of weights[i] * rows[i * step + j], in the order of i, for n columns of `count` rows.
add_weighted = cast(Callable[[Floats, Floats, Floats, int, int, int], None], intrinsic(_add_weighted))
