"""Pooled keys, and how well each of them goes with a row's queries."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nextn.kernels.glm5_next import Glm5NextOperations
from nextn.kernels.qwen4exp import Qwen4ExpOperations
from nextn.kernels.reference import inverse_sqrt
from nextn.kernels.triton.functions import read, rows_of, step_of, whole_rows_of, write
from nextn.kernels.triton.launch import INTERPRETED, ROW_TYPES, Build, kernel, launch

# Pooled keys that a program scores; interpreted programs take long to start, whatever they do.
KEYS = 128 if INTERPRETED else 16


@kernel
def mean_kernel(keys: tl.tensor, out: tl.tensor, members: tl.tensor, d: tl.tensor, BLOCK: tl.constexpr) -> None:
    """The mean of `members` keys [d] that follow each other."""
    pool = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for member in range(members):
        total += read(keys, (pool * members + member) * d + column, column < d)
    write(out, pool * d + column, total / members, column < d)


@kernel
def pool_kernel(
    keys: tl.tensor,
    gates: tl.tensor,
    offsets: tl.tensor,
    out: tl.tensor,
    members: tl.tensor,
    d: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Keys [members, d] by softmax of gates + offsets over the members, for each channel by itself."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = column < d
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    for member in range(members):
        top = tl.maximum(top, read(gates, member * d + column, there) + read(offsets, member * d + column, there))
    total = tl.zeros((BLOCK,), tl.float32)
    pooled = tl.zeros((BLOCK,), tl.float32)
    for member in range(members):
        gate = read(gates, member * d + column, there) + read(offsets, member * d + column, there)
        share = tl.exp(gate - top)
        total += share
        pooled += share * read(keys, member * d + column, there)
    write(out, column, pooled / total, there)


@kernel
def score_kernel(
    queries: tl.tensor,
    weights: tl.tensor,
    keys: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    heads: tl.tensor,
    d: tl.tensor,
    key_step: tl.tensor,
    scale: tl.tensor,
    WEIGHTED: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    D: tl.constexpr,
) -> None:
    """What is positive of the products of keys [count, d] with queries [heads, d], WEIGHTED, summed, and scaled."""
    number, head, column = tl.program_id(0) * KEYS + tl.arange(0, KEYS), tl.arange(0, HEADS), tl.arange(0, D)
    is_column = (column < d)[None, :]
    asked = read(queries, head[:, None] * d + column[None, :], (head < heads)[:, None] & is_column)
    place = number.to(tl.int64)[:, None] * key_step + column[None, :]
    key = read(keys, place, (number < count)[:, None] & is_column)
    score = tl.dot(asked, tl.trans(key), input_precision="tf32x3")
    score = tl.where(score < 0, 0, score)
    if WEIGHTED:
        score *= read(weights, head, head < heads)[:, None]
    # Heads that are not there have no part in the sum, even with keys that are no numbers.
    score = tl.where((head < heads)[:, None], score, 0)
    write(out, number, tl.sum(score, axis=0) * scale, number < count)


class Pools(Qwen4ExpOperations, Glm5NextOperations):
    """Pooled keys and their scores."""

    def pooled(self, keys: Tensor, ratio: int) -> Tensor:
        """As defined. ValueError for keys that are not whole blocks."""
        keys = rows_of(keys)
        (rows, d), block = keys.shape, step_of(keys.shape[1])
        if rows % ratio:
            raise ValueError(f"{rows} keys are no whole blocks of {ratio}")
        out = keys.new_empty(rows // ratio, d)
        launch(mean_kernel, (len(out), triton.cdiv(d, block)), keys, out, ratio, d, BLOCK=block)
        return out

    def pooled_key(self, keys: Tensor, gates: Tensor, offsets: Tensor) -> Tensor:
        """As defined."""
        members, d = keys.shape
        out, block = keys.new_empty(d), step_of(d)
        arguments = rows_of(keys), rows_of(gates), rows_of(offsets), out, members, d
        launch(pool_kernel, (triton.cdiv(d, block),), *arguments, BLOCK=block)
        return out

    def block_scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """As defined."""
        return _scored(query, None, keys, inverse_sqrt(query.shape[-1]))

    def pool_scores(self, queries: Tensor, weights: Tensor, pooled: Tensor) -> Tensor:
        """As defined."""
        return _scored(queries, rows_of(weights), pooled, 1.0)


def _scored(queries: Tensor, weights: Tensor | None, keys: Tensor, scale: float) -> Tensor:
    """Scores [keys] for queries [heads, d] and keys [keys, d], which may lie apart."""
    queries, keys = rows_of(queries), whole_rows_of(keys)
    (count, d), heads = keys.shape, len(queries)
    out = queries.new_empty(count)
    arguments = queries, queries if weights is None else weights, keys, out, count, heads, d, keys.stride(0), scale
    launch(score_kernel, (triton.cdiv(count, KEYS),), *arguments, **score_constants(heads, d, weights is not None))
    return out


def score_constants(heads: int, d: int, weighted: bool) -> dict[str, Any]:
    """What the kernel is compiled for."""
    padded = {"HEADS": max(16, triton.next_power_of_2(heads)), "D": max(16, triton.next_power_of_2(d))}
    return padded | {"KEYS": KEYS, "WEIGHTED": weighted}


def _builds(x: str) -> tuple[Build, ...]:
    """The kernels for keys of a type: indexers of 4 and 32 heads of 128."""
    pointers = dict.fromkeys(("keys", "gates", "offsets", "out", "queries", "weights"), x)
    types = pointers | dict.fromkeys(("members", "d", "count", "heads", "key_step"), "i32") | {"scale": "fp32"}
    forms: tuple[tuple[str, Any, dict[str, Any]], ...] = (
        ("pooled", mean_kernel, {"BLOCK": 128}),
        ("pooled key", pool_kernel, {"BLOCK": 128}),
        ("block scores", score_kernel, score_constants(4, 128, weighted=False)),
        ("pool scores", score_kernel, score_constants(32, 128, weighted=True)),
    )
    return tuple(Build(f"{name} {x}", function, types, constants) for name, function, constants in forms)


BUILDS = tuple(build for x in ROW_TYPES.values() for build in _builds(x))
