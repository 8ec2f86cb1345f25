"""Attention on a GPU: each row's keys in parts, which are read at the same time and then put together in their order.

A part is of PART keys, counted from the first key that the row sees; a program reads one, for one row, for query heads
that share a key head and for some of their values, in blocks of keys. What a row's heads read depends on nothing but
these: neither on how many rows there are, nor on what they see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.kernels.reference import Reference
from nextn.kernels.triton.functions import read, rows_of, step_of, whole_rows_of, write
from nextn.kernels.triton.launch import INTERPRETED, ROW_TYPES, WARPS, Build, kernel, launch, numbers

PART = 64
# Query heads that a program takes: the least that is worth a matrix unit.
HEADS = 16
# Keys of a block, columns that are multiplied at a time, and values that a program has of each head.
KEYS, CHUNK, VALUES = 32, 64, 128
# Parts that are put together at a time.
PARTS = 16
# Bytes of what parts give: rows are taken as many at a time as these are enough for.
HELD_BYTES = 1 << 26


@kernel
def part_kernel(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    reach: tl.tensor,
    held: tl.tensor,
    tops: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    parts: tl.tensor,
    heads: tl.tensor,
    group: tl.tensor,
    d: tl.tensor,
    dv: tl.tensor,
    key_step: tl.tensor,
    key_head_step: tl.tensor,
    value_step: tl.tensor,
    value_head_step: tl.tensor,
    scale: tl.tensor,
    PART: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    D: tl.constexpr,
    CHUNK: tl.constexpr,
    DV: tl.constexpr,
    STAGES: tl.constexpr,
    DOT: tl.constexpr,
) -> None:
    """One part of the keys [n, kv heads, d] and values [n, kv heads, dv] that a row's queries [heads, d] see.

    Row i sees those from reach[i] on, before reach[rows + i]. Gives by head the largest score, the sum of the weights
    beside it, and the values by these weights, multiplied as DOT.
    """
    row, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    first, end = tl.load(reach + row) + part * PART, tl.load(reach + rows + row)
    if first >= end:
        return
    left = (end - first).to(tl.int32)
    tiles = tl.cdiv(group, HEADS)
    key_head = (tl.program_id(1) // tiles).to(tl.int64)
    in_group = tl.program_id(1) % tiles * HEADS + tl.arange(0, HEADS)
    head, is_head = key_head * group + in_group, in_group < group
    query += (row * heads + head[:, None]) * d
    keys += key_head * key_head_step + first * key_step
    values += key_head * value_head_step + first * value_step
    value_column = tl.program_id(2) * DV + tl.arange(0, DV)[None, :]
    top = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    seen = tl.zeros((HEADS, DV), tl.float32)
    for start in tl.range(0, PART, KEYS, num_stages=STAGES):
        place = start + tl.arange(0, KEYS)
        there = place < left
        score = tl.zeros((HEADS, KEYS), tl.float32)
        for chunk in tl.static_range(0, D, CHUNK):
            column = chunk + tl.arange(0, CHUNK)[None, :]
            asked = tl.load(query + column, mask=is_head[:, None] & (column < d), other=0.0).to(DOT)
            key = tl.load(keys + place[:, None] * key_step + column, mask=there[:, None] & (column < d), other=0.0)
            score = tl.dot(asked, tl.trans(key.to(DOT)), acc=score, input_precision="tf32x3")
        score = tl.where(there[None, :], score * scale, float("-inf"))
        new = tl.maximum(top, tl.max(score, axis=1))
        # Scores of minus infinity alone: their weights are zeros, whatever comes behind them.
        beside = tl.where(new == float("-inf"), 0.0, new)
        weight, shrink = tl.exp(score - beside[:, None]), tl.exp(top - beside)
        total = total * shrink + tl.sum(weight, axis=1)
        is_value = there[:, None] & (value_column < dv)
        value = tl.load(values + place[:, None] * value_step + value_column, mask=is_value, other=0.0)
        seen = tl.dot(weight.to(DOT), value.to(DOT), acc=seen * shrink[:, None], input_precision="tf32x3")
        top = new
    place = (row * heads + head) * parts + part
    if tl.program_id(2) == 0:
        tl.store(tops + place, top, mask=is_head)
        tl.store(sums + place, total, mask=is_head)
    tl.store(held + place[:, None] * dv + value_column, seen, mask=is_head[:, None] & (value_column < dv))


@kernel
def together_kernel(
    held: tl.tensor,
    tops: tl.tensor,
    sums: tl.tensor,
    reach: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    parts: tl.tensor,
    heads: tl.tensor,
    dv: tl.tensor,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    DV: tl.constexpr,
) -> None:
    """What a head of a row reads in all of its parts, and zeros if there is none."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count = tl.cdiv(tl.load(reach + rows + row) - tl.load(reach + row), PART)
    first = (row * heads + head) * parts
    column = tl.program_id(2) * DV + tl.arange(0, DV)
    is_value = column < dv
    out += (row * heads + head) * dv
    if count <= 0:
        write(out, column, tl.zeros((DV,), tl.float32), is_value)
        return
    largest = tl.full((PARTS,), float("-inf"), tl.float32)
    for start in range(0, count, PARTS):
        part = start + tl.arange(0, PARTS)
        largest = tl.maximum(largest, tl.load(tops + first + part, mask=part < count, other=float("-inf")))
    top = tl.max(largest, axis=0)
    total = tl.zeros((PARTS,), tl.float32)
    seen = tl.zeros((PARTS, DV), tl.float32)
    for start in range(0, count, PARTS):
        part = start + tl.arange(0, PARTS)
        there = part < count
        share = tl.exp(tl.load(tops + first + part, mask=there, other=float("-inf")) - top)
        total += share * read(sums, first + part, there)
        place = (first + part)[:, None] * dv + column[None, :]
        seen += share[:, None] * read(held, place, there[:, None] & is_value[None, :])
    write(out, column, tl.sum(seen, axis=0) / tl.sum(total, axis=0), is_value)


