"""Which experts a row goes to, and with what weights.

Each row is routed by itself, over its own scores alone, so that neither its experts nor the bits of their weights
depend on the rows beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.kernels.reference import sigmoid, top

# The least that weights are divided by. Source: build_moe_ffn in src/llama-graph.cpp of llama.cpp b11549.
SMALLEST_SUM = 6.103515625e-5


def sigmoid_experts(
    logits: Tensor, bias: Tensor, count: int, *, scale: float = 1.0, normalize: bool = True
) -> tuple[list[int], Tensor]:
    """The experts of one row in ascending order, and their weights [count], from its logits [experts].

    Those with the largest sigmoid(logit) + bias are chosen; their weights are sigmoid(logit), without the bias, over
    their sum if `normalize`, times `scale`. Source: build_moe_ffn in src/llama-graph.cpp of llama.cpp b11549.
    """
    scores = sigmoid(logits)
    chosen = top(scores + bias, count)
    weights = scores[torch.tensor(chosen, device=scores.device)]
    if normalize:
        weights = weights / weights.sum().clamp(min=SMALLEST_SUM)
    return chosen, weights * scale
