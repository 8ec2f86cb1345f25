"""One block of a Step model: gated attention with normed queries and keys, then a dense or a routed network.

Source of the formulas: src/models/step35.cpp of llama.cpp b11549, and modeling_step3p7.py of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nextn.gguf_schema.step35 import Step35
from nextn.kernels.reference import inverse_sqrt
from nextn.kernels.routing import Gate, Router
from nextn.runtime.model import Chunk, joined, joined_positions, spans
from nextn.runtime.state import Rows
from nextn.runtime.weights import Matrix, Weights

# Full layers rotate this part of each head. No key holds it: src/models/step35.cpp has it as a constant.
ROTATED_BY_FULL_LAYERS = 0.5
POSITION = "position"


class Batch:
    """The rows of one forward: their positions [rows], and the first row that each of them sees through the window."""

    def __init__(self, chunks: Sequence[Chunk], window: int, device: str) -> None:
        self.chunks = chunks
        places = joined_positions(chunks)
        self.positions = places.to(device)
        self.window_begins: list[int] = []
        for chunk, span in spans(chunks):
            known = chunk.state.rows[POSITION]
            known.write(chunk.first, places[span])
            # A row sees positions p - window + 1 … p. Positions never go back, so these are the last rows.
            for end in range(chunk.first + 1, chunk.first + len(chunk) + 1):
                positions = known.first(end)
                out_of_sight = torch.searchsorted(positions, positions[-1] - window, right=True)
                self.window_begins.append(int(out_of_sight))


def cache_rows(h: Step35, blocks: range, dtype: torch.dtype, device: str) -> Mapping[str, Rows]:
    """What a sequence keeps for these blocks: a key and a value [kv heads, d] per row and block, and the positions."""
    rows = {POSITION: Rows((), torch.int64)}  # Read one by one to find a window's first row: not on the device.
    for i in blocks:
        shape = (h.attention_head_count_kv[i], h.attention_key_length)
        rows |= {name: Rows(shape, dtype, device) for name in (f"keys.{i}", f"values.{i}")}
    return rows


class Attention:
    """Grouped-query attention of block `i`, full or through a window, with one gate per head."""

    def __init__(self, weights: Weights, h: Step35, i: int) -> None:
        self.block, self.ops = i, weights.ops
        self.head_width = h.attention_key_length
        self.eps = h.attention_layer_norm_rms_epsilon
        self.slides = h.attention_sliding_window_pattern[i]
        self.base = h.rope_freq_base_swa if self.slides else h.rope_freq_base
        self.rotated = self.head_width if self.slides else int(self.head_width * ROTATED_BY_FULL_LAYERS)
        # llama3's factors are stored only if the model has them.
        self.factors = None if self.slides else weights.optional("rope_freqs.weight", torch.float32)
        prefix = f"blk.{i}.attn_"
        self.query = weights.matrix(f"{prefix}q.weight")
        self.key = weights.matrix(f"{prefix}k.weight")
        self.value = weights.matrix(f"{prefix}v.weight")
        self.output = weights.matrix(f"{prefix}output.weight")
        self.gate = weights.matrix(f"{prefix}gate.weight")
        self.query_norm = weights.vector(f"{prefix}q_norm.weight")
        self.key_norm = weights.vector(f"{prefix}k_norm.weight")

    def remember(self, a: Tensor, batch: Batch) -> None:
        """Write keys and values of rows [rows, H]; they depend on nothing that attention finds."""
        key, value = self.ops.linears(a, (self.key, self.value))
        self._write(key, value, batch)

    def _write(self, key: Tensor, value: Tensor, batch: Batch) -> None:
        key = self._turned(key, self.key_norm, batch)  # [rows, kv heads, d]
        value = value.reshape(key.shape)
        for chunk, span in spans(batch.chunks):
            keys, values = self._caches(chunk)
            keys.write(chunk.first, key[span])
            values.write(chunk.first, value[span])

    def __call__(self, a: Tensor, batch: Batch) -> Tensor:
        """From rows [rows, H], the norm already applied, to rows [rows, H]."""
        query, gate, key, value = self.ops.linears(a, (self.query, self.gate, self.key, self.value))
        self._write(key, value, batch)
        query = self._turned(query, self.query_norm, batch)  # [rows, heads, d]
        scale = inverse_sqrt(self.head_width)
        read = []
        for chunk, span in spans(batch.chunks):
            ends = range(chunk.first + 1, chunk.first + len(chunk) + 1)
            begins = batch.window_begins[span] if self.slides else [0] * len(chunk)
            keys, values = (rows.first(ends[-1]) for rows in self._caches(chunk))
            read.append(self.ops.attend(query[span], keys, values, begins, ends, scale))
        gated = self.ops.gated_heads(joined(read), gate)  # [rows, heads * d]
        return self.ops.linear(gated, self.output)

    def _turned(self, x: Tensor, norm: Tensor, batch: Batch) -> Tensor:
        """Heads [rows, heads, d] of x [rows, heads * d], normed, then rotated by their positions."""
        heads, places = (
            x.reshape(x.shape[0], -1, self.head_width),
            (batch.positions, self.rotated, self.base, self.factors),
        )
        return self.ops.normed_and_rotated(heads, norm, self.eps, *places)

    def _caches(self, chunk: Chunk) -> tuple[Rows, Rows]:
        return chunk.state.rows[f"keys.{self.block}"], chunk.state.rows[f"values.{self.block}"]


class Dense:
    """The feed-forward network of a block, or of all rows beside the routed experts, by the ending of its names."""

    def __init__(self, weights: Weights, h: Step35, i: int, ending: str = "") -> None:
        self.ops = weights.ops
        self.matrices = matrices(weights, i, ending)
        # The limit of shared experts is that of dense networks too.
        self.form = form_of(h.swiglu_clamp_shexp, i)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [rows, H] to rows [rows, H]."""
        return self.ops.network(x, *self.matrices, self.form)


