"""Products of rows and matrices of floats: F32, F16, BF16.

A program makes a few columns of the result for a few rows. Its threads go along the matrix's rows together, each with
sums of its own, which are added at the end: in one order, whatever the number of rows. Tensors have one dimension, the
threads: how Triton lays out those of more may depend on how many rows there are (tests/ahead_of_time.py looks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nextn.kernels.triton.functions import matrix_of, place_of
from nextn.kernels.triton.launch import INTERPRETED, MATRIX_TYPES, ROW_TYPES, WARPS, Build, filled, kernel, launch

THREADS = 32 * WARPS
# How many rows a program takes.
ROW_TILES = (1, 2, 4)
# How many columns of the result, at most. Interpreted programs take long to start, whatever they do.
COLUMNS = 8
COLUMNS_INTERPRETED = 32
# A matrix is given to so many programs before they take several of its rows: an H200 has 132 processors.
PROGRAMS = 264


@dataclass(frozen=True)
class Plain:
    """How a type is read: so many values a word, which are such floats."""

    values: int
    kind: tl.dtype

    @property
    def bytes(self) -> int:
        """Of a word."""
        return self.values * int(self.kind.primitive_bitwidth) // 8


PLAIN = {"F32": Plain(1, tl.float32), "F16": Plain(4, tl.float16), "BF16": Plain(4, tl.bfloat16)}


@kernel
def plain_product_kernel(
    x: tl.tensor,
    w: tl.tensor,
    w_1: tl.tensor,
    w_2: tl.tensor,
    w_3: tl.tensor,
    outputs: tl.tensor,
    outputs_1: tl.tensor,
    outputs_2: tl.tensor,
    outputs_3: tl.tensor,
    out: tl.tensor,
    ids: tl.tensor,
    rows: tl.tensor,
    words: tl.tensor,
    x_row: tl.tensor,
    x_part: tl.tensor,
    parts: tl.tensor,
    parts_of_x: tl.tensor,
    VALUES: tl.constexpr,
    KIND: tl.constexpr,
    BYTES: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
    CHOSEN: tl.constexpr,
) -> None:
    """Rows x times the transposes of matrices w [parts, outputs, width]: out has [rows, parts, outputs] of each.

    Part p has rows of its own, number p / `parts_of_x`.
    """
    part, first_row, number = place_of(ids, rows, ROWS, CHOSEN)
    matrices, counts = (w, w_1, w_2, w_3), (outputs, outputs_1, outputs_2, outputs_3)
    matrix, count, before, first = matrix_of(matrices, counts, OUTPUTS)
    x += (part // parts_of_x).to(tl.int64) * x_part
    zero, totals = tl.zeros((STEP,), tl.float32), ()
    for _ in tl.static_range(OUTPUTS * ROWS):
        totals = totals + (zero,)
    for start in range(0, words, STEP):
        word = start + tl.arange(0, STEP)
        # Rows and outputs beyond the last are read as the last, and not written.
        given = ()
        for i in tl.static_range(ROWS):
            row = x + tl.minimum(first_row + i, rows - 1).to(tl.int64) * x_row
            for p in tl.static_range(VALUES):
                given = given + (tl.load(row + word * VALUES + p, mask=word < words, other=0.0).to(tl.float32),)
        new_totals = ()
        for o in tl.static_range(OUTPUTS):
            row = matrix + (number * count + tl.minimum(first + o, count - 1)) * words * BYTES
            values = ()
            if VALUES == 1:
                values = (tl.load((row + word * BYTES).to(tl.pointer_type(KIND)), mask=word < words, other=0.0),)
            else:
                four = tl.load((row + word * BYTES).to(tl.pointer_type(tl.int64)), mask=word < words, other=0)
                for p in tl.static_range(VALUES):
                    values = values + ((four >> 16 * p).to(tl.int16).to(KIND, bitcast=True).to(tl.float32),)
            for i in tl.static_range(ROWS):
                total = totals[o * ROWS + i]
                for p in tl.static_range(VALUES):
                    total = tl.fma(given[i * VALUES + p], values[p], total)
                new_totals = new_totals + (total,)
        totals = new_totals
    out += rows.to(tl.int64) * parts * before + part.to(tl.int64) * count + first
    for o in tl.static_range(OUTPUTS):
        for i in tl.static_range(ROWS):
            at, there = (first_row + i).to(tl.int64) * parts * count, (first_row + i < rows) & (first + o < count)
            tl.store(out + at + o, tl.sum(totals[o * ROWS + i]).to(out.dtype.element_ty), mask=there)


def product(x: Tensor, matrices: Sequence[Tensor], type_name: str, out: Tensor, ids: Tensor | None = None) -> None:
    """As packed_products.product, with matrices of floats: their bytes, uint8 [..., outputs, bytes of a row]."""
    count, rows, width = x.shape
    parts, outputs = count if ids is None else ids.numel(), [matrix.shape[-2] for matrix in matrices]
    constants = constants_of(type_name, rows, sum(outputs))
    programs = sum(triton.cdiv(each, constants["OUTPUTS"]) for each in outputs)
    grid = parts * triton.cdiv(rows, constants["ROWS"]), programs
    numbers = rows, width // PLAIN[type_name].values, x.stride(1), x.stride(0), parts, parts // max(count, 1)
    arguments = x, *filled(matrices, outputs), out, x if ids is None else ids, *numbers
    launch(plain_product_kernel, grid, *arguments, **constants, CHOSEN=ids is not None)


def constants_of(type_name: str, rows: int, outputs: int) -> dict[str, Any]:
    """What the kernel is compiled for; all but ROWS follows from the matrices alone."""
    form = PLAIN[type_name]
    most, fair = (COLUMNS_INTERPRETED, outputs) if INTERPRETED else (COLUMNS, outputs // PROGRAMS)
    return {
        "VALUES": form.values,
        "KIND": form.kind,
        "BYTES": form.bytes,
        "ROWS": next((tile for tile in ROW_TILES if rows <= tile), ROW_TILES[-1]),
        "OUTPUTS": max(1, min(most, triton.next_power_of_2(fair + 1) // 2)),
        "STEP": THREADS,
    }


def _build(type_name: str, rows: int, x: str, out: str | None = None) -> Build:
    """The kernel for a matrix of some thousands of rows; with a type of results for those of experts."""
    pointers = {"x": x, **MATRIX_TYPES, "out": out or x, "ids": "*i64" if out else x}
    numbers = ("rows", "words", "x_row", "x_part", "parts", "parts_of_x")
    constants = constants_of(type_name, rows, 4096) | {"CHOSEN": out is not None}
    name, group = f"product {type_name} {x} {rows}{' expert' if out else ''}", f"product {type_name} {x}"
    return Build(name, plain_product_kernel, pointers | dict.fromkeys(numbers, "i32"), constants, group=group)


BUILDS = (
    *(_build(name, rows, x) for name in PLAIN for x in ROW_TYPES.values() for rows in ROW_TILES),
    *(_build(name, 1, x, "*fp32") for name in PLAIN for x in ROW_TYPES.values()),
)
