"""Qwen3.8-Flash-Next (`qwen4exp`): four wide residual streams, gated delta net, block-sparse attention, n-gram table.

Sources: conversion/qwen4exp.py and src/models/qwen4exp.cpp of llama.cpp b11549.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nextn.gguf_schema.architecture import (
    FILE_TYPE,
    WITH_HEAD,
    WITH_TRUNK,
    WITHOUT_SHARED,
    Architecture,
    Hyperparameters,
    KeySpec,
    Rule,
    TensorSpec,
    Without,
)
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.nextn_generic import blocks_of
from nextn.gguf_schema.types import ValueType


@dataclass(frozen=True, kw_only=True)
class Qwen4Exp(Hyperparameters):
    """Hyper-parameters of a Qwen3.8-Flash-Next model; PLE is its n-gram embedding layer."""

    attention_head_count: int
    attention_head_count_kv: int
    attention_key_length: int
    attention_value_length: int
    attention_layer_norm_rms_epsilon: float
    attention_recurrent_layers: tuple[bool, ...]
    attention_compress_ratios: tuple[int, ...]
    attention_indexer_head_count: int
    attention_indexer_key_length: int
    attention_indexer_top_k: int
    full_attention_interval: int
    rope_dimension_count: int
    rope_dimension_sections: tuple[int, ...]
    rope_freq_base: float
    expert_count: int
    expert_used_count: int
    expert_feed_forward_length: int
    expert_shared_feed_forward_length: int
    ssm_conv_kernel: int
    ssm_state_size: int
    ssm_group_count: int
    ssm_time_step_rank: int
    ssm_inner_size: int
    hyper_connection_count: int
    hyper_connection_low_rank: int
    ple_layers: tuple[int, ...] | None
    ple_ngram_size: int | None
    ple_heads_per_ngram: int | None
    ple_conv_kernel: int | None
    ple_eos_token_id: int | None
    ple_image_token_id: int | None
    ple_layer_multipliers: tuple[int, ...] | None
    ple_head_offsets: tuple[int, ...] | None
    ple_head_vocab_sizes: tuple[int, ...] | None
    embedding_length_per_layer_input: int | None
    ple_table_rows: int
    tied_output: bool

    @property
    def streams_width(self) -> int:
        """Values of all residual streams."""
        return self.hyper_connection_count * self.embedding_length

    @property
    def query_gate_width(self) -> int:
        """Values of all query heads, each with its output gate."""
        return 2 * self.head_width

    @property
    def head_width(self) -> int:
        """Values of all query heads."""
        return self.attention_head_count * self.attention_key_length

    @property
    def key_heads_width(self) -> int:
        """Keys of all key heads."""
        return self.attention_head_count_kv * self.attention_key_length

    @property
    def value_heads_width(self) -> int:
        """Values of all value heads."""
        return self.attention_head_count_kv * self.attention_value_length

    @property
    def indexer_width(self) -> int:
        """Values of all indexer query heads."""
        return self.attention_indexer_head_count * self.attention_indexer_key_length

    @property
    def key_width(self) -> int:
        """Values of all key heads of the delta net."""
        return self.ssm_group_count * self.ssm_state_size

    @property
    def conv_width(self) -> int:
        """Channels of the delta net's convolution: queries, keys and values."""
        return 2 * self.key_width + self.ssm_inner_size

    def is_linear(self, i: int) -> bool:
        """Whether block `i` is a gated delta net."""
        return self.attention_recurrent_layers[i]

    def is_attention(self, i: int) -> bool:
        """Whether block `i` has full attention; a head always does."""
        return not self.is_linear(i)

    def has_ngrams(self, i: int) -> bool:
        """Whether block `i` adds n-gram embeddings; outside blocks (-1), whether any does."""
        return bool(self.ple_layers) and (i < 0 or i in (self.ple_layers or ()))

    def has_own_output(self, _: int) -> bool:
        """Whether the output matrix is a tensor of its own."""
        return not self.tied_output


U32, I32, U64, F32, BOOL = (
    ValueType.UINT32,
    ValueType.INT32,
    ValueType.UINT64,
    ValueType.FLOAT32,
    ValueType.BOOL,
)
WRONG, TOLERATES, ABORTS = Without.WRONG, Without.TOLERATES, Without.ABORTS
PER_BLOCK, LIST, FOUR = Rule.PER_BLOCK, Rule.LIST, Rule.FOUR

