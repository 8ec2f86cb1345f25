"""What a context of llama.cpp b11549 keeps per block beside the weights: caches, recurrent states, activations.

Sizes follow `llama_model::create_memory` (src/llama-model.cpp) and the caches it makes: llama-kv-cache.cpp,
llama-kv-cache-iswa.cpp, llama-memory-hybrid-idx.cpp, llama-memory-recurrent.cpp. One sequence, flash attention on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nextn.gguf_schema.errors import UsageError
from nextn.gguf_schema.types import F16, F32, TENSOR_TYPES, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nextn.gguf_schema.glm5_next import Glm5Next
    from nextn.gguf_schema.qwen4exp import Qwen4Exp
    from nextn.gguf_schema.step35 import Step35

# Cells of a cache come in multiples of this many (llama-context.cpp, llama-kv-cache-iswa.cpp).
CELLS = 256
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


@dataclass(frozen=True)
class Settings:
    """Of a context: tokens it holds, tokens computed at once, type of its caches, longest draft."""

    context: int
    ubatch: int
    kv_type: str
    n_max: int

    @property
    def cells(self) -> int:
        """Cells of a cache of the whole context."""
        return padded(self.context)

    def row(self, values: int) -> int:
        """Bytes of one cell of `values` values."""
        type_: TensorType = TENSOR_TYPES[self.kv_type.upper()]
        if values % type_.block:
            message = f"{type_.name} stores blocks of {type_.block} values, and this model's cache has rows of {values}"
            raise UsageError("kv-type", message, subject="--kv-type", remedy="take f16")
        return type_.row_bytes(values)


@dataclass(frozen=True)
class State:
    """State of one kind in one block: `rows` cells or planes of `row_bytes` bytes."""

    kind: str
    block: int
    rows: int
    row_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes in all."""
        return self.rows * self.row_bytes


def padded(cells: int) -> int:
    """A number of cells as it is allocated."""
    return cells + -cells % CELLS


def step35_states(h: Step35, blocks: Sequence[int], s: Settings, _: int) -> Iterator[State]:
    """Keys and values. A sliding block keeps its window and one ubatch; llama-kv-cache-iswa.cpp."""
    window = padded(min(s.cells, h.attention_sliding_window + s.ubatch))
    for i in blocks:
        values = h.attention_head_count_kv[i]
        row = s.row(values * h.attention_key_length) + s.row(values * h.attention_value_length)
        if h.attention_sliding_window_pattern[i]:
            yield State("window", i, window, row)
        else:
            yield State("kv", i, s.cells, row)


def qwen4exp_states(h: Qwen4Exp, blocks: Sequence[int], s: Settings, planes: int) -> Iterator[State]:
    """Keys, values and indexer keys of attention blocks; states and histories of the delta net and the n-grams, in F32.

    An indexer row holds the raw key and, when any block selects, the pooled one (models/qwen4exp.cpp).
    """
    copies = 2 if any(h.attention_compress_ratios) else 1
    for i in blocks:
        if h.is_attention(i) or h.is_nextn(i):
            keys, values = h.attention_key_length, h.attention_value_length
            yield State(
                "kv", i, s.cells, s.row(h.attention_head_count_kv * keys) + s.row(h.attention_head_count_kv * values)
            )
            yield State("indexer", i, s.cells, s.row(copies * h.attention_indexer_key_length))
            continue
        yield State("recurrent", i, planes, F32.size * h.ssm_state_size * h.ssm_inner_size)
        yield State("convolution", i, planes, F32.size * (h.ssm_conv_kernel - 1) * h.conv_width)
        if h.has_ngrams(i):
            history = ((h.ple_conv_kernel or 1) - 1) * (h.ple_ngram_size or 0)
            yield State("convolution", i, planes, F32.size * history * h.streams_width)


def glm5_next_states(h: Glm5Next, blocks: Sequence[int], s: Settings, planes: int) -> Iterator[State]:
    """Latents without values, indexer rows (key, gate, pooled key); states and histories of delta attention, in F32."""
    for i in blocks:
        if h.is_mla(i):
            yield State("latent", i, s.cells, s.row(h.attention_head_count_kv[i] * h.attention_key_length))
            if h.has_indexer(i):
                yield State("indexer", i, s.cells, s.row(3 * h.attention_indexer_key_length))
            continue
        yield State("recurrent", i, planes, F32.size * h.attention_head_count * h.kda_head_dim**2)
        yield State("convolution", i, planes, F32.size * 3 * (h.ssm_conv_kernel - 1) * h.kda_width)


def step35_rows(h: Step35) -> Iterator[tuple[str, int]]:
    """Values a token takes in the widest tensors of the graph."""
    yield "queries", max(h.query_width(i) for i in range(h.trunk_blocks + h.nextn_blocks))
    yield "feed-forward", h.feed_forward_length
    yield from _expert_rows(h, h.expert_feed_forward_length)


def qwen4exp_rows(h: Qwen4Exp) -> Iterator[tuple[str, int]]:
    """Values a token takes in the widest tensors of the graph."""
    yield "residual streams", h.streams_width
    yield "queries and gates", h.query_gate_width
    yield "delta net", h.conv_width
    yield from _expert_rows(h, h.expert_feed_forward_length)


def glm5_next_rows(h: Glm5Next) -> Iterator[tuple[str, int]]:
    """Values a token takes in the widest tensors of the graph."""
    yield "residual streams", h.streams_width
    yield "queries over latents", h.attention_head_count * h.attention_kv_lora_rank
    yield "delta attention", h.kda_width
    yield "feed-forward", h.feed_forward_length
    yield from _expert_rows(h, h.expert_feed_forward_length)


def _expert_rows(h: Any, width: int) -> Iterator[tuple[str, int]]:
    """The chosen experts' rows stand side by side before they are added up."""
    yield "experts", h.expert_used_count * max(width, h.embedding_length)


@dataclass(frozen=True)
class Family:
    """How an architecture's state and activations are counted."""

    states: Callable[[Any, Sequence[int], Settings, int], Iterator[State]]
    rows: Callable[[Any], Iterator[tuple[str, int]]]


FAMILIES = {
    "step35": Family(step35_states, step35_rows),
    "qwen4exp": Family(qwen4exp_states, qwen4exp_rows),
    "glm5-next": Family(glm5_next_states, glm5_next_rows),
}


def largest_activation(rows: Iterable[tuple[str, int]], vocab_size: int | None, s: Settings) -> tuple[str, int]:
    """Name and bytes of the largest tensor of a graph beside weights and state; buffers hold a few of such size.

    Rows of one ubatch in F32; the attention mask, one F16 value for each token and cell; logits of a verification.
    """
    sizes = [(name, F32.size * values * s.ubatch) for name, values in rows]
    sizes.append(("attention mask", F16.size * s.cells * s.ubatch))
    sizes.append(("logits", F32.size * (vocab_size or 0) * (s.n_max + 1)))
    return max(sizes, key=lambda size: size[1])
