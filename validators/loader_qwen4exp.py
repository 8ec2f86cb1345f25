"""How llama.cpp b11549 loads a qwen4exp file. Source: src/models/qwen4exp.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nextn.gguf_schema.architecture import everywhere
from nextn.gguf_schema.qwen4exp import QWEN4EXP, Qwen4Exp
from nextn.gguf_schema.types import ValueType
from nextn.validators.loader import Group, Loader
from nextn.validators.loader_keys import Check, Form, Outcome, Read, Values
from nextn.validators.loaders import COMMON, EACH, INDEXER_KEYS, QKV, RMS_EPSILON, weights

I32, U64 = ValueType.INT32, ValueType.UINT64
MAX_ROW = 2**31 - 1
# How long n-grams may be, and how many hashes there may be of all of them.
MAX_NGRAM, MAX_NGRAM_HEADS = 8, 64


def positive(key: str, when: Callable[[Values], bool] = lambda _: True) -> Check:
    """A number that must not be zero."""
    message = f"qwen4exp.{key} must be greater than zero, got 0"
    return Check(lambda v: not when(v) or v[key] > 0, message, Outcome.REFUSES)


def one_ratio(v: Values) -> bool:
    """Whether all blocks that pool keys pool equally many."""
    return len(set(v["attention.compress_ratios"]) - {0}) < 2


def two_ratios(v: Values) -> str:
    """The complaint about the first block that pools otherwise."""
    ratios = [ratio for ratio in v["attention.compress_ratios"] if ratio]
    other = next(ratio for ratio in ratios if ratio != ratios[0])
    return f"QSA layers must share one compress ratio, got {ratios[0]} and {other}"


def pool(v: Values) -> int:
    """How many keys are pooled, 0 when none are."""
    return max(v["attention.compress_ratios"], default=0)


def fits_budget(v: Values) -> bool:
    """Whether pools fill the indexer's budget."""
    return pool(v) == 0 or (pool(v) > 1 and v["attention.indexer.top_k"] % pool(v) == 0)


def recurrent_layers(v: Values) -> tuple[bool, ...]:
    """Kinds of blocks when no key says so: attention in every n-th block of the trunk, and in heads."""
    trunk, interval = v["block_count"] - v["nextn_predict_layers"], v["full_attention_interval"]
    return tuple(i < trunk and (i + 1) % max(interval, 1) != 0 for i in range(v["block_count"]))


def has_ngrams(v: Values) -> bool:
    """Whether any block adds n-gram embeddings."""
    return bool(v["ple.layers"])


def ngram_problem(v: Values) -> str:
    """The complaint about the block that is to add n-gram embeddings, whose number is read as unsigned."""
    layer = v["ple.layers"][0] % 2**32
    if layer >= v["block_count"]:
        return f"PLE layer {layer} is out of range"
    return f"PLE layer {layer} is not a linear attention layer"


def ngrams_in_linear_block(v: Values) -> bool:
    """Whether n-gram embeddings are added where there is a state for their convolution."""
    kinds = v["attention.recurrent_layers"]
    return all(0 <= layer < len(kinds) and kinds[layer] for layer in v["ple.layers"])


def ngram_heads(v: Values) -> int:
    """Hashes of all n-grams together, as the loader multiplies them."""
    return int((v["ple.ngram_size"] - 1) * v["ple.heads_per_ngram"]) % 2**32


def long_enough(key: str, want: Callable[[Values], int]) -> Check:
    """An array of constants with an entry for each n-gram, or for each hash."""
    return Check(
        lambda v: not has_ngrams(v) or len(v[key]) >= want(v),
        lambda v: f"qwen4exp.{key} has {len(v[key])} entries, but at least {want(v)} are required",
        Outcome.REFUSES,
    )


def head_out_of_range(v: Values) -> int | None:
    """The first hash whose rows do not fit the index of a row."""
    heads = ngram_heads(v) if has_ngrams(v) else 0
    ranges = zip(v["ple.head_offsets"][:heads], v["ple.head_vocab_sizes"][:heads], strict=False)
    return next((i for i, (begin, size) in enumerate(ranges) if size == 0 or begin + size > MAX_ROW), None)


def ngram_rows(h: Any, v: Values) -> tuple[int, ...]:
    """The n-gram table: as many rows as are stored, but not fewer than the heads' ranges reach."""
    ends = zip(v["ple.head_offsets"], v["ple.head_vocab_sizes"], strict=False)
    need = max((offset + size for offset, size in ends), default=0)
    if 0 < h.ple_table_rows < need:
        raise ValueError(
            f"per_layer_token_embd.weight has {h.ple_table_rows} rows, too few for the PLE head ranges ({need})"
        )
    return h.embedding_length_per_layer_input, h.ple_table_rows or need


def value_channels(h: Any) -> int:
    """Values of the delta net, which the loader does not take from their key."""
    return int(h.ssm_state_size * h.ssm_time_step_rank)


def delta_channels(h: Any) -> int:
    """Channels of the delta net's convolution."""
    return int(2 * h.key_width) + value_channels(h)


def gamma(h: Any, _: Values) -> tuple[int, ...]:
    """The scale of a norm over each residual stream."""
    return h.embedding_length, h.hyper_connection_count


