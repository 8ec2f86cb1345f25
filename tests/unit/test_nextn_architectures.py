"""Architectures that have no tables: roles, flags, declarations and heads are judged alike in all of them."""

from __future__ import annotations

import pytest
from edited_contents import (
    examine,
    found,
    generic,
    message,
    with_key,
    with_number,
    with_tensor,
    with_type,
    without,
)

from nextn.gguf_schema.contents import Contents, array
from nextn.gguf_schema.nextn_architectures import NEXTN_ARCHITECTURES
from nextn.gguf_schema.types import BF16, TENSOR_TYPES, ValueType

FAMILIES = ("step35", "qwen4exp", "glm5-next")
NEXTN = "nextn_predict_layers"
PROBING = sorted(
    name for name, known in NEXTN_ARCHITECTURES.items() if known.probe == "attn_norm.weight" and name not in FAMILIES
)
CARRYING = ("glm4", "exaone4", "exaone-moe", "bailingmoe2", "dots3note")


def declaring(architecture: str, blocks: int = 5, heads: int = 1) -> Contents:
    """Four trunk blocks and one head, or what the numbers say."""
    first = blocks - heads
    return generic(architecture, range(first), range(first, blocks), block_count=blocks, nextn_predict_layers=heads)


@pytest.mark.parametrize("architecture", [*PROBING, *CARRYING])
def test_every_architecture_with_heads_has_roles(architecture: str) -> None:
    contents = declaring(architecture)
    report, _ = examine(contents)
    assert (report.name, report.trunk_blocks, report.nextn_blocks) == ("combined", 4, 1)
    assert not found(contents)
    head = without(contents, *(f"blk.{i}." for i in range(4)))
    assert examine(head)[0].name == "mtp"
    assert examine(without(head, "token_embd.weight"))[0].name == "mtp-shared"
    trunk = without(contents, "blk.4.")
    assert examine(trunk)[0].name == "trunk"
    assert found(trunk) == [("error", "head-declared-not-there", NEXTN)]


@pytest.mark.parametrize("architecture", PROBING)
def test_architectures_that_probe(architecture: str) -> None:
    contents = declaring(architecture)
    fooled = without(contents, "blk.0.attn_norm.weight")
    assert examine(fooled)[0].flags.mtp_only
    assert found(fooled) == [("error", "trunk-probe-missing", "blk.0.attn_norm.weight")]
    assert examine(without(contents, "blk.4.nextn.eh_proj.weight"))[0].flags.trunk_only


@pytest.mark.parametrize("architecture", CARRYING)
def test_architectures_that_only_carry_heads_have_no_flags(architecture: str) -> None:
    flags = examine(without(declaring(architecture), "blk.0.attn_norm.weight", "blk.4.nextn.eh_proj.weight"))[0].flags
    assert (flags.mtp_only, flags.trunk_only) == (False, False)


@pytest.mark.parametrize(
    ("architecture", "text"),
    [("qwen35", "loads it as a trunk"), ("exaone-moe", "stops: blk.4"), ("deepseek4", "stops: blk.4")],
)
def test_what_a_loader_does_with_a_declared_head_that_is_not_there(architecture: str, text: str) -> None:
    assert text in message(without(declaring(architecture), "blk.4."), "head-declared-not-there")


def test_a_file_that_is_a_head_as_a_whole() -> None:
    """gemma4-assistant: nextn_predict_layers is block_count, and no block has a nextn tensor."""
    contents = generic("gemma4-assistant", range(2), (), block_count=2, nextn_predict_layers=2)
    own = generic("gemma4-assistant", (), ()).tensors["token_embd.weight"]
    contents = Contents(
        contents.keys,
        {**contents.tensors, "nextn.pre_projection.weight": own, "nextn.post_projection.weight": own},
    )
    report, findings = examine(contents)
    assert (report.name, report.trunk_blocks, report.nextn_blocks) == ("mtp", 0, 2)
    assert not report.flags.mtp_only
    assert not findings
    assert found(with_number(contents, NEXTN, 1)) == [("error", "blocks-declared-wrong", NEXTN)]
    assert found(without(contents, "nextn.post_projection.weight")) == [
        ("error", "tensor-missing", "nextn.post_projection.weight")
    ]


