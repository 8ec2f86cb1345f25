"""The role of a file by its tensors, against its keys and against the single tensors that llama.cpp looks at."""

from __future__ import annotations

import pytest
from edited_contents import (
    COMBINED,
    MTP,
    MTP_SHARED,
    TRUNK,
    examine,
    found,
    items,
    message,
    planned,
    renamed,
    taking,
    with_array,
    with_key,
    with_number,
    without,
    without_keys,
)

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import boolean
from nextn.validators.findings import Findings
from nextn.validators.role import assert_role, examine_role

FAMILIES = ("step35", "qwen4exp", "glm5-next")
# Blocks of the trunk and heads of the fixtures.
COUNTS = {"step35": (5, 3), "qwen4exp": (8, 1), "glm5-next": (6, 1)}
PROBES = {"step35": "attn_norm", "qwen4exp": "hc_attn_norm", "glm5-next": "attn_norm"}
NEXTN = "nextn_predict_layers"
EACH = pytest.mark.parametrize("family", FAMILIES)


@EACH
@pytest.mark.parametrize("role", Role)
def test_a_planned_file_is_what_was_planned(family: str, role: Role) -> None:
    trunk, heads = COUNTS[family]
    report, findings = examine(planned(family, role))
    assert not findings
    assert report.as_json() == {
        "role": role,
        "flags": {"mtp_only": not role.has_trunk, "trunk_only": False},
        "trunk_blocks": trunk if role.has_trunk else 0,
        "nextn_blocks": heads if role.has_head else 0,
        "declared": {
            "block_count": trunk + (heads if role.has_head else 0),
            NEXTN: heads if role.has_head else None,
        },
    }
    assert report.first_head == trunk


@EACH
def test_c02_a_head_is_declared_and_not_there(family: str) -> None:
    """Cases C02 to C05: the metadata of a combined file over the tensors of a trunk."""
    trunk, heads = COUNTS[family]
    contents = without(planned(family), *(f"blk.{trunk + k}." for k in range(heads)))
    report, _ = examine(contents)
    assert (report.name, report.trunk_blocks, report.nextn_blocks) == ("trunk", trunk, 0)
    assert report.flags.trunk_only
    assert found(contents) == [("error", "head-declared-not-there", NEXTN)]
    text = message(contents, "head-declared-not-there")
    assert f"{family}.block_count {trunk + heads}" in text
    assert f"{family}.{NEXTN} {heads}" in text
    (finding,) = examine(contents)[1]
    assert finding.remedy
    assert "nextn repair" in finding.remedy
    assert f"set {family}.block_count to {trunk}" in finding.remedy


@EACH
def test_c06_a_head_is_there_and_not_declared(family: str) -> None:
    trunk, heads = COUNTS[family]
    for contents in (without_keys(planned(family), NEXTN), with_number(planned(family), NEXTN, 0)):
        report, _ = examine(contents)
        assert (report.name, report.nextn_blocks, report.flags.mtp_only) == ("combined", heads, False)
        # Of glm5-next too, whose array over the trunk alone would be too short if there were no head.
        assert found(contents) == [("error", "head-not-declared", NEXTN)]
        assert f"from blk.{trunk} on" in message(contents, "head-not-declared")


@pytest.mark.parametrize(
    ("declared", "rule", "text"),
    [
        (4, "nextn-too-large", "blk.4 would be taken for a head and never run"),
        (2, "nextn-too-small", "blk.5 would be trunk"),
        (1, "nextn-too-small", "blk.5-6 would be trunk"),
    ],
)
def test_another_number_of_heads_is_declared(declared: int, rule: str, text: str) -> None:
    contents = with_number(planned("step35"), NEXTN, declared)
    assert found(contents) == [("error", rule, NEXTN)]
    assert text in message(contents, rule)


def test_two_heads_are_declared_where_the_draft_graph_takes_one() -> None:
    contents = with_number(planned("qwen4exp"), NEXTN, 2)
    assert [row[:2] for row in found(contents)] == [("error", "nextn-too-large"), ("warning", "too-many-heads")]


def test_the_last_trunk_block_is_taken_for_the_head() -> None:
    """The key was added to a trunk without counting the block (qwen4exp-upstream.md 3: aborts)."""
    contents = with_number(planned("qwen4exp", TRUNK), NEXTN, 1)
    assert found(contents) == [("error", "nextn-too-large", NEXTN)]
    assert "blk.7 would be taken" in message(contents, "nextn-too-large")


@pytest.mark.parametrize(("block", "flag"), [(5, True), (6, False), (7, False)])
@pytest.mark.parametrize("role", [COMBINED, MTP])
def test_one_of_three_heads_is_not_there(role: Role, block: int, flag: bool) -> None:
    contents = without(planned("step35", role), f"blk.{block}.")
    report, _ = examine(contents)
    assert (report.name, report.nextn_blocks, report.first_head) == (role, 2, 5)
    assert report.flags.trunk_only is flag
    assert found(contents) == [("error", "nextn-too-large", NEXTN)]


