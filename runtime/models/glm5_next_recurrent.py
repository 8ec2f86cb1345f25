"""Linear attention of glm5-next (KDA): a delta rule whose state decays by channel, behind a short convolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.gguf_schema.glm5_next import Glm5Next
from nextn.runtime.model import Chunk
from nextn.runtime.recurrent import convolved_rows, recurrent_rows
from nextn.runtime.state import Trail
from nextn.runtime.weights import Weights

# Within the root of the norm of queries and keys, in the reference code and in llama.cpp (`l2_eps`).
L2_EPS = 1e-6


class DeltaAttention:
    """One block's linear attention. Source: `build_kda_layer` in src/models/glm5-next.cpp of llama.cpp b11549."""

    def __init__(self, weights: Weights, h: Glm5Next, block: int) -> None:
        name = f"blk.{block}"
        self._conv_trail, self._delta_trail = f"{name}.conv", f"{name}.delta"
        self._heads, self._head_width = h.attention_head_count, h.kda_head_dim
        self._taps, self._eps, self._bound = (
            h.ssm_conv_kernel,
            h.attention_layer_norm_rms_epsilon,
            h.kda_gate_lower_bound,
        )
        self._dtype, self._device = weights.dtype, weights.device
        self._ops = weights.ops

        self._projections = [weights.matrix(f"{name}.attn_{part}.weight") for part in "qkv"]
        convs = [weights.vector(f"{name}.ssm_conv1d_{part}.weight") for part in "qkv"]
        self._conv = torch.cat([conv.reshape(h.kda_width, self._taps) for conv in convs])  # [3 D, taps]
        self._f_a, self._f_b = weights.matrix(f"{name}.ssm_f_a.weight"), weights.matrix(f"{name}.ssm_f_b.weight")
        self._g_a, self._g_b = weights.matrix(f"{name}.ssm_g_a.weight"), weights.matrix(f"{name}.ssm_g_b.weight")
        self._beta = weights.matrix(f"{name}.ssm_beta.weight")
        self._a = weights.vector(f"{name}.ssm_a").reshape(self._heads)  # -exp(A_log)
        self._dt = weights.vector(f"{name}.ssm_dt.bias")
        self._norm = weights.vector(f"{name}.ssm_norm.weight")
        self._output = weights.matrix(f"{name}.attn_output.weight")

    def trails(self, keep: int) -> dict[str, Trail]:
        """Its parts of an empty state: the projected rows that the convolution reaches, and the delta rule's state."""
        width = self._conv.shape[0]
        past = torch.zeros((self._taps - 1, width), dtype=self._dtype, device=self._device)
        shape = (self._heads, self._head_width, self._head_width)  # heads, key channels, value channels
        state = torch.zeros(shape, dtype=self._dtype, device=self._device)
        return {self._conv_trail: Trail(past, keep), self._delta_trail: Trail(state, keep)}

    def __call__(self, x: Tensor, chunks: Sequence[Chunk]) -> Tensor:
        """Normed rows x [rows, width] of all chunks to rows [rows, width]; the states' trails go on."""
        *parts, f, beta, g = self._ops.linears(x, (*self._projections, self._f_a, self._beta, self._g_a))
        projected = torch.cat(parts, dim=1)  # [rows, 3 D]
        convolved = convolved_rows(self._ops, projected, chunks, self._conv_trail, self._conv)
        # Decay, correction and output gate are of the row itself, not of the convolved one.
        f = self._ops.linear(f, self._f_b)
        decay = self._ops.channel_decays(f, self._dt, self._a, self._bound)  # [rows, heads, key channels]
        inputs = (convolved, decay, beta)
        read = recurrent_rows(self._ops, inputs, chunks, self._delta_trail, self._heads, L2_EPS)
        gated = self._ops.normed_gated_heads(read, self._norm, self._eps, self._ops.linear(g, self._g_b))
        return self._ops.linear(gated, self._output)