KEYS = (
    KeySpec("block_count", U32, Rule.BLOCK_COUNT),
    KeySpec("context_length", U32),
    KeySpec("embedding_length", U32),
    KeySpec("attention.head_count", U32),
    KeySpec("attention.head_count_kv", U32),
    KeySpec("rope.dimension_sections", I32, FOUR),
    KeySpec("rope.freq_base", F32, without=WRONG),
    KeySpec("attention.layer_norm_rms_epsilon", F32),
    KeySpec("expert_count", U32),
    KeySpec("expert_used_count", U32),
    KeySpec("attention.key_length", U32),
    KeySpec("attention.value_length", U32),
    FILE_TYPE,
    KeySpec("expert_feed_forward_length", U32),
    KeySpec("expert_shared_feed_forward_length", U32),
    KeySpec("nextn_predict_layers", U32, roles=WITH_HEAD),
    KeySpec("ssm.conv_kernel", U32),
    KeySpec("ssm.state_size", U32),
    KeySpec("ssm.group_count", U32),
    KeySpec("ssm.time_step_rank", U32),
    KeySpec("ssm.inner_size", U32),
    KeySpec("attention.recurrent_layers", BOOL, PER_BLOCK, without=TOLERATES),
    KeySpec("full_attention_interval", U32, without=TOLERATES, default=4, unread="attention.recurrent_layers"),
    KeySpec("rope.dimension_count", U32, without=ABORTS),
    KeySpec("hyper_connection.count", U32),
    KeySpec("hyper_connection.low_rank", U32),
    KeySpec("attention.indexer.head_count", U32),
    KeySpec("attention.indexer.key_length", U32),
    KeySpec("attention.indexer.top_k", U32),
    KeySpec("attention.compress_ratios", I32, PER_BLOCK, without=WRONG, default=0),
    # A head must not carry the n-gram keys: with them the loader wants the table.
    KeySpec("ple.layers", I32, LIST, WITH_TRUNK, WRONG),
    KeySpec("ple.ngram_size", U32, roles=WITH_TRUNK),
    KeySpec("ple.heads_per_ngram", U32, roles=WITH_TRUNK),
    KeySpec("ple.conv_kernel", U32, roles=WITH_TRUNK),
    KeySpec("ple.eos_token_id", U32, roles=WITH_TRUNK),
    KeySpec("ple.image_token_id", U32, roles=WITH_TRUNK, without=TOLERATES),
    KeySpec("embedding_length_per_layer_input", U32, roles=WITH_TRUNK),
    KeySpec("ple.layer_multipliers", U64, LIST, WITH_TRUNK),
    KeySpec("ple.head_offsets", U64, LIST, WITH_TRUNK),
    KeySpec("ple.head_vocab_sizes", U64, LIST, WITH_TRUNK),
)

LINEAR, ATTENTION, NEXTN = Qwen4Exp.is_linear, Qwen4Exp.is_attention, Qwen4Exp.is_nextn
NGRAMS, OWN_OUTPUT = Qwen4Exp.has_ngrams, Qwen4Exp.has_own_output
LOW, STREAMS = "hyper_connection_low_rank", "hyper_connection_count"
EXPERT, SHARED = "expert_feed_forward_length", "expert_shared_feed_forward_length"
INDEXER = "attention_indexer_key_length"
Spec = TensorSpec