@EACH
def test_the_probe_of_the_trunk_is_fooled(family: str) -> None:
    """A combined file that only lost one norm is MTP-only for llama.cpp, and loads silently wrong."""
    probe = f"blk.0.{PROBES[family]}.weight"
    for contents in (planned(family), with_number(planned(family, TRUNK), NEXTN, COUNTS[family][1])):
        assert not examine(contents)[0].flags.mtp_only
        assert examine(without(contents, probe))[0].flags.mtp_only
    contents = without(planned(family), probe)
    assert examine(contents)[0].name == "combined"
    assert found(contents) == [("error", "trunk-probe-missing", probe)]
    assert "takes the file for MTP-only" in message(contents, "trunk-probe-missing")
    # A trunk that declares no head is not probed: the loader names the tensor.
    assert found(without(planned(family, TRUNK), probe)) == [("error", "tensor-missing", probe)]


@EACH
@pytest.mark.parametrize("role", [COMBINED, MTP])
def test_the_probe_of_the_head_is_fooled(family: str, role: Role) -> None:
    probe = f"blk.{COUNTS[family][0]}.nextn.eh_proj.weight"
    contents = without(planned(family, role), probe)
    report, _ = examine(contents)
    assert (report.name, report.flags.trunk_only) == (role, True)
    assert found(contents) == [("error", "head-probe-missing", probe)]


def test_only_the_first_head_is_probed() -> None:
    contents = without(planned("step35"), "blk.6.nextn.eh_proj.weight")
    assert found(contents) == [("error", "tensor-missing", "blk.6.nextn.eh_proj.weight")]


@EACH
def test_a_head_with_a_part_of_the_trunk_is_contradictory(family: str) -> None:
    contents = without(planned(family), "blk.2.")
    report, findings = examine(contents)
    assert report.name == "contradictory"
    assert report.as_json()["role"] == "contradictory"
    assert [finding.rule for finding in findings] == ["role-contradictory"]
    assert "not blk.2: neither a combined nor an MTP-only file" in findings[0].message


def test_trunk_blocks_behind_a_head_are_contradictory() -> None:
    contents = taking(planned("step35"), renamed(planned("step35", TRUNK), "blk.4.", "blk.8."), "blk.8.")
    report, findings = examine(contents)
    assert report.name == "contradictory"
    assert "trunk blocks behind the heads: blk.8 behind blk.5-7" in findings[0].message


def test_blocks_of_a_head_without_anything_of_a_head_are_contradictory() -> None:
    contents = planned("qwen4exp", MTP)
    contents = without(contents, *(name for name in contents.tensors if ".nextn." in name))
    report, findings = examine(contents)
    assert (report.name, report.role) == ("contradictory", None)
    assert [finding.rule for finding in findings] == ["role-contradictory"]


def test_a_trunk_lacks_a_block() -> None:
    """Incomplete is another verdict than contradictory."""
    contents = without(planned("step35", TRUNK), "blk.2.")
    assert examine(contents)[0].name == "trunk"
    assert found(contents) == [("error", "blocks-missing", "blk.2")]


def test_a_trunk_lacks_its_last_block() -> None:
    assert found(without(planned("step35", TRUNK), "blk.4.")) == [("error", "block-count-wrong", "block_count")]


def test_a_renumbered_head() -> None:
    contents = with_number(renamed(planned("qwen4exp", MTP), "blk.8.", "blk.0."), "block_count", 1)
    for key in ("attention.recurrent_layers", "attention.compress_ratios"):
        contents = with_array(contents, key, items(contents, key)[-1:])
    assert examine(contents)[0].name == "mtp"
    assert found(contents) == [("error", "head-renumbered", "blk.0")]


@EACH
def test_the_mark_of_a_shared_sidecar_and_its_tensors(family: str) -> None:
    """Case C13: a full-size file that claims to be a small sidecar, and the reverse."""
    claims = with_key(planned(family, MTP), "nextn.shared", boolean(True))
    assert examine(claims)[0].name == "mtp"
    assert found(claims) == [("error", "shared-marker", "nextn.shared")]
    silent = without_keys(planned(family, MTP_SHARED), "nextn.shared")
    assert examine(silent)[0].name == "mtp-shared"
    assert found(silent) == [("warning", "shared-unmarked", "nextn.shared")]


def test_no_blocks() -> None:
    contents = without(planned("step35"), *(f"blk.{i}." for i in range(8)))
    report, _ = examine(contents)
    assert report.name is None
    assert found(contents)[0][:2] == ("error", "no-blocks")


def test_a_role_is_asserted() -> None:
    contents = planned("step35")
    report = examine_role(contents, Findings())
    findings = Findings()
    assert_role(report, COMBINED, contents.name, findings)
    assert not findings
    assert_role(report, MTP, contents.name, findings)
    assert [(finding.rule, finding.message) for finding in findings] == [("role-not-asserted", "is combined, want mtp")]
    assert findings[0].remedy == "nextn split FILE -o DIR --emit mtp"


@pytest.mark.parametrize("head", [MTP, MTP_SHARED])
def test_case_r01_a_head_is_taken_for_a_model(head: Role) -> None:
    findings = Findings()
    assert_role(examine_role(planned("step35", head), Findings()), TRUNK, "head.gguf", findings)
    assert [(finding.message, finding.remedy) for finding in findings] == [
        (f"is {head}, want trunk", "this is a draft head; give its trunk")
    ]


def test_a_number_that_no_loader_takes_costs_nothing() -> None:
    """A hostile block count or block number makes no list of that length."""
    for contents in (
        with_number(planned("step35", TRUNK), "block_count", 2**32 - 1),
        renamed(planned("step35", TRUNK), "blk.4.", "blk.4000000000."),
    ):
        assert any(severity == "error" for severity, _, _ in found(contents))
