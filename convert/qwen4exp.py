"""Qwen3.8-Flash-Next: configuration in both spellings, and names.

Sources: conversion/qwen4exp.py and conversion/qwen.py of llama.cpp b11549; the configuration and model classes of
transformers 5.24 (`qwen4_exp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nextn.convert.checkpoint import shown
from nextn.convert.family import Facts, Family, Fixed
from nextn.convert.mapping import Names, NameTable, To, Transform, joined, single
from nextn.convert.ngrams import TABLE, ngram_hyperparameters
from nextn.convert.source_tensor import SourceTensor
from nextn.convert.transforms import (
    Recipe,
    add_one,
    concatenate_rows,
    copy,
    fuse_columns,
    negative_exp,
    reorder_column_heads,
    reorder_row_heads,
    split_rows,
    stack,
    tiled_head_order,
)
from nextn.gguf_schema.qwen4exp import QWEN4EXP, Qwen4Exp

LINEAR = "linear_attention"
ATTENTION = ("full_attention", "indexed_attention")
# The l2 norm of the delta net has this epsilon in the original code; runtimes of GGUF use rms_norm_eps instead.
DELTA_NET_EPSILON = 1e-6
FIXED: Fixed = {
    "hidden_act": ("silu",),
    "norm_topk_prob": (True,),
    "attention_bias": (False,),
    "indexer_kv_heads": (1,),
    # The head's positions and embeddings are the trunk's.
    "mtp_use_dedicated_embeddings": (False,),
    "mtp.mtp_use_hidden_state_from_layer": (),
    # The architecture has no keys for scaled positions.
    # Older configurations call sections of a rope its type.
    **{
        f"{rope}.{key}": ("default", "mrope")
        for rope in ("rope_parameters", "rope_scaling")
        for key in ("rope_type", "type")
    },
    **{f"{rope}.mrope_interleaved": (True,) for rope in ("rope_parameters", "rope_scaling")},
}


def _order(h: Qwen4Exp) -> list[int]:
    return tiled_head_order(h.ssm_group_count, h.ssm_time_step_rank)


def value_rows(sources: Sequence[SourceTensor], h: Qwen4Exp, _: int) -> Recipe:
    """Rows of value heads in tiled order."""
    return reorder_row_heads(sources[0], _order(h), h.ssm_state_size)


def qkv_rows(sources: Sequence[SourceTensor], h: Qwen4Exp, _: int) -> Recipe:
    """Query and key rows as they are, then the value heads in tiled order."""
    return reorder_row_heads(sources[0], _order(h), h.ssm_state_size, first=2 * h.key_width)


def conv_channels(sources: Sequence[SourceTensor], h: Qwen4Exp, _: int) -> Recipe:
    """As `qkv_rows`, for the channels of the convolution; its middle dimension of one is dropped."""
    shape = depthwise(sources[0]).shape
    return replace(reorder_row_heads(sources[0], _order(h), h.ssm_state_size, first=2 * h.key_width), shape=shape)


def head_values(sources: Sequence[SourceTensor], h: Qwen4Exp, _: int) -> Recipe:
    """One row (or value) a value head, in tiled order."""
    return reorder_row_heads(sources[0], _order(h), 1)


def head_decays(sources: Sequence[SourceTensor], h: Qwen4Exp, _: int) -> Recipe:
    """-exp of one value a value head, in tiled order."""
    return reorder_row_heads(sources[0], _order(h), 1, function=negative_exp)


def value_columns(sources: Sequence[SourceTensor], h: Qwen4Exp, _: int) -> Recipe:
    """Columns of value heads in tiled order."""
    return reorder_column_heads(sources[0], _order(h), h.ssm_state_size)


def _part(source: SourceTensor, start: int, rows: int, height: int) -> Recipe:
    """`rows` rows from row `start` of matrices that must have `height` rows, so that the parts make up the whole."""
    if source.shape[-2] != height:
        raise ValueError
    return split_rows(source, start, rows)


def indexer_queries(sources: Sequence[SourceTensor], h: Qwen4Exp, _: int) -> Recipe:
    """The query rows of the indexer's fused projection."""
    width, key = h.indexer_width, h.attention_indexer_key_length
    return _part(sources[0], 0, width, width + key)


def indexer_keys(sources: Sequence[SourceTensor], h: Qwen4Exp, _: int) -> Recipe:
    """The key rows of the indexer's fused projection."""
    width, key = h.indexer_width, h.attention_indexer_key_length
    return _part(sources[0], width, key, width + key)


