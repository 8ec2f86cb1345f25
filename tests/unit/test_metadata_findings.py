"""What is wrong with keys: each fault of the specifications gives its rule about its key, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from edited_contents import (
    COMBINED,
    ERROR,
    GLM,
    HEADS_KV,
    MTP,
    PATTERN,
    QWEN,
    RATIOS,
    RECURRENT,
    STEP,
    TRUNK,
    TYPES,
    WARNING,
    examine,
    found,
    generic,
    items,
    message,
    planned,
    with_array,
    with_key,
    with_number,
    without_keys,
)

from nextn.gguf_schema.contents import Value, array, boolean, f32, i32, string, u32
from nextn.gguf_schema.types import ValueType

if TYPE_CHECKING:
    from nextn.gguf_schema.architecture import Role


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        (STEP, ["context_length", "embedding_length", "feed_forward_length", "attention.head_count", PATTERN]),
        (STEP, ["attention.head_count_kv", "attention.key_length", "attention.sliding_window", "expert_count"]),
        (STEP, ["expert_weights_norm", "expert_weights_scale", "rope.freq_base", "swiglu_clamp_exp"]),
        (STEP, ["swiglu_clamp_shexp", "expert_shared_feed_forward_length", "expert_used_count"]),
        (QWEN, ["ssm.conv_kernel", "hyper_connection.count", "attention.indexer.head_count", "rope.dimension_count"]),
        (QWEN, ["rope.freq_base", "attention.key_length", "rope.dimension_sections", "ple.eos_token_id"]),
        (GLM, ["attention.layer_norm_epsilon", "kda.gate_lower_bound", "swiglu_clamp_exp", "expert_weights_scale"]),
        (GLM, ["attention.indexer.kpool", "rope.dimension_count", "attention.key_length", HEADS_KV, "kda.head_dim"]),
        (GLM, ["leading_dense_block_count", "expert_shared_count", "hyper_connection.epsilon", "swiglu_clamp_shexp"]),
    ],
)
def test_a_key_is_missing(family: str, keys: list[str]) -> None:
    """Refused, or silently taken for a default that is wrong: an error about that key alone."""
    for key in keys:
        assert found(without_keys(planned(family), key)) == [(ERROR, "key-missing", key)]


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        (STEP, ["expert_gating_func", "rope.freq_base_swa", "leading_dense_block_count", "moe_every_n_layers"]),
        (QWEN, [RECURRENT, "full_attention_interval", "ple.image_token_id"]),
        (GLM, ["expert_gating_func", "attention.value_length", TYPES, "attention.indexer.kpool_select_tail"]),
    ],
)
def test_a_default_is_right(family: str, keys: list[str]) -> None:
    for key in keys:
        assert not found(without_keys(planned(family), key))


def test_the_message_says_what_is_assumed() -> None:
    contents = without_keys(planned(STEP), "rope.freq_base")
    assert message(contents, "key-missing") == (
        "is missing; the loader assumes 10000.0: llama.cpp b11549 loads and computes something else"
    )


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        (STEP, "context_length", i32(4096)),  # One value must have exactly its type; arrays are more tolerant.
        (STEP, "expert_weights_norm", u32(1)),
        (STEP, "rope.freq_base", Value(ValueType.FLOAT64, 1e4)),
        (STEP, PATTERN, u32(4)),
        (STEP, "attention.head_count", i32(4)),
        (QWEN, "rope.dimension_sections", u32(3)),
        (QWEN, "ple.head_offsets", array(ValueType.INT64, [0])),
        (QWEN, "ple.head_vocab_sizes", array(ValueType.UINT32, [1])),
        (QWEN, "ple.layer_multipliers", array(ValueType.INT64, [1])),
        (QWEN, RECURRENT, array(ValueType.UINT8, [1] * 9)),
        (GLM, "hyper_connection.epsilon", u32(1)),
        (GLM, "nextn_predict_layers", i32(1)),
    ],
)
def test_a_key_has_the_wrong_type(family: str, key: str, value: Value) -> None:
    assert (ERROR, "key-type", key) in found(with_key(planned(family), key, value))


@pytest.mark.parametrize(
    ("family", "key", "element"),
    [(QWEN, RATIOS, ValueType.UINT32), (QWEN, RECURRENT, ValueType.INT32), (GLM, TYPES, ValueType.UINT32)],
)
def test_arrays_of_other_integers_are_taken(family: str, key: str, element: ValueType) -> None:
    assert not found(with_array(planned(family), key, items(planned(family), key), element))


@pytest.mark.parametrize("key", [HEADS_KV, "expert_feed_forward_length", "attention.head_count"])
def test_an_array_over_blocks_is_taken_for_one_value(key: str) -> None:
    (value,) = items(planned(QWEN), key)
    contents = with_array(planned(QWEN), key, [value] * 9, ValueType.INT32)
    assert not found(contents)
    # With zeros for linear layers, the loader takes the first.
    rule = "head-count" if key == "attention.head_count" else "tensor-shape"
    assert (ERROR, rule) in [row[:2] for row in found(with_array(contents, key, [0] * 3 + [value] * 6))]


def test_one_value_is_taken_for_an_array_over_blocks() -> None:
    assert not found(with_key(planned(GLM), "swiglu_clamp_exp", f32(10.0)))
    assert not found(with_number(planned(STEP), HEADS_KV, items(planned(STEP), HEADS_KV)[0]))


@pytest.mark.parametrize(
    ("family", "role", "key", "length", "text"),
    [
        (STEP, COMBINED, "attention.head_count", 5, "length 5, llama.cpp b11549 wants 8 (trunk 5 + nextn 3)"),
        (STEP, COMBINED, "swiglu_clamp_exp", 7, "length 7, llama.cpp b11549 wants 8 (trunk 5 + nextn 3)"),
        (STEP, MTP, "attention.head_count_kv", 3, "length 3, llama.cpp b11549 wants 8 (trunk 5 + nextn 3)"),
        (STEP, TRUNK, "swiglu_clamp_shexp", 4, "length 4, llama.cpp b11549 wants 5 (trunk 5 + nextn 0)"),
        (STEP, COMBINED, PATTERN, 5, "wants 8 (trunk 5 + nextn 3) and reads what is missing as 0, silently"),
        (QWEN, COMBINED, RATIOS, 8, "length 8, llama.cpp b11549 wants 9 (trunk 8 + nextn 1)"),
        (QWEN, MTP, RECURRENT, 1, "length 1, llama.cpp b11549 wants 9 (trunk 8 + nextn 1)"),
        (GLM, COMBINED, HEADS_KV, 6, "length 6, llama.cpp b11549 wants 7 (trunk 6 + nextn 1)"),
        (GLM, COMBINED, TYPES, 7, "length 7, llama.cpp b11549 wants 6 (the trunk alone)"),
        (GLM, TRUNK, TYPES, 5, "length 5, llama.cpp b11549 wants 6"),
    ],
)
def test_case_c14_an_array_over_blocks_has_another_length(
    family: str, role: Role, key: str, length: int, text: str
) -> None:
    old = items(planned(family, role), key)
    contents = with_array(planned(family, role), key, (old * 2)[:length])
    assert found(contents) == [(ERROR, "array-length", key)]
    assert text in message(contents, "array-length")


def test_a_pattern_may_be_longer_than_it_needs_to_be() -> None:
    contents = with_array(planned(STEP, TRUNK), PATTERN, items(planned(STEP), PATTERN), ValueType.BOOL)
    assert found(contents) == [(WARNING, "array-length", PATTERN)]
    assert found(with_array(planned(STEP), PATTERN, [True] * 600, ValueType.BOOL)) == [(ERROR, "array-length", PATTERN)]


def test_keys_that_say_what_a_file_is_are_of_one_type() -> None:
    for key, value in (("general.file_type", string("x")), ("general.name", u32(3))):
        assert found(with_key(planned(STEP), key, value)) == [(ERROR, "key-type", key)]


@pytest.mark.parametrize("architecture", ["deepseek2", "glm4moe", "qwen35", "mimo2", "exaone-moe"])
@pytest.mark.parametrize("key", ["attention.head_count", HEADS_KV, "feed_forward_length", "swiglu_clamp_exp"])
def test_array_lengths_of_every_architecture(architecture: str, key: str) -> None:
    contents = generic(architecture, range(2), (2,), block_count=3, nextn_predict_layers=1)
    assert not found(with_key(contents, key, array(ValueType.INT32, [1, 1, 1])))
    short = with_key(contents, key, array(ValueType.INT32, [1, 1]))
    assert found(short) == [(ERROR, "array-length", key)]
    assert message(short, "array-length") == "length 2, llama.cpp b11549 wants 3 (trunk 2 + nextn 1)"


def test_an_architecture_that_takes_longer_arrays() -> None:
    contents = generic("deepseek4", range(2), (2,), block_count=3, nextn_predict_layers=1)
    assert not found(with_key(contents, RATIOS, array(ValueType.INT32, [4] * 5)))
    assert found(with_key(contents, RATIOS, array(ValueType.INT32, [4] * 2))) == [(ERROR, "array-length", RATIOS)]


@pytest.mark.parametrize(
    ("family", "key", "value", "rule"),
    [
        (STEP, "rope.dimension_count", 16, "rope-dimension-count"),
        (STEP, "expert_used_count", 0, "expert-count"),
        (STEP, "expert_used_count", 9, "expert-count"),
        (GLM, "rope.dimension_count", 8, "rope-dimension-count"),
        (GLM, "attention.indexer.kpool", 1, "indexer-pool"),
        (GLM, "attention.indexer.top_k", 33, "indexer-pool"),
        (GLM, "hyper_connection.count", 2, "hyper-connections"),
        (QWEN, "hyper_connection.count", 1, "hyper-connections"),
    ],
)
def test_a_value_that_no_model_of_the_family_has(family: str, key: str, value: int, rule: str) -> None:
    assert found(with_number(planned(family), key, value)) == [(ERROR, rule, key)]


def test_a_key_that_says_what_would_be_assumed_is_harmless() -> None:
    length = planned(STEP).keys["step35.attention.key_length"].value
    assert isinstance(length, int)
    assert not found(with_number(planned(STEP), "rope.dimension_count", length))


def test_no_layer_has_a_window() -> None:
    contents = with_array(planned(STEP), PATTERN, [False] * 8)
    assert found(contents)[0] == (ERROR, "window-pattern", PATTERN)


def test_case_v11_a_known_key_under_a_foreign_prefix() -> None:
    contents = without_keys(planned(STEP), "nextn_predict_layers")
    contents = with_number(contents, "tokenizer.ggml.nextn_predict_layers", 3)
    assert found(contents)[1:] == [(ERROR, "foreign-prefix", "tokenizer.ggml.nextn_predict_layers")]
    assert "did you mean step35.nextn_predict_layers (which is missing)" in message(contents, "foreign-prefix")
    remedies = [finding.remedy for finding in examine(contents)[1] if finding.rule == "foreign-prefix"]
    rename = "rename tokenizer.ggml.nextn_predict_layers to step35.nextn_predict_layers"
    assert remedies == [f"nextn repair FILE -o OUT.gguf, or {rename}"], "the tokenizer's keys stay where they are"


def test_the_same_key_under_both_prefixes() -> None:
    contents = replace(planned(STEP), keys={**planned(STEP).keys, "step3p5.expert_count": u32(8)})
    assert found(contents) == [(WARNING, "foreign-prefix", "step3p5.expert_count")]


def test_every_key_under_the_old_prefix() -> None:
    keys = {key.replace("glm5-next.", "glm5next."): value for key, value in planned(GLM).keys.items()}
    contents = replace(planned(GLM), keys=keys)
    assert found(contents) == [(ERROR, "foreign-prefix", "glm5next.*")]
    # Case C16: the architecture has its old spelling too.
    contents = with_key(contents, "general.architecture", string("glm5next"))
    assert found(contents) == [(ERROR, "architecture-spelling", "general.architecture")]
    assert "did you mean 'glm5-next'" in message(contents, "architecture-spelling")


@pytest.mark.parametrize(
    ("spelling", "rule", "meant"),
    [
        ("step-35", "architecture-spelling", "step35"),
        ("Qwen4Exp", "architecture-spelling", "qwen4exp"),
        ("glm5_next", "architecture-spelling", "glm5-next"),
        ("qwen4expp", "architecture-spelling", "qwen4exp"),
        ("something-new", "architecture-unknown", None),
    ],
)
def test_the_spelling_of_the_architecture(spelling: str, rule: str, meant: str | None) -> None:
    contents = generic(spelling, range(2), (), block_count=2)
    assert found(contents) == [(ERROR, rule, "general.architecture")]
    assert ("did you mean" in message(contents, rule)) is bool(meant)
    assert str(meant or "") in message(contents, rule)


def test_no_architecture() -> None:
    contents = without_keys(planned(STEP), "general.architecture")
    assert (ERROR, "architecture-missing", "general.architecture") in found(contents)


@pytest.mark.parametrize("count", [0, 513, 2**32 - 1])
def test_block_counts_on_which_the_loader_asserts(count: int) -> None:
    contents = with_number(planned(STEP, TRUNK), "block_count", count)
    assert (ERROR, "block-count-range", "block_count") in found(contents)


def test_more_heads_than_blocks() -> None:
    assert found(with_number(planned(QWEN), "nextn_predict_layers", 10)) == [
        (ERROR, "nextn-range", "nextn_predict_layers")
    ]


def test_marks_and_foreign_sections_are_no_foreign_prefixes() -> None:
    more = {"quantize.imatrix.file": string("x"), "nextn.target.block_count": u32(5), "mine.note": boolean(True)}
    assert not found(replace(planned(STEP), keys={**planned(STEP).keys, **more}))
