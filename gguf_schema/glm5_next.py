"""GLM-5.3-Flash (`glm5-next`): delta attention and latent attention behind hyper-connections, one looped head.

Sources: conversion/glm.py and src/models/glm5-next.cpp of llama.cpp b11549.
"""

from __future__ import annotations

from dataclasses import dataclass

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
)
from nextn.gguf_schema.nextn_generic import TOKENS
from nextn.gguf_schema.types import ValueType


@dataclass(frozen=True, kw_only=True)
class Glm5Next(Hyperparameters):
    """Hyper-parameters of a GLM-5.3-Flash model; KDA is its linear attention, MLA its latent attention."""

    feed_forward_length: int
    attention_head_count: int
    attention_head_count_kv: tuple[int, ...]
    attention_layer_norm_rms_epsilon: float
    attention_layer_norm_epsilon: float
    attention_q_lora_rank: int
    attention_kv_lora_rank: int
    attention_key_length: int
    attention_value_length: int
    attention_key_length_mla: int
    attention_value_length_mla: int
    attention_indexer_head_count: int
    attention_indexer_key_length: int
    attention_indexer_top_k: int
    attention_indexer_kpool: int
    attention_indexer_kpool_select_tail: bool
    attention_indexer_types: tuple[bool, ...]
    rope_dimension_count: int
    ssm_conv_kernel: int
    kda_head_dim: int
    kda_gate_lower_bound: float | None
    hyper_connection_count: int
    hyper_connection_sinkhorn_iterations: int
    hyper_connection_epsilon: float
    leading_dense_block_count: int
    expert_count: int
    expert_used_count: int
    expert_group_count: int | None
    expert_group_used_count: int | None
    expert_gating_func: int | None
    expert_feed_forward_length: int
    expert_shared_count: int
    expert_weights_scale: float | None
    expert_weights_norm: bool | None
    swiglu_clamp_exp: tuple[float, ...]
    swiglu_clamp_shexp: tuple[float, ...]

    @property
    def kda_width(self) -> int:
        """Values of all KDA heads."""
        return self.attention_head_count * self.kda_head_dim

    @property
    def query_width(self) -> int:
        """Values of all MLA query heads."""
        return self.attention_head_count * self.attention_key_length_mla

    @property
    def value_width(self) -> int:
        """Values of all MLA value heads."""
        return self.attention_head_count * self.attention_value_length_mla

    @property
    def indexer_width(self) -> int:
        """Values of all indexer query heads."""
        return self.attention_indexer_head_count * self.attention_indexer_key_length

    @property
    def streams_width(self) -> int:
        """Values of all residual streams."""
        return self.hyper_connection_count * self.embedding_length

    @property
    def mixing_count(self) -> int:
        """Mixing values of a hyper-connection: one before, one after, and a square matrix between streams."""
        return (2 + self.hyper_connection_count) * self.hyper_connection_count

    @property
    def shared_width(self) -> int:
        """Width of the shared experts together."""
        return self.expert_shared_count * self.expert_feed_forward_length

    def output_input_width(self, i: int) -> int:
        """Values that the output projection of block `i` takes."""
        return self.kda_width if self.is_kda(i) else self.value_width

    def is_trunk(self, i: int) -> bool:
        """Whether block `i` is the trunk's; only those have hyper-connections."""
        return i < self.trunk_blocks

    def is_kda(self, i: int) -> bool:
        """Whether block `i` has linear attention."""
        return self.attention_head_count_kv[i] == 0

    def is_mla(self, i: int) -> bool:
        """Whether block `i` has latent attention."""
        return self.attention_head_count_kv[i] != 0  # loaders read it as unsigned

    def has_indexer(self, i: int) -> bool:
        """Whether block `i` selects with an indexer of its own; a head always does."""
        return self.is_mla(i) and (self.is_nextn(i) or self.attention_indexer_types[i])

    def is_dense(self, i: int) -> bool:
        """Whether block `i` has a plain feed-forward network."""
        return i < self.leading_dense_block_count

    def is_moe(self, i: int) -> bool:
        """Whether block `i` has routed experts."""
        return not self.is_dense(i)


U32, I32, F32, BOOL = ValueType.UINT32, ValueType.INT32, ValueType.FLOAT32, ValueType.BOOL
WRONG, ABORTS, TOLERATES = Without.WRONG, Without.ABORTS, Without.TOLERATES