def gate_half(sources: Sequence[SourceTensor], h: Qwen4Exp, _: int) -> Recipe:
    """The first half of each expert's fused gate and up rows."""
    half = h.expert_feed_forward_length
    return _part(sources[0], 0, half, 2 * half)


def up_half(sources: Sequence[SourceTensor], h: Qwen4Exp, _: int) -> Recipe:
    """The second half of each expert's fused gate and up rows."""
    half = h.expert_feed_forward_length
    return _part(sources[0], half, half, 2 * half)


def depthwise(source: SourceTensor) -> Recipe:
    """Depthwise kernels [channels, 1, K] or [channels, K] without the middle dimension."""
    channels, *middle, kernel = source.shape
    if middle not in ([1], []):
        raise ValueError
    return copy(source, (channels, kernel))


# Norms are stored around zero, except the delta net's own.
PLUS_ONE = single(add_one)
EXPERTS, COLUMNS = joined(stack), joined(fuse_columns)


def hyper_connection(hub: str, target: str) -> dict[str, To]:
    """The tensors of a hyper-connection: norm, the two halves of the mixing projection, and the injection."""
    return {
        f"{hub}.hc_norm.weight": To(f"{target}_norm.weight", PLUS_ONE),
        f"{hub}.input_mix_weight_down.weight": To(f"{target}_down.weight"),
        f"{hub}.input_mix_weight_up.weight": To(f"{target}_up.weight"),
        f"{hub}.block_inject_weight.weight": To(f"{target}_inject.weight"),
    }


def moved(target: str, transform: Transform, part: int = 0) -> To:
    """A tensor of a block that is not merely copied."""
    return To("blk.{i}." + target, transform, part)


CONSTANT = "an integer constant: written as a metadata array"
L, D, A, M, P = "layers.{i}.", "layers.{i}.linear_attn.", "layers.{i}.self_attn.", "layers.{i}.mlp.", "layers.{i}.ple."
NAMES: NameTable = {
    "embed_tokens.weight": To("token_embd.weight"),
    "lm_head.weight": To("output.weight"),
    **hyper_connection("hyper_connection_mixer", "output_hc"),
    **hyper_connection(L + "attn_hyper_connection", "blk.{i}.hc_attn"),
    **hyper_connection(L + "mlp_hyper_connection", "blk.{i}.hc_ffn"),
    # Gated delta net
    D + "in_proj_qkv.weight": moved("attn_qkv.weight", qkv_rows),
    D + "in_proj_z.weight": moved("attn_gate.weight", value_rows),
    D + "in_proj_b.weight": moved("ssm_beta.weight", head_values),
    D + "in_proj_a.weight": moved("ssm_alpha.weight", head_values),
    D + "conv1d.weight": moved("ssm_conv1d.weight", conv_channels),
    D + "A_log": moved("ssm_a", head_decays),
    D + "dt_bias": moved("ssm_dt.bias", head_values),
    D + "norm.weight": To("blk.{i}.ssm_norm.weight"),
    D + "out_proj.weight": moved("ssm_out.weight", value_columns),
    # Full attention
    A + "q_proj.weight": To("blk.{i}.attn_q.weight"),
    A + "k_proj.weight": To("blk.{i}.attn_k.weight"),
    A + "v_proj.weight": To("blk.{i}.attn_v.weight"),
    A + "o_proj.weight": To("blk.{i}.attn_output.weight"),
    A + "q_norm.weight": moved("attn_q_norm.weight", PLUS_ONE),
    A + "k_norm.weight": moved("attn_k_norm.weight", PLUS_ONE),
    A + "indexer.index_qk_proj.weight": (
        moved("indexer.q_proj.weight", indexer_queries),
        moved("indexer.k_proj.weight", indexer_keys),
    ),
    A + "indexer.q_layernorm.weight": moved("indexer.q_norm.weight", PLUS_ONE),
    A + "indexer.k_layernorm.weight": moved("indexer.k_norm.weight", PLUS_ONE),
    # Experts, fused or one by one
    M + "gate.weight": To("blk.{i}.ffn_gate_inp.weight"),
    M + "experts.gate_up_proj": (moved("ffn_gate_exps.weight", gate_half), moved("ffn_up_exps.weight", up_half)),
    M + "experts.down_proj": To("blk.{i}.ffn_down_exps.weight"),
    M + "experts.{e}.gate_proj.weight": moved("ffn_gate_exps.weight", EXPERTS),
    M + "experts.{e}.up_proj.weight": moved("ffn_up_exps.weight", EXPERTS),
    M + "experts.{e}.down_proj.weight": moved("ffn_down_exps.weight", EXPERTS),
    M + "shared_expert.gate_proj.weight": To("blk.{i}.ffn_gate_shexp.weight"),
    M + "shared_expert.up_proj.weight": To("blk.{i}.ffn_up_shexp.weight"),
    M + "shared_expert.down_proj.weight": To("blk.{i}.ffn_down_shexp.weight"),
    M + "shared_expert_gate.weight": To("blk.{i}.ffn_gate_inp_shexp.weight"),
    # N-gram embeddings
    P + "key_proj.weight": To("blk.{i}.ple_key.weight"),
    P + "value_proj.weight": To("blk.{i}.ple_value.weight"),
    P + "norm_key.weight": moved("ple_norm_key.weight", PLUS_ONE),
    P + "norm_query.weight": moved("ple_norm_query.weight", PLUS_ONE),
    P + "norm_conv.weight": moved("ple_norm_conv.weight", PLUS_ONE),
    P + "conv1d.weight": moved("ple_conv1d.weight", single(depthwise)),
    TABLE + "ngram_embedding.shard_{s}.weight": To("per_layer_token_embd.weight", joined(concatenate_rows)),
    TABLE + "ngram_embedding.weight": To("per_layer_token_embd.weight"),
    TABLE + "layer_multipliers": CONSTANT,
    TABLE + "ngram_heads_offsets": CONSTANT,
    TABLE + "ngram_heads_vocab_sizes": CONSTANT,
    # Head
    L + "fc_embedding.weight": moved("nextn.eh_proj.weight", COLUMNS, part=0),
    L + "fc_hidden.weight": moved("nextn.eh_proj.weight", COLUMNS, part=1),
    L + "pre_fc_norm_embedding.weight": moved("nextn.enorm.weight", PLUS_ONE),
    L + "pre_fc_norm_hidden.weight": moved("nextn.hnorm.weight", PLUS_ONE),
    **hyper_connection(L + "hyper_connection_mixer", "blk.{i}.nextn.hc_head"),
}