def test_case_s14_the_tail_block_is_a_head_not_a_recurrent_layer() -> None:
    """A combined file of a hybrid model: an interval says which trunk layers have attention, and nothing of heads."""
    contents = generic("qwen35", range(4), (4,), block_count=5, nextn_predict_layers=1, full_attention_interval=2)
    assert found(contents) == [("note", "old-builds-misread", "full_attention_interval")]
    assert "takes blk.4, a head, for a recurrent layer" in message(contents, "old-builds-misread")
    assert examine(contents)[0].first_head == 4
    assert not found(with_number(contents, "full_attention_interval", 5)), "the formula says of blk.4 what it is"
    assert not found(without(contents, "blk.0.", "blk.1.", "blk.2.", "blk.3.")), "no build takes a head for a model"


ERROR, WARNING = "error", "warning"
HEAD = {"block_count": 5, "nextn_predict_layers": 2}


@pytest.mark.parametrize("architecture", ["deepseek2", "glm4moe", "qwen35", "mimo2"])
def test_heads_of_every_architecture(architecture: str) -> None:
    contents = generic(architecture, range(3), (3, 4), **HEAD)
    rules = [(WARNING, "too-many-heads", "nextn_predict_layers")] if architecture != "mimo2" else []
    assert found(contents) == rules
    for name in ("nextn.enorm.weight", "nextn.hnorm.weight"):
        assert found(without(contents, f"blk.3.{name}")) == [*rules, (ERROR, "tensor-missing", f"blk.3.{name}")]
    name = "blk.4.nextn.eh_proj.weight"
    assert found(with_tensor(contents, name, (8, 16))) == [*rules, (ERROR, "tensor-shape", name)]
    name = "blk.4.ffn_up.weight"
    assert found(without(contents, name)) == [*rules, (WARNING, "block-incomplete", name)]


def test_a_block_is_less_than_others_like_it() -> None:
    contents = generic("glm4moe", range(5), (5,), block_count=6, nextn_predict_layers=1)
    name = "blk.2.ffn_down.weight"
    assert found(without(contents, name)) == [(WARNING, "block-incomplete", name)]


def test_kinds_of_layers_that_differ_are_no_fault() -> None:
    """Two blocks of a kind, a dense first block, or a block with more than the others."""
    contents = generic("deepseek2", range(6), (6,), block_count=7, nextn_predict_layers=1)
    assert found(without(contents, "blk.1.ffn_up.weight", "blk.3.ffn_up.weight")) == []
    assert found(without(contents, "blk.0.ffn_up.weight", "blk.0.ffn_down.weight")) == []
    assert found(with_tensor(contents, "blk.2.extra.weight", (8,))) == []


def test_one_of_three_blocks_lacks_a_tensor() -> None:
    contents = generic("qwen35", range(3), (3,), block_count=4, nextn_predict_layers=1)
    for name in ("blk.1.attn_q.weight", "blk.3.attn_q.weight"):
        assert found(without(contents, name)) == [(WARNING, "block-incomplete", name)]


def test_what_every_trunk_has_outside_of_its_blocks() -> None:
    contents = generic("qwen35", range(4), (4,), block_count=5, nextn_predict_layers=1)
    name = "token_embd.weight"
    assert found(without(contents, name)) == [(ERROR, "tensor-missing", name)]
    assert (ERROR, "tensor-shape", name) in found(with_tensor(contents, name, (4, 3)))
    assert found(without(contents, "output_norm.weight")) == [(WARNING, "tensor-missing", "output_norm.weight")]


def test_types_and_widths_that_no_architecture_computes_with() -> None:
    contents = generic("qwen35", range(4), (4,), block_count=5, nextn_predict_layers=1)
    norm, matrix = "blk.1.attn_norm.weight", "blk.4.nextn.eh_proj.weight"
    assert found(with_type(contents, norm, BF16)) == [(ERROR, "tensor-type", norm)]
    assert found(with_tensor(contents, norm, (4,))) == [(ERROR, "tensor-shape", norm)]
    assert found(with_type(contents, matrix, TENSOR_TYPES["I8"])) == [(ERROR, "tensor-type", matrix)]
    assert not found(with_type(contents, matrix, BF16))


def test_case_s15_a_key_that_tells_kinds_counts_no_head_as_recurrent() -> None:
    contents = generic("qwen35", range(4), (4,), block_count=5, nextn_predict_layers=1)
    key = "attention.recurrent_layers"
    kinds = [True, True, False, True]
    assert not found(with_key(contents, key, array(ValueType.BOOL, [*kinds, False])))
    assert found(with_key(contents, key, array(ValueType.BOOL, [*kinds, True]))) == [(ERROR, "layer-kinds", key)]


def test_other_architectures_are_left_alone() -> None:
    contents = generic("llama", range(4), (), block_count=4)
    assert found(without(contents, "blk.2.ffn_up.weight")) == []
    assert found(with_tensor(contents, "blk.1.attn_norm.weight", (9,))) == []
