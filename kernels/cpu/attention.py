"""Attention on the CPU: softmax over blocks of keys as they come, from the first key that a query sees.

A task is one row and a few query heads that share a key head: what a head reads depends neither on the tasks
nor on the threads that do them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
from torch import Tensor

from nextn.kernels.cpu import functions
from nextn.kernels.cpu.memory import (
    add_weighted,
    address_of,
    compiled,
    dot,
    float32,
    floats,
    fresh,
    int64,
    largest,
    longs,
    numbers,
    shared_by_threads,
    total,
    whole,
    with_whole_rows,
)
from nextn.kernels.reference import Reference

# Keys that are scored before their values are read.
BLOCK = 64
HEADS_OF_TASK = 8


class Attention(Reference):
    """Attention of queries over the keys that each of them sees."""

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, begins: Sequence[int], ends: Sequence[int], scale: float
    ) -> Tensor:
        """As defined."""
        query, keys, values = whole(query), with_whole_rows(keys), with_whole_rows(values)
        (rows, heads, d), reach = query.shape, numbers(begins, ends)
        (count, kv_heads, width), (known, _, dv) = keys.shape, values.shape
        fits = width == d and values.shape[1] == kv_heads and heads % kv_heads == 0
        if len(reach) != 2 * rows or min(begins) < 0 or max(ends) > min(count, known) or not fits:
            raise ValueError(f"{rows} rows of {d} values cannot attend to {reach.tolist()} of {list(keys.shape)} keys")
        out, group = fresh(rows, heads, dv), heads // kv_heads
        parts = -(-group // HEADS_OF_TASK)
        _attend(
            (sum(ends) - sum(begins)) * heads * (d + dv),
            *(query.data_ptr(), keys.data_ptr(), values.data_ptr(), out.data_ptr(), address_of(reach)),
            *(rows, kv_heads, group, parts, d, dv, keys.stride(0), keys.stride(1), values.stride(0), values.stride(1)),
            float(scale),
        )
        return out


@compiled
def _task(
    task: int,
    query_at: int,
    keys_at: int,
    values_at: int,
    out_at: int,
    reach_at: int,
    rows: int,
    kv_heads: int,
    group: int,
    parts: int,
    d: int,
    dv: int,
    key_step: int,
    key_head_step: int,
    value_step: int,
    value_head_step: int,
    scale: float,
) -> None:
    part = task % parts
    kv_head = task // parts % kv_heads
    row = task // (parts * kv_heads)
    reach = longs(reach_at)
    first = part * HEADS_OF_TASK
    heads = min(HEADS_OF_TASK, group - first)
    head = (row * kv_heads + kv_head) * group + first
    _read(
        query_at + 4 * head * d,
        keys_at + 4 * kv_head * key_head_step,
        values_at + 4 * kv_head * value_head_step,
        out_at + 4 * head * dv,
        reach[row],
        reach[rows + row],
        heads,
        d,
        dv,
        key_step,
        value_step,
        float32(scale),
    )


@shared_by_threads
def _attend(
    query_at: int,
    keys_at: int,
    values_at: int,
    out_at: int,
    reach_at: int,
    rows: int,
    kv_heads: int,
    group: int,
    parts: int,
    d: int,
    dv: int,
    key_step: int,
    key_head_step: int,
    value_step: int,
    value_head_step: int,
    scale: float,
) -> None:
    for task in numba.prange(rows * kv_heads * parts):
        _task(
            *(task, query_at, keys_at, values_at, out_at, reach_at, rows, kv_heads, group, parts, d, dv),
            *(key_step, key_head_step, value_step, value_head_step, scale),
        )


@compiled
def _read(
    query_at: int,
    keys_at: int,
    values_at: int,
    out_at: int,
    begin: int,
    end: int,
    heads: int,
    d: int,
    dv: int,
    key_step: int,
    value_step: int,
    scale: float,
) -> None:
    """What some heads of a row read, [heads, dv], of one key head; `scale` is a float32."""
    out = floats(out_at)
    for i in range(heads * dv):
        out[i] = float32(0)
    if begin >= end:
        return
    held = np.empty((heads * BLOCK + 2 * heads), np.float32)
    scores_at = int64(held.ctypes.data)
    scores, tops, sums = floats(scores_at), held[heads * BLOCK :], held[heads * BLOCK + heads :]
    for head in range(heads):
        tops[head], sums[head] = -np.inf, float32(0)
    for start in range(begin, end, BLOCK):
        count = min(BLOCK, end - start)
        for i in range(count):
            key = floats(keys_at + 4 * (start + i) * key_step)
            for head in range(heads):
                scores[head * BLOCK + i] = dot(floats(query_at + 4 * head * d), key, d) * scale
        for head in range(heads):
            own_at, own_out_at = scores_at + 4 * head * BLOCK, out_at + 4 * head * dv
            own, own_out = floats(own_at), floats(own_out_at)
            top = tops[head]
            new = max(top, largest(own, count))
            # As long as no key scores more than -inf there is nothing to be beside.
            beside = float32(0) if new == -np.inf else new
            for i in range(count):
                own[i] = functions.exp(own[i] - beside)
            if new > top:
                shrink = functions.exp(float32(top - new))
                sums[head] *= shrink
                for i in range(dv):
                    own_out[i] = own_out[i] * shrink
                tops[head] = new
            sums[head] += total(own, count)
            add_weighted(floats(values_at + 4 * start * value_step), own, own_out, count, dv, value_step)
    for head in range(heads):
        own_out, share = floats(out_at + 4 * head * dv), float32(1) / sums[head]
        for i in range(dv):
            own_out[i] = own_out[i] * share
    # The memory is read by its address: it must live to here.
    held[0] = 0
