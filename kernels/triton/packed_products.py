"""Products of rows and matrices that stay packed as they lie in a file, by the matrix units of a GPU.

Weights are small integers, with a scale and an offset a group (blocks.py). Rows are split into two float16 each, which
together have 22 bits of each value, so that products are exact and sums are float32: a tile of four rows is eight
columns, as the units have them at least. 16 rows of a matrix are one tile, however many rows there are: the units add
in one order, and the warps of a program, which share a row of the matrix block by block, are added at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.kernels.triton.blocks import FORMATS, RUN
from nextn.kernels.triton.functions import COMPILED, matrix_of, place_of
from nextn.kernels.triton.launch import INTERPRETED, MATRIX_TYPES, ROW_TYPES, Build, filled, kernel, launch

# Rows of a tile, and how many tiles a program takes.
ROWS = tl.constexpr(4)
TILES = (1, 2, 4)
# Rows of a matrix that a program takes.
OUTPUTS = tl.constexpr(16)
# Warps of a program: each takes a block of every row in turn.
WARPS = 8
# What the interpreter takes instead: it computes slices without a block, too.
SLICES_INTERPRETED = 2
# Columns of a program that splits rows.
SPLIT = 1024
# Integers are read as float16 that stand for themselves by 2^-24: twice this makes them whole again.
HALFWAY = tl.constexpr(float(1 << 12))
# Up to version 3.7 of Triton threads have four columns of a product together, and two from there on.
FOUR_TOGETHER = tl.constexpr(tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8))


@kernel
def split_kernel(
    x: tl.tensor,
    halves: tl.tensor,
    sums: tl.tensor,
    scales: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    x_row: tl.tensor,
    x_part: tl.tensor,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """Split rows x [parts, rows, width] times a power of two a row; `scales` [parts, tiles, 4] are 2^12 by that power.

    `halves` is [parts, tiles, width / 16, 2, 4 rows, 2, 8], first the even columns of 16, then the odd ones, and `sums`
    [parts, tiles, width / GROUP, 4 rows] has the sums of so many columns each.
    """
    part, row = tl.program_id(0) // rows, tl.program_id(0) % rows
    x += part.to(tl.int64) * x_part + row.to(tl.int64) * x_row
    group, column = tl.arange(0, BLOCK // GROUP)[:, None], tl.arange(0, GROUP)[None, :]
    place = group * GROUP + column
    largest = tl.zeros((BLOCK // GROUP, GROUP), tl.int32)
    for start in range(0, width, BLOCK):
        value = tl.load(x + start + place, mask=start + place < width, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    # The largest value has 14 bits before the point then: float16 ends at 65504, and keeps bits down to 2^-24.
    exponent = tl.minimum(tl.maximum(tl.max(tl.max(largest, axis=1), axis=0) >> 23, 15), 254)
    start = tl.program_id(1) * BLOCK
    there = start + place < width
    value = tl.load(x + start + place, mask=there, other=0.0).to(tl.float32)
    value *= (268 - exponent << 23).to(tl.float32, bitcast=True)
    first = value.to(tl.float16)
    second = (value - first.to(tl.float32)).to(tl.float16)
    tile = part.to(tl.int64) * tl.cdiv(rows, ROWS) + row // ROWS
    # A word has the two columns that are even, or odd, among four.
    halves += (tile * (width // 16) + (start + place) // 16) * (2 * ROWS * 16) + (column & 1) * (2 * ROWS * 8)
    halves += row % ROWS * 16 + (column & 15) // 2
    tl.store(halves, first, mask=there)
    tl.store(halves + 8, second, mask=there)
    sums += (tile * (width // GROUP) + start // GROUP + group) * ROWS + row % ROWS
    tl.store(sums, tl.sum(value, axis=1, keep_dims=True), mask=start + group * GROUP < width)
    tl.store(scales + tile * ROWS + row % ROWS, (exponent - 2 << 23).to(tl.float32, bitcast=True))


@triton.jit
def _halves(word: tl.tensor) -> tl.tensor:
    """The two float16 of a word, along a new last dimension."""
    first = word.to(tl.int16).to(tl.float16, bitcast=True)
    return tl.join(first, (word >> 16).to(tl.int16).to(tl.float16, bitcast=True))


@triton.jit
def _columns(words: tl.tuple) -> tl.tensor:
    """Words [threads] of a group, two for each run: float16 [threads, half, word, run]."""
    first = tl.join(_halves(words[0]), _halves(words[1]))
    result = first[:, :, :, None]
    if len(words) == 4:
        result = tl.join(first, tl.join(_halves(words[2]), _halves(words[3])))
    return result


@triton.jit
def _outputs(upper: tl.tensor, lower: tl.tensor, SLICES: tl.constexpr) -> tl.tensor:
    """What threads have of their two rows of the matrix: [slices, 16, 4]."""
    both = tl.join(upper, lower).reshape(SLICES, 8, 4, 2)
    return tl.permute(both, (0, 3, 1, 2)).reshape(SLICES, 16, 4)


@triton.jit
def _dot(ours: tl.tensor, theirs: tl.tensor, SLICES: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """Sums over the columns of a group.

    ours is [threads, half, word, run, row of the matrix], theirs [threads, half, word, run], and the result [slices,
    16, 8]. The order of columns is the one in which each thread has what the units take from it.
    """
    ours = ours.reshape(SLICES, 8, 4, 2, 2, COLUMNS // 16, 2)
    theirs = theirs.reshape(SLICES, 8, 4, 2, 2, COLUMNS // 16)
    if FOUR_TOGETHER:
        ours, theirs = tl.permute(ours, (0, 6, 1, 5, 2, 4, 3)), tl.permute(theirs, (0, 5, 2, 4, 3, 1))
    else:
        ours, theirs = tl.permute(ours, (0, 6, 1, 5, 4, 2, 3)), tl.permute(theirs, (0, 5, 4, 2, 3, 1))
    ours, theirs = ours.reshape(SLICES, 16, COLUMNS), theirs.reshape(SLICES, COLUMNS, 8)
    if COMPILED:
        result = tl.dot(ours, theirs, out_dtype=tl.float32)
    else:
        # The interpreter would leave the order to a library.
        result = tl.sum(ours.to(tl.float32)[:, :, :, None] * theirs.to(tl.float32)[:, None], axis=2)
    return result


@kernel
def packed_product_kernel(
    halves: tl.tensor,
    sums: tl.tensor,
    scales: tl.tensor,
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
    blocks: tl.tensor,
    parts: tl.tensor,
    parts_of_x: tl.tensor,
    DECODE: tl.constexpr,
    BYTES: tl.constexpr,
    GROUPS: tl.constexpr,
    RUNS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    TILES: tl.constexpr,
    SLICES: tl.constexpr,
    OFFSET: tl.constexpr,
    CHOSEN: tl.constexpr,
) -> None:
    """Split rows times the transposes of matrices w [parts, outputs, width]: out has [rows, parts, outputs] of each.

    Part p has rows of its own, number p / `parts_of_x`.
    """
    part, first_row, number = place_of(ids, rows, ROWS * TILES, CHOSEN)
    tiles, first_tile = tl.cdiv(rows, ROWS), first_row // ROWS
    matrices, counts = (w, w_1, w_2, w_3), (outputs, outputs_1, outputs_2, outputs_3)
    matrix, count, before, first = matrix_of(matrices, counts, OUTPUTS)
    # A warp takes blocks of its own, and has 8 x 4 threads, as the units have them: 8 rows of the matrix twice, or 4
    # rows of x in two halves, and the four threads that read 16 columns together.
    thread = tl.arange(0, SLICES * 32)
    s, g, t = thread // 32, thread // 4 % 8, thread % 4
    # Rows and blocks beyond the last are read as the last: nothing is written for those, and x is zero for these.
    row_bytes = blocks.to(tl.int64) * BYTES
    upper_row = matrix + (number * count + tl.minimum(first + g, count - 1)) * row_bytes
    lower_row = matrix + (number * count + tl.minimum(first + 8 + g, count - 1)) * row_bytes
    x_group = (part // parts_of_x * tiles + first_tile).to(tl.int64) * blocks * GROUPS
    halves += x_group * (RUNS * 64) + g * 4 + t
    sums += x_group * ROWS + t
    # Of each tile of x which rows are there, the products and what the offsets add.
    has_half, has_sum, totals, offsets = (), (), (), ()
    for k in tl.static_range(TILES):
        tile = first_tile + k
        has_half, has_sum = has_half + (tile * ROWS + g // 2 < rows,), has_sum + (tile * ROWS + t < rows,)
        totals = totals + (tl.zeros((SLICES, 16, 8), tl.float32),)
        offsets = offsets + (tl.zeros((SLICES * 32,), tl.float32), tl.zeros((SLICES * 32,), tl.float32))
    for start in range(0, blocks, SLICES * AT_ONCE):
        block = start + s * AT_ONCE
        there, block = block < blocks, tl.minimum(block, blocks - AT_ONCE)
        for turn in tl.static_range(AT_ONCE):
            upper = DECODE(upper_row + block * BYTES + turn * BYTES, t)
            lower = DECODE(lower_row + block * BYTES + turn * BYTES, t)
            for i in tl.static_range(GROUPS):
                ours = tl.join(_columns(upper[i][0]), _columns(lower[i][0]))
                scale = _outputs(upper[i][1], lower[i][1], SLICES)
                scale = tl.join(scale, scale).reshape(SLICES, 16, 8)
                new_totals, new_offsets = (), ()
                for k in tl.static_range(TILES):
                    group = (k * blocks + block) * GROUPS
                    words = ()
                    for j in tl.static_range(2 * RUNS):
                        word = halves + group * (RUNS * 64) + ((turn * GROUPS + i) * RUNS * 64 + j * 32)
                        words = words + (tl.load(word, mask=there & has_half[k], other=0),)
                    dot = _dot(ours, _columns(words), SLICES, RUNS * 16)
                    new_totals = new_totals + (tl.fma(scale, dot, totals[k]),)
                    if OFFSET:
                        at = sums + group * ROWS + (turn * GROUPS + i) * ROWS
                        x_sum = tl.load(at, mask=there & has_sum[k], other=0.0)
                        new_offsets = new_offsets + (tl.fma(upper[i][2], x_sum, offsets[2 * k]),)
                        new_offsets = new_offsets + (tl.fma(lower[i][2], x_sum, offsets[2 * k + 1]),)
                totals = new_totals
                if OFFSET:
                    offsets = new_offsets
    out += rows.to(tl.int64) * parts * before + part.to(tl.int64) * count
    output = first + tl.arange(0, 16)[:, None]
    for k in tl.static_range(TILES):
        row = (first_tile + k) * ROWS + tl.arange(0, 4)[None, :]
        scale = tl.load(scales + part // parts_of_x * tiles * ROWS + row, mask=row < rows, other=0.0)[None]
        first_half, second_half = tl.split(totals[k].reshape(SLICES, 16, 4, 2))
        offset = _outputs(offsets[2 * k], offsets[2 * k + 1], SLICES)
        # In two steps, for neither the largest nor the smallest numbers have room for it all.
        result = tl.fma((first_half + second_half) * scale, HALFWAY, offset * scale * (1 / HALFWAY))
        at = out + row.to(tl.int64) * parts * count + output
        tl.store(at, tl.sum(result, axis=0).to(out.dtype.element_ty), mask=(row < rows) & (output < count))


def product(x: Tensor, matrices: Sequence[Tensor], type_name: str, out: Tensor, ids: Tensor | None = None) -> None:
    """Products of rows x [parts, rows, in] and packed matrices: `out` has [rows, parts, outputs] for each in turn.

    A matrix is one for each part; with `ids` [parts], part p takes number ids[p], and x may have fewer parts, each for
    as many of them in a row.
    """
    form = FORMATS[type_name]
    count, rows, width = x.shape
    parts, outputs = count if ids is None else ids.numel(), [matrix.shape[-2] for matrix in matrices]
    halves, sums, scales = _split(x, form.runs * RUN)
    constants = constants_of(type_name, rows, width)
    programs = sum(triton.cdiv(each, OUTPUTS.value) for each in outputs)
    grid = parts * triton.cdiv(rows, ROWS.value * constants["TILES"]), programs
    numbers = rows, width // form.columns, parts, parts // max(count, 1)
    arguments = halves, sums, scales, *filled(matrices, outputs), out, scales if ids is None else ids, *numbers
    launch(packed_product_kernel, grid, *arguments, warps=WARPS, **constants, CHOSEN=ids is not None)


def _split(x: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows x [parts, rows, in] as the kernel takes them, with sums of so many columns."""
    parts, rows, width = x.shape
    tiles = triton.cdiv(rows, ROWS.value)
    halves = x.new_empty(parts, tiles, width, 2 * ROWS.value, dtype=torch.float16)
    sums = x.new_empty(parts, tiles, width // group, ROWS.value, dtype=torch.float32)
    scales = x.new_empty(parts, tiles, ROWS.value, dtype=torch.float32)
    grid = parts * rows, triton.cdiv(width, SPLIT)
    arguments = x, halves, sums, scales, rows, width, x.stride(1), x.stride(0)
    launch(split_kernel, grid, *arguments, BLOCK=SPLIT, GROUP=group)
    return halves.view(torch.int32), sums, scales


def constants_of(type_name: str, rows: int, width: int) -> dict[str, Any]:
    """What the kernel is compiled for; all but TILES follows from the matrix alone."""
    form = FORMATS[type_name]
    tiles = triton.cdiv(rows, ROWS.value)
    return {
        "DECODE": form.decode,
        "BYTES": form.bytes,
        "GROUPS": form.groups,
        "RUNS": form.runs,
        "AT_ONCE": 1 if width % form.at_once else max(form.at_once // form.columns, 1),
        "TILES": next((tile for tile in TILES if tiles <= tile), TILES[-1]),
        "SLICES": SLICES_INTERPRETED if INTERPRETED else WARPS,
        "OFFSET": form.offset,
    }


def _build(type_name: str, tiles: int, out: str = "*fp32", *, chosen: bool = False) -> Build:
    rows = ROWS.value * tiles
    pointers = {"halves": "*i32", "sums": "*fp32", "scales": "*fp32", **MATRIX_TYPES, "out": out}
    pointers["ids"] = "*i64" if chosen else "*fp32"
    numbers = dict.fromkeys(("rows", "blocks", "parts", "parts_of_x"), "i32")
    constants = constants_of(type_name, rows, 4096) | {"CHOSEN": chosen}
    name, group = f"product {type_name} {out} {rows}{' expert' if chosen else ''}", f"product {type_name}"
    types, hot = pointers | numbers, tiles == 1
    return Build(name, packed_product_kernel, types, constants, warps=WARPS, hot=hot, group=group)


def _splitting(x: str, group: int) -> Build:
    types = {"x": x, "halves": "*fp16", "sums": "*fp32", "scales": "*fp32"}
    numbers = dict.fromkeys(("rows", "width", "x_row", "x_part"), "i32")
    return Build(f"split {x} {group}", split_kernel, types | numbers, {"BLOCK": SPLIT, "GROUP": group})


BUILDS = (
    *(_splitting(x, RUN * runs) for x in ROW_TYPES.values() for runs in (1, 2)),
    *(_build(name, tiles) for name in FORMATS for tiles in TILES),
    *(_build(name, 1, chosen=True) for name in FORMATS),
    *(_build(name, 1, "*bf16") for name in ("Q8_0", "Q4_K")),
)
