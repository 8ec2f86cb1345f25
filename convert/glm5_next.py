"""GLM-5.3-Flash: configuration in both spellings, and names.

Sources: conversion/glm.py of llama.cpp b11549; the configuration class of transformers 5.24 (`glm5_next`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nextn.convert.family import GATING, Facts, Family, Fixed
from nextn.convert.mapping import Names, NameTable, To, joined, single
from nextn.convert.source_tensor import SourceTensor
from nextn.convert.transforms import (
    Recipe,
    copy,
    negative_exp,
    select_rows,
    split_kv_b_keys,
    split_kv_b_values,
    stack,
)
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.glm5_next import GLM5_NEXT, Glm5Next

LINEAR = "linear_attention"
LAYER_KINDS = {LINEAR, "deepseek_sparse_attention", "full_attention", "indexed_attention"}
INDEXERS = {"full", "shared"}
FIXED: Fixed = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mhc": (True,),
    "mla_use_nope": (True,),
    "index_kpool_compress": (True,),
    "topk_method": ("noaux_tc",),
}
# The epsilon of the indexer's LayerNorm is a constant of the model code, not of its configuration.
INDEXER_NORM_EPSILON = 1e-6


def conv(source: SourceTensor) -> Recipe:
    """Depthwise kernels [channels, 1, K] or [channels, K], stored as [1, channels, 1, K]."""
    channels, *middle, kernel = source.shape
    if middle not in ([1], []):
        raise ValueError
    return copy(source, (1, channels, 1, kernel))


def decay(sources: Sequence[SourceTensor], h: Glm5Next, _: int) -> Recipe:
    """-exp of the logarithm of the decay, one value a head; the source may have more dimensions and a longer tail."""
    if sources[0].elements < h.attention_head_count:
        raise ValueError
    if sources[0].scale:
        raise InputError("unsupported-dtype", "is scaled FP8; decays must be floats", subject=sources[0].name)
    values = select_rows(sources[0], [(0, h.attention_head_count)], width=1)
    return replace(values, shape=(h.attention_head_count,), function=negative_exp, note="-exp")


def kv_keys(sources: Sequence[SourceTensor], h: Glm5Next, _: int) -> Recipe:
    """Key half of the latent projection."""
    return split_kv_b_keys(*_kv_b(sources[0], h))


def kv_values(sources: Sequence[SourceTensor], h: Glm5Next, _: int) -> Recipe:
    """Value half of the latent projection."""
    return split_kv_b_values(*_kv_b(sources[0], h))


def _kv_b(source: SourceTensor, h: Glm5Next) -> tuple[SourceTensor, int, int, int]:
    """The latent projection with its heads, key and value rows; ValueError when its rows are not theirs."""
    heads, key, value = h.attention_head_count, h.attention_key_length_mla, h.attention_value_length_mla
    if source.shape[0] != heads * (key + value):
        raise ValueError
    return source, heads, key, value


CONV, EXPERTS = single(conv), joined(stack)
L, A, M, X = "layers.{i}.", "layers.{i}.self_attn.", "layers.{i}.mlp.", "layers.{i}.self_attn.indexer."
NAMES: NameTable = {
    "embed_tokens.weight": To("token_embd.weight"),
    "norm.weight": To("output_norm.weight"),
    "lm_head.weight": To("output.weight"),
    L + "input_layernorm.weight": To("blk.{i}.attn_norm.weight"),
    L + "post_attention_layernorm.weight": To("blk.{i}.ffn_norm.weight"),
    L + "hc_attn_fn": To("blk.{i}.hc_attn_fn.weight"),
    L + "hc_attn_base": To("blk.{i}.hc_attn_base.weight"),
    L + "hc_attn_scale": To("blk.{i}.hc_attn_scale.weight"),
    L + "hc_ffn_fn": To("blk.{i}.hc_ffn_fn.weight"),
    L + "hc_ffn_base": To("blk.{i}.hc_ffn_base.weight"),
    L + "hc_ffn_scale": To("blk.{i}.hc_ffn_scale.weight"),
    # KDA layers
    A + "q_proj.weight": To("blk.{i}.attn_q.weight"),
    A + "k_proj.weight": To("blk.{i}.attn_k.weight"),
    A + "v_proj.weight": To("blk.{i}.attn_v.weight"),
    A + "q_conv1d.weight": To("blk.{i}.ssm_conv1d_q.weight", CONV),
    A + "k_conv1d.weight": To("blk.{i}.ssm_conv1d_k.weight", CONV),
    A + "v_conv1d.weight": To("blk.{i}.ssm_conv1d_v.weight", CONV),
    A + "f_a_proj.weight": To("blk.{i}.ssm_f_a.weight"),
    A + "f_b_proj.weight": To("blk.{i}.ssm_f_b.weight"),
    A + "g_a_proj.weight": To("blk.{i}.ssm_g_a.weight"),
    A + "g_b_proj.weight": To("blk.{i}.ssm_g_b.weight"),
    A + "b_proj.weight": To("blk.{i}.ssm_beta.weight"),
    A + "A_log": To("blk.{i}.ssm_a", decay),
    A + "dt_bias": To("blk.{i}.ssm_dt.bias"),
    A + "o_norm.weight": To("blk.{i}.ssm_norm.weight"),
    A + "o_proj.weight": To("blk.{i}.attn_output.weight"),
    # MLA layers
    A + "q_a_proj.weight": To("blk.{i}.attn_q_a.weight"),
    A + "q_a_layernorm.weight": To("blk.{i}.attn_q_a_norm.weight"),
    A + "q_b_proj.weight": To("blk.{i}.attn_q_b.weight"),
    A + "kv_a_proj_with_mqa.weight": To("blk.{i}.attn_kv_a_mqa.weight"),
    A + "kv_a_layernorm.weight": To("blk.{i}.attn_kv_a_norm.weight"),
    A + "kv_b_proj.weight": (To("blk.{i}.attn_k_b.weight", kv_keys), To("blk.{i}.attn_v_b.weight", kv_values)),
    X + "wq_b.weight": To("blk.{i}.indexer.attn_q_b.weight"),
    X + "wk.weight": To("blk.{i}.indexer.attn_k.weight"),
    X + "k_norm.weight": To("blk.{i}.indexer.k_norm.weight"),
    X + "k_norm.bias": To("blk.{i}.indexer.k_norm.bias"),
    X + "weights_proj.weight": To("blk.{i}.indexer.proj.weight"),
    X + "index_kpool_compress_gate": To("blk.{i}.indexer_compressor_gate.weight"),
    X + "index_kpool_compress_ape": To("blk.{i}.indexer_compressor_ape.weight"),
    # Feed-forward
    M + "gate_proj.weight": To("blk.{i}.ffn_gate.weight"),
    M + "up_proj.weight": To("blk.{i}.ffn_up.weight"),
    M + "down_proj.weight": To("blk.{i}.ffn_down.weight"),
    M + "gate.weight": To("blk.{i}.ffn_gate_inp.weight"),
    M + "gate.e_score_correction_bias": To("blk.{i}.exp_probs_b.bias"),
    M + "experts.{e}.gate_proj.weight": To("blk.{i}.ffn_gate_exps.weight", EXPERTS),
    M + "experts.{e}.up_proj.weight": To("blk.{i}.ffn_up_exps.weight", EXPERTS),
    M + "experts.{e}.down_proj.weight": To("blk.{i}.ffn_down_exps.weight", EXPERTS),
    M + "shared_experts.gate_proj.weight": To("blk.{i}.ffn_gate_shexp.weight"),
    M + "shared_experts.up_proj.weight": To("blk.{i}.ffn_up_shexp.weight"),
    M + "shared_experts.down_proj.weight": To("blk.{i}.ffn_down_shexp.weight"),
    # Head
    L + "eh_proj.weight": To("blk.{i}.nextn.eh_proj.weight"),
    L + "enorm.weight": To("blk.{i}.nextn.enorm.weight"),
    L + "hnorm.weight": To("blk.{i}.nextn.hnorm.weight"),
    L + "shared_head.norm.weight": To("blk.{i}.nextn.shared_head_norm.weight"),
    L + "shared_head.head.weight": To("blk.{i}.nextn.shared_head_head.weight"),
    L + "embed_tokens.weight": To("blk.{i}.nextn.embed_tokens.weight"),
}


def hyperparameters(facts: Facts) -> Glm5Next:
    """The hyper-parameters from the raw hub spelling or the one transformers writes."""
    facts.require_fixed(FIXED)
    heads = facts.integer("num_attention_heads")
    kda = _is_kda(facts)
    nope = facts.integer("qk_nope_head_dim")
    rank = facts.integer("kv_lora_rank")
    limit = facts.number("swiglu_limit", default=10.0, above=0)
    gating = facts.word("scoring_func", default="sigmoid")
    expert_count = facts.integer("n_routed_experts")
    h = Glm5Next(
        trunk_blocks=facts.trunk_blocks,
        nextn_blocks=facts.nextn_blocks,
        vocab_size=facts.integer("vocab_size"),
        context_length=facts.integer("max_position_embeddings", least=1),
        embedding_length=facts.integer("hidden_size"),
        feed_forward_length=facts.integer("intermediate_size"),
        attention_head_count=heads,
        attention_head_count_kv=tuple(0 if i < len(kda) and kda[i] else 1 for i in facts.blocks),
        attention_layer_norm_rms_epsilon=facts.number("rms_norm_eps", above=0),
        attention_layer_norm_epsilon=INDEXER_NORM_EPSILON,
        attention_q_lora_rank=facts.integer("q_lora_rank"),
        attention_kv_lora_rank=rank,
        attention_key_length=rank,
        attention_value_length=rank,
        attention_key_length_mla=nope,
        attention_value_length_mla=facts.integer("v_head_dim"),
        attention_indexer_head_count=facts.integer("index_n_heads"),
        attention_indexer_key_length=facts.integer("index_head_dim"),
        attention_indexer_top_k=facts.integer("index_topk"),
        # Never defaulted: the class default of transformers differs from the real model.
        attention_indexer_kpool=facts.integer("index_kpool"),
        attention_indexer_kpool_select_tail=facts.flag("index_kpool_always_select_tail", default=True),
        attention_indexer_types=_indexer_types(facts),
        rope_dimension_count=facts.integer("qk_rope_head_dim", default=0),
        ssm_conv_kernel=facts.integer("linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim"),
        kda_head_dim=facts.integer("linear_attn_config.head_dim", "linear_head_dim"),
        kda_gate_lower_bound=_gate_lower_bound(facts),
        hyper_connection_count=facts.integer("hc_mult"),
        hyper_connection_sinkhorn_iterations=facts.integer("hc_sinkhorn_iters"),
        hyper_connection_epsilon=facts.number("hc_eps", above=0),
        leading_dense_block_count=_leading_dense(facts),
        expert_count=expert_count,
        expert_used_count=facts.used_experts("num_experts_per_tok", of=expert_count),
        expert_group_count=facts.integer("n_group", default=None),
        expert_group_used_count=facts.integer("topk_group", default=None),
        expert_gating_func=GATING.get(gating),
        expert_feed_forward_length=facts.integer("moe_intermediate_size"),
        expert_shared_count=facts.integer("n_shared_experts"),
        expert_weights_scale=facts.number("routed_scaling_factor"),
        expert_weights_norm=facts.flag("norm_topk_prob", default=True),
        swiglu_clamp_exp=(limit,) * len(facts.blocks),
        swiglu_clamp_shexp=(limit,) * len(facts.blocks),
    )
    _check_expressible(facts, h, gating)
    return h


def _check_expressible(facts: Facts, h: Glm5Next, gating: str) -> None:
    """What the configuration may say but GGUF or its runtimes cannot."""
    pool, top = h.attention_indexer_kpool, h.attention_indexer_top_k
    kda_heads = facts.integer("linear_attn_config.num_heads", "linear_num_heads", default=h.attention_head_count)
    for holds, subject, message in (
        (h.rope_dimension_count == 0, "qk_rope_head_dim", f"is {h.rope_dimension_count}; the architecture has no rope"),
        (h.hyper_connection_count == 4, "hc_mult", f"is {h.hyper_connection_count}; the loader wants 4 streams"),
        (
            kda_heads == h.attention_head_count,
            "linear_attn_config.num_heads",
            f"is {kda_heads}, but attention has {h.attention_head_count} heads and a file holds one count",
        ),
        (pool > 1 and top % pool == 0, "index_kpool", f"is {pool}; it must be above 1 and divide index_topk {top}"),
        (facts.nextn_blocks <= 1, "num_nextn_predict_layers", f"{facts.nextn_blocks} heads; runtimes take one"),
        (gating in GATING, "scoring_func", f"{gating!r} is neither sigmoid nor softmax"),
    ):
        facts.require(holds, subject, message)


def _is_kda(facts: Facts) -> list[bool]:
    """Which trunk layers are KDA; two lists in the configuration must agree."""
    kinds = facts.sequence("layer_types", default=(), of=str)
    facts.require(LAYER_KINDS.issuperset(kinds), "layer_types", f"has unknown kinds {sorted({*kinds} - LAYER_KINDS)}")
    kda = [kind == LINEAR for kind in kinds] or [i % 4 != 3 for i in range(facts.trunk_blocks)]
    facts.require(
        len(kda) >= facts.trunk_blocks, "layer_types", f"has {len(kda)} entries for {facts.trunk_blocks} layers"
    )
    kda = kda[: facts.trunk_blocks]
    for key, want in (("kda_layers", True), ("full_attn_layers", False)):
        found = [i for i, is_kda in enumerate(kda) if is_kda is want]
        listed = facts.sequence(f"linear_attn_config.{key}", default=found, of=int)
        facts.require(set(listed) == set(found), f"linear_attn_config.{key}", f"disagrees with layer_types: {found}")
    return kda


def _gate_lower_bound(facts: Facts) -> float | None:
    """The bound of the decay gate: -5 unless configured; none only when the safe gate is switched off."""
    bound = facts.number("linear_attn_config.gate_lower_bound", "linear_lower_bound", default=None)
    if bound is None and not facts.flag("safe_gate", "linear_attn_config.safe_gate", default=True):
        return None
    return -5.0 if bound is None else float(bound)


def _leading_dense(facts: Facts) -> int:
    """Number of dense layers in front; a dense layer behind a sparse one cannot be expressed."""
    listed = [kind == "dense" for kind in facts.sequence("mlp_layer_types", default=(), of=str)]
    leading = facts.integer("first_k_dense_replace", default=sum(listed) if listed else 3)
    fits = listed == [i < leading for i in range(len(listed))]
    facts.require(fits, "mlp_layer_types", f"is not {leading} dense layers followed by sparse ones")
    return int(leading)


def _indexer_types(facts: Facts) -> tuple[bool, ...]:
    """Which trunk layers have an indexer of their own (`full`); the rest reuse an earlier selection (`shared`)."""
    kinds = facts.sequence("indexer_types", default=(), of=str)
    if not kinds:
        pattern = facts.get("index_topk_pattern", default=())
        if not pattern:
            offset = facts.integer("index_skip_topk_offset", default=2)
            every = max(facts.integer("index_topk_freq", default=1), 1)
            return tuple(max(i - offset + 1, 0) % every == 0 for i in range(facts.trunk_blocks))
        letters = pattern if isinstance(pattern, str) else facts.sequence("index_topk_pattern", of=str)
        kinds = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in letters]
    facts.require(INDEXERS.issuperset(kinds), "indexer_types", f"has unknown kinds {sorted({*kinds} - INDEXERS)}")
    facts.require(
        len(kinds) == facts.trunk_blocks, "indexer_types", f"has {len(kinds)} entries for {facts.trunk_blocks} layers"
    )
    return tuple(kind == "full" for kind in kinds)


FAMILY = Family(
    architecture=GLM5_NEXT,
    hub_architectures=("Glm5NextForConditionalGeneration", "Glm5NextForCausalLM", "Glm5NextTextForCausalLM"),
    names=Names(NAMES),
    hyperparameters=hyperparameters,
    head_count_keys=("num_nextn_predict_layers",),
    tokenizer="glm",
)
