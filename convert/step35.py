"""Step-3.5-Flash and Step-3.7-Flash: configuration in both spellings, and names.

Sources: conversion/step3.py of llama.cpp b11549; the configuration classes of transformers 5.24 (`step3p5`, `step3p7`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from nextn.convert.checkpoint import shown
from nextn.convert.family import GATING, Facts, Family, Fixed
from nextn.convert.mapping import Names, NameTable, To, single
from nextn.convert.transforms import Recipe, add_one, constant, llama3_frequency_factors
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.step35 import STEP35, Step35

FULL, SLIDING = "full_attention", "sliding_attention"
# The rotary share of full and sliding layers is fixed in the runtimes; no key can say otherwise.
ROTARY_SHARE = {FULL: 0.5, SLIDING: 1.0}
# The context before rope scaling when the configuration is silent, as upstream assumes it.
ASSUMED_ORIGINAL_CONTEXT = 8192
# The model's code takes some of these from the configuration; runtimes take none.
FIXED: Fixed = {
    "zero_centered": (True,),
    "use_qk_norm": (True,),
    "use_head_wise_attn_gate": (True,),
    "sink": (False,),
    "hidden_act": ("silu",),
    "yarn_only_types": ([FULL],),
    "rope_parameters.rope_type": ("default",),
    f"rope_parameters.{SLIDING}.rope_type": ("default",),
    f"rope_parameters.{SLIDING}.type": ("default",),
}
LAYER_NUMBER = re.compile(r"\s*[0-9]{1,9}\s*")

PLUS_ONE = single(add_one)
LAYER = "layers.{i}."
NAMES: NameTable = {
    "embed_tokens.weight": To("token_embd.weight"),
    "norm.weight": To("output_norm.weight", PLUS_ONE),
    "lm_head.weight": To("output.weight"),
    LAYER + "input_layernorm.weight": To("blk.{i}.attn_norm.weight", PLUS_ONE),
    LAYER + "self_attn.q_proj.weight": To("blk.{i}.attn_q.weight"),
    LAYER + "self_attn.k_proj.weight": To("blk.{i}.attn_k.weight"),
    LAYER + "self_attn.v_proj.weight": To("blk.{i}.attn_v.weight"),
    LAYER + "self_attn.o_proj.weight": To("blk.{i}.attn_output.weight"),
    LAYER + "self_attn.q_norm.weight": To("blk.{i}.attn_q_norm.weight", PLUS_ONE),
    LAYER + "self_attn.k_norm.weight": To("blk.{i}.attn_k_norm.weight", PLUS_ONE),
    LAYER + "self_attn.g_proj.weight": To("blk.{i}.attn_gate.weight"),
    LAYER + "post_attention_layernorm.weight": To("blk.{i}.ffn_norm.weight", PLUS_ONE),
    LAYER + "mlp.gate_proj.weight": To("blk.{i}.ffn_gate.weight"),
    LAYER + "mlp.up_proj.weight": To("blk.{i}.ffn_up.weight"),
    LAYER + "mlp.down_proj.weight": To("blk.{i}.ffn_down.weight"),
    LAYER + "moe.gate.weight": To("blk.{i}.ffn_gate_inp.weight"),
    LAYER + "moe.router_bias": To("blk.{i}.exp_probs_b.bias"),
    LAYER + "moe.gate_proj.weight": To("blk.{i}.ffn_gate_exps.weight"),
    LAYER + "moe.up_proj.weight": To("blk.{i}.ffn_up_exps.weight"),
    LAYER + "moe.down_proj.weight": To("blk.{i}.ffn_down_exps.weight"),
    LAYER + "share_expert.gate_proj.weight": To("blk.{i}.ffn_gate_shexp.weight"),
    LAYER + "share_expert.up_proj.weight": To("blk.{i}.ffn_up_shexp.weight"),
    LAYER + "share_expert.down_proj.weight": To("blk.{i}.ffn_down_shexp.weight"),
    LAYER + "enorm.weight": To("blk.{i}.nextn.enorm.weight", PLUS_ONE),
    LAYER + "hnorm.weight": To("blk.{i}.nextn.hnorm.weight", PLUS_ONE),
    LAYER + "eh_proj.weight": To("blk.{i}.nextn.eh_proj.weight"),
    LAYER + "embed_tokens.weight": To("blk.{i}.nextn.embed_tokens.weight"),
    # The official repositories write `transformer.` before the shared head; re-exports drop it or say `head`.
    LAYER + "transformer.shared_head.norm.weight": To("blk.{i}.nextn.shared_head_norm.weight", PLUS_ONE),
    LAYER + "shared_head.norm.weight": To("blk.{i}.nextn.shared_head_norm.weight", PLUS_ONE),
    LAYER + "transformer.shared_head.output.weight": To("blk.{i}.nextn.shared_head_head.weight"),
    LAYER + "shared_head.output.weight": To("blk.{i}.nextn.shared_head_head.weight"),
    LAYER + "transformer.shared_head.head.weight": To("blk.{i}.nextn.shared_head_head.weight"),
    LAYER + "shared_head.head.weight": To("blk.{i}.nextn.shared_head_head.weight"),
}


def hyperparameters(facts: Facts) -> Step35:
    """The hyper-parameters from the raw hub spelling or the one transformers writes; tensors settle what lists omit."""
    facts.require_fixed(FIXED)
    head_dim = facts.integer("head_dim")
    heads = {FULL: facts.integer("num_attention_heads"), SLIDING: _sliding_heads(facts)}
    kv_heads = {FULL: facts.integer("num_attention_groups", "num_key_value_heads")}
    kv_heads[SLIDING] = facts.integer("attention_other_setting.num_attention_groups", default=kv_heads[FULL])
    sliding_dim = facts.integer("attention_other_setting.head_dim", default=head_dim)
    facts.require(sliding_dim == head_dim, "head_dim", f"is {head_dim}, but {sliding_dim} for sliding layers")
    kinds = _layer_kinds(facts, head_dim, heads)
    facts.require(SLIDING in kinds, "layer_types", "no sliding layer: llama.cpp aborts on such a step35 file")
    _check_rotary_share(facts, kinds)
    experts = _expert_blocks(facts)
    expert_count = facts.integer("moe_num_experts", "n_routed_experts")
    gating = facts.word("moe_router_activation", default="sigmoid")
    facts.require(gating in GATING, "moe_router_activation", f"{gating!r} is neither sigmoid nor softmax")
    return Step35(
        trunk_blocks=facts.trunk_blocks,
        nextn_blocks=facts.nextn_blocks,
        vocab_size=facts.integer("vocab_size"),
        context_length=facts.integer("max_position_embeddings", least=1),
        embedding_length=facts.integer("hidden_size"),
        feed_forward_length=facts.integer("intermediate_size"),
        attention_head_count=tuple(heads[kind] for kind in kinds),
        attention_head_count_kv=tuple(kv_heads[kind] for kind in kinds),
        attention_key_length=head_dim,
        attention_value_length=head_dim,
        attention_layer_norm_rms_epsilon=facts.number("rms_norm_eps", above=0),
        attention_sliding_window=facts.integer("sliding_window", least=1),
        attention_sliding_window_pattern=tuple(kind == SLIDING for kind in kinds),
        rope_freq_base=_rope_base(facts, kinds, FULL),
        rope_freq_base_swa=_rope_base(facts, kinds, SLIDING),
        rope_factor_count=head_dim // 2 if _llama3_scaling(facts) else 0,
        expert_blocks=experts,
        expert_gating_func=GATING[gating],
        expert_count=expert_count,
        expert_used_count=facts.used_experts("moe_top_k", "num_experts_per_tok", of=expert_count),
        expert_feed_forward_length=facts.integer("moe_intermediate_size"),
        expert_shared_feed_forward_length=facts.integer("share_expert_dim", "share_expert_dims"),
        expert_weights_scale=facts.number("moe_router_scaling_factor", default=None),
        expert_weights_norm=_renormalises(facts),
        leading_dense_block_count=min(experts, default=0),
        moe_every_n_layers=facts.integer("moe_every_n_layer", default=1),
        swiglu_clamp_exp=_clamps(facts, "swiglu_limits"),
        swiglu_clamp_shexp=_clamps(facts, "swiglu_limits_shared"),
    )


def _sliding_heads(facts: Facts) -> int:
    """Query heads of sliding layers; transformers also writes them layer by layer."""
    keys = ("attention_other_setting.num_attention_heads", "num_sliding_attention_heads")
    by_layer = [Facts(layer) for layer in facts.mapping("per_layer_config").values()]
    counts = {layer.integer("num_attention_heads", default=None) for layer in by_layer} - {None}
    return int(facts.integer(*keys, default=counts.pop() if len(counts) == 1 else None) or facts.integer(*keys))


def _layer_kinds(facts: Facts, head_dim: int, heads: dict[str, int]) -> list[str]:
    """The attention kind of every block: as listed, checked against the tensors; from the tensors where unlisted."""
    listed = facts.sequence("layer_types", of=str)
    if len(listed) == facts.trunk_blocks:
        listed += facts.sequence("mtp_layer_types", default=(), of=str)
    kinds = []
    for i in facts.blocks:
        shape = facts.shape(f"layers.{i}.self_attn.q_proj.weight")
        fits = [kind for kind, count in heads.items() if shape and shape[0] == count * head_dim]
        if i < len(listed):
            facts.require(listed[i] in heads, "layer_types", f"layer {i} has unknown kind {listed[i]!r}")
            if shape and listed[i] not in fits:
                want = heads[listed[i]] * head_dim
                raise InputError(
                    "config-contradicts-tensors",
                    f"q_proj of layer {i} has {shape[0]} rows, but config.json calls it {listed[i]} with {want}",
                    subject="layer_types",
                    remedy="correct layer_types or the head counts in config.json",
                )
            kinds.append(listed[i])
        elif len(fits) == 1:
            kinds.append(fits[0])
            facts.findings.warn(
                "layer-kind-from-tensors", "layer_types", f"has no entry for layer {i}; its q_proj shows {fits[0]}"
            )
        else:
            raise InputError(
                "layer-kind-unknown",
                f"has {len(listed)} entries for {len(facts.blocks)} layers, and the tensors do not settle layer {i}",
                subject="layer_types",
                remedy=f"give layer_types an entry for layer {i}",
            )
    return kinds


def _expert_blocks(facts: Facts) -> frozenset[int]:
    """Blocks with routed experts: those with a router; without tensors, those that the configuration lists."""
    listed = _listed_expert_blocks(facts)
    if not facts.names:
        return listed
    routed = frozenset(i for i in facts.blocks if f"layers.{i}.moe.gate.weight" in facts.names)
    if differing := sorted(routed ^ listed & set(facts.blocks)):
        message = f"disagrees with the tensors on the experts of layers {differing}; the tensors decide"
        facts.findings.warn("expert-layers", "moe_layers_enum", message)
    return routed


def _listed_expert_blocks(facts: Facts) -> frozenset[int]:
    if listed := facts.get("moe_layers_enum", default=None):
        layers = listed if isinstance(listed, list) else str(listed).split(",")
        wrong = [layer for layer in layers if not LAYER_NUMBER.fullmatch(str(layer))]
        facts.require(not wrong, "moe_layers_enum", f"{shown(wrong)} are no layer numbers")
        return frozenset(int(layer) for layer in layers)
    kinds = facts.sequence("mlp_layer_types", of=str) + facts.sequence("mtp_mlp_layer_types", default=(), of=str)
    return frozenset(i for i, kind in enumerate(kinds) if kind == "sparse")


def _renormalises(facts: Facts) -> bool:
    """The model's code always renormalises the weights of the chosen experts; a file without the key would not."""
    if not facts.get("norm_expert_weight", default=True):
        message = "is false, but the model's code never looks: written as true"
        facts.findings.warn("expert-weights", "norm_expert_weight", message)
    return True