def hyperparameters(facts: Facts) -> Qwen4Exp:
    """The hyper-parameters from the raw hub spelling or the one transformers writes."""
    facts.require_fixed(FIXED)
    hidden = facts.integer("hidden_size")
    linear = _is_linear(facts)
    ratio = facts.integer("indexer_compress_ratio")
    key_length = facts.integer("head_dim")
    state = facts.integer("linear_key_head_dim")
    value_heads, key_heads = facts.integer("linear_num_value_heads"), facts.integer("linear_num_key_heads", least=1)
    sections = facts.sequence(
        "rope_parameters.mrope_section", "rope_scaling.mrope_section", default=[11, 11, 10], of=int
    )
    listed = 0 < len(sections) <= 4 and min(sections) >= 0
    facts.require(listed, "rope_parameters.mrope_section", f"is {shown(sections)}; a file holds up to four sections")
    share = facts.number("rope_parameters.partial_rotary_factor", "partial_rotary_factor", default=1.0, above=0)
    rope_base = facts.number("rope_parameters.rope_theta", "rope_theta", above=0)
    head_base = facts.number("mtp.rope_theta", default=rope_base)
    facts.require(head_base == rope_base, "mtp.rope_theta", f"is {head_base:g}, but {rope_base:g} in the trunk")
    expert_count = facts.integer("num_experts")
    _check_expressible(facts, hidden, state, ratio)
    return Qwen4Exp(
        trunk_blocks=facts.trunk_blocks,
        nextn_blocks=facts.nextn_blocks,
        vocab_size=facts.integer("vocab_size"),
        context_length=facts.integer("max_position_embeddings", least=1),
        embedding_length=hidden,
        attention_head_count=facts.integer("num_attention_heads"),
        attention_head_count_kv=facts.integer("num_key_value_heads"),
        attention_key_length=key_length,
        attention_value_length=key_length,
        attention_layer_norm_rms_epsilon=facts.number("rms_norm_eps", above=0),
        attention_recurrent_layers=linear,
        # The head attends sparsely too: with another ratio b11549 aborts when a draft context is made.
        attention_compress_ratios=tuple(0 if is_linear else ratio for is_linear in linear),
        attention_indexer_head_count=facts.integer("indexer_n_heads"),
        attention_indexer_key_length=facts.integer("indexer_head_dim"),
        attention_indexer_top_k=facts.integer("indexer_budget"),
        full_attention_interval=facts.integer("full_attention_interval", default=4),
        rope_dimension_count=int(key_length * share),
        rope_dimension_sections=(*sections, *[0] * (4 - len(sections))),
        rope_freq_base=rope_base,
        expert_count=expert_count,
        expert_used_count=facts.used_experts("num_experts_per_tok", of=expert_count),
        expert_feed_forward_length=facts.integer("moe_intermediate_size"),
        expert_shared_feed_forward_length=facts.integer("shared_expert_intermediate_size"),
        ssm_conv_kernel=facts.integer("linear_conv_kernel_dim"),
        ssm_state_size=state,
        ssm_group_count=key_heads,
        ssm_time_step_rank=value_heads,
        ssm_inner_size=value_heads * state,
        hyper_connection_count=facts.integer("hc_count"),
        hyper_connection_low_rank=facts.integer("hc_lowrank"),
        tied_output="lm_head.weight" not in facts.names and bool(facts.names),
        **ngram_hyperparameters(facts, linear),
    )


