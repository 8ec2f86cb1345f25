"""Linear attention of glm5-next (KDA): a delta rule whose state decays by channel, behind a short convolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.gguf_schema.glm5_next import Glm5Next
from nextn.kernels.glm5_next import log_decay
from nextn.kernels.reference import causal_conv, delta_step, exp, inverse_sqrt, l2_norm, linear, rms_norm, sigmoid, silu
from nextn.runtime.model import Chunk, spans
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
        by_head = (len(x), self._heads, self._head_width)
        projected = torch.cat([linear(x, matrix) for matrix in self._projections], dim=1)  # [rows, 3 D]
        q, k, v = silu(self._convolved(projected, chunks)).chunk(3, dim=1)
        query = l2_norm(q.reshape(by_head), L2_EPS) * inverse_sqrt(self._head_width)
        key = l2_norm(k.reshape(by_head), L2_EPS)

        # Decay, correction and output gate are of the row itself, not of the convolved one.
        f = (linear(linear(x, self._f_a), self._f_b) + self._dt).reshape(by_head)
        decay = exp(log_decay(f, self._a, self._bound))
        beta = sigmoid(linear(x, self._beta))  # [rows, heads]
        read = self._scanned(query, key, v.reshape(by_head), decay, beta, chunks)

        gate = sigmoid(linear(linear(x, self._g_a), self._g_b))
        normed = rms_norm(read, self._norm, self._eps).reshape(len(x), -1)
        return linear(normed * gate, self._output)

    def _convolved(self, projected: Tensor, chunks: Sequence[Chunk]) -> Tensor:
        """Projected rows [rows, 3 D] over their own and the last taps - 1 rows of the sequence."""
        rows = []
        for chunk, span in spans(chunks):
            trail = chunk.state.trails[self._conv_trail]
            for length, row in enumerate(projected[span], start=chunk.first):
                past = trail.at(length)
                rows.append(causal_conv(row, past, self._conv))
                trail.put(length + 1, torch.cat((past[1:], row[None])))
        return torch.stack(rows)

    def _scanned(
        self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, chunks: Sequence[Chunk]
    ) -> Tensor:
        """What each row reads of its sequence's state after its own step: [rows, heads, head width]."""
        rows = []
        for chunk, span in spans(chunks):
            trail = chunk.state.trails[self._delta_trail]
            places = range(span.start, span.stop)
            for length, i in enumerate(places, start=chunk.first):
                state, read = delta_step(trail.at(length), query[i], key[i], value[i], decay[i], beta[i])
                trail.put(length + 1, state)
                rows.append(read)
        return torch.stack(rows)
