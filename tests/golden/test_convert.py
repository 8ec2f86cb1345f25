"""Converted files are tensor for tensor and key for key what the upstream converter writes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, FamilyFixture

from nextn.convert.pipeline import convert
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Value
from nextn.gguf_schema.shards import GGUFFile, open_gguf

# These depend on the folder's name, on the size of the file or on the generation configuration.
LOOSE = ("general.name", "general.size_label", "general.sampling.", "general.basename", "nextn.")
GOLDEN_ROLES = (Role.COMBINED, Role.TRUNK, Role.MTP)
OUTTYPES = ("f32", "f16", "bf16", "q8_0")


@pytest.fixture(scope="module", params=[(family, outtype) for family in FAMILIES for outtype in OUTTYPES], ids="-".join)
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    name, outtype = request.param
    family = FAMILIES[name]
    done = convert(family.checkpoint, tmp_path_factory.mktemp(f"{name}-{outtype}"), tuple(Role), outtype)
    return family, outtype, {output.role: open_gguf(output.path) for output in done.outputs}


@pytest.mark.parametrize("role", GOLDEN_ROLES)
def test_tensors_equal_upstream(converted: tuple[FamilyFixture, str, dict[Role, GGUFFile]], role: Role) -> None:
    family, outtype, files = converted
    golden = family.read(f"gguf/{role}-{outtype}.json")["tensors"]
    ours = [
        {
            "name": tensor.name,
            "ne": list(tensor.ne),
            "type": tensor.type.name,
            "sha256": hashlib.sha256(files[role].read_tensor(tensor.name)).hexdigest(),
        }
        for tensor in files[role].contents
    ]
    assert ours == golden


@pytest.mark.parametrize("role", GOLDEN_ROLES)
def test_keys_equal_upstream(converted: tuple[FamilyFixture, str, dict[Role, GGUFFile]], role: Role) -> None:
    family, outtype, files = converted
    golden = [key for key in family.read(f"gguf/{role}-{outtype}.json")["keys"] if not key["key"].startswith(LOOSE)]
    ours = [
        {"key": key, "type": value.type_name} | _value(value, family)
        for key, value in files[role].contents.keys.items()
        if not key.startswith(LOOSE)
    ]
    assert ours == golden


def _value(value: Value, family: FamilyFixture) -> dict[str, Any]:
    if value.element is None:
        return {"value": value.value}
    items = list(value.items)
    if len(items) <= 64:
        return {"value": items}
    text = json.dumps(items, separators=(",", ":"), ensure_ascii=family.ascii_hashes)
    return {"len": len(items), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def test_shared_sidecar_is_the_head_without_the_two_matrices(
    converted: tuple[FamilyFixture, str, dict[Role, GGUFFile]],
) -> None:
    _, _, files = converted
    mtp, shared = files[Role.MTP], files[Role.MTP_SHARED]
    assert set(mtp.contents.tensors) - set(shared.contents.tensors) == {"token_embd.weight", "output.weight"}
    assert all(shared.read_tensor(name) == mtp.read_tensor(name) for name in shared.contents.tensors)
    assert shared.contents.keys["nextn.shared"].value is True
    without_marks = {k: v for k, v in shared.contents.keys.items() if not k.startswith("nextn.")}
    assert without_marks.keys() == mtp.contents.keys.keys()


def test_every_file_holds_the_same_bytes_of_a_tensor(
    converted: tuple[FamilyFixture, str, dict[Role, GGUFFile]],
) -> None:
    """Case C21: a combined and a trunk file of one source have bit-equal trunk tensors; heads likewise."""
    _, _, files = converted
    combined = files[Role.COMBINED]
    for file in files.values():
        assert all(file.read_tensor(name) == combined.read_tensor(name) for name in file.contents.tensors)


def test_two_runs_give_the_same_bytes(tmp_path: Path) -> None:
    family = FAMILIES["step35"]
    first, second = (
        convert(family.checkpoint, tmp_path / name, tuple(Role), "q8_0").outputs for name in ("first", "second")
    )
    assert [a.path.read_bytes() for a in first] == [b.path.read_bytes() for b in second]
