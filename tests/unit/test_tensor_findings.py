"""What is wrong with tensors: each fault of the specifications gives its rule about its tensor, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from edited_contents import (
    COMBINED,
    MTP,
    MTP_SHARED,
    TRUNK,
    examine,
    found,
    generic,
    message,
    planned,
    renamed,
    taking,
    with_array,
    with_number,
    with_tensor,
    with_type,
    without,
    without_keys,
)
from families import FAMILIES
from fault_table_step35 import OPTIONAL
from fault_tables import FAULTS
from faults import Fault, edited

from nextn.gguf_schema.architecture import Role, TensorSpec
from nextn.gguf_schema.reading import ARCHITECTURES
from nextn.gguf_schema.types import BF16, F16, Q8_0, TENSOR_TYPES, TensorType
from nextn.validators.findings import Severity
from nextn.validators.loader_keys import Outcome

if TYPE_CHECKING:
    pass

STEP, QWEN, GLM = FAMILIES
ERROR, WARNING, NOTE = "error", "warning", "note"
OUTTYPES = ("f32", "f16", "bf16", "q8_0")
Q4_0, Q4_K = TENSOR_TYPES["Q4_0"], TENSOR_TYPES["Q4_K"]


def _missing_tensors(family: str) -> list[tuple[str, TensorSpec]]:
    """One tensor of each specification, the last block that has it, except those whose absence means something else."""
    contents, last = planned(family), {}
    for spec in ARCHITECTURES[family].tensors:
        names = [spec.name.format(i=i) for i in range(9)] if spec.per_block else [spec.name]
        for name in names:
            if name in contents.tensors:
                last[spec.name] = (name, spec)
    special = ("rope_freqs.weight", "token_embd.weight", "nextn.eh_proj.weight", "ssm_a", "attn_kv_a_mqa.weight")
    return [(name, spec) for name, spec in last.values() if not name.endswith(special)]


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family in FAMILIES for name, _ in _missing_tensors(family)]
)
def test_a_tensor_is_missing(family: str, name: str) -> None:
    """Whether the loader refuses, aborts, or computes something else: nobody wants such a file."""
    assert found(without(planned(family), name)) == [(ERROR, "tensor-missing", name)]


@pytest.mark.parametrize(
    ("family", "name", "effect"),
    [
        (STEP, "blk.3.attn_gate.weight", "loads and computes something else"),
        (STEP, "blk.6.nextn.shared_head_head.weight", "loads and computes something else"),
        (STEP, "blk.3.ffn_down_exps.weight", "loads and aborts when it computes"),
        (STEP, "blk.3.ffn_norm.weight", "refuses to load"),
        (STEP, "blk.6.nextn.hnorm.weight", "refuses to load"),  # Case V15: never zeros.
        (QWEN, "blk.8.nextn.hc_head_norm.weight", "refuses to load"),
        (QWEN, "output.weight", "silently takes token_embd.weight for it"),
        (GLM, "blk.6.nextn.shared_head_norm.weight", "loads and computes something else"),
        (GLM, "output.weight", "refuses to load"),
    ],
)
def test_what_a_loader_does_without(family: str, name: str, effect: str) -> None:
    assert effect in message(without(planned(family), name), "tensor-missing")


def test_a_head_without_the_trunks_output() -> None:
    """A Step head has an output matrix of its own; a head of an untied Qwen model borrows the trunk's."""
    assert found(without(planned(STEP, MTP), "output.weight")) == [(NOTE, "tensor-missing", "output.weight")]
    assert found(without(planned(QWEN, MTP), "output.weight")) == [(ERROR, "tensor-missing", "output.weight")]
    assert found(without(planned(GLM, MTP), "output.weight")) == [(ERROR, "tensor-missing", "output.weight")]


