"""Gated networks, and experts: which of them a row goes to, with what weights, and what they make of it.

Each row is routed by itself, over its own scores alone, so that neither its experts nor the bits of their weights
depend on the rows beside it; and it adds its experts in ascending order, whatever other rows choose.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nextn.kernels.reference import Reference, top
from nextn.kernels.weight import Weight

# The least that weights are divided by: the smallest normal F16. Source: build_moe_ffn in src/llama-graph.cpp of
# llama.cpp b11549.
SMALLEST_SUM = 6.103515625e-5
# A limit that is no larger is none (build_ffn there).
NO_LIMIT = 1e-6


@dataclass(frozen=True)
class Gate:
    """The activation of a gated network: silu(gate) * up, with gate at most `limit` and up within ±limit.

    The gate is limited before silu, or behind it if `behind`. A limit of 0 is none.
    """

    limit: float = 0.0
    behind: bool = False


PLAIN = Gate()


@dataclass(frozen=True)
class Router:
    """How a row's experts are chosen: `used` of them, by sigmoid scores.

    Their weights are divided by their sum if `normalizes`, and multiplied by `scale`. With several groups only experts
    of the `groups_used` groups whose two best scores have the largest sums are looked at.
    """

    used: int
    scale: float = 1.0
    normalizes: bool = True
    groups: int = 1
    groups_used: int = 1


class Routing(Reference):
    """Gated networks, and experts."""

    def gated(self, gate: Tensor, up: Tensor, form: Gate = PLAIN) -> Tensor:
        """silu(gate) * up of rows [rows, n], within the limits of `form`."""
        limit = form.limit
        if limit <= NO_LIMIT:
            return self.silu(gate) * up
        activated = self.silu(gate).clamp(max=limit) if form.behind else self.silu(gate.clamp(max=limit))
        return activated * up.clamp(-limit, limit)

    def network(self, x: Tensor, gate: Weight, up: Weight, down: Weight, form: Gate = PLAIN) -> Tensor:
        """Rows x [rows, H] through a gated network with matrices [F, H], [F, H], [H, F]: [rows, H]."""
        first, second = self.linears(x, (gate, up))
        return self.linear(self.gated(first, second, form), down)

    def sigmoid_router(self, logits: Tensor, bias: Tensor, router: Router) -> tuple[Tensor, Tensor]:
        """The experts of each row, ascending, and their weights, [rows, used] each, from logits [rows, experts].

        Those with the largest sigmoid(logit) + bias are chosen; their weights are of sigmoid(logit), without the bias.
        Source: build_moe_ffn in src/llama-graph.cpp of llama.cpp b11549.
        """
        scores = self.sigmoid(logits)
        chosen = torch.tensor([chosen_experts(row + bias, router) for row in scores], device=scores.device)
        return chosen, torch.stack([_weights(row[c], router) for row, c in zip(scores, chosen, strict=True)])

    def softmax_router(self, logits: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """The experts of each row, ascending, and their weights, [rows, used] each, from logits [rows, experts].

        Those of the largest probabilities are chosen, which are made to sum to one.
        """
        probabilities = self.softmax(logits)
        chosen = torch.tensor([top(row, used) for row in probabilities], device=logits.device)
        shares = [row[c] / row[c].sum() for row, c in zip(probabilities, chosen, strict=True)]
        return chosen, torch.stack(shares)

    def experts(
        self, x: Tensor, chosen: Tensor, shares: Tensor, matrices: tuple[Weight, Weight, Weight], form: Gate = PLAIN
    ) -> Tensor:
        """The results of each row's experts by their shares [rows, used], summed: [rows, H], from rows x [rows, H].

        `chosen` [rows, used] is ascending; gate, up and down are [experts, F, H], [experts, F, H], [experts, H, F].
        """
        # An expert is decoded once for all of its rows.
        places: dict[int, list[tuple[int, int]]] = {}
        for row, experts in enumerate(chosen.tolist()):
            for place, expert in enumerate(experts):
                places.setdefault(expert, []).append((row, place))
        result = torch.zeros_like(x)
        for expert, found in sorted(places.items()):
            rows, share = [row for row, _ in found], torch.stack([shares[row, place] for row, place in found])
            gate, up, down = (matrix[expert] for matrix in matrices)
            result[rows] += share[:, None] * self.network(x[rows], gate, up, down, form)
        return result


def chosen_experts(scores: Tensor, router: Router) -> list[int]:
    """The experts of the best scores [experts] of one row, in their order."""
    if router.groups > 1:
        grouped = scores.reshape(router.groups, -1)
        best = grouped.topk(min(2, grouped.shape[1]), dim=1).values.sum(dim=1)
        kept = torch.full_like(grouped, -torch.inf)
        for group in top(best, router.groups_used):
            kept[group] = grouped[group]
        scores = kept.reshape(-1)
    return top(scores, router.used)


def _weights(scores: Tensor, router: Router) -> Tensor:
    """Weights [used] of one row's chosen experts from their scores."""
    if router.normalizes:
        scores = scores / scores.sum().clamp(min=SMALLEST_SUM)
    return scores * router.scale
