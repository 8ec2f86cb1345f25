"""Which experts a row goes to, on the CPU."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from nextn.kernels.cpu import functions
from nextn.kernels.cpu.elementwise import softmax
from nextn.kernels.cpu.memory import compiled, float32, floats, fresh, fresh_numbers, longs, sized, whole
from nextn.kernels.routing import SMALLEST_SUM, Router, Routing


class Routers(Routing):
    """Choices of experts, and their weights."""

    def sigmoid_router(self, logits: Tensor, bias: Tensor, router: Router) -> tuple[Tensor, Tensor]:
        """As defined."""
        logits = whole(logits)
        rows, experts = logits.shape
        _check(experts, router.used, router.groups)
        bias = sized(bias, experts)
        chosen, shares = fresh_numbers(rows, router.used), fresh(rows, router.used)
        _route_by_sigmoid(
            *(logits.data_ptr(), bias.data_ptr(), chosen.data_ptr(), shares.data_ptr(), rows, experts, router.used),
            *(float(router.scale), router.normalizes, router.groups, router.groups_used),
        )
        return chosen, shares

    def softmax_router(self, logits: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """As defined."""
        logits = whole(logits)
        rows, experts = logits.shape
        _check(experts, used)
        chosen, shares = fresh_numbers(rows, used), fresh(rows, used)
        _route_by_softmax(logits.data_ptr(), chosen.data_ptr(), shares.data_ptr(), rows, experts, used)
        return chosen, shares


def _check(experts: int, used: int, groups: int = 1) -> None:
    if used > experts or experts % groups:
        raise ValueError(f"{used} of {experts} experts cannot be chosen from {groups} groups")


@compiled
def best_of(scores_at: int, taken_at: int, n: int) -> int:
    """The place of the largest of n scores that are not taken, of equal ones the first; NaN is larger than any."""
    scores, taken = floats(scores_at), longs(taken_at)
    best = -1
    for i in range(n):
        if taken[i] == 0 and (
            best < 0 or scores[i] > scores[best] or (math.isnan(scores[i]) and not math.isnan(scores[best]))
        ):
            best = i
    return best


@compiled
def top(scores_at: int, taken_at: int, n: int, count: int, chosen_at: int) -> None:
    """The places of the `count` largest of n scores, ascending. `taken` is memory of n integers."""
    taken, chosen = longs(taken_at), longs(chosen_at)
    for i in range(n):
        taken[i] = 0
    for _ in range(count):
        taken[best_of(scores_at, taken_at, n)] = 1
    place = 0
    for i in range(n):
        if taken[i]:
            chosen[place] = i
            place += 1


@compiled
def _keep_groups(scores_at: int, n: int, groups: int, used: int) -> None:
    """Only the scores of the groups whose two best have the largest sums; the others become -inf."""
    width = n // groups
    sums, taken = np.empty(groups, np.float32), np.zeros(groups, np.int64)
    for group in range(groups):
        own_taken, own_at = np.zeros(width, np.int64), scores_at + 4 * group * width
        own, total = floats(own_at), float32(0)
        for _ in range(min(2, width)):
            best = best_of(own_at, own_taken.ctypes.data, width)
            own_taken[best] = 1
            total += own[best]
        sums[group] = total
    for _ in range(min(used, groups)):
        taken[best_of(sums.ctypes.data, taken.ctypes.data, groups)] = 1
    scores = floats(scores_at)
    for i in range(n):
        if taken[i // width] == 0:
            scores[i] = -np.inf


@compiled
def _route_by_sigmoid(
    logits_at: int,
    bias_at: int,
    chosen_at: int,
    shares_at: int,
    rows: int,
    n: int,
    used: int,
    scale: float,
    normalizes: bool,
    groups: int,
    groups_used: int,
) -> None:
    bias, scores, biased, taken = (
        floats(bias_at),
        np.empty(n, np.float32),
        np.empty(n, np.float32),
        np.empty(n, np.int64),
    )
    for row in range(rows):
        logits = floats(logits_at + 4 * row * n)
        for i in range(n):
            scores[i] = functions.sigmoid(logits[i])
            biased[i] = scores[i] + bias[i]
        if groups > 1:
            _keep_groups(biased.ctypes.data, n, groups, groups_used)
        top(biased.ctypes.data, taken.ctypes.data, n, used, chosen_at + 8 * row * used)
        chosen, shares = longs(chosen_at + 8 * row * used), floats(shares_at + 4 * row * used)
        divisor = float32(0)
        for i in range(used):
            divisor += scores[chosen[i]]
        if divisor < float32(SMALLEST_SUM):
            divisor = float32(SMALLEST_SUM)
        if not normalizes:
            divisor = float32(1)
        for i in range(used):
            shares[i] = scores[chosen[i]] / divisor * float32(scale)


@compiled
def _route_by_softmax(logits_at: int, chosen_at: int, shares_at: int, rows: int, n: int, used: int) -> None:
    scores, taken = np.empty(n, np.float32), np.empty(n, np.int64)
    for row in range(rows):
        softmax(logits_at + 4 * row * n, scores.ctypes.data, n)
        top(scores.ctypes.data, taken.ctypes.data, n, used, chosen_at + 8 * row * used)
        chosen, shares = longs(chosen_at + 8 * row * used), floats(shares_at + 4 * row * used)
        summed = float32(0)
        for i in range(used):
            summed += scores[chosen[i]]
        for i in range(used):
            shares[i] = scores[chosen[i]] / summed