def _is_linear(facts: Facts) -> tuple[bool, ...]:
    """Which blocks are gated delta nets; a head never is."""
    kinds = facts.sequence("layer_types", default=(), of=str)
    if not kinds:
        interval = facts.integer("full_attention_interval", default=4, least=1)
        kinds = [ATTENTION[0] if (i + 1) % interval == 0 else LINEAR for i in range(facts.trunk_blocks)]
    enough = len(kinds) >= facts.trunk_blocks
    facts.require(enough, "layer_types", f"has {len(kinds)} entries for {facts.trunk_blocks} layers")
    unknown = set(kinds) - {LINEAR, *ATTENTION}
    facts.require(not unknown, "layer_types", f"unknown kinds {sorted(unknown)}")
    return (*(kind == LINEAR for kind in kinds[: facts.trunk_blocks]), *[False] * facts.nextn_blocks)


def _check_expressible(facts: Facts, hidden: int, state: int, ratio: int) -> None:
    """What the configuration may say but GGUF or its runtimes cannot."""
    gate = facts.get("output_gate_type", default="silu")  # By default the activation, which is silu.
    budget = facts.integer("indexer_budget")
    value_heads, key_heads = facts.integer("linear_num_value_heads"), facts.integer("linear_num_key_heads", least=1)
    ngrams = facts.sequence("ple_layer_ids", default=())
    rotated = facts.number("rope_parameters.partial_rotary_factor", "partial_rotary_factor", default=1.0)
    for holds, subject, message in (
        (gate == "sigmoid", "output_gate_type", f"is {gate!r}; runtimes compute sigmoid"),
        (
            value_heads % key_heads == 0 and value_heads < 1 << 16,
            "linear_num_value_heads",
            f"is {value_heads}; the {key_heads} key heads must divide it",
        ),
        (facts.integer("linear_value_head_dim") == state, "linear_value_head_dim", "differs from the key head width"),
        (
            ratio > 1 and budget % ratio == 0,
            "indexer_compress_ratio",
            f"is {ratio}; it must be above 1 and divide {budget}",
        ),
        (len(ngrams) <= 1, "ple_layer_ids", f"names {len(ngrams)} layers; runtimes take one"),
        (
            not ngrams or facts.get("ple_embed_dim", default=hidden) == hidden,
            "ple_embed_dim",
            "differs from hidden_size",
        ),
        (facts.nextn_blocks <= 1, "mtp_num_hidden_layers", f"{facts.nextn_blocks} heads; runtimes take one"),
        (
            int(facts.integer("head_dim") * rotated) <= facts.integer("indexer_head_dim"),
            "indexer_head_dim",
            "is smaller than the rotated part of a head",
        ),
    ):
        facts.require(bool(holds), subject, message)
    if (epsilon := facts.number("rms_norm_eps")) != DELTA_NET_EPSILON:
        message = f"is {epsilon:g}: llama.cpp uses it in the delta net too, where the model has {DELTA_NET_EPSILON:g}"
        facts.findings.warn("delta-net-epsilon", "rms_norm_eps", message)


FAMILY = Family(
    architecture=QWEN4EXP,
    hub_architectures=("Qwen4ExpForConditionalGeneration", "Qwen4ExpForCausalLM"),
    names=Names(NAMES),
    hyperparameters=hyperparameters,
    head_count_keys=("mtp_num_hidden_layers", "num_nextn_predict_layers", "mtp.num_hidden_layers"),
    tied_output="absent",
)
