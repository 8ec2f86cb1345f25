"""The `general.*` keys equal what the upstream converter writes for a checkpoint with a model card."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from nextn.convert.metadata import ModelDescription, file_name, read_description
from nextn.gguf_schema.contents import TensorInfo, Value
from nextn.gguf_schema.types import F32

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
STEP35 = FIXTURES / "step35-tiny"
RUNS: list[dict[str, Any]] = json.loads((STEP35 / "golden" / "model_card.json").read_text(encoding="utf-8"))["runs"]
# Written elsewhere: they follow the tensors' types, and stand among the architecture's keys.
NOT_HERE = {"general.file_type", "general.quantization_version"}
Entry = tuple[str, str, Any]


def tensors(path: Path) -> list[TensorInfo]:
    described = json.loads(path.read_text(encoding="utf-8"))["tensors"]
    return [TensorInfo(t["name"], tuple(t["ne"]), F32, 0) for t in described]


def entry(key: str, value: Value) -> Entry:
    """A key as the goldens hold it: a FLOAT32 is what is left after storing it."""
    if value.type_name == "FLOAT32":
        return key, value.type_name, struct.unpack("<f", struct.pack("<f", value.value))[0]
    return key, value.type_name, value.value if value.element is None else list(value.items)


def expected(keys: list[dict[str, Any]]) -> list[Entry]:
    return [
        (k["key"], k["type"], k["value"]) for k in keys if k["key"].startswith("general.") and k["key"] not in NOT_HERE
    ]


def described(run: dict[str, Any], tmp_path: Path) -> ModelDescription:
    folder = tmp_path / run["directory"]
    folder.mkdir()
    for name in ("config.json", "generation_config.json"):
        shutil.copy(ROOT / "nextn" / "demo" / "step35-tiny" / name, folder)
    shutil.copy(STEP35 / "card" / "README.md", folder)
    overrides = None
    if "override" in run:
        overrides = tmp_path / "override.json"
        overrides.write_text(json.dumps(run["override"]), encoding="utf-8")
    arguments = run["arguments"]
    model_name = arguments[arguments.index("--model-name") + 1] if "--model-name" in arguments else None
    return read_description(folder, model_name=model_name, overrides_file=overrides)


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_keys_equal_upstream(run: dict[str, Any], tmp_path: Path) -> None:
    description = described(run, tmp_path)
    keys = description.general_keys("step35", tensors(STEP35 / "golden" / "gguf" / "combined-f32.json"))
    assert [entry(key, value) for key, value in keys.items()] == expected(run["keys"])
    assert description.findings == ()


@pytest.mark.parametrize("run", [run for run in RUNS if "default_file_name" in run], ids=lambda run: run["directory"])
def test_default_file_name_equals_upstream(run: dict[str, Any], tmp_path: Path) -> None:
    stem = described(run, tmp_path).stem()
    assert file_name("combined", stem, "f32") == run["default_file_name"]


@pytest.mark.parametrize("export", ["combined", "trunk", "mtp"])
@pytest.mark.parametrize(
    ("name", "architecture", "folder"),
    [
        ("step35-tiny", "step35", ROOT / "nextn" / "demo" / "step35-tiny"),
        ("qwen4exp-tiny", "qwen4exp", FIXTURES / "qwen4exp-tiny" / "checkpoint"),
        ("glm5-next-tiny", "glm5-next", FIXTURES / "glm5-next-tiny" / "checkpoint"),
    ],
)
def test_keys_of_each_export_equal_upstream(name: str, architecture: str, folder: Path, export: str) -> None:
    path = FIXTURES / name / "golden" / "gguf" / f"{export}-f32.json"
    keys = read_description(folder).general_keys(architecture, tensors(path))
    golden = json.loads(path.read_text(encoding="utf-8"))["keys"]
    assert [entry(key, value) for key, value in keys.items()] == expected(golden)