TENSORS = (
    Spec("token_embd.weight", "embedding_length vocab_size", roles=WITHOUT_SHARED),
    Spec("output.weight", "embedding_length vocab_size", when=OWN_OUTPUT, roles=WITHOUT_SHARED, without=WRONG),
    Spec("output_hc_norm.weight", "streams_width", roles=WITH_TRUNK, f32=True, reshape=True),
    Spec("output_hc_down.weight", f"streams_width {LOW}", roles=WITH_TRUNK),
    Spec("output_hc_up.weight", f"{LOW} streams_width", roles=WITH_TRUNK),
    Spec(
        "per_layer_token_embd.weight",
        "embedding_length_per_layer_input ple_table_rows",
        when=NGRAMS,
        roles=WITH_TRUNK,
        eight_bits=True,
    ),
    Spec("blk.{i}.hc_attn_norm.weight", "streams_width", f32=True, reshape=True),
    Spec("blk.{i}.hc_attn_down.weight", f"streams_width {LOW}"),
    Spec("blk.{i}.hc_attn_up.weight", f"{LOW} streams_width"),
    Spec("blk.{i}.hc_attn_inject.weight", f"streams_width {STREAMS}", eight_bits=True),
    Spec("blk.{i}.hc_ffn_norm.weight", "streams_width", f32=True, reshape=True),
    Spec("blk.{i}.hc_ffn_down.weight", f"streams_width {LOW}"),
    Spec("blk.{i}.hc_ffn_up.weight", f"{LOW} streams_width"),
    Spec("blk.{i}.hc_ffn_inject.weight", f"streams_width {STREAMS}", eight_bits=True),
    Spec("blk.{i}.attn_qkv.weight", "embedding_length conv_width", when=LINEAR),
    Spec("blk.{i}.attn_gate.weight", "embedding_length ssm_inner_size", when=LINEAR),
    Spec("blk.{i}.ssm_beta.weight", "embedding_length ssm_time_step_rank", when=LINEAR, eight_bits=True),
    Spec("blk.{i}.ssm_alpha.weight", "embedding_length ssm_time_step_rank", when=LINEAR, eight_bits=True),
    Spec("blk.{i}.ssm_conv1d.weight", "ssm_conv_kernel conv_width", when=LINEAR, f32=True),
    Spec("blk.{i}.ssm_a", "ssm_time_step_rank", when=LINEAR, f32=True),
    Spec("blk.{i}.ssm_dt.bias", "ssm_time_step_rank", when=LINEAR, f32=True),
    Spec("blk.{i}.ssm_norm.weight", "ssm_state_size", when=LINEAR, f32=True),
    Spec("blk.{i}.ssm_out.weight", "ssm_inner_size embedding_length", when=LINEAR),
    Spec("blk.{i}.attn_q.weight", "embedding_length query_gate_width", when=ATTENTION),
    Spec("blk.{i}.attn_k.weight", "embedding_length key_heads_width", when=ATTENTION),
    Spec("blk.{i}.attn_v.weight", "embedding_length value_heads_width", when=ATTENTION),
    Spec("blk.{i}.attn_output.weight", "head_width embedding_length", when=ATTENTION),
    Spec("blk.{i}.attn_q_norm.weight", "attention_key_length", when=ATTENTION, f32=True),
    Spec("blk.{i}.attn_k_norm.weight", "attention_key_length", when=ATTENTION, f32=True),
    Spec("blk.{i}.indexer.q_proj.weight", "embedding_length indexer_width", when=ATTENTION, eight_bits=True),
    Spec("blk.{i}.indexer.k_proj.weight", f"embedding_length {INDEXER}", when=ATTENTION, eight_bits=True),
    Spec("blk.{i}.indexer.q_norm.weight", INDEXER, when=ATTENTION, f32=True),
    Spec("blk.{i}.indexer.k_norm.weight", INDEXER, when=ATTENTION, f32=True),
    Spec("blk.{i}.ffn_gate_inp.weight", "embedding_length expert_count", f32=True),
    Spec("blk.{i}.ffn_gate_exps.weight", f"embedding_length {EXPERT} expert_count"),
    Spec("blk.{i}.ffn_up_exps.weight", f"embedding_length {EXPERT} expert_count"),
    Spec("blk.{i}.ffn_down_exps.weight", f"{EXPERT} embedding_length expert_count"),
    Spec("blk.{i}.ffn_gate_inp_shexp.weight", "embedding_length 1", f32=True),
    Spec("blk.{i}.ffn_gate_shexp.weight", f"embedding_length {SHARED}"),
    Spec("blk.{i}.ffn_up_shexp.weight", f"embedding_length {SHARED}"),
    Spec("blk.{i}.ffn_down_shexp.weight", f"{SHARED} embedding_length"),
    Spec("blk.{i}.ple_key.weight", "embedding_length streams_width", when=NGRAMS),
    Spec("blk.{i}.ple_value.weight", "embedding_length embedding_length", when=NGRAMS),
    Spec("blk.{i}.ple_norm_key.weight", "streams_width", when=NGRAMS, f32=True, reshape=True),
    Spec("blk.{i}.ple_norm_query.weight", "streams_width", when=NGRAMS, f32=True, reshape=True),
    Spec("blk.{i}.ple_norm_conv.weight", "streams_width", when=NGRAMS, f32=True, reshape=True),
    Spec("blk.{i}.ple_conv1d.weight", "ple_conv_kernel streams_width", when=NGRAMS),
    Spec("blk.{i}.nextn.eh_proj.weight", "head_input_width embedding_length", when=NEXTN),
    Spec("blk.{i}.nextn.enorm.weight", "embedding_length", when=NEXTN, f32=True),
    Spec("blk.{i}.nextn.hnorm.weight", "streams_width", when=NEXTN, f32=True, reshape=True),
    Spec("blk.{i}.nextn.hc_head_norm.weight", "streams_width", when=NEXTN, f32=True, reshape=True),
    Spec("blk.{i}.nextn.hc_head_down.weight", f"streams_width {LOW}", when=NEXTN),
    Spec("blk.{i}.nextn.hc_head_up.weight", f"{LOW} streams_width", when=NEXTN),
)


def from_tensors(contents: Contents) -> dict[str, Any]:
    """Rows of the n-gram table; whether the output matrix is the embeddings' because there is none; kinds of layers.

    Without a key for the kinds every `full_attention_interval`-th layer of the trunk has attention, and each head.
    """
    table = contents.tensors.get("per_layer_token_embd.weight")
    found: dict[str, Any] = {
        "ple_table_rows": table.ne[1] if table and len(table.ne) > 1 else 0,
        "tied_output": "output.weight" not in contents.tensors,
    }
    if contents.get("attention.recurrent_layers") is None:
        trunk_blocks, nextn_blocks = blocks_of(contents)
        interval = contents.get("full_attention_interval")
        every = interval.value if interval and isinstance(interval.value, int) and interval.value > 0 else 4
        linear = [(i + 1) % every != 0 for i in range(trunk_blocks)]
        found["attention_recurrent_layers"] = (*linear, *[False] * nextn_blocks)
    return found


QWEN4EXP = Architecture("qwen4exp", Qwen4Exp, KEYS, TENSORS, from_tensors)
