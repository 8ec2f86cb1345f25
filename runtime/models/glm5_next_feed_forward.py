"""Feed-forward networks of glm5-next: dense, or routed experts beside shared ones, all with clamped activations.

Source: `build_ffn` and `build_moe_ffn` in src/llama-graph.cpp of llama.cpp b11549.
"""

from __future__ import annotations

from torch import Tensor

from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.glm5_next import Glm5Next
from nextn.kernels.routing import Gate, Router
from nextn.runtime.weights import Matrix, Weights

# Values of expert_gating_func that mean sigmoid: given, or left open.
SIGMOID = (0, 2, None)


class Dense:
    """A plain network, or the shared experts, which are one; `suffix` tells their tensors apart."""

    def __init__(self, weights: Weights, h: Glm5Next, block: int, suffix: str = "") -> None:
        self._ops = weights.ops
        self._matrices = _matrices(weights, block, suffix)
        # Where the key of dense and shared networks is missing, llama.cpp takes that of the routed experts.
        own = weights.contents.get("swiglu_clamp_shexp") is not None
        self._form = Gate((h.swiglu_clamp_shexp if own else h.swiglu_clamp_exp)[block])

    def __call__(self, x: Tensor) -> Tensor:
        """Normed rows x [rows, width] to rows [rows, width]."""
        return self._ops.network(x, *self._matrices, self._form)


class Experts:
    """Routed experts, chosen for each row by sigmoid scores and a bias that the weights do not have."""

    def __init__(self, weights: Weights, h: Glm5Next, block: int) -> None:
        name = f"blk.{block}"
        if h.expert_gating_func not in SIGMOID:
            message = (
                f"expert_gating_func {h.expert_gating_func} is not that of this architecture, which is 2 (sigmoid)"
            )
            raise InputError("gating", message, subject=weights.contents.name)
        self._ops = weights.ops
        self._router = Router(
            used=h.expert_used_count,
            scale=h.expert_weights_scale or 1.0,
            normalizes=bool(h.expert_weights_norm),
            groups=h.expert_group_count or 1,
            groups_used=h.expert_group_used_count or 1,
        )
        self._router_input = weights.matrix(f"{name}.ffn_gate_inp.weight")
        self._bias = weights.vector(f"{name}.exp_probs_b.bias")
        self._matrices = _matrices(weights, block, "_exps")
        self._form = Gate(h.swiglu_clamp_exp[block])
        self._shared = Dense(weights, h, block, "_shexp") if h.expert_shared_count else None

    def __call__(self, x: Tensor) -> Tensor:
        """Normed rows x [rows, width] to rows [rows, width]."""
        logits = self._ops.linear(x, self._router_input)
        chosen, shares = self._ops.sigmoid_router(logits, self._bias, self._router)
        routed = self._ops.experts(x, chosen, shares, self._matrices, self._form)
        return routed if self._shared is None else routed + self._shared(x)


def _matrices(weights: Weights, block: int, suffix: str) -> tuple[Matrix, Matrix, Matrix]:
    gate, up, down = (weights.matrix(f"blk.{block}.ffn_{part}{suffix}.weight") for part in ("gate", "up", "down"))
    return gate, up, down