KEYS = (
    KeySpec("block_count", U32, Rule.BLOCK_COUNT),
    KeySpec("context_length", U32),
    KeySpec("embedding_length", U32),
    KeySpec("feed_forward_length", U32),
    KeySpec("attention.head_count", U32),
    KeySpec("attention.head_count_kv", I32, Rule.PER_BLOCK),
    KeySpec("attention.layer_norm_rms_epsilon", F32),
    KeySpec("expert_count", U32),
    KeySpec("expert_used_count", U32),
    KeySpec("expert_group_count", U32, without=TOLERATES),
    KeySpec("expert_group_used_count", U32, without=TOLERATES),
    KeySpec("expert_gating_func", U32, without=TOLERATES, default=2),
    FILE_TYPE,
    KeySpec("vocab_size", U32, without=TOLERATES, unread=TOKENS),
    KeySpec("attention.layer_norm_epsilon", F32, without=WRONG, default=0.0),
    KeySpec("nextn_predict_layers", U32, roles=WITH_HEAD),
    KeySpec("ssm.conv_kernel", U32),
    KeySpec("kda.head_dim", U32),
    KeySpec("kda.gate_lower_bound", F32, without=WRONG),
    KeySpec("attention.q_lora_rank", U32),
    KeySpec("attention.kv_lora_rank", U32),
    KeySpec("rope.dimension_count", U32),
    KeySpec("attention.key_length", U32, without=ABORTS),
    KeySpec("attention.value_length", U32, without=TOLERATES),
    KeySpec("attention.key_length_mla", U32),
    KeySpec("attention.value_length_mla", U32),
    KeySpec("attention.indexer.head_count", U32),
    KeySpec("attention.indexer.key_length", U32),
    KeySpec("attention.indexer.top_k", U32),
    KeySpec("attention.indexer.kpool", U32),
    KeySpec("attention.indexer.kpool_select_tail", BOOL, without=TOLERATES, default=True),
    KeySpec("attention.indexer.types", BOOL, Rule.PER_TRUNK_BLOCK, without=TOLERATES, default=True),
    KeySpec("hyper_connection.count", U32),
    KeySpec("hyper_connection.sinkhorn_iterations", U32),
    KeySpec("hyper_connection.epsilon", F32),
    KeySpec("leading_dense_block_count", U32, default=0),
    KeySpec("expert_feed_forward_length", U32),
    KeySpec("expert_shared_count", U32),
    KeySpec("expert_weights_scale", F32, without=WRONG, default=1.0),
    KeySpec("expert_weights_norm", BOOL, without=WRONG, default=False),
    KeySpec("swiglu_clamp_exp", F32, Rule.PER_BLOCK, without=WRONG, default=0.0),
    KeySpec("swiglu_clamp_shexp", F32, Rule.PER_BLOCK, without=WRONG, default=0.0),
)

TRUNK, NEXTN = Glm5Next.is_trunk, Glm5Next.is_nextn
KDA, MLA, INDEXER = Glm5Next.is_kda, Glm5Next.is_mla, Glm5Next.has_indexer
DENSE, MOE = Glm5Next.is_dense, Glm5Next.is_moe
EXPERT = "expert_feed_forward_length"
HEADS, KEY, VALUE, RANK = (
    "attention_head_count",
    "attention_key_length_mla",
    "attention_value_length_mla",
    "attention_kv_lora_rank",
)
Spec = TensorSpec

