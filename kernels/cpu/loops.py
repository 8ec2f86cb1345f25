"""Loops around the microkernels: which rows of packed weights are multiplied with which rows of float32.

A product here is of several groups of rows, each with a matrix of its own; a plain one has one group. Work is cut into
tiles of a few weight rows of one group, which threads share; no sum is ever split, so that threads change no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from nextn.kernels.cpu.memory import FLOAT_BYTES, LONG_BYTES, compiled, int64, longs, shared_by_threads
from nextn.kernels.cpu.microkernels import MOST_COLUMNS, MOST_ROWS

# Weight rows of a tile: a multiple of MOST_COLUMNS, whichever that is.
TILE = 24
# Above so many rows the weights of a tile are decoded once for all of them; the bits are the same.
DECODED_ABOVE = 2 * MOST_ROWS


def _call(count: int) -> Callable[..., None]:
    """A call of machine code at an address, with so many integers or pointers, all as 64-bit integers."""

    def typed(context: Any, address: Any, arguments: Any) -> Any:
        def code(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
            long = ir.IntType(64)
            kind = ir.FunctionType(ir.VoidType(), [long] * count)
            target = builder.inttoptr(given[0], kind.as_pointer())
            builder.call(target, [builder.extract_value(given[1], i) for i in range(count)])
            return context.get_dummy_value()

        return types.void(types.int64, types.UniTuple(types.int64, count)), code

    return cast(Callable[..., None], intrinsic(typed))


call_product, call_decode = _call(8), _call(4)
# Where the addresses of products for several weight rows, of 2 … 4 rows of x, stand behind those for one; the decoder.
WIDE, DECODE = MOST_ROWS - 2, 2 * MOST_ROWS - 1


@shared_by_threads
def products(kernels: int, plain: int, shape: int, groups: int, count: int, weights: int, x: int, y: int) -> None:
    """Rows x [rows, in] of `count` groups times their matrices: y [rows, out].

    kernels, plain: addresses of the addresses of microkernels, of the weights' type and of F32. shape: address of out,
    in, blocks, rest, bytes of a weight row, blocks and rest of F32, and bytes from one matrix to the next. groups:
    address of three integers for each: its matrix, its first row and how many it has.
    """
    tiles = (longs(shape)[0] + TILE - 1) // TILE
    for task in numba.prange(count * tiles):
        group = groups + 3 * LONG_BYTES * (task // tiles)
        _tile(kernels, plain, shape, group, task % tiles * TILE, weights, x, y)


@compiled
def _tile(kernels: int, plain: int, shape: int, group: int, first: int, weights: int, x: int, y: int) -> None:
    """The products of a group with a tile of its matrix, from weight row `first` on."""
    dims, mine = longs(shape), longs(group)
    out, n, row_bytes = dims[0], dims[1], dims[4]
    lines, rows = min(TILE, out - first), mine[2]
    line = weights + mine[0] * dims[7] + first * row_bytes
    x += mine[1] * n * FLOAT_BYTES
    y += (mine[1] * out + first) * FLOAT_BYTES
    if rows <= DECODED_ABOVE:
        _rows(kernels, line, row_bytes, dims[2], dims[3], lines, x, rows, n, y, out)
        return
    decoded = np.empty(TILE * n, np.float32)
    at = int64(decoded.ctypes.data)
    for o in range(lines):
        place = at + o * n * FLOAT_BYTES
        call_decode(longs(kernels)[DECODE], (line + o * row_bytes, dims[2], dims[3], place))
    _rows(plain, at, n * FLOAT_BYTES, dims[5], dims[6], lines, x, rows, n, y, out)
    # The memory is read by its address: it must live to here.
    decoded[0] = 0


@compiled
def _rows(
    kernels: int,
    line: int,
    row_bytes: int,
    blocks: int,
    rest: int,
    lines: int,
    x: int,
    rows: int,
    n: int,
    y: int,
    out: int,
) -> None:
    """The products of `lines` weight rows, `row_bytes` apart, with rows x [rows, n], a few at a time."""
    functions = longs(kernels)
    for row in range(0, rows, MOST_ROWS):
        count = min(MOST_ROWS, rows - row)
        source = x + row * n * FLOAT_BYTES
        o = 0
        while o < lines:
            is_wide = count > 1 and o + MOST_COLUMNS <= lines
            function = functions[WIDE + count] if is_wide else functions[count - 1]
            target = y + (row * out + o) * FLOAT_BYTES
            call_product(function, (line + o * row_bytes, row_bytes, blocks, rest, source, n, target, out))
            o += MOST_COLUMNS if is_wide else 1
