"""Wrong names, of architectures, keys and tensors: one cause is one finding, whose remedy does not make it worse."""

from __future__ import annotations

import pytest
from edited_contents import (
    ERROR,
    GLM,
    MTP_SHARED,
    QWEN,
    STEP,
    examine,
    found,
    message,
    planned,
    renamed,
    with_array,
    with_key,
    with_number,
    with_tensor,
    without,
)

from nextn.gguf_schema.contents import Contents, array, boolean, string
from nextn.gguf_schema.types import ValueType

EACH = pytest.mark.parametrize("family", [STEP, QWEN, GLM])


def called(contents: Contents, architecture: str) -> Contents:
    """With another architecture, and keys as they were."""
    return with_key(contents, "general.architecture", string(architecture))


@EACH
@pytest.mark.parametrize(
    ("name", "rule"), [("llama", "architecture-contradicted"), ("step3.5", "architecture-spelling")]
)
def test_an_architecture_that_no_key_is_of(family: str, name: str, rule: str) -> None:
    """The advice was to rename the right keys to the wrong architecture."""
    contents = called(planned(family), name)
    assert found(contents) == [(ERROR, rule, "general.architecture")]
    (finding,) = examine(contents)[1]
    assert f"the keys are {family}.*, did you mean {family!r}" in finding.message
    assert finding.remedy == f"nextn repair FILE -o OUT.gguf, or set it to {family!r}"


@EACH
def test_arrays_that_fit_the_tensors_are_not_against_a_wrong_block_count(family: str) -> None:
    """A block count of 5 was an error, and so was every array that is as long as the blocks are many."""
    blocks = {STEP: 8, QWEN: 9, GLM: 7}[family]
    for count in (blocks - 1, blocks + 1):
        rules = [rule for severity, rule, _ in found(with_number(planned(family), "block_count", count))]
        assert "array-length" not in rules, count
        assert rules


def test_an_array_that_fits_neither_is_held_against_the_tensors() -> None:
    contents = with_number(planned(STEP), "block_count", 5)
    heads = contents.keys["step35.attention.head_count"].items
    contents = with_array(contents, "attention.head_count", [int(item) for item in heads[:7]])  # type: ignore[arg-type]
    assert message(contents, "array-length") == "length 7, llama.cpp b11549 wants 8 (trunk 5 + nextn 3)"


def test_a_tensor_under_another_name() -> None:
    contents = renamed(planned(STEP), "blk.3.attn_q.weight", "blk.3.attn_query.weight")
    findings = examine(contents)[1]
    assert [(finding.rule, finding.subject) for finding in findings] == [
        ("tensor-missing", "blk.3.attn_q.weight"),
        ("tensor-unexpected", "blk.3.attn_query.weight"),
    ]
    want = "renamed? blk.3.attn_query.weight has the dimensions of blk.3.attn_q.weight, which is missing"
    assert all(str(finding.remedy).startswith(want) for finding in findings)


def test_a_tensor_of_another_block_or_shape_is_not_the_missing_one() -> None:
    good = planned(STEP)
    lost = without(good, "blk.3.attn_q.weight")
    for name, ne in (("blk.2.other.weight", good.tensors["blk.3.attn_q.weight"].ne), ("blk.3.other.weight", (8, 8))):
        assert not any("renamed" in str(finding.remedy) for finding in examine(with_tensor(lost, name, ne))[1])


def test_names_that_are_no_blocks() -> None:
    contents = renamed(renamed(planned(STEP), "blk.", "model.blk."), "token_embd", "model.token_embd")
    assert found(contents) == [(ERROR, "no-blocks", contents.name)]
    assert message(contents, "no-blocks").startswith(
        f"{len(contents.tensors) - 1} tensors with unknown names, for example "
    )


def test_a_key_of_another_type_is_not_missing() -> None:
    contents = with_key(planned(STEP), "block_count", string("8"))
    assert message(contents, "key-type") == "is STRING '8', want UINT32"
    contents = with_key(planned(STEP), "attention.layer_norm_rms_epsilon", string("1e-5"))
    assert message(contents, "key-type").startswith("is STRING '1e-5', want FLOAT32")
    contents = with_key(planned(STEP), "tokenizer.ggml.model", array(ValueType.STRING, ["gpt2"]))
    assert message(contents, "tokenizer-missing").startswith("is ARRAY[STRING] of 1, want STRING")


def test_a_mark_that_says_no_is_there() -> None:
    contents = with_key(planned(STEP, MTP_SHARED), "nextn.shared", boolean(False))
    assert message(contents, "shared-unmarked").startswith("is BOOL False, but the head has neither")


@EACH
def test_no_query_heads(family: str) -> None:
    """Every tensor of attention had wrong dimensions, and nothing named the key."""
    key = "attention.head_count"
    value = planned(family).keys[f"{family}.{key}"]
    contents = with_array(planned(family), key, [0] * 8) if value.element else with_number(planned(family), key, 0)
    assert found(contents)[0] == (ERROR, "head-count", key)
    assert "tensor-shape" not in [rule for _, rule, _ in found(contents)]


def test_a_context_of_no_tokens() -> None:
    assert found(with_number(planned(STEP), "context_length", 0)) == [(ERROR, "context-length", "context_length")]
