"""Files that are right have no findings: planned, of real size, in shards, and those that upstream wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from edited_contents import (
    COMBINED,
    MTP,
    TRUNK,
    found,
    planned,
)
from families import FAMILIES
from real_models import MODELS

from nextn.convert.planner import Options, plan_conversion
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, TensorInfo, Value, array
from nextn.gguf_schema.types import TENSOR_TYPES, ValueType

if TYPE_CHECKING:
    from pathlib import Path

from nextn.convert.pipeline import convert
from nextn.convert.splitting import Split
from nextn.gguf_schema.shards import open_gguf

STEP, QWEN, GLM = FAMILIES
ERROR, WARNING, NOTE = "error", "warning", "note"
OUTTYPES = ("f32", "f16", "bf16", "q8_0")
Q4_0, Q4_K = TENSOR_TYPES["Q4_0"], TENSOR_TYPES["Q4_K"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("outtype", [*OUTTYPES, "q4_0", "q5_1", "auto"])
@pytest.mark.parametrize("role", Role)
def test_a_planned_file_is_clean(family: str, role: Role, outtype: str) -> None:
    assert found(planned(family, role, outtype)) == []


@pytest.mark.parametrize("model", MODELS)
def test_a_real_model_is_clean(model: str, tmp_path: Path) -> None:
    for file in plan_conversion(MODELS[model].checkpoint(tmp_path), Options(tuple(Role), "q8_0")).files:
        assert found(file.contents) == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("role", [COMBINED, TRUNK, MTP])
@pytest.mark.parametrize("outtype", OUTTYPES)
def test_upstreams_own_files_are_clean(family: str, role: Role, outtype: str) -> None:
    """Goldens hold long arrays as hashes; the tokens they stand for are those of our plan, which are the same."""
    golden = FAMILIES[family].read(f"gguf/{role}-{outtype}.json")
    assert found(_golden(golden, planned(family, role, outtype))) == []


def _golden(golden: dict[str, Any], ours: Contents) -> Contents:
    keys = {}
    for entry in golden["keys"]:
        name, type_ = entry["key"], entry["type"]
        if "value" not in entry:
            keys[name] = ours.keys[name]
        elif type_.startswith("ARRAY["):
            keys[name] = array(ValueType[type_[len("ARRAY[") : -1]], entry["value"])
        else:
            keys[name] = Value(ValueType[type_], entry["value"])
    tensors = {}
    for entry in golden["tensors"]:
        type_, ne = TENSOR_TYPES[entry["type"]], tuple(entry["ne"])
        tensors[entry["name"]] = TensorInfo(entry["name"], ne, type_, type_.tensor_bytes(ne))
    return Contents(keys, tensors, "golden")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_set_of_shards_is_clean(family: str, tmp_path: Path) -> None:
    for first in (False, True):
        options = Options(tuple(Role), "q8_0", split=Split(max_tensors=40, metadata_first=first))
        done = convert(FAMILIES[family].checkpoint, tmp_path / str(first), options=options)
        paths = {output.path for output in done.outputs}
        assert len(paths) > len(Role)
        for path in paths:
            assert found(open_gguf(path).contents) == []