class Attention(Reference):
    """Attention of queries over the keys that each of them sees."""

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, begins: Sequence[int], ends: Sequence[int], scale: float
    ) -> Tensor:
        """As defined. ValueError for rows that see keys which are not there."""
        rows = len(query)
        if not len(begins) == len(ends) == rows or min(begins) < 0 or max(ends) > min(len(keys), len(values)):
            raise ValueError(f"{rows} rows cannot attend to {list(begins)} … {list(ends)} of {len(keys)} keys")
        query, keys, values = rows_of(query), whole_rows_of(keys), whole_rows_of(values)
        out = query.new_empty(*query.shape[:2], values.shape[-1])
        longest = max(end - begin for begin, end in zip(begins, ends, strict=True))
        parts = max(1, triton.cdiv(longest, PART))
        at_once = max(1, HELD_BYTES // (4 * parts * query.shape[1] * values.shape[-1]))
        for first in range(0, rows, at_once):
            some = slice(first, first + at_once)
            reach = numbers((*begins[some], *ends[some]), query.device)
            _attend(query[some], keys, values, reach, parts, scale, out[some])
        return out


def _attend(query: Tensor, keys: Tensor, values: Tensor, reach: Tensor, parts: int, scale: float, out: Tensor) -> None:
    """What rows read of at most so many parts, into `out`."""
    (rows, heads, d), kv_heads, dv = query.shape, keys.shape[1], values.shape[2]
    group = heads // kv_heads
    tops, sums = (query.new_empty(rows, heads, parts, dtype=torch.float32) for _ in range(2))
    held = query.new_empty(rows, heads, parts, dv, dtype=torch.float32)
    sizes = rows, parts, heads, group, d, dv, *keys.stride()[:2], *values.stride()[:2], float(scale)
    constants = part_constants(d, dv, query.dtype)
    grid = rows * parts, kv_heads * triton.cdiv(group, HEADS), triton.cdiv(dv, constants["DV"])
    launch(part_kernel, grid, query, keys, values, reach, held, tops, sums, *sizes, warps=_warps(d), **constants)
    constants = together_constants(dv)
    grid = rows, heads, triton.cdiv(dv, constants["DV"])
    launch(together_kernel, grid, held, tops, sums, reach, out, rows, parts, heads, dv, **constants)


def part_constants(d: int, dv: int, dtype: torch.dtype) -> dict[str, Any]:
    """What the first kernel is compiled for. Keys wait for their turn in shared memory unless they are wide."""
    wide, wide_values = (max(16, triton.next_power_of_2(width)) for width in (d, dv))
    narrow = dtype is torch.bfloat16 and not INTERPRETED  # which has no products of bfloat16
    constants = {"PART": PART, "HEADS": HEADS, "D": wide, "DOT": tl.bfloat16 if narrow else tl.float32}
    if INTERPRETED:
        return constants | {"KEYS": PART, "CHUNK": wide, "DV": wide_values, "STAGES": 1}
    sizes = {"KEYS": KEYS, "CHUNK": min(CHUNK, wide), "DV": min(VALUES, wide_values)}
    return constants | sizes | {"STAGES": 2 if wide <= 2 * CHUNK else 1}


def _warps(d: int) -> int:
    return WARPS if d <= 2 * CHUNK else 2 * WARPS


def together_constants(dv: int) -> dict[str, Any]:
    """What the second kernel is compiled for."""
    return {"PART": PART, "PARTS": PARTS, "DV": min(VALUES, step_of(dv))}


def _builds(x: str) -> tuple[Build, ...]:
    """The kernels for heads of a type: grouped queries of 128 and 256 values, and latents of 512."""
    pointers = (
        dict.fromkeys(("query", "keys", "values", "out"), x)
        | {"reach": "*i64"}
        | dict.fromkeys(("held", "tops", "sums"), "*fp32")
    )
    steps = ("key_step", "key_head_step", "value_step", "value_head_step")
    types = pointers | dict.fromkeys(("rows", "parts", "heads", "group", "d", "dv", *steps), "i32") | {"scale": "fp32"}
    widths, dtype = {"128": 128, "256": 256, "latent": 512}, next(each for each, name in ROW_TYPES.items() if name == x)
    parts = {f"attend {name} {x}": (d, part_constants(d, d, dtype)) for name, d in widths.items()}
    return (
        *(Build(name, part_kernel, types, constants, _warps(d)) for name, (d, constants) in parts.items()),
        Build(f"attend together {x}", together_kernel, types, together_constants(128)),
    )


BUILDS = tuple(build for x in ROW_TYPES.values() for build in _builds(x))