def _check_rotary_share(facts: Facts, kinds: list[str]) -> None:
    listed = facts.sequence("partial_rotary_factors", default=())
    shares = dict(enumerate(listed)) | {
        kind: share
        for kind in ROTARY_SHARE
        if (share := facts.get(f"rope_parameters.{kind}.partial_rotary_factor", default=None)) is not None
    }
    for i, kind in enumerate(kinds):
        share = shares.get(i, shares.get(kind, ROTARY_SHARE[kind]))
        facts.require(
            share == ROTARY_SHARE[kind],
            "partial_rotary_factors",
            f"layer {i} ({kind}) rotates a share of {share}; runtimes fix it at {ROTARY_SHARE[kind]}",
        )


def _rope_base(facts: Facts, kinds: list[str], kind: str) -> float:
    """The rotary base of a kind of layer; all its layers must share one."""
    if not isinstance(facts.get("rope_theta", default=None), list):
        return float(facts.number(f"rope_parameters.{kind}.rope_theta", "rope_theta", above=0))
    bases = {base for base, k in zip(facts.numbers("rope_theta"), kinds, strict=False) if k == kind}
    one = len(bases) == 1 and min(bases) > 0
    facts.require(one, "rope_theta", f"{kind} layers have the bases {sorted(bases)}; a file holds one above 0")
    return bases.pop()


