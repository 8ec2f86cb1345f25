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

from nextn.kernels.cpu.memory import FLOAT_BYTES, compiled, compiled_for_threads, longs
from nextn.kernels.cpu.microkernels import MOST_COLUMNS, MOST_ROWS

# Weight rows of a tile.
TILE = 16
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
# Where the addresses of the product for several weight rows and of the decoder stand, behind those for 1 … 4 rows.
WIDE, DECODE = MOST_ROWS, MOST_ROWS + 1


@compiled
def tile(
    kernels: int, plain: int, shape: int, group: int, first: int, weights: int, x: int, y: int, scratch: int
) -> None:
    """The products of one tile of one group, from weight row `first` on.

    kernels, plain: addresses of the addresses of microkernels, of the weights' type and of F32. shape: address of out,
    in, blocks, rest, bytes of a weight row, blocks and rest of F32, and bytes from one matrix to the next. group:
    address of the numbers of matrix, first row and rows. scratch: room for the decoded tile.
    """
    dims, mine = longs(shape), longs(group)
    out, n, blocks, rest, row_bytes = dims[0], dims[1], dims[2], dims[3], dims[4]
    begin, rows = mine[1], mine[2]
    matrix = weights + mine[0] * dims[7]
    last = min(out, first + TILE)
    functions = longs(kernels)
    decoded = rows > DECODED_ABOVE
    if decoded:
        for o in range(first, last):
            arguments = (matrix + o * row_bytes, blocks, rest, scratch + (o - first) * n * FLOAT_BYTES)
            call_decode(functions[DECODE], arguments)
        functions = longs(plain)
        blocks, rest, row_bytes = dims[5], dims[6], n * FLOAT_BYTES
        matrix = scratch - first * row_bytes
    row = 0
    while row < rows:
        count = min(MOST_ROWS, rows - row)
        source = x + (begin + row) * n * FLOAT_BYTES
        o = first
        while o < last:
            is_wide = count == MOST_ROWS and o + MOST_COLUMNS <= last
            function = functions[WIDE] if is_wide else functions[count - 1]
            target = y + ((begin + row) * out + o) * FLOAT_BYTES
            call_product(function, (matrix + o * row_bytes, row_bytes, blocks, rest, source, n, target, out))
            o += MOST_COLUMNS if is_wide else 1
        row += count


@compiled
def alone(kernels: int, plain: int, shape: int, groups: int, count: int, weights: int, x: int, y: int) -> None:
    """Rows x [rows, in] of `count` groups times their matrices: y [rows, out]; groups are three integers each."""
    dims = longs(shape)
    scratch = np.empty(TILE * dims[1], np.float32)
    for g in range(count):
        for first in range(0, dims[0], TILE):
            tile(kernels, plain, shape, groups + 24 * g, first, weights, x, y, scratch.ctypes.data)


@compiled_for_threads
def together(kernels: int, plain: int, shape: int, groups: int, count: int, weights: int, x: int, y: int) -> None:
    """As `alone`, by several threads."""
    dims = longs(shape)
    tiles = (dims[0] + TILE - 1) // TILE
    for task in numba.prange(count * tiles):
        scratch = np.empty(TILE * dims[1], np.float32)
        group = groups + 24 * (task // tiles)
        tile(kernels, plain, shape, group, task % tiles * TILE, weights, x, y, scratch.ctypes.data)