PLE_KEYS = (
    *("ple.ngram_size", "ple.heads_per_ngram", "ple.conv_kernel", "ple.eos_token_id"),
    "embedding_length_per_layer_input",
)
SSM_KEYS = ("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count")
RATIOS = Read("attention.compress_ratios", form=EACH)
RATIO_CHECKS = (
    Check(one_ratio, two_ratios, Outcome.REFUSES),
    Check(
        fits_budget,
        lambda v: (
            "QSA needs a compress ratio above 1 that divides the budget, "
            f"got {pool(v)} and {v['attention.indexer.top_k']}"
        ),
        Outcome.REFUSES,
    ),
)
GAMMAS = weights(
    "output_hc_norm hc_attn_norm hc_ffn_norm ple_norm_key ple_norm_query ple_norm_conv nextn.hnorm nextn.hc_head_norm"
)

LOAD_QWEN4EXP = Loader(
    QWEN4EXP,
    (
        *COMMON,
        Read("expert_feed_forward_length", form=EACH),
        Read("expert_shared_feed_forward_length"),
        RMS_EPSILON,
        Read("rope.dimension_sections", I32, required=True, form=Form.FOUR),
        *(Read(key, required=True) for key in SSM_KEYS),
        *(positive(key) for key in SSM_KEYS),
        Read("hyper_connection.count", required=True),
        Read("hyper_connection.low_rank", required=True),
        Check(
            lambda v: v["hyper_connection.count"] > 1,
            lambda v: f"qwen4exp.hyper_connection.count must be greater than one, got {v['hyper_connection.count']}",
            Outcome.REFUSES,
        ),
        positive("hyper_connection.low_rank"),
        *(Read(key, required=True) for key in INDEXER_KEYS),
        *(positive(key) for key in INDEXER_KEYS),
        RATIOS,
        *RATIO_CHECKS,
        Read("ple.layers", form=Form.LIST),
        Check(
            lambda v: len(v["ple.layers"]) < 2,
            lambda v: f"qwen4exp.ple.layers lists {len(v['ple.layers'])} layers, but only one PLE layer is supported",
            Outcome.REFUSES,
        ),
        *(Read(key, required=True, when=has_ngrams) for key in PLE_KEYS),
        Read("ple.image_token_id", when=has_ngrams),
        *(positive(key, has_ngrams) for key in ("ple.conv_kernel", "embedding_length_per_layer_input")),
        Check(
            lambda v: not has_ngrams(v) or 2 <= v["ple.ngram_size"] <= MAX_NGRAM,
            lambda v: f"PLE n-gram size {v['ple.ngram_size']} is out of range",
            Outcome.REFUSES,
        ),
        Check(
            lambda v: not has_ngrams(v) or 1 <= ngram_heads(v) <= MAX_NGRAM_HEADS,
            lambda v: f"PLE head count {ngram_heads(v)} is out of range",
            Outcome.REFUSES,
        ),
        *(
            Read(key, U64, required=True, form=Form.LIST, when=has_ngrams)
            for key in ("ple.layer_multipliers", "ple.head_offsets", "ple.head_vocab_sizes")
        ),
        long_enough("ple.layer_multipliers", lambda v: int(v["ple.ngram_size"])),
        long_enough("ple.head_offsets", ngram_heads),
        long_enough("ple.head_vocab_sizes", ngram_heads),
        Check(
            lambda v: head_out_of_range(v) is None,
            lambda v: f"PLE head {head_out_of_range(v)} range does not fit the int32 row index",
            Outcome.REFUSES,
        ),
        Read("full_attention_interval", default=4, unless="attention.recurrent_layers"),
        Read("attention.recurrent_layers", form=EACH, default=recurrent_layers),
        Check(ngrams_in_linear_block, ngram_problem, Outcome.REFUSES),
    ),
    outside=weights("token_embd output_hc_norm output_hc_down output_hc_up output per_layer_token_embd"),
    block=(
        *weights("hc_attn_norm hc_attn_down hc_attn_up hc_attn_inject hc_ffn_norm hc_ffn_down hc_ffn_up hc_ffn_inject"),
        QKV,
        *weights("attn_output attn_q_norm attn_k_norm"),
        *weights("indexer.q_proj indexer.k_proj indexer.q_norm indexer.k_norm"),
        *weights("attn_qkv attn_gate ssm_conv1d"),
        *("ssm_dt.bias", "ssm_a"),
        *weights("ssm_beta ssm_alpha ssm_norm ssm_out"),
        *weights("ple_key ple_value ple_norm_key ple_norm_query ple_norm_conv ple_conv1d"),
        *weights("ffn_gate_inp ffn_down_exps"),
        Group("ffn_gate_up_exps.weight", weights("ffn_gate_exps ffn_up_exps")),
        *weights("ffn_gate_inp_shexp ffn_gate_shexp ffn_up_shexp ffn_down_shexp nextn.eh_proj nextn.enorm nextn.hnorm"),
        *weights("nextn.hc_head_norm nextn.hc_head_down nextn.hc_head_up"),
    ),
    always=frozenset(weights("token_embd per_layer_token_embd")),
    probe="hc_attn_norm.weight",
    broader={Qwen4Exp.has_own_output: everywhere},
    dims={
        **dict.fromkeys(GAMMAS, gamma),
        "per_layer_token_embd.weight": ngram_rows,
        "ffn_gate_inp_shexp.weight": lambda h, _: (h.embedding_length,),
        "attn_qkv.weight": lambda h, _: (h.embedding_length, delta_channels(h)),
        "attn_gate.weight": lambda h, _: (h.embedding_length, value_channels(h)),
        "ssm_out.weight": lambda h, _: (value_channels(h), h.embedding_length),
        "ssm_conv1d.weight": lambda h, _: (h.ssm_conv_kernel, delta_channels(h)),
    },
)
