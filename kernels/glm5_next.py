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

from nextn.kernels.reference import Reference, aligned


class Glm5NextOperations(Reference):
    """Mixing of streams, the bounded decay, and pooled keys with their scores."""

    def sinkhorn(self, scores: Tensor, iterations: int, eps: float) -> Tensor:
        """Nearly doubly stochastic matrices from scores [rows, from, to].

        Softmax over `to`, then columns and rows in turn. It ends with columns: the sum over `from` is 1 but for eps.
        """
        mixing = self.softmax(scores) + eps
        mixing = mixing / (_sum(mixing, 1) + eps)
        for _ in range(iterations - 1):
            mixing = mixing / (_sum(mixing, 2) + eps)
            mixing = mixing / (_sum(mixing, 1) + eps)
        return mixing

    def stream_weights(
        self, mixed: Tensor, scale: Tensor, base: Tensor, iterations: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What a layer reads of n streams [rows, n], what it writes to them [rows, n], and what goes over [rows, n, n].

        `mixed` is [rows, (2 + n) n]: those three one after the other; `base` is alike for all rows; `scale` has one
        value for each of the three.
        """
        n = math.isqrt(mixed.shape[1] + 1) - 1
        reads, writes, passes = (mixed[:, a:b] for a, b in ((0, n), (n, 2 * n), (2 * n, None)))
        return (
            self.sigmoid(reads * scale[0] + base[:n]) + eps,
            2 * self.sigmoid(writes * scale[1] + base[n : 2 * n]),
            self.sinkhorn((passes * scale[2] + base[2 * n :]).reshape(-1, n, n), iterations, eps),
        )

    def collapse(self, streams: Tensor, reads: Tensor) -> Tensor:
        """The weighted sum of the streams [rows, n, width] by [rows, n]: [rows, width]."""
        return _sum(streams * reads[..., None], 1)[:, 0]

    def spread(self, streams: Tensor, y: Tensor, writes: Tensor, passes: Tensor) -> Tensor:
        """New streams [rows, n, width]: y [rows, width] by writes [rows, n], the old by passes [rows, from, to]."""
        passed = _sum(passes[..., None] * streams[:, :, None], 1)[:, 0]
        return writes[..., None] * y[:, None] + passed

    def read_streams(self, streams: Tensor, reads: Tensor, norm: Tensor, eps: float) -> Tensor:
        """What a layer reads of the streams [rows, n, width] by [rows, n]: `collapse`, then `rms_norm`."""
        return self.rms_norm(self.collapse(streams, reads), norm, eps)

    def channel_decays(self, f: Tensor, bias: Tensor, a: Tensor, lower_bound: float | None) -> Tensor:
        """What a delta rule keeps of each channel of its state: e to the power of `log_decay` of f + bias.

        f is [rows, heads*n], bias [heads*n], the result [rows, heads, n].
        """
        return self.exp(self.log_decay((f + bias).reshape(len(f), len(a), -1), a, lower_bound))

    def log_decay(self, f: Tensor, a: Tensor, lower_bound: float | None) -> Tensor:
        """How much a delta rule's state decays for f [rows, heads, n]: the logarithm, none above 0.

        `a` [heads] is -exp(A_log). With a lower bound it is the bound times sigmoid(-a f), without one
        a times softplus(f).
        """
        if lower_bound is not None:
            return lower_bound * self.sigmoid(-a[:, None] * f)
        return a[:, None] * self.softplus(f)

    def pooled_key(self, keys: Tensor, gates: Tensor, offsets: Tensor) -> Tensor:
        """One key [n] for the members of a pool: their keys [members, n], weighted by channel.

        The weights are softmax over the members of gates [members, n] + offsets [members, n].
        """
        logits = gates + offsets
        weights = self.exp(logits - logits.amax(dim=0))
        return (_sum(weights * keys, 0) / _sum(weights, 0))[0]

    def pool_scores(self, queries: Tensor, weights: Tensor, pooled: Tensor) -> Tensor:
        """Scores [pools] of pooled keys [pools, n] for one row: relu of their products with its queries [heads, n].

        The heads are summed by their weights [heads], which may be negative.
        """
        return torch.mv(torch.relu(torch.mm(pooled, aligned(queries).T)), aligned(weights))


def _sum(x: Tensor, dim: int) -> Tensor:
    """Over one dimension, in its order; kept as a dimension of one."""
    return reduce(torch.add, x.unbind(dim)).unsqueeze(dim)


def tail_start(place: int, members: int) -> int:
    """The first row that is in no whole pool when row `place` is the last: pools are of consecutive rows from 0 on."""
    return (place + 1) // members * members


def rows_of(pools: Sequence[int], members: int, tail: range) -> list[int]:
    """The rows of some pools, and of the tail."""
    return [row for pool in pools for row in range(pool * members, (pool + 1) * members)] + list(tail)
