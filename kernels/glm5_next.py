"""Operations of glm5-next in plain torch: stream mixing with Sinkhorn, the bounded decay, pooled keys, routing, clamps.

Width invariance, as in `reference`: sums go over a row's own values, one by one in their order or within a tensor of
the row's own; sigmoid, silu, softplus and softmax are taken for each row by itself. All else (sums, products and
quotients of two values) is exact to the last bit, however torch computes it.

Source: src/models/glm5-next.cpp and `build_moe_ffn` in src/llama-graph.cpp of llama.cpp b11549.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from nextn.kernels.reference import sigmoid, silu, softmax, softplus, top

# Smallest sum that the weights of chosen experts are divided by (llama.cpp: the smallest normal F16).
SMALLEST_SUM = 6.103515625e-5
# Smallest limit that counts as one.
SMALLEST_LIMIT = 1e-6


def _sum(x: Tensor, dim: int) -> Tensor:
    """Over one dimension, in its order; kept as a dimension of one."""
    return reduce(torch.add, x.unbind(dim)).unsqueeze(dim)


def sinkhorn(scores: Tensor, iterations: int, eps: float) -> Tensor:
    """Nearly doubly stochastic matrices from scores [rows, from, to]: softmax over `to`, then columns and rows in turn.

    It ends with columns: the sum over `from` is 1 but for eps.
    """
    mixing = softmax(scores) + eps
    mixing = mixing / (_sum(mixing, 1) + eps)
    for _ in range(iterations - 1):
        mixing = mixing / (_sum(mixing, 2) + eps)
        mixing = mixing / (_sum(mixing, 1) + eps)
    return mixing


def stream_weights(
    mixed: Tensor, scale: Tensor, base: Tensor, iterations: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What a layer reads of n streams [rows, n], what it writes to them [rows, n], and what goes over [rows, n, n].

    `mixed` is [rows, (2 + n) n]: those three one after the other; `base` is alike for all rows; `scale` has one value
    for each of the three.
    """
    n = math.isqrt(mixed.shape[1] + 1) - 1
    reads, writes, passes = (mixed[:, a:b] for a, b in ((0, n), (n, 2 * n), (2 * n, None)))
    return (
        sigmoid(reads * scale[0] + base[:n]) + eps,
        2 * sigmoid(writes * scale[1] + base[n : 2 * n]),
        sinkhorn((passes * scale[2] + base[2 * n :]).reshape(-1, n, n), iterations, eps),
    )


def collapse(streams: Tensor, reads: Tensor) -> Tensor:
    """The weighted sum of the streams [rows, n, width] by [rows, n]: [rows, width]."""
    return _sum(streams * reads[..., None], 1)[:, 0]


def spread(streams: Tensor, y: Tensor, writes: Tensor, passes: Tensor) -> Tensor:
    """New streams [rows, n, width] of y [rows, width] by writes [rows, n] and the old by passes [rows, from, to]."""
    passed = _sum(passes[..., None] * streams[:, :, None], 1)[:, 0]
    return writes[..., None] * y[:, None] + passed


def log_decay(f: Tensor, a: Tensor, lower_bound: float | None) -> Tensor:
    """How much a delta rule's state decays for f [rows, heads, n]: the logarithm, none above 0.

    `a` [heads] is -exp(A_log). With a lower bound it is the bound times sigmoid(-a f), without one a times softplus(f).
    """
    if lower_bound is not None:
        return lower_bound * sigmoid(-a[:, None] * f)
    return a[:, None] * softplus(f)


def pooled_key(keys: Tensor, gates: Tensor, offsets: Tensor) -> Tensor:
    """One key [n] for the members of a pool: their keys [members, n], weighted by channel.

    The weights are softmax over the members of gates [members, n] + offsets [members, n].
    """
    return (torch.softmax(gates + offsets, dim=0) * keys).sum(dim=0)


def pool_scores(queries: Tensor, weights: Tensor, pooled: Tensor) -> Tensor:
    """Scores [pools] of pooled keys [pools, n] for one row: relu of their products with its queries [heads, n].

    The heads are summed by their weights [heads], which may be negative.
    """
    # Copies begin where a library wants vectors to, wherever a row lies among others.
    queries, weights = queries.clone(), weights.clone()
    return torch.mv(torch.relu(torch.mm(pooled, queries.T)), weights)


def tail_start(place: int, members: int) -> int:
    """The first row that is in no whole pool when row `place` is the last: pools are of consecutive rows from 0 on."""
    return (place + 1) // members * members


def rows_of(pools: Sequence[int], members: int, tail: range) -> list[int]:
    """The rows of some pools, and of the tail."""
    return [row for pool in pools for row in range(pool * members, (pool + 1) * members)] + list(tail)


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(gate) * up for [rows, n], gate cut at the limit and up at both ends before; no limit up to 1e-6."""
    if limit > SMALLEST_LIMIT:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return silu(gate) * up


def chosen_experts(scores: Tensor, used: int, groups: int = 1, groups_used: int = 1) -> list[int]:
    """The experts of the best scores [experts] of one row, in their order.

    With several groups, only those of the groups whose two best scores have the largest sums.
    """
    if groups > 1:
        grouped = scores.reshape(groups, -1)
        best = grouped.topk(min(2, grouped.shape[1]), dim=1).values.sum(dim=1)
        kept = torch.full_like(grouped, -torch.inf)
        for group in top(best, groups_used):
            kept[group] = grouped[group]
        scores = kept.reshape(-1)
    return top(scores, used)


def expert_weights(probabilities: Tensor, normalise: bool, scale: float) -> Tensor:
    """Weights [used] of one row's chosen experts from their probabilities: over their sum, if so, and scaled."""
    if normalise:
        probabilities = probabilities / probabilities.sum().clamp(min=SMALLEST_SUM)
    return probabilities * scale
