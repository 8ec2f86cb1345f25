"""Feed-forward networks of glm5-next: dense, or routed experts beside shared ones, all with clamped activations.

Source: `build_ffn` and `build_moe_ffn` in src/llama-graph.cpp of llama.cpp b11549.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.glm5_next import Glm5Next
from nextn.kernels.glm5_next import chosen_experts, clamped_swiglu, expert_weights
from nextn.kernels.reference import linear, sigmoid
from nextn.runtime.weights import Matrix, Weights

# Values of expert_gating_func that mean sigmoid: given, or left open.
SIGMOID = (0, 2, None)


class Dense:
    """A plain network, or the shared experts, which are one; `suffix` tells their tensors apart."""

    def __init__(self, weights: Weights, h: Glm5Next, block: int, suffix: str = "") -> None:
        self._parts = [weights.matrix(f"blk.{block}.ffn_{part}{suffix}.weight") for part in ("gate", "up", "down")]
        # Where the key of dense and shared networks is missing, llama.cpp takes that of the routed experts.
        own = weights.contents.get("swiglu_clamp_shexp") is not None
        self._limit = (h.swiglu_clamp_shexp if own else h.swiglu_clamp_exp)[block]

    def __call__(self, x: Tensor) -> Tensor:
        """Normed rows x [rows, width] to rows [rows, width]."""
        return _network(x, self._parts, self._limit)


class Experts:
    """Routed experts, chosen for each row by sigmoid scores and a bias that the weights do not have."""

    def __init__(self, weights: Weights, h: Glm5Next, block: int) -> None:
        name = f"blk.{block}"
        if h.expert_gating_func not in SIGMOID:
            message = (
                f"expert_gating_func {h.expert_gating_func} is not that of this architecture, which is 2 (sigmoid)"
            )
            raise InputError("gating", message, subject=weights.contents.name)
        self._used = h.expert_used_count
        self._groups, self._groups_used = h.expert_group_count or 1, h.expert_group_used_count or 1
        self._normalise, self._scale = bool(h.expert_weights_norm), h.expert_weights_scale or 1.0
        self._limit = h.swiglu_clamp_exp[block]
        self._router = weights.matrix(f"{name}.ffn_gate_inp.weight")
        self._bias = weights.vector(f"{name}.exp_probs_b.bias")
        self._parts = [weights.matrix(f"{name}.ffn_{part}_exps.weight") for part in ("gate", "up", "down")]
        self._shared = Dense(weights, h, block, "_shexp") if h.expert_shared_count else None

    def __call__(self, x: Tensor) -> Tensor:
        """Normed rows x [rows, width] to rows [rows, width]. An expert is decoded once for all rows that chose it."""
        probabilities = sigmoid(linear(x, self._router))  # [rows, experts]
        weights = torch.zeros_like(probabilities)
        rows_by_expert: dict[int, list[int]] = {}
        for i, row in enumerate(probabilities):
            chosen = chosen_experts(row + self._bias, self._used, self._groups, self._groups_used)
            weights[i, chosen] = expert_weights(row[chosen], self._normalise, self._scale)
            for expert in chosen:
                rows_by_expert.setdefault(expert, []).append(i)
        total = torch.zeros_like(x)
        for expert in sorted(rows_by_expert):  # each row adds its experts in their order
            rows = rows_by_expert[expert]
            y = _network(x[rows], [part[expert] for part in self._parts], self._limit)
            total[rows] += weights[rows, expert, None] * y
        return total if self._shared is None else total + self._shared(x)


def _network(x: Tensor, parts: Sequence[Matrix], limit: float) -> Tensor:
    """Rows x [rows, width] through one network: its gate, up and down."""
    gate, up, down = parts
    return linear(clamped_swiglu(linear(x, gate), linear(x, up), limit), down)
