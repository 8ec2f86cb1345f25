"""Step-3.5-Flash and Step-3.7-Flash (`step35`): three chained heads behind a trunk of full and sliding attention.

Sources: conversion/step3.py and src/models/step35.cpp of llama.cpp b11549.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nextn.gguf_schema.architecture import (
    FILE_TYPE,
    WITH_HEAD,
    WITHOUT_SHARED,
    Architecture,
    Hyperparameters,
    KeySpec,
    Rule,
    TensorSpec,
    Without,
    block_of,
)
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.types import ValueType


@dataclass(frozen=True, kw_only=True)
class Step35(Hyperparameters):
    """Hyper-parameters of a Step model; heads and windows differ by layer."""

    feed_forward_length: int
    attention_head_count: tuple[int, ...]
    attention_head_count_kv: tuple[int, ...]
    attention_key_length: int
    attention_value_length: int
    attention_layer_norm_rms_epsilon: float
    attention_sliding_window: int
    attention_sliding_window_pattern: tuple[bool, ...]
    rope_freq_base: float
    rope_freq_base_swa: float
    rope_factor_count: int
    expert_blocks: frozenset[int]
    expert_gating_func: int | None
    expert_count: int
    expert_used_count: int
    expert_feed_forward_length: int
    expert_shared_feed_forward_length: int
    expert_weights_scale: float | None
    expert_weights_norm: bool | None
    leading_dense_block_count: int
    moe_every_n_layers: int
    swiglu_clamp_exp: tuple[float, ...] | None
    swiglu_clamp_shexp: tuple[float, ...] | None

    def has_rope_factors(self, _: int) -> bool:
        """Whether the full layers divide their rotary frequencies by stored factors."""
        return self.rope_factor_count > 0

    def query_width(self, i: int) -> int:
        """Values of all query heads of block `i`."""
        return self.attention_head_count[i] * self.attention_key_length

    def mixed_width(self, i: int) -> int:
        """Values that attention makes of all query heads of block `i`: as wide as the values are."""
        return self.attention_head_count[i] * self.attention_value_length

    def key_width(self, i: int) -> int:
        """Keys of all key heads of block `i`."""
        return self.attention_head_count_kv[i] * self.attention_key_length

    def value_width(self, i: int) -> int:
        """Values of all value heads of block `i`."""
        return self.attention_head_count_kv[i] * self.attention_value_length

    def is_moe(self, i: int) -> bool:
        """Whether block `i` has routed experts."""
        return i in self.expert_blocks

    def is_dense(self, i: int) -> bool:
        """Whether block `i` has a plain feed-forward network."""
        return i not in self.expert_blocks


U32, I32, F32, BOOL = ValueType.UINT32, ValueType.INT32, ValueType.FLOAT32, ValueType.BOOL
PER_BLOCK = Rule.PER_BLOCK
WRONG, ABORTS, TOLERATES = Without.WRONG, Without.ABORTS, Without.TOLERATES
EXPERT, SHARED = "expert_feed_forward_length", "expert_shared_feed_forward_length"
EXPERTS = f"{EXPERT} expert_count"

KEYS = (
    KeySpec("block_count", U32, Rule.BLOCK_COUNT),
    KeySpec("context_length", U32),
    KeySpec("embedding_length", U32),
    KeySpec("feed_forward_length", U32),
    KeySpec("attention.head_count", I32, PER_BLOCK),
    KeySpec("rope.freq_base", F32, without=WRONG, default=10000.0),
    KeySpec("rope.freq_base_swa", F32, without=TOLERATES, default=10000.0),
    KeySpec("attention.layer_norm_rms_epsilon", F32),
    KeySpec("expert_gating_func", U32, without=TOLERATES, default=2),
    KeySpec("attention.key_length", U32),
    KeySpec("attention.value_length", U32),
    FILE_TYPE,
    KeySpec("attention.head_count_kv", I32, PER_BLOCK),
    KeySpec("attention.sliding_window", U32),
    KeySpec("attention.sliding_window_pattern", BOOL, PER_BLOCK, array=True),
    KeySpec("expert_count", U32),
    KeySpec("expert_used_count", U32),
    KeySpec("expert_feed_forward_length", U32),
    KeySpec("expert_shared_feed_forward_length", U32),
    KeySpec("expert_weights_scale", F32, without=WRONG, default=1.0),
    KeySpec("expert_weights_norm", BOOL, without=WRONG, default=False),
    KeySpec("leading_dense_block_count", U32, without=TOLERATES, unread=True),
    KeySpec("moe_every_n_layers", U32, without=TOLERATES, unread=True),
    KeySpec("swiglu_clamp_exp", F32, PER_BLOCK, without=WRONG, default=0.0),
    KeySpec("swiglu_clamp_shexp", F32, PER_BLOCK, without=WRONG, default=0.0),
    KeySpec("nextn_predict_layers", U32, roles=WITH_HEAD),
)

MOE, DENSE, NEXTN = Step35.is_moe, Step35.is_dense, Step35.is_nextn
Spec = TensorSpec

TENSORS = (
    Spec("rope_freqs.weight", "rope_factor_count", when=Step35.has_rope_factors, f32=True, without=WRONG),
    Spec("token_embd.weight", "embedding_length vocab_size", roles=WITHOUT_SHARED),
    Spec("output_norm.weight", "embedding_length", f32=True),
    # A head has an output matrix of its own, so that a file of heads alone works without this one.
    Spec("output.weight", "embedding_length vocab_size", roles=WITHOUT_SHARED, without_in_head=TOLERATES),
    Spec("blk.{i}.attn_norm.weight", "embedding_length", f32=True),
    Spec("blk.{i}.attn_q.weight", "embedding_length query_width"),
    Spec("blk.{i}.attn_k.weight", "embedding_length key_width"),
    Spec("blk.{i}.attn_v.weight", "embedding_length value_width"),
    Spec("blk.{i}.attn_output.weight", "mixed_width embedding_length"),
    Spec("blk.{i}.attn_q_norm.weight", "attention_key_length", f32=True, without=WRONG),
    Spec("blk.{i}.attn_k_norm.weight", "attention_key_length", f32=True, without=WRONG),
    Spec("blk.{i}.attn_gate.weight", "embedding_length attention_head_count", without=WRONG),
    Spec("blk.{i}.ffn_norm.weight", "embedding_length", f32=True),
    Spec("blk.{i}.ffn_gate.weight", "embedding_length feed_forward_length", when=DENSE, without=WRONG),
    Spec("blk.{i}.ffn_up.weight", "embedding_length feed_forward_length", when=DENSE, without=ABORTS),
    Spec("blk.{i}.ffn_down.weight", "feed_forward_length embedding_length", when=DENSE, without=ABORTS),
    Spec("blk.{i}.ffn_gate_inp.weight", "embedding_length expert_count", when=MOE, f32=True, without=WRONG),
    Spec("blk.{i}.exp_probs_b.bias", "expert_count", when=MOE, f32=True, without=WRONG),
    Spec("blk.{i}.ffn_gate_exps.weight", f"embedding_length {EXPERTS}", when=MOE, without=WRONG),
    Spec("blk.{i}.ffn_up_exps.weight", f"embedding_length {EXPERTS}", when=MOE, without=ABORTS),
    Spec("blk.{i}.ffn_down_exps.weight", f"{EXPERT} embedding_length expert_count", when=MOE, without=ABORTS),
    Spec("blk.{i}.ffn_gate_shexp.weight", f"embedding_length {SHARED}", when=MOE, without=WRONG),
    Spec("blk.{i}.ffn_up_shexp.weight", f"embedding_length {SHARED}", when=MOE, without=ABORTS),
    Spec("blk.{i}.ffn_down_shexp.weight", f"{SHARED} embedding_length", when=MOE, without=WRONG),
    Spec("blk.{i}.nextn.eh_proj.weight", "head_input_width embedding_length", when=NEXTN),
    Spec("blk.{i}.nextn.enorm.weight", "embedding_length", when=NEXTN, f32=True),
    Spec("blk.{i}.nextn.hnorm.weight", "embedding_length", when=NEXTN, f32=True),
    Spec(
        "blk.{i}.nextn.embed_tokens.weight", "embedding_length vocab_size", when=NEXTN, optional=True, without=TOLERATES
    ),
    Spec("blk.{i}.nextn.shared_head_norm.weight", "embedding_length", when=NEXTN, f32=True, without=WRONG),
    Spec("blk.{i}.nextn.shared_head_head.weight", "embedding_length vocab_size", when=NEXTN, without=WRONG),
)


def from_tensors(contents: Contents) -> dict[str, Any]:
    """Which blocks have experts, and how many rotary factors there are."""
    factors = contents.tensors.get("rope_freqs.weight")
    routed = (block_of(name) for name in contents.tensors if ".ffn_gate_inp." in name or "_exps." in name)
    return {
        "rope_factor_count": factors.ne[0] if factors and factors.ne else 0,
        "expert_blocks": frozenset(block for block in routed if block is not None),
    }


STEP35 = Architecture("step35", Step35, KEYS, TENSORS, from_tensors)