def test_factors_of_rotary_frequencies() -> None:
    name = "rope_freqs.weight"
    assert found(without(planned(STEP), name)) == [(WARNING, "tensor-missing", name)]
    assert found(without(planned(STEP, MTP), name)) == []
    assert found(with_tensor(planned(STEP), name, (8,))) == [(ERROR, "tensor-shape", name)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("role", [COMBINED, TRUNK, MTP])
def test_a_tensor_that_nobody_asks_for(family: str, role: Role) -> None:
    block = 0 if role is TRUNK else examine(planned(family, role))[0].first_head
    name = f"blk.{block}.something.weight"
    contents = with_tensor(planned(family, role), name, (4,))
    assert found(contents) == [(ERROR, "tensor-unexpected", name)]
    assert "wrong number of tensors" in message(contents, "tensor-unexpected")


@pytest.mark.parametrize("name", ["embed_tokens", "shared_head_head", "shared_head_norm"])
def test_tensors_of_other_families_heads(name: str) -> None:
    """qwen4exp does not read these; the other two do."""
    full = f"blk.8.nextn.{name}.weight"
    ne = (128,) if name.endswith("norm") else planned(QWEN).tensors["token_embd.weight"].ne
    assert found(with_tensor(planned(QWEN), full, ne)) == [(ERROR, "tensor-unexpected", full)]
    if name == "embed_tokens":
        for family, block in ((STEP, 5), (GLM, 6)):
            ne = planned(family).tensors["token_embd.weight"].ne
            assert found(with_tensor(planned(family), f"blk.{block}.nextn.{name}.weight", ne)) == []


def test_the_trunks_mixer_in_a_head() -> None:
    """Read and unused, as long as the head has its own."""
    contents = taking(planned(QWEN, MTP), planned(QWEN), "output_hc_")
    assert {row[:2] for row in found(contents)} == {(NOTE, "tensor-unexpected")}


def test_case_s02_the_heads_mixer_has_the_names_of_the_trunks() -> None:
    contents = renamed(planned(QWEN, MTP), "blk.8.nextn.hc_head_", "output_hc_")
    _, findings = examine(contents)
    assert {(f.severity, f.rule) for f in findings} == {
        (Severity.ERROR, "tensor-missing"),
        (Severity.ERROR, "tensor-unexpected"),
    }
    assert all("rocmfpx: nextn relayout FILE -o OUT.gguf --to upstream" in str(f.remedy) for f in findings)


def test_one_matrix_of_two_in_a_shared_sidecar() -> None:
    contents = taking(planned(STEP, MTP_SHARED), planned(STEP), "output.weight")
    assert ("error", "shared-marker", "nextn.shared") in found(contents)
    assert (WARNING, "tensor-unexpected", "output.weight") in found(contents)


@pytest.mark.parametrize(
    ("family", "name", "ne"),
    [
        (STEP, "blk.5.nextn.eh_proj.weight", (128, 256)),  # Transposed.
        (STEP, "blk.0.attn_q.weight", (128, 64)),
        (STEP, "blk.5.nextn.shared_head_head.weight", (128, 511)),
        (STEP, "blk.5.nextn.hnorm.weight", (129,)),
        (QWEN, "blk.8.nextn.hnorm.weight", (128,)),  # Narrow: one gamma for four streams.
        (QWEN, "blk.8.nextn.hc_head_norm.weight", (128, 3)),
        (QWEN, "blk.8.nextn.eh_proj.weight", (128, 256)),
        (QWEN, "blk.0.hc_attn_down.weight", (1, 1)),
        (GLM, "blk.3.attn_k_b.weight", (16, 32, 4)),
        (GLM, "blk.0.ssm_conv1d_q.weight", (128, 1, 4, 1)),
    ],
)
def test_a_shape_is_wrong(family: str, name: str, ne: tuple[int, ...]) -> None:
    contents = with_tensor(planned(family), name, ne)
    assert found(contents) == [(ERROR, "tensor-shape", name)]
    want = planned(family).tensors[name].ne
    assert f"has dimensions {list(ne)}, want {list(want)}" in message(contents, "tensor-shape")


@pytest.mark.parametrize(
    ("family", "name", "ne"),
    [
        (QWEN, "blk.8.nextn.hnorm.weight", (128, 4)),  # Case S04: [n, hc] for [hc * n].
        (QWEN, "blk.8.nextn.hc_head_norm.weight", (128, 4)),
        (QWEN, "blk.0.hc_attn_norm.weight", (128, 4)),
        (QWEN, "output_hc_norm.weight", (128, 4)),
        (QWEN, "blk.0.ffn_gate_inp_shexp.weight", (128,)),
        (GLM, "blk.0.ssm_conv1d_q.weight", (4, 1, 128)),
    ],
)
def test_a_shape_that_loaders_take_too(family: str, name: str, ne: tuple[int, ...]) -> None:
    assert found(with_tensor(planned(family), name, ne)) == [(NOTE, "tensor-reshaped", name)]


@pytest.mark.parametrize("type_", [F16, BF16, Q8_0], ids=lambda type_: type_.name)
@pytest.mark.parametrize(
    ("family", "name"),
    [
        (STEP, "blk.0.attn_norm.weight"),
        (STEP, "blk.5.nextn.hnorm.weight"),
        (STEP, "rope_freqs.weight"),
        (QWEN, "blk.8.nextn.hnorm.weight"),
        (QWEN, "output_hc_norm.weight"),
        (GLM, "blk.6.nextn.shared_head_norm.weight"),
        (GLM, "blk.3.indexer_compressor_ape.weight"),
    ],
)
def test_norms_and_addends_crash_in_other_types(family: str, name: str, type_: TensorType) -> None:
    rows = [(ERROR, "tensor-rows", name)] if planned(family).tensors[name].ne[0] % type_.block else []
    assert found(with_type(planned(family), name, type_)) == [*rows, (ERROR, "tensor-type", name)]


@pytest.mark.parametrize(
    ("family", "name", "type_", "expected"),
    [
        (STEP, "blk.3.ffn_gate_inp.weight", F16, (WARNING, "tensor-type")),
        (GLM, "blk.3.indexer.proj.weight", Q8_0, (WARNING, "tensor-type")),
        (GLM, "blk.0.hc_attn_fn.weight", Q8_0, None),  # As published files have it.
        (GLM, "blk.3.indexer_compressor_gate.weight", Q8_0, None),
        (GLM, "blk.0.hc_attn_fn.weight", Q4_0, (WARNING, "tensor-below-floor")),
        (GLM, "blk.6.nextn.eh_proj.weight", Q4_0, (WARNING, "tensor-below-floor")),
        (GLM, "blk.0.ssm_beta.weight", Q4_0, (WARNING, "tensor-below-floor")),
        (QWEN, "per_layer_token_embd.weight", Q4_0, (WARNING, "tensor-below-floor")),
        (QWEN, "blk.0.hc_ffn_inject.weight", Q4_0, (WARNING, "tensor-below-floor")),
        (STEP, "blk.5.nextn.eh_proj.weight", Q4_0, None),
        (QWEN, "blk.1.ple_conv1d.weight", Q8_0, (ERROR, "tensor-rows")),
        (GLM, "blk.0.ffn_down.weight", Q4_K, None),
    ],
)
def test_types_of_matrices(family: str, name: str, type_: TensorType, expected: tuple[str, str] | None) -> None:
    if planned(family).tensors[name].ne[0] % type_.block and expected is None:
        expected = (ERROR, "tensor-rows")
    contents = with_type(planned(family), name, type_)
    assert found(contents) == ([(*expected, name)] if expected else [])


def test_the_width_of_rows_counts_in_every_architecture() -> None:
    contents = generic("deepseek2", range(2), (2,), block_count=3, nextn_predict_layers=1)
    assert found(with_type(contents, "blk.0.attn_q.weight", Q8_0)) == [(ERROR, "tensor-rows", "blk.0.attn_q.weight")]


@pytest.mark.parametrize(("family", "block"), [(STEP, 3), (QWEN, 3)])
def test_queries_keys_and_values_in_one_piece(family: str, block: int) -> None:
    contents = planned(family)
    parts = [f"blk.{block}.attn_{part}.weight" for part in "qkv"]
    rows = sum(contents.tensors[part].ne[1] for part in parts)
    fused = with_tensor(without(contents, *parts), f"blk.{block}.attn_qkv.weight", (128, rows))
    assert found(fused) == []
    narrow = with_tensor(fused, f"blk.{block}.attn_qkv.weight", (128, rows - 1))
    assert found(narrow) == [(ERROR, "tensor-shape", f"blk.{block}.attn_qkv.weight")]


def test_gate_and_up_experts_in_one_piece() -> None:
    contents = planned(QWEN)
    gate, up = (f"blk.2.ffn_{part}_exps.weight" for part in ("gate", "up"))
    width, rows, experts = contents.tensors[gate].ne
    fused = with_tensor(without(contents, gate, up), "blk.2.ffn_gate_up_exps.weight", (width, 2 * rows, experts))
    assert found(fused) == []
    # step35 and glm5-next have no such form.
    contents = planned(STEP)
    gate, up = (f"blk.3.ffn_{part}_exps.weight" for part in ("gate", "up"))
    fused = with_tensor(without(contents, gate, up), "blk.3.ffn_gate_up_exps.weight", (128, 2, 8))
    assert (ERROR, "tensor-unexpected", "blk.3.ffn_gate_up_exps.weight") in found(fused)


def test_scales_and_biases_beside_weights_are_read() -> None:
    contents = with_tensor(planned(STEP), "blk.3.ffn_up_exps.scale", (8,))
    assert found(with_tensor(contents, "blk.3.attn_q.bias", (128,))) == []
    assert found(with_tensor(contents, "blk.3.nothing.scale", (1,)))[0][:2] == (ERROR, "tensor-unexpected")
    # A head's is asked for only where heads are loaded.
    name = "blk.8.nextn.eh_proj.scale"
    assert found(with_tensor(planned(QWEN), name, (1,))) == [(ERROR, "tensor-unexpected", name)]
    assert found(with_tensor(planned(QWEN, MTP), name, (1,))) == []


def test_case_v20_arrays_say_that_a_head_is_another_kind_of_layer() -> None:
    """The head's entry of an array was padded: the shape of its queries tells."""
    heads = [int(n) for n in planned(STEP).keys["step35.attention.head_count"].items]
    contents = with_array(planned(STEP), "attention.head_count", [*heads[:5], heads[0], *heads[6:]])
    names = {f"blk.5.{name}.weight" for name in ("attn_q", "attn_output", "attn_gate")}
    assert set(found(contents)) == {(ERROR, "tensor-shape", name) for name in names}


def test_a_trunk_with_a_head_that_no_key_counts() -> None:
    contents = taking(planned(STEP, TRUNK), planned(STEP), "blk.5.")
    assert found(contents) == [(ERROR, "head-not-declared", "nextn_predict_layers")]


def test_keys_that_do_not_tell_are_not_guessed() -> None:
    """Without the key no shape that depends on it is judged, and no tensor is called unexpected."""
    for family in FAMILIES:
        for key in list(planned(family).keys):
            rules = {rule for _, rule, _ in found(without_keys(planned(family), key))}
            assert not rules & {"tensor-shape", "tensor-unexpected", "tensor-missing"}, (family, key)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS.values() if fault.note == OPTIONAL], ids=lambda f: f.id)
def test_the_table_says_what_llama_cpp_does_without_a_tensor(fault: Fault) -> None:
    """Real llama.cpp answers as the table of faults says; step35's own table said "wrong" of some that abort."""
    base = planned(STEP)
    (name,) = base.tensors.keys() - edited(base, fault.edit).tensors.keys()
    crashes = any(answer.outcome in (Outcome.ABORTS, Outcome.SEGFAULTS) for answer in (fault.main, fault.draft))
    effect = "loads and aborts when it computes" if crashes else "loads and computes something else"
    assert effect in message(without(base, name), "tensor-missing")


def test_one_wrong_key_is_one_finding() -> None:
    """A wrong width gave one finding for each tensor of each block, and hid everything else."""
    contents = with_number(planned(STEP), "expert_feed_forward_length", 65)
    (only,) = [finding for finding in examine(contents)[1] if finding.rule == "tensor-shape"]
    assert (only.severity, only.subject) == (Severity.ERROR, "blk.2.ffn_gate_exps.weight")
    assert "and 8 more tensors with other dimensions: " in only.message
    assert "wrong key" in str(only.remedy)
