"""Cases of real users about single tensors: what was said of them, or should have been."""

from __future__ import annotations

from edited_contents import ERROR, GLM, MTP, QWEN, STEP, examine, found, message, planned, with_tensor, without

from nextn.gguf_schema.types import TENSOR_TYPES


def test_case_v17_a_head_without_an_output_borrows_the_targets() -> None:
    name = "blk.6.nextn.shared_head_head.weight"
    assert "borrows the target's output.weight" in message(without(planned(STEP), name), "tensor-missing")


def test_case_v03_a_dense_matrix_in_a_block_with_experts() -> None:
    name = "blk.2.ffn_up.weight"
    contents = with_tensor(planned(GLM), name, (128, 256))
    assert found(contents) == [(ERROR, "tensor-unexpected", name)]
    assert "this block is MoE, and has no dense network" in message(contents, "tensor-unexpected")


def test_case_s03_a_layout_that_nothing_leads_out_of() -> None:
    mixer = (f"blk.8.nextn.hc_head_{part}.weight" for part in ("norm", "down", "up"))
    contents = without(planned(QWEN, MTP), *mixer)
    contents = with_tensor(contents, "blk.8.nextn.shared_head_norm.weight", (128,))
    remedies = {finding.remedy for finding in examine(contents)[1] if finding.rule.startswith("tensor-")}
    assert remedies == {
        "the file is in the layout unsloth-draft: make the head again from its checkpoint: nextn convert"
    }


def test_case_v18_a_packed_matrix_of_half_the_width() -> None:
    name = "blk.5.nextn.eh_proj.weight"
    wrong = [(ERROR, "tensor-type", name)]
    assert found(with_tensor(planned(STEP), name, (128, 128), TENSOR_TYPES["I8"])) == [
        *wrong,
        (ERROR, "tensor-shape", name),
    ]
    assert found(with_tensor(planned(STEP), name, (256, 128), TENSOR_TYPES["I8"])) == wrong, "and of the same shape"
