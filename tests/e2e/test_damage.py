"""The forecast of files whose container is damaged, against real llama.cpp: what is broken is never said to load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command import STEP, run
from damage import DAMAGE, LOADS, NOTE, REFUSES, SET_DAMAGE, WRONG, Damage, SetDamage

from nextn.gguf_schema.architecture import Role
from nextn.runtime.engines import llama_cpp
from nextn.validators.examine import Report, examine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Converted = Callable[[str], dict[Role, Path]]

pytest.importorskip("xllamacpp")
STATUS = {LOADS: "ok", WRONG: "ok", REFUSES: "error", "aborts": "abort"}


def foretold(report: Report, use: str = "main") -> tuple[str, str]:
    (row,) = (row for row in report.forecast if (row.runtime, row.as_) == ("llama.cpp@b11549", use))
    return row.outcome, row.message


@pytest.mark.parametrize("damage", DAMAGE, ids=[damage.name for damage in DAMAGE])
def test_a_damaged_file(damage: Damage, converted: Converted, tmp_path: Path) -> None:
    files = converted("step35")
    path = tmp_path / "m.gguf"
    path.write_bytes(damage.change(files[Role.TRUNK].read_bytes()))
    report = examine(path)
    assert (damage.rule, damage.severity) in {(finding.rule, finding.severity) for finding in report.findings}
    outcome, message = foretold(report)
    assert (outcome, damage.text in message) == (damage.outcome, True), message
    said = llama_cpp.load(path)
    assert (said.status, message in said.message) == (STATUS[damage.outcome], True), said.message


def test_a_damaged_draft(converted: Converted, tmp_path: Path) -> None:
    files = converted("step35")
    path = tmp_path / "head.gguf"
    path.write_bytes(files[Role.MTP].read_bytes()[:-1000])
    outcome, message = foretold(examine(files[Role.TRUNK], path), "paired")
    said = llama_cpp.load(files[Role.TRUNK], path)
    assert (outcome, said.status) == (REFUSES, "error")
    assert message in said.message
    assert "data is not within the file bounds" in message


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("shards")
    done = run("convert", STEP, "-o", folder, "--emit", "trunk", "--split-max-tensors", 30)
    assert done.returncode == 0, done.stderr
    paths = sorted(folder.glob("*.gguf"))
    assert len(paths) == 3
    return paths


@pytest.mark.parametrize("damage", SET_DAMAGE, ids=[damage.name for damage in SET_DAMAGE])
def test_a_damaged_set(damage: SetDamage, shards: list[Path], tmp_path: Path) -> None:
    copies = [tmp_path / path.name for path in shards]
    for path, copy in zip(shards, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    path = damage.change(copies)
    report = examine(path)
    assert {finding.rule for finding in report.findings if finding.severity != NOTE} == {damage.rule}
    said = llama_cpp.load(path)
    assert said.status == STATUS[damage.outcome]
    if damage.outcome == LOADS:
        assert report.forecast == ()  # Of such a set nothing is claimed.
        return
    outcome, message = foretold(report)
    want = damage.text.format(first=path, second=copies[1], third=copies[2])
    assert (outcome, want in message) == (damage.outcome, True), message
    if damage.outcome == REFUSES:
        assert message in said.message