TENSORS = (
    Spec("token_embd.weight", "embedding_length vocab_size", roles=WITHOUT_SHARED),
    Spec("output_norm.weight", "embedding_length", f32=True),
    Spec("output.weight", "embedding_length vocab_size", roles=WITHOUT_SHARED),
    Spec("blk.{i}.attn_norm.weight", "embedding_length", f32=True),
    Spec("blk.{i}.hc_attn_fn.weight", "streams_width mixing_count", when=TRUNK, f32=True),
    Spec("blk.{i}.hc_attn_base.weight", "mixing_count", when=TRUNK, f32=True),
    Spec("blk.{i}.hc_attn_scale.weight", "3", when=TRUNK, f32=True),
    Spec("blk.{i}.hc_ffn_fn.weight", "streams_width mixing_count", when=TRUNK, f32=True),
    Spec("blk.{i}.hc_ffn_base.weight", "mixing_count", when=TRUNK, f32=True),
    Spec("blk.{i}.hc_ffn_scale.weight", "3", when=TRUNK, f32=True),
    Spec("blk.{i}.attn_q.weight", "embedding_length kda_width", when=KDA),
    Spec("blk.{i}.attn_k.weight", "embedding_length kda_width", when=KDA),
    Spec("blk.{i}.attn_v.weight", "embedding_length kda_width", when=KDA),
    Spec("blk.{i}.ssm_conv1d_q.weight", "ssm_conv_kernel 1 kda_width 1", when=KDA, f32=True),
    Spec("blk.{i}.ssm_conv1d_k.weight", "ssm_conv_kernel 1 kda_width 1", when=KDA, f32=True),
    Spec("blk.{i}.ssm_conv1d_v.weight", "ssm_conv_kernel 1 kda_width 1", when=KDA, f32=True),
    Spec("blk.{i}.ssm_f_a.weight", "embedding_length kda_head_dim", when=KDA, eight_bits=True),
    Spec("blk.{i}.ssm_f_b.weight", "kda_head_dim kda_width", when=KDA, eight_bits=True),
    Spec("blk.{i}.ssm_g_a.weight", "embedding_length kda_head_dim", when=KDA, eight_bits=True),
    Spec("blk.{i}.ssm_g_b.weight", "kda_head_dim kda_width", when=KDA, eight_bits=True),
    Spec("blk.{i}.ssm_beta.weight", f"embedding_length {HEADS}", when=KDA, eight_bits=True),
    Spec("blk.{i}.ssm_a", HEADS, when=KDA, f32=True),
    Spec("blk.{i}.ssm_dt.bias", "kda_width", when=KDA, f32=True),
    Spec("blk.{i}.ssm_norm.weight", "kda_head_dim", when=KDA, f32=True),
    Spec("blk.{i}.attn_output.weight", "output_input_width embedding_length"),
    Spec("blk.{i}.attn_q_a.weight", "embedding_length attention_q_lora_rank", when=MLA, eight_bits=True),
    Spec("blk.{i}.attn_q_a_norm.weight", "attention_q_lora_rank", when=MLA, f32=True),
    Spec("blk.{i}.attn_q_b.weight", "attention_q_lora_rank query_width", when=MLA, eight_bits=True),
    Spec("blk.{i}.attn_kv_a_mqa.weight", f"embedding_length {RANK}", when=MLA, eight_bits=True),
    Spec("blk.{i}.attn_kv_a_norm.weight", RANK, when=MLA, f32=True),
    Spec("blk.{i}.attn_k_b.weight", f"{KEY} {RANK} {HEADS}", when=MLA, eight_bits=True),
    Spec("blk.{i}.attn_v_b.weight", f"{RANK} {VALUE} {HEADS}", when=MLA, eight_bits=True),
    Spec("blk.{i}.indexer.attn_q_b.weight", "attention_q_lora_rank indexer_width", when=INDEXER, eight_bits=True),
    Spec(
        "blk.{i}.indexer.attn_k.weight", "embedding_length attention_indexer_key_length", when=INDEXER, eight_bits=True
    ),
    Spec("blk.{i}.indexer.k_norm.weight", "attention_indexer_key_length", when=INDEXER, f32=True),
    Spec("blk.{i}.indexer.k_norm.bias", "attention_indexer_key_length", when=INDEXER, f32=True),
    Spec("blk.{i}.indexer.proj.weight", "embedding_length attention_indexer_head_count", when=INDEXER, f32=True),
    Spec(
        "blk.{i}.indexer_compressor_gate.weight",
        "embedding_length attention_indexer_key_length",
        when=INDEXER,
        f32=True,
    ),
    Spec(
        "blk.{i}.indexer_compressor_ape.weight",
        "attention_indexer_key_length attention_indexer_kpool",
        when=INDEXER,
        f32=True,
    ),
    Spec("blk.{i}.ffn_norm.weight", "embedding_length", f32=True),
    Spec("blk.{i}.ffn_gate.weight", "embedding_length feed_forward_length", when=DENSE),
    Spec("blk.{i}.ffn_up.weight", "embedding_length feed_forward_length", when=DENSE),
    Spec("blk.{i}.ffn_down.weight", "feed_forward_length embedding_length", when=DENSE),
    Spec("blk.{i}.ffn_gate_inp.weight", "embedding_length expert_count", when=MOE, f32=True),
    Spec("blk.{i}.exp_probs_b.bias", "expert_count", when=MOE, f32=True),
    Spec("blk.{i}.ffn_gate_exps.weight", f"embedding_length {EXPERT} expert_count", when=MOE),
    Spec("blk.{i}.ffn_up_exps.weight", f"embedding_length {EXPERT} expert_count", when=MOE),
    Spec("blk.{i}.ffn_down_exps.weight", f"{EXPERT} embedding_length expert_count", when=MOE),
    Spec("blk.{i}.ffn_gate_shexp.weight", "embedding_length shared_width", when=MOE),
    Spec("blk.{i}.ffn_up_shexp.weight", "embedding_length shared_width", when=MOE),
    Spec("blk.{i}.ffn_down_shexp.weight", "shared_width embedding_length", when=MOE),
    Spec("blk.{i}.nextn.eh_proj.weight", "head_input_width embedding_length", when=NEXTN, eight_bits=True),
    Spec("blk.{i}.nextn.enorm.weight", "embedding_length", when=NEXTN, f32=True),
    Spec("blk.{i}.nextn.hnorm.weight", "embedding_length", when=NEXTN, f32=True),
    Spec("blk.{i}.nextn.embed_tokens.weight", "embedding_length vocab_size", when=NEXTN, optional=True),
    Spec("blk.{i}.nextn.shared_head_head.weight", "embedding_length vocab_size", when=NEXTN, optional=True),
    Spec("blk.{i}.nextn.shared_head_norm.weight", "embedding_length", when=NEXTN, f32=True, without=WRONG),
)

GLM5_NEXT = Architecture("glm5-next", Glm5Next, KEYS, TENSORS)
