"""Values that nothing can be computed with are findings, whatever the architecture; and ok means that it loads.

What llama.cpp does with them is in the tables of faults, by which tests/e2e/test_forecast.py judges.
"""

from __future__ import annotations

import pytest
from edited_contents import (
    COMBINED,
    ERROR,
    GLM,
    MTP,
    QWEN,
    STEP,
    TRUNK,
    found,
    generic,
    planned,
    with_key,
    without_keys,
)
from fault_tables import FAULTS
from faults import ABORTS, HANGS, LOADS, REFUSES, SEGFAULTS, Fault, edited

from nextn.gguf_schema.contents import Value, array, boolean, f32, i32, u32
from nextn.gguf_schema.types import ValueType
from nextn.validators.examine import examine_contents, judge

NAN, INF = float("nan"), float("inf")
RMS, NORM, ROTATED = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "rope.dimension_count"
BAD = [
    *((family, RMS, f32(value)) for family in (STEP, QWEN, GLM) for value in (NAN, -1e-6, 0.0, INF, 1.0)),
    *((GLM, NORM, f32(value)) for value in (NAN, -1e-6, INF)),
    *((STEP, key, f32(value)) for key in ("rope.freq_base", "rope.freq_base_swa") for value in (NAN, 0.0, -5e6, INF)),
    *((family, "expert_weights_scale", f32(value)) for family in (STEP, GLM) for value in (NAN, INF, -3.0)),
    *((family, "expert_gating_func", u32(value)) for family in (STEP, GLM) for value in (1, 3, 5, 2**31)),
    *((STEP, "attention.sliding_window", u32(value)) for value in (0, 2**31)),
    *((QWEN, ROTATED, u32(value)) for value in (0, 15, 17, 32, 64, 2**31)),
    (QWEN, "ple.heads_per_ngram", u32(1)),
    (GLM, "attention.head_count_kv", array(ValueType.INT32, [0, 0, 0, 2, 0, 1, 1])),
    *((GLM, "attention.key_length", u32(value)) for value in (0, 65, 2**31)),
    (GLM, "attention.indexer.top_k", u32(0)),
    (GLM, "attention.indexer.kpool_select_tail", boolean(False)),
    *((GLM, "kda.gate_lower_bound", f32(value)) for value in (NAN, 0.0, 5.0, INF)),
    *((GLM, "hyper_connection.sinkhorn_iterations", u32(value)) for value in (0, 1001, 2**31 - 1, 2**31)),
    (GLM, "attention.head_count_kv", array(ValueType.INT32, [0, 0, 0, -1, 0, 1, 1])),
    *((GLM, "hyper_connection.epsilon", f32(value)) for value in (NAN, INF)),
]


@pytest.mark.parametrize(("family", "key", "value"), BAD, ids=lambda part: str(getattr(part, "value", part)))
def test_a_value_that_nothing_can_be_computed_with(family: str, key: str, value: Value) -> None:
    assert found(with_key(planned(family), key, value)) == [(ERROR, "key-range", key)]


def test_groups_of_experts() -> None:
    """The fixture has one group, of which one is used."""
    uneven = with_key(planned(GLM), "expert_group_count", u32(3))
    assert found(uneven) == [(ERROR, "expert-count", "expert_group_count")]
    two = with_key(planned(GLM), "expert_group_count", u32(2))
    assert found(two) == []
    for used in (0, 2, 3):
        assert found(with_key(two, "expert_group_used_count", u32(used))) == [
            (ERROR, "expert-count", "expert_group_used_count")
        ]


@pytest.mark.parametrize("family", [STEP, QWEN, GLM])
def test_no_context(family: str) -> None:
    for length in (0, 2**31):
        contents = with_key(planned(family), "context_length", u32(length))
        assert found(contents) == [(ERROR, "context-length", "context_length")]


def test_architectures_without_tables_too() -> None:
    contents = generic("qwen35", range(4), (4,), block_count=5, nextn_predict_layers=1)
    for key, value in ((RMS, f32(NAN)), ("rope.freq_base", f32(0.0)), ("expert_gating_func", u32(9))):
        assert found(with_key(contents, key, value)) == [(ERROR, "key-range", key)]
    assert found(with_key(contents, "context_length", u32(0))) == [(ERROR, "context-length", "context_length")]
    assert not found(with_key(contents, "expert_gating_func", u32(1))), "other families have other functions"


@pytest.mark.parametrize(("family", "key"), [(GLM, "rope.freq_base"), (QWEN, "expert_weights_scale")])
def test_keys_that_a_family_does_not_read_may_say_anything(family: str, key: str) -> None:
    assert not found(with_key(planned(family), key, f32(NAN)))


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        (STEP, "leading_dense_block_count", i32(1)),
        (STEP, "moe_every_n_layers", Value(ValueType.UINT64, 1)),
        (GLM, "vocab_size", i32(512)),
        (QWEN, "full_attention_interval", i32(4)),
        (QWEN, "full_attention_interval", Value(ValueType.UINT64, 4)),
    ],
)
def test_a_key_that_is_not_read_may_be_of_any_type(family: str, key: str, value: Value) -> None:
    assert found(with_key(planned(family), key, value)) == [("note", "key-type", key)]


def test_the_interval_is_read_when_no_key_says_more() -> None:
    contents = without_keys(planned(QWEN), "attention.recurrent_layers")
    rule = (ERROR, "key-type", "full_attention_interval")
    assert rule in found(with_key(contents, "full_attention_interval", i32(4)))


def test_one_section_of_the_rotation_stands_for_all() -> None:
    assert not found(with_key(planned(QWEN), "rope.dimension_sections", i32(3)))


FAILS = (REFUSES, ABORTS, SEGFAULTS, HANGS)
USES = {COMBINED: ("main", "draft"), TRUNK: ("main",), MTP: ("draft",)}
WHOLE = [fault for fault in FAULTS.values() if fault.base in USES and not fault.edit.data]


@pytest.mark.parametrize("fault", WHOLE, ids=lambda fault: fault.id)
def test_ok_means_that_some_use_loads(fault: Fault) -> None:
    """By what the library was seen to do, not by the forecast: the safety net under all rules."""
    contents = edited(planned(fault.family, fault.base), fault.edit)
    uses = [getattr(fault, use).outcome for use in USES[fault.base]]
    if uses[0] in FAILS or all(use in FAILS for use in uses):
        assert not judge(examine_contents(contents)).ok
    if all(use != LOADS for use in uses):
        assert not judge(examine_contents(contents), strict=True).ok


def test_what_no_rule_finds_the_forecast_does() -> None:
    contents = with_key(planned(QWEN), "attention.indexer.top_k", u32(0))
    report = judge(examine_contents(contents))
    (finding,) = [finding for finding in report.findings if finding.severity == ERROR]
    assert finding.rule == "does-not-load"
    assert "qwen4exp.attention.indexer.top_k must be greater than zero, got 0" in finding.message