def _llama3_scaling(facts: Facts) -> Mapping[str, Any] | None:
    """The llama3 rope scaling of the full layers, or None."""
    scaling = facts.mapping("rope_scaling", f"rope_parameters.{FULL}")
    kind = Facts(scaling).word("rope_type", "type", default="default")
    facts.require(kind in ("llama3", "default"), "rope_scaling", f"rope type {kind!r} cannot be expressed for step35")
    return scaling if kind == "llama3" else None


def _clamps(facts: Facts, key: str) -> tuple[float, ...] | None:
    """Activation limits by block; null means none (0)."""
    if facts.get(key, default=None) is None:
        return None
    listed = facts.numbers(key)
    enough = len(listed) >= facts.trunk_blocks
    facts.require(enough, key, f"has {len(listed)} entries for {facts.trunk_blocks} layers")
    short = len(facts.blocks) - len(listed)
    if short > 0:
        facts.findings.warn(
            "short-list", key, f"has no entry for the last {short} layers; no limit (0) is written for them"
        )
    return tuple([*listed, *[0.0] * short][: len(facts.blocks)])


def generated(facts: Facts, h: Step35) -> Iterator[tuple[str, Recipe]]:
    """`rope_freqs.weight`: the llama3 divisors of the full layers' rotated half, then ones up to half a head."""
    scaling = _llama3_scaling(facts)
    if scaling is None:
        return
    settings = Facts(scaling)
    context = settings.integer("original_max_position_embeddings", default=None, least=1)
    if context is None:
        context = ASSUMED_ORIGINAL_CONTEXT
        facts.findings.warn(
            "assumed-context",
            "rope_scaling",
            f"original_max_position_embeddings is absent; {context} is assumed, as the upstream converter does",
            "add it to config.json if you know it",
        )
    low = settings.number("low_freq_factor", default=1.0, above=0)
    factors = llama3_frequency_factors(
        int(h.attention_key_length * ROTARY_SHARE[FULL]),
        h.rope_freq_base,
        factor=settings.number("factor", default=8.0, above=0),
        low=low,
        high=settings.number("high_freq_factor", default=4.0, above=low),
        context=context,
    )
    yield "rope_freqs.weight", constant("rope_freqs", [*factors, *[1.0] * (h.rope_factor_count - len(factors))])


FAMILY = Family(
    architecture=STEP35,
    hub_architectures=("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"),
    names=Names(NAMES),
    hyperparameters=hyperparameters,
    head_count_keys=("num_nextn_predict_layers",),
    generated=generated,
)
