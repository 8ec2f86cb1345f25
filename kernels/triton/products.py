"""Products of rows and matrices that stay packed as they lie in a file: linear maps, gated networks and experts.

A program makes a few columns of the result for a few rows. Its threads go along the matrix's rows together, each with
sums of its own, which are added at the end: in one order, whatever the number of rows, for neither the threads'
layout nor what each adds depends on it (tests/ahead_of_time.py compares what is compiled).
"""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.kernels.routing import PLAIN, Gate, Routing
from nextn.kernels.triton.blocks import FORMATS, table_of
from nextn.kernels.triton.launch import INTERPRETED, ROW_TYPES, WARPS, Build, kernel, launch
from nextn.kernels.weight import Weight

THREADS = 32 * WARPS
# How many rows a program takes.
ROW_TILES = (1, 2, 4)
# How many columns of the result, at most. Interpreted programs take long to start, whatever they do.
COLUMNS = 8
COLUMNS_INTERPRETED = 128
# A matrix is given to so many programs before they take several of its rows: an H200 has 132 processors.
PROGRAMS = 264


@kernel
def product_kernel(
    x: tl.tensor,
    w: tl.tensor,
    out: tl.tensor,
    ids: tl.tensor,
    table: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    outputs: tl.tensor,
    row_bytes: tl.tensor,
    x_row: tl.tensor,
    x_part: tl.tensor,
    parts_of_x: tl.tensor,
    out_row: tl.tensor,
    out_part: tl.tensor,
    DECODE: tl.constexpr,
    BLOCK: tl.constexpr,
    BYTES: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
    CHOSEN: tl.constexpr,
) -> None:
    """Rows x [rows, width] times the transpose of w [outputs, width] into out [rows, outputs], for each part.

    Part p has x and out of its own: so many values (`x_part` for each `parts_of_x` parts, `out_part`) behind those of
    part 0; its matrix is number `ids[p]` if they are CHOSEN, or else p.
    """
    tiles = tl.cdiv(rows, ROWS)
    part = (tl.program_id(0) // tiles).to(tl.int64)
    first_row = tl.program_id(0) % tiles * ROWS
    first_output = tl.program_id(1) * OUTPUTS
    i = tl.arange(0, ROWS)[:, None, None]
    o = tl.arange(0, OUTPUTS)[None, :, None]
    is_row, is_output = first_row + i < rows, first_output + o < outputs
    matrix = tl.load(ids + part).to(tl.int64) if CHOSEN else part
    x += part // parts_of_x * x_part + (first_row + i).to(tl.int64) * x_row
    w += (matrix * outputs + first_output + o) * row_bytes
    words = width // BLOCK * WORDS
    total = tl.zeros((ROWS, OUTPUTS, STEP), tl.float32)
    for start in range(0, words, STEP):
        word = start + tl.arange(0, STEP)[None, None, :]
        block = word // WORDS
        there = is_output & (word < words)
        values, columns = DECODE(w + block * BYTES, word % WORDS, there, table)
        for p in tl.static_range(len(values)):
            value = tl.load(x + (block * BLOCK + columns[p]), mask=is_row & (word < words), other=0.0)
            total = tl.fma(value.to(tl.float32), values[p], total)
    result = tl.sum(total, axis=2, keep_dims=True)
    out += part * out_part + first_row.to(tl.int64) * out_row + first_output
    tl.store(out + (i * out_row + o), result.to(out.dtype.element_ty), mask=is_row & is_output)


@kernel
def combine_kernel(
    results: tl.tensor,
    shares: tl.tensor,
    out: tl.tensor,
    used: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """The results [rows, used, width] of a row's experts by its shares [rows, used], summed: out [rows, width]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < width
    total = tl.zeros((BLOCK,), tl.float32)
    for place in range(used):
        share = tl.load(shares + row * used + place).to(tl.float32)
        value = tl.load(results + (row * used + place) * width + column, mask=there, other=0.0)
        total = tl.fma(share, value.to(tl.float32), total)
    tl.store(out + row * width + column, total.to(out.dtype.element_ty), mask=there)


class Products(Routing):
    """Linear maps, gated networks and experts. Sums are float32, rows float32 or bfloat16."""

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        """As defined."""
        return _product(x[:, None], weight)[:, 0]

    def linear_by_head(self, x: Tensor, weight: Weight) -> Tensor:
        """As defined."""
        return _product(x, weight)

    def experts(
        self, x: Tensor, chosen: Tensor, shares: Tensor, matrices: tuple[Weight, Weight, Weight], form: Gate = PLAIN
    ) -> Tensor:
        """As defined."""
        gate, up, down = matrices
        inner = self.gated(expert_linear(x, gate, chosen), expert_linear(x, up, chosen), form)
        return _combined(expert_linear(inner, down, chosen), shares, x.dtype)


def expert_linear(x: Tensor, weight: Weight, ids: Tensor) -> Tensor:
    """Rows times the transposes of matrices `ids` [rows, used] of weight [experts, out, in].

    x is [rows, in], for all of a row's matrices, or [rows * used, in]; the result is float32 [rows * used, out].
    """
    x, pairs = x.contiguous(), ids.numel()
    out = x.new_empty(pairs, weight.shape[-2], dtype=torch.float32)
    _start((1, pairs), x, weight, out, (0, x.shape[-1], pairs // max(len(x), 1)), (0, out.shape[-1]), ids.contiguous())
    return out


def _product(x: Tensor, weight: Weight) -> Tensor:
    """x [rows, parts, in] times the transposes of weight [parts, out, in], or [out, in]: [rows, parts, out]."""
    x = x.contiguous()
    rows, parts, width = x.shape
    out = x.new_empty(rows, parts, weight.shape[-2])
    _start((rows, parts), x, weight, out, (parts * width, width, 1), (parts * out.shape[-1], out.shape[-1]))
    return out


def _start(
    count: tuple[int, int],
    x: Tensor,
    weight: Weight,
    out: Tensor,
    x_step: tuple[int, int, int],
    out_step: tuple[int, int],
    ids: Tensor | None = None,
) -> None:
    """Run the kernel for so many rows and parts; steps as the kernel has them."""
    if x.dtype not in ROW_TYPES:
        raise ValueError(f"rows are {x.dtype}: kernels take float32 and bfloat16")
    if x.shape[-1] != weight.shape[-1]:
        raise ValueError(f"rows of {x.shape[-1]} values, want {weight.shape[-1]}")
    (rows, parts), outputs = count, weight.shape[-2]
    packed, type_name = _packed(weight)
    constants = product_constants(type_name, rows, outputs)
    grid = parts * triton.cdiv(rows, constants["ROWS"]), triton.cdiv(outputs, constants["OUTPUTS"])
    table = table_of(type_name, x.device)
    arguments = x, packed, out, table if ids is None else ids, table, rows, x.shape[-1], outputs, packed.shape[-1]
    launch(product_kernel, grid, *arguments, *x_step, *out_step, **constants, CHOSEN=ids is not None)


def _packed(weight: Weight) -> tuple[Tensor, str]:
    """Bytes of a matrix and their type; what no kernel reads is decoded once."""
    if weight.kept is None:
        form = FORMATS.get(weight.type_name)
        if form is not None and weight.shape[-1] % form.columns == 0:
            weight.kept = _aligned(weight.packed, form.alignment), weight.type_name
        else:
            weight.kept = weight.decoded().contiguous().view(torch.uint8), "F32"
    return cast(tuple[Tensor, str], weight.kept)


def _aligned(data: Tensor, alignment: int) -> Tensor:
    """Bytes without gaps, from a multiple of `alignment` on, which is where tensors of most files begin."""
    data = data.contiguous()
    return data if data.data_ptr() % alignment == 0 else data.clone()


def _combined(results: Tensor, shares: Tensor, dtype: torch.dtype) -> Tensor:
    """Results [rows * used, width] by shares [rows, used], summed: [rows, width]."""
    (rows, used), width = shares.shape, results.shape[-1]
    out = results.new_empty(rows, width, dtype=dtype)
    block = triton.next_power_of_2(width) if INTERPRETED else 4 * THREADS
    grid = rows, triton.cdiv(width, block)
    launch(combine_kernel, grid, results, shares.contiguous(), out, used, width, BLOCK=block)
    return out


def product_constants(type_name: str, rows: int, outputs: int) -> dict[str, Any]:
    """What the kernel is compiled for; all but ROWS follows from the matrix alone."""
    form = FORMATS[type_name]
    most, fair = (COLUMNS_INTERPRETED, outputs) if INTERPRETED else (COLUMNS, outputs // PROGRAMS)
    return {
        "DECODE": form.decode,
        "BLOCK": form.columns,
        "BYTES": form.bytes,
        "WORDS": form.words,
        "ROWS": next((tile for tile in ROW_TILES if rows <= tile), ROW_TILES[-1]),
        "OUTPUTS": max(1, min(most, triton.next_power_of_2(fair + 1) // 2)),
        "STEP": THREADS,
    }


def _build(type_name: str, rows: int, x: str, out: str | None = None) -> Build:
    """The kernel for a matrix of some thousands of rows; with a type of results for those of experts."""
    pointers = {"x": x, "w": "*u8", "out": out or x, "ids": "*i64" if out else "*fp32", "table": "*fp32"}
    numbers = ("rows", "width", "outputs", "row_bytes", "x_row", "x_part", "parts_of_x", "out_row", "out_part")
    constants = product_constants(type_name, rows, 4096) | {"CHOSEN": out is not None}
    name, group = f"product {type_name} {x} {rows}{' expert' if out else ''}", f"product {type_name} {x}"
    return Build(name, product_kernel, pointers | dict.fromkeys(numbers, "i32"), constants, group=group)


def _combining(x: str) -> Build:
    types = {"results": "*fp32", "shares": x, "out": x, "used": "i32", "width": "i32"}
    return Build(f"combine {x}", combine_kernel, types, {"BLOCK": 4 * THREADS})


BUILDS = (
    *(_build(name, rows, x) for name in FORMATS for x in ROW_TYPES.values() for rows in ROW_TILES),
    *(_build(name, 1, x, "*fp32") for name in FORMATS for x in ROW_TYPES.values()),
    *map(_combining, ROW_TYPES.values()),
)
