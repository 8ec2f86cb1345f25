"""How llama.cpp b11549 loads any file, a step35 file and a glm5-next file: what it reads and asks for, in its order.

Sources: `load_hparams` in src/llama-model.cpp; src/models/step35.cpp and glm5-next.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nextn.gguf_schema.architecture import everywhere
from nextn.gguf_schema.glm5_next import GLM5_NEXT, Glm5Next
from nextn.gguf_schema.nextn_architectures import MAX_BLOCKS
from nextn.gguf_schema.step35 import STEP35, Step35
from nextn.gguf_schema.types import ValueType
from nextn.validators.loader import Group, Loader
from nextn.validators.loader_keys import Check, Form, Read, Values

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL
EACH = Form.EACH


def asserted(holds: Callable[[Values], bool], text: str) -> Check:
    """A condition whose failure ends the process."""
    return Check(holds, f"GGML_ASSERT({text}) failed")


def has_attention(v: Values) -> bool:
    """Whether the first block has heads, without which the loader knows no widths."""
    return bool(v["attention.head_count"] and v["attention.head_count"][0])


def head_width(v: Values) -> int:
    """What a head is wide when no key says so."""
    return int(v["embedding_length"]) // int(v["attention.head_count"][0]) if has_attention(v) else 0


def key_length(v: Values) -> int:
    """Rotary dimensions when no key says so."""
    return int(v["attention.key_length"]) if has_attention(v) else 0


def no_groups(v: Values) -> bool:
    """Whether experts are not chosen by groups."""
    return bool(not v["expert_count"] or v["expert_group_count"] <= 1)


MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS

# Read for every architecture.
COMMON: tuple[Read | Check, ...] = (
    Read("context_length", required=True),
    Read("embedding_length", required=True),
    Read("block_count", required=True),
    asserted(
        lambda v: 0 < v["block_count"] <= MAX_BLOCKS,
        "hparams.n_layer_all > 0 && hparams.n_layer_all <= LLAMA_MAX_LAYERS",
    ),
    Read("nextn_predict_layers"),
    asserted(lambda v: v["nextn_predict_layers"] <= v["block_count"], "hparams.n_layer_nextn <= hparams.n_layer_all"),
    Read("expert_count"),
    asserted(lambda v: v["expert_count"] <= MAX_EXPERTS, "hparams.n_expert <= LLAMA_MAX_EXPERTS"),
    Read("expert_used_count", form=EACH),
    Read("expert_group_count"),
    Read("expert_group_used_count"),
    asserted(lambda v: max(v["expert_used_count"]) <= v["expert_count"], "n_expert_used_max <= hparams.n_expert"),
    asserted(lambda v: not v["expert_count"] or max(v["expert_used_count"]) > 0, "n_expert_used_max > 0"),
    asserted(
        lambda v: not v["expert_count"] or v["expert_group_count"] < v["expert_count"],
        "hparams.n_expert_groups < hparams.n_expert",
    ),
    asserted(
        lambda v: no_groups(v) or v["expert_count"] % v["expert_group_count"] == 0,
        "hparams.n_expert % hparams.n_expert_groups == 0",
    ),
    asserted(lambda v: no_groups(v) or v["expert_group_used_count"] > 0, "hparams.n_group_used > 0"),
    asserted(
        lambda v: no_groups(v) or v["expert_group_used_count"] < v["expert_group_count"],
        "hparams.n_group_used < hparams.n_expert_groups",
    ),
    Read("feed_forward_length", form=EACH),
    Read("attention.head_count", form=EACH),
    Read("attention.head_count_kv", form=EACH, default=lambda v: v["attention.head_count"]),
    Read("rope.freq_base", F32, default=10000.0),
    Read("attention.key_length", default=head_width, when=has_attention),
    Read("attention.value_length", default=head_width, when=has_attention),
    Read("rope.dimension_count", default=key_length, when=has_attention),
    Read("rope.dimension_count_swa", default=lambda v: v.get("rope.dimension_count", 0)),
)

RMS_EPSILON = Read("attention.layer_norm_rms_epsilon", F32, required=True)
QKV = Group("attn_qkv.weight", ("attn_q.weight", "attn_k.weight", "attn_v.weight"), biases=True)


INDEXER_KEYS = ("attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k")


def weights(names: str) -> tuple[str, ...]:
    """Names with the ending that most tensors have."""
    return tuple(f"{name}.weight" for name in names.split())


def rope_factors(h: Any, v: Values) -> tuple[int, ...]:
    """One factor for each pair of the widest rotation among the trunk's blocks; full attention rotates half."""
    full, sliding = v["rope.dimension_count"] // 2, v["rope.dimension_count_swa"]
    windows = v["attention.sliding_window_pattern"][: h.trunk_blocks]
    return (max((sliding if window else full for window in windows), default=full) // 2,)


LOAD_STEP35 = Loader(
    STEP35,
    (
        *COMMON,
        RMS_EPSILON,
        Read("expert_feed_forward_length", form=EACH, required=True),
        Read("expert_shared_feed_forward_length"),
        Read("expert_gating_func"),
        Read("expert_weights_scale", F32),
        Read("expert_weights_norm", BOOL, default=False),
        Read("attention.sliding_window", required=True),
        Read("rope.freq_base_swa", F32),
        Read("attention.sliding_window_pattern", form=Form.FLAGS, required=True),
        Read("swiglu_clamp_exp", F32, form=EACH),
        Read("swiglu_clamp_shexp", F32, form=EACH),
    ),
    outside=weights("token_embd output_norm output"),
    block=(
        *weights("attn_norm attn_q_norm attn_k_norm rope_freqs"),
        QKV,
        *weights("attn_output attn_gate ffn_norm ffn_gate ffn_down ffn_up ffn_gate_inp"),
        *weights("ffn_gate_exps ffn_down_exps ffn_up_exps"),
        "exp_probs_b.bias",
        *weights("ffn_gate_shexp ffn_up_shexp ffn_down_shexp nextn.eh_proj nextn.enorm nextn.hnorm"),
        *weights("nextn.embed_tokens nextn.shared_head_head nextn.shared_head_norm"),
    ),
    always=frozenset(weights("token_embd output_norm")),
    broader=dict.fromkeys((Step35.is_moe, Step35.is_dense, Step35.has_rope_factors), everywhere),
    dims={"rope_freqs.weight": rope_factors},
)


LOAD_GLM5_NEXT = Loader(
    GLM5_NEXT,
    (
        *COMMON,
        RMS_EPSILON,
        Read("attention.layer_norm_epsilon", F32),
        Read("attention.key_length_mla", required=True),
        Read("attention.value_length_mla", required=True),
        Read("attention.q_lora_rank", required=True),
        Read("attention.kv_lora_rank", required=True),
        Read("ssm.conv_kernel", required=True),
        Read("kda.head_dim", required=True),
        Read("kda.gate_lower_bound", F32, default=None),
        Read("expert_feed_forward_length", form=EACH, required=True),
        Read("expert_shared_count", required=True),
        Read("leading_dense_block_count"),
        Read("expert_weights_scale", F32),
        Read("expert_weights_norm", BOOL, default=False),
        Read("expert_gating_func"),
        Read("swiglu_clamp_exp", F32, form=EACH),
        Read("swiglu_clamp_shexp", F32, form=EACH),
        *(Read(key, required=True) for key in (*INDEXER_KEYS, "attention.indexer.kpool")),
        Read("attention.indexer.kpool_select_tail", BOOL, default=True),
        asserted(
            lambda v: (
                v["attention.indexer.kpool"] > 1 and v["attention.indexer.top_k"] % v["attention.indexer.kpool"] == 0
            ),
            "hparams.indexer_kpool > 1 && hparams.indexer_top_k % hparams.indexer_kpool == 0",
        ),
        Read("attention.indexer.types", form=Form.TRUNK, default=True),
        Read("hyper_connection.count", required=True),
        Read("hyper_connection.sinkhorn_iterations", required=True),
        Read("hyper_connection.epsilon", F32, required=True),
        asserted(
            lambda v: v["hyper_connection.count"] == 4,
            'hparams.dsv4_hc_mult == 4 && "mHC with hc_mult != 4 is not supported"',
        ),
    ),
    outside=weights("token_embd output_norm output"),
    block=(
        *weights("attn_norm ffn_norm hc_attn_fn hc_attn_base hc_attn_scale hc_ffn_fn hc_ffn_base hc_ffn_scale"),
        *weights("ssm_conv1d_q ssm_conv1d_k ssm_conv1d_v"),
        QKV,
        *weights("ssm_f_a ssm_f_b ssm_beta"),
        *("ssm_a", "ssm_dt.bias"),
        *weights("ssm_g_a ssm_g_b ssm_norm attn_q_a_norm attn_kv_a_norm attn_q_a attn_q_b attn_kv_a_mqa"),
        *weights("attn_k_b attn_v_b attn_output indexer.k_norm"),
        "indexer.k_norm.bias",
        *weights("indexer.proj indexer.attn_k indexer.attn_q_b indexer_compressor_gate indexer_compressor_ape"),
        *weights("ffn_gate ffn_down ffn_up ffn_gate_inp"),
        "exp_probs_b.bias",
        *weights("ffn_gate_exps ffn_down_exps ffn_up_exps ffn_gate_shexp ffn_down_shexp ffn_up_shexp nextn.eh_proj"),
        *weights("nextn.enorm nextn.hnorm nextn.embed_tokens nextn.shared_head_head nextn.shared_head_norm"),
    ),
    always=frozenset(weights("token_embd output_norm output")),
    broader={Glm5Next.has_indexer: Glm5Next.is_mla},
    # The key beside the values of a latent has a rotary part, which this model has not: its key says 0.
    dims={
        "attn_kv_a_mqa.weight": lambda h, v: (h.embedding_length, h.attention_kv_lora_rank + v["rope.dimension_count"]),
        "attn_k_b.weight": lambda h, v: (
            h.attention_key_length_mla - v["rope.dimension_count"],
            h.attention_kv_lora_rank,
            h.attention_head_count,
        ),
    },
)
