"""Rows by the experts that they go to, on the CPU, so that an expert is read once for all of its rows."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from nextn.kernels.cpu.memory import compiled, float32, floats, fresh, fresh_numbers, longs, whole


def grouped(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, int]:
    """Pairs of a row and one of its experts by expert, and of one expert in the order of the rows.

    `chosen` is [rows, used], of numbers below `experts`; IndexError for others. Gives the numbers of the pairs, which
    are counted row by row, in that order; for each expert that has rows its number, its first pair and how many it has;
    and how many such experts there are.
    """
    chosen = chosen.contiguous()
    pairs = chosen.numel()
    order, groups = fresh_numbers(pairs), fresh_numbers(experts, 3)
    count = _group(chosen.data_ptr(), order.data_ptr(), groups.data_ptr(), pairs, experts)
    if count < 0:
        raise IndexError(f"rows go to experts {chosen.tolist()}, of which there are {experts}")
    return order, groups, count


def gathered(x: Tensor, order: Tensor, used: int) -> Tensor:
    """For each pair its row of x [rows, n]: [pairs, n]."""
    x = whole(x)
    n = x.shape[1]
    out = fresh(order.shape[0], n)
    _gather(x.data_ptr(), order.data_ptr(), out.data_ptr(), order.shape[0], n, used)
    return out


def combined(y: Tensor, order: Tensor, shares: Tensor) -> Tensor:
    """Each row's results y [pairs, n] by its shares [rows, used], added in the order of the shares: [rows, n]."""
    y, shares = whole(y), whole(shares)
    (rows, used), n = shares.shape, y.shape[1]
    out = fresh(rows, n)
    _combine(y.data_ptr(), order.data_ptr(), shares.data_ptr(), out.data_ptr(), rows, used, n)
    return out


@compiled
def _group(chosen_at: int, order_at: int, groups_at: int, pairs: int, experts: int) -> int:
    chosen, order, groups = longs(chosen_at), longs(order_at), longs(groups_at)
    sizes = np.zeros(experts + 1, np.int64)
    for pair in range(pairs):
        if chosen[pair] < 0 or chosen[pair] >= experts:
            return -1
        sizes[chosen[pair] + 1] += 1
    count = 0
    for expert in range(experts):
        size = sizes[expert + 1]
        if size:
            groups[3 * count] = expert
            groups[3 * count + 1] = sizes[expert]
            groups[3 * count + 2] = size
            count += 1
        sizes[expert + 1] += sizes[expert]
    for pair in range(pairs):
        expert = chosen[pair]
        order[sizes[expert]] = pair
        sizes[expert] += 1
    return count


@compiled
def _gather(x_at: int, order_at: int, out_at: int, pairs: int, n: int, used: int) -> None:
    order = longs(order_at)
    for place in range(pairs):
        x, out = floats(x_at + 4 * (order[place] // used) * n), floats(out_at + 4 * place * n)
        for i in range(n):
            out[i] = x[i]


@compiled
def _combine(y_at: int, order_at: int, shares_at: int, out_at: int, rows: int, used: int, n: int) -> None:
    order, shares, places = longs(order_at), floats(shares_at), np.empty(rows * used, np.int64)
    for place in range(rows * used):
        places[order[place]] = place
    for row in range(rows):
        out = floats(out_at + 4 * row * n)
        for i in range(n):
            out[i] = float32(0)
        for number in range(used):
            y, share = floats(y_at + 4 * places[row * used + number] * n), shares[row * used + number]
            for i in range(n):
                out[i] = out[i] + y[i] * share
