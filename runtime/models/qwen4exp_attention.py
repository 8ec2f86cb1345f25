"""Full attention of Qwen3.8-Flash-Next: an output gate, and an indexer that chooses blocks of keys for each query.

Source: Qwen4ExpTextAttention and Qwen4ExpTextIndexer of transformers 5.24; src/models/qwen4exp.cpp of llama.cpp b11549,
which chooses whole blocks as transformers does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.qwen4exp import Qwen4Exp
from nextn.kernels.qwen4exp import seen_keys
from nextn.kernels.reference import inverse_sqrt
from nextn.runtime.model import AXES, Chunk, joined, spans
from nextn.runtime.state import Rows, State
from nextn.runtime.weights import Weights

# The position of each row, which all layers share: a block of keys stands where its first key does.
POSITIONS = "positions"


class Attention:
    """Attention of one block of the model.

    A block of keys is `ratio` rows that follow each other; a ratio of 0 means that every query sees every key. For each
    row a key, a value and an indexer key are kept and, as in llama.cpp, there is room for the pooled key of a block,
    the one that the row completes. A row stands at a position on each of three axes (time, height, width), those of
    text are equal, and each frequency of the rotation goes by one of them.
    """

    def __init__(self, weights: Weights, block: int, h: Qwen4Exp) -> None:
        prefix = f"blk.{block}."
        self.block, self.ops = block, weights.ops
        self.heads, self.kv_heads = h.attention_head_count, h.attention_head_count_kv
        self.width = h.attention_key_length
        self.indexer_heads, self.indexer_width = h.attention_indexer_head_count, h.attention_indexer_key_length
        self.eps = h.attention_layer_norm_rms_epsilon
        self.rope_dims, self.rope_base = h.rope_dimension_count, h.rope_freq_base
        self.axes = axes_of(h, weights.device)
        self.ratio, self.kept_blocks = _blocks(weights, h, block)
        self.query = weights.matrix(f"{prefix}attn_q.weight")
        self.key = weights.matrix(f"{prefix}attn_k.weight")
        self.value = weights.matrix(f"{prefix}attn_v.weight")
        self.output = weights.matrix(f"{prefix}attn_output.weight")
        self.query_norm = weights.vector(f"{prefix}attn_q_norm.weight")
        self.key_norm = weights.vector(f"{prefix}attn_k_norm.weight")
        self.indexer_query = weights.matrix(f"{prefix}indexer.q_proj.weight")
        self.indexer_key = weights.matrix(f"{prefix}indexer.k_proj.weight")
        self.indexer_query_norm = weights.vector(f"{prefix}indexer.q_norm.weight")
        self.indexer_key_norm = weights.vector(f"{prefix}indexer.k_norm.weight")
        self.dtype, self.device = weights.dtype, weights.device

    def new_rows(self) -> dict[str, Rows]:
        """Empty caches."""
        wide, narrow = (self.kv_heads, self.width), (self.indexer_width,)
        shapes: dict[str, tuple[int, ...]] = {"keys": wide, "values": wide, "indexer": narrow}
        if self.ratio:
            shapes["pooled"] = narrow
        return {self._name(what): Rows(shape, self.dtype, self.device) for what, shape in shapes.items()}

    def _name(self, what: str) -> str:
        return f"{self.block}.{what}"

    def remember(self, x: Tensor, chunks: Sequence[Chunk], positions: Tensor) -> None:
        """Write what later queries read of the rows x [rows, H], whose `positions` are by frequency."""
        keys, values, indexer = self.ops.linears(x, (self.key, self.value, self.indexer_key))
        self._write(keys, values, indexer, chunks, positions)

    def _write(self, keys: Tensor, values: Tensor, indexer: Tensor, chunks: Sequence[Chunk], positions: Tensor) -> None:
        heads = (-1, self.kv_heads, self.width)
        keys, values = self._turned(keys.reshape(heads), self.key_norm, positions), values.reshape(heads)
        # Keys of the indexer are neither normed nor rotated: that is done to their means.
        for chunk, span in spans(chunks):
            for what, rows in (("keys", keys), ("values", values), ("indexer", indexer)):
                chunk.state.rows[self._name(what)].write(chunk.first, rows[span])
            if self.ratio:
                blocks = self._pooled(chunk.state, chunk.first, chunk.first + len(chunk))
                chunk.state.rows[self._name("pooled")].write(chunk.first, blocks)

    def _pooled(self, state: State, start: int, end: int) -> Tensor:
        """For each of the rows start … end-1 the pooled key of the block that ends with it; zeros where none does."""
        raw = state.rows[self._name("indexer")].first(end)
        result = torch.zeros_like(raw[start:])
        first, behind = start // self.ratio * self.ratio, end // self.ratio * self.ratio
        if first < behind:
            means = self.ops.pooled(raw[first:behind], self.ratio)[:, None]
            positions = state.rows[POSITIONS].first(end)[first : behind : self.ratio]
            turned = self._turned(means, self.indexer_key_norm, positions[:, self.axes])
            result[first + self.ratio - 1 - start :: self.ratio] = turned[:, 0]
        return result

    def __call__(self, x: Tensor, chunks: Sequence[Chunk], positions: Tensor) -> Tensor:
        """Rows x [rows, H] attend to what is before them in their sequences and to themselves: [rows, H]."""
        matrices = self.query, self.indexer_query, self.key, self.value, self.indexer_key
        both, indexer, keys, values, indexer_keys = self.ops.linears(x, matrices)
        self._write(keys, values, indexer_keys, chunks, positions)
        both = both.reshape(-1, self.heads, 2 * self.width)  # each head: query, then gate
        queries, gates = both[..., : self.width], both[..., self.width :].flatten(1)
        queries = self._turned(queries, self.query_norm, positions)
        indexer = indexer.reshape(-1, self.indexer_heads, self.indexer_width)
        indexer = self._turned(indexer, self.indexer_query_norm, positions)
        attended = joined([self._attend(chunk, queries[span], indexer[span]) for chunk, span in spans(chunks)])
        return self.ops.linear(self.ops.gated_heads(attended, gates), self.output)

    def _attend(self, chunk: Chunk, queries: Tensor, indexer: Tensor) -> Tensor:
        """A sequence's queries [rows, heads, d] with their indexer queries [rows, indexer heads, di]: as queries."""
        ends = range(chunk.first + 1, chunk.first + len(chunk) + 1)
        keys, values = (chunk.state.rows[self._name(what)].first(ends[-1]) for what in ("keys", "values"))
        # A row that sees more blocks than are kept attends to a choice of its own; those before see all that there is.
        all_seen = sum(not self.ratio or end // self.ratio <= self.kept_blocks for end in ends)
        scale, read = inverse_sqrt(self.width), []
        if all_seen:
            seen = ends[:all_seen]
            read.append(self.ops.attend(queries[:all_seen], keys, values, [0] * all_seen, seen, scale))
        for row, end in enumerate(ends[all_seen:], start=all_seen):
            pooled = chunk.state.rows[self._name("pooled")].first(end)[self.ratio - 1 :: self.ratio]
            places = seen_keys(self.ops.block_scores(indexer[row], pooled), self.ratio, self.kept_blocks, end)
            chosen = (keys[places], values[places], [0], [len(places)])
            read.append(self.ops.attend(queries[row : row + 1], *chosen, scale))
        return joined(read)

    def _turned(self, x: Tensor, norm: Tensor, positions: Tensor) -> Tensor:
        """Heads x [rows, heads, d], normed, then rotated by positions [rows, frequencies]."""
        return self.ops.normed_and_rotated(x, norm, self.eps, positions, self.rope_dims, self.rope_base)


def axes_of(h: Qwen4Exp, device: str) -> Tensor:
    """Which axis each frequency of a model goes by: [frequencies]."""
    return torch.tensor(axes(h.rope_dimension_sections, h.rope_dimension_count // 2), dtype=torch.int64, device=device)


def axes(sections: Sequence[int], frequencies: int) -> list[int]:
    """Which axis each frequency goes by: time, height and width in turn, as often as sections say; then time alone."""
    turns = range(frequencies)
    return [m % len(AXES) if m // len(AXES) < sections[m % len(AXES)] else 0 for m in turns]


def _blocks(weights: Weights, h: Qwen4Exp, block: int) -> tuple[int, int]:
    """Rows of a block and number of blocks that a query keeps. InputError for a ratio that llama.cpp refuses too."""
    ratio, budget = h.attention_compress_ratios[block], h.attention_indexer_top_k
    if ratio and (ratio < 2 or budget % ratio):
        message = f"block {block}: compress ratio {ratio}, want one above 1 that divides the budget {budget}"
        raise InputError("compress-ratio", message, subject=weights.contents.name)
    return ratio, budget // ratio if ratio else 0
