"""Where the output matrix comes from: its own, the embeddings, or the target of a shared sidecar."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from checkpoints import finding, model, planned, refusal, rules
from families import FAMILIES

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.nextn_generic import TIED_OUTPUT
from nextn.validators.examine import examine_contents
from nextn.validators.findings import Severity
from nextn.validators.forecast import forecast

if TYPE_CHECKING:
    from pathlib import Path

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)


@EACH_FAMILY
def test_no_output_matrix_and_no_tie(family: str, tmp_path: Path) -> None:
    """Case C30: stops and offers --tie."""
    copy = model(family)
    copy.drop("^lm_head")
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("no-output", "lm_head.weight")
    assert "--tie" in str(error.remedy)


@EACH_FAMILY
@pytest.mark.parametrize("how", ["option", "root", "text"])
def test_a_tied_output(family: str, how: str, tmp_path: Path) -> None:
    """Where loaders demand an output matrix the embeddings are copied; qwen4exp's ties by itself."""
    copy = model(family)
    copy.drop("^lm_head")
    copy.config["tie_word_embeddings"] = how == "root"
    copy.text["tie_word_embeddings"] = how == "text"
    plan = planned(copy.write(tmp_path), tie=how == "option")
    sources = {payload.info.name: payload.recipe.sources for payload in plan.payload}
    tensors = {file.role: {tensor.name for tensor in file.tensors} for file in plan.files}
    if family == "qwen4exp":
        assert not any("output.weight" in names for names in tensors.values())
        assert len(tensors[Role.MTP]) == 33
    else:
        assert sources["output.weight"] == sources["token_embd.weight"]
        assert [role for role in Role if "output.weight" in tensors[role]] == [Role.COMBINED, Role.TRUNK, Role.MTP]
    assert "output.weight" in finding(plan, "tied-output")


@EACH_FAMILY
def test_an_output_matrix_that_is_there_is_used(family: str, tmp_path: Path) -> None:
    copy = model(family)
    copy.config["tie_word_embeddings"] = True
    plan = planned(copy.write(tmp_path), tie=True)
    (output,) = [payload for payload in plan.payload if payload.info.name == "output.weight"]
    assert [source.name for source in output.recipe.sources] == ["lm_head.weight"]
    assert "tied-output" not in rules(plan)


@EACH_FAMILY
def test_a_shared_sidecar_borrows_the_output(family: str, tmp_path: Path) -> None:
    copy = model(family)
    copy.drop("^lm_head")
    plan = planned(copy.write(tmp_path), Role.MTP_SHARED)
    assert "output.weight" not in {tensor.name for tensor in plan.files[0].tensors}


def test_an_output_matrix_in_a_missing_file_is_not_tied(tmp_path: Path) -> None:
    """The index knows it: tying would lose it."""
    copy = model("step35")
    copy.tensors["lm_head.weight"] = copy.tensors["lm_head.weight"]._replace(part="head.safetensors")
    copy.without = {"head.safetensors"}
    error = refusal(copy.write(tmp_path), tie=True)
    assert (error.code, error.subject) == ("missing-tensors", "head.safetensors")
    assert "lm_head.weight" in error.message


def test_a_tied_file_says_so_and_is_valid(tmp_path: Path) -> None:
    """Our own validator called the output matrix missing in what our converter had made of a tied model."""
    copy = model("qwen4exp")
    copy.drop("^lm_head")
    copy.config["tie_word_embeddings"] = True
    for file in planned(copy.write(tmp_path)).files:
        found = examine_contents(file.contents).findings
        tied = TIED_OUTPUT in file.contents.keys
        assert tied is (file.role is not Role.MTP_SHARED)
        notes = [(f.severity, f.subject) for f in found if f.rule == "tensor-missing"]
        assert notes == ([(Severity.NOTE, "output.weight")] if tied else [])
        assert not any(f.severity is Severity.ERROR for f in found)
        assert not any("output.weight" in row.message for row in forecast(file.contents) if tied)
        unsaid = replace(file.contents, keys={k: v for k, v in file.contents.keys.items() if k != TIED_OUTPUT})
        errors = [f.subject for f in examine_contents(unsaid).findings if f.severity is Severity.ERROR]
        assert errors == (["output.weight"] if tied else [])


@EACH_FAMILY
def test_a_file_with_an_output_matrix_is_not_called_tied(family: str, tmp_path: Path) -> None:
    plan = planned(model(family).write(tmp_path))
    assert not any(TIED_OUTPUT in file.contents.keys for file in plan.files)
