"""docs/identity.md names everything that a certificate may say."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
from families import ROOT

from nextn.runtime.engines.choice import ENGINES
from nextn.runtime.engines.engine import Status
from nextn.runtime.identity import certificate
from nextn.runtime.identity.matrix_file import read_matrix
from nextn.runtime.identity.report.words import CAUSES, VERDICTS

TEXT = (ROOT / "docs" / "identity.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([^`\n]+)`", TEXT))
RECORDS = (
    certificate.Certificate,
    certificate.EngineRecord,
    certificate.PromptRecord,
    certificate.RunRecord,
    certificate.AggregateRecord,
    certificate.FileRecord,
)


@pytest.mark.parametrize("record", RECORDS)
def test_every_key_is_described(record: type) -> None:
    assert {each.metadata.get("key", each.name) for each in fields(record)} - NAMED == set()


def test_every_verdict_and_cause_is_described_there_and_on_the_page() -> None:
    assert set(VERDICTS) == set(get_args(certificate.Verdict))
    assert set(CAUSES) == set(get_args(certificate.Cause))
    assert {*VERDICTS, *CAUSES, *get_args(Status)} - NAMED == set()


def test_every_engine_is_described() -> None:
    assert [prefix for prefix, *_ in ENGINES if not any(name.startswith(prefix) for name in NAMED)] == ["https://"]


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", TEXT)
    assert links != []
    assert [link for link in links if not (ROOT / "docs" / link).is_file()] == []


def test_its_matrix_is_one(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "matrix.toml").write_text(*blocks, encoding="utf-8")
    cells = read_matrix(tmp_path / "matrix.toml")
    assert len(cells) == 2 * 2 * 4  # types, engines, draft lengths
    assert {cell.n_max for cell in cells} == {(1,), (2,), (3,), (1, 2, 3, 5)}
    assert {cell.model.name for cell in cells} == {"step-F32.gguf", "step-Q8_0.gguf"}