class Routed:
    """Experts of which each row has some, beside one that all rows share."""

    def __init__(self, weights: Weights, h: Step35, i: int) -> None:
        self.ops = weights.ops
        self.router_input = weights.matrix(f"blk.{i}.ffn_gate_inp.weight")
        self.bias = weights.vector(f"blk.{i}.exp_probs_b.bias")
        self.matrices = matrices(weights, i, "_exps")
        self.shared = Dense(weights, h, i, "_shexp")
        self.form = form_of(h.swiglu_clamp_exp, i)
        scale = 1.0 if h.expert_weights_scale is None else h.expert_weights_scale
        self.router = Router(h.expert_used_count, scale, bool(h.expert_weights_norm))

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [rows, H] to rows [rows, H]."""
        chosen, shares = self.ops.sigmoid_router(self.ops.linear(x, self.router_input), self.bias, self.router)
        return self.ops.experts(x, chosen, shares, self.matrices, self.form) + self.shared(x)


def matrices(weights: Weights, i: int, ending: str) -> tuple[Matrix, Matrix, Matrix]:
    """Gate, up and down of block `i`."""
    gate, up, down = (weights.matrix(f"blk.{i}.ffn_{part}{ending}.weight") for part in ("gate", "up", "down"))
    return gate, up, down


def form_of(limits: Sequence[float] | None, i: int) -> Gate:
    """The activation of block `i`: the gate is limited behind silu, and only from above."""
    return Gate(limits[i] if limits else 0.0, behind=True)


class Block:
    """One layer of a trunk or of a head: both are the same."""

    def __init__(self, weights: Weights, h: Step35, i: int) -> None:
        self.ops, self.eps = weights.ops, h.attention_layer_norm_rms_epsilon
        self.attention_norm = weights.vector(f"blk.{i}.attn_norm.weight")
        self.attention = Attention(weights, h, i)
        self.ffn_norm = weights.vector(f"blk.{i}.ffn_norm.weight")
        self.ffn = Routed(weights, h, i) if h.is_moe(i) else Dense(weights, h, i)

    def remember(self, x: Tensor, batch: Batch) -> None:
        """Write what later rows read of these rows [rows, H], and nothing else."""
        self.attention.remember(self.ops.rms_norm(x, self.attention_norm, self.eps), batch)

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        """The residual stream [rows, H] behind this block."""
        attended = self.attention(self.ops.rms_norm(x, self.attention_norm, self.eps), batch)
        x, normed = self.ops.added_and_normed(x, attended, self.ffn_norm, self.eps)
        return x + self.ffn(normed)
