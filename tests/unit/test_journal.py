"""What a journal and the partial files of an earlier run are worth."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_plan
from interrupted import hashes
from tiny_plan import NAMES, interrupted

from nextn.convert import journal
from nextn.convert.plan import Plan
from nextn.convert.writer import write_plan
from nextn.gguf_schema.errors import UsageError

JOURNAL = "toy.gguf.journal"
Written = Callable[[], list[str]]


def edited(out: Path, edit: Callable[[list[dict[str, Any]]], Any]) -> None:
    path = out / JOURNAL
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = edit(lines) or lines
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_continues(
    plan: Plan, whole: dict[str, str], written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(plan, tmp_path / "out", monkeypatch)
    written()
    write_plan(plan, tmp_path / "out")
    assert written() == NAMES[2:]
    assert hashes(tmp_path / "out") == whole


@pytest.mark.parametrize(
    ("torn", "redone"),
    [(b'{"done": "tens', 2), (b"\0" * 100, 2), (b'[]\n{"done": "tensor.2"}\n', 2), (b'{"done": "tensor.2"}', 2)],
)
def test_a_torn_line_ends_a_journal(
    torn: bytes,
    redone: int,
    plan: Plan,
    whole: dict[str, str],
    written: Written,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    interrupted(plan, out, monkeypatch)
    with (out / JOURNAL).open("ab") as file:
        file.write(torn)
    # A second run adds to the journal behind what counts, so that a third one can read it.
    interrupted(plan, out, monkeypatch, after=1)
    written()
    write_plan(plan, out)
    assert written() == NAMES[redone + 1 :]
    assert hashes(out) == whole


def of_another_plan(lines: list[dict[str, Any]]) -> None:
    lines[0]["fingerprint"] = "0" * 64


def without_beginning(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*lines[1:], {"synced": True}]


def of_another_boot(lines: list[dict[str, Any]]) -> None:
    lines[0]["boot"] = "0" * 36


def of_another_boot_synced(lines: list[dict[str, Any]]) -> None:
    lines[0]["boot"] = "0" * 36
    lines.insert(2, {"synced": True})


def of_two_boots(lines: list[dict[str, Any]]) -> None:
    """Tensor 0 was written before the machine went down, tensor 1 after that."""
    lines.insert(2, dict(lines[0]))
    lines[0]["boot"] = "0" * 36


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (of_another_plan, NAMES),
        (without_beginning, NAMES),
        (of_another_boot, NAMES),
        (of_another_boot_synced, NAMES[1:]),
        (of_two_boots, ["tensor.0", *NAMES[2:]]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_journal_is_worth(
    edit: Any,
    expected: list[str],
    plan: Plan,
    whole: dict[str, str],
    written: Written,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    interrupted(plan, out, monkeypatch)
    edited(out, edit)
    written()
    write_plan(plan, out)
    assert written() == expected
    assert hashes(out) == whole


def test_without_a_boot_id_only_what_is_synced_counts(
    plan: Plan, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BOOT_ID", tmp_path / "nowhere")
    interrupted(plan, tmp_path / "out", monkeypatch)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    written()
    write_plan(plan, tmp_path / "out")
    assert written() == NAMES


@pytest.mark.parametrize("change", ["time", "size", "name"])
def test_changed_sources_start_over(
    change: str, plan: Plan, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, source = tmp_path / "out", tmp_path / "source"
    interrupted(plan, out, monkeypatch)
    if change == "time":
        os.utime(source, ns=(0, source.stat().st_mtime_ns + 1))
    elif change == "size":
        status = source.stat()
        os.truncate(source, status.st_size + 4)
        os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        source = source.rename(tmp_path / "another")
    written()
    write_plan(tiny_plan.tiny_plan(source), out)
    assert written() == NAMES


@pytest.mark.parametrize("damage", ["lost", "shorter"])
def test_a_damaged_partial_file_starts_over(
    damage: str, plan: Plan, whole: dict[str, str], written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    interrupted(plan, out, monkeypatch)
    partial = out / "shared" / "toy.gguf.partial"
    if damage == "lost":
        partial.unlink()
    else:
        os.truncate(partial, 100)
    written()
    write_plan(plan, out)
    assert written() == NAMES
    assert hashes(out) == whole


def all_but_renamed(plan: Plan, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is written; the first file has its final name, the second has not."""

    link = os.link

    def dying(partial: Path, target: Path) -> None:
        if target.parent.name == "shared":
            raise KeyboardInterrupt
        link(partial, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", dying)
        with pytest.raises(KeyboardInterrupt):
            write_plan(plan, out)


def test_a_finished_file_counts_as_done(
    plan: Plan, whole: dict[str, str], written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    all_but_renamed(plan, out, monkeypatch)
    inode = (out / "toy.gguf").stat().st_ino
    written()
    write_plan(plan, out)
    assert written() == []
    assert (out / "toy.gguf").stat().st_ino == inode
    assert hashes(out) == whole


def test_files_that_are_gone_or_others_do_not_count(
    plan: Plan, whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    all_but_renamed(plan, out, monkeypatch)
    (out / "toy.gguf").write_bytes(b"another")
    with pytest.raises(UsageError) as caught:
        write_plan(plan, out)
    assert caught.value.code == "output-exists"
    assert (out / "toy.gguf").read_bytes() == b"another"
    (out / "toy.gguf").unlink()
    write_plan(plan, out)
    assert hashes(out) == whole


def test_an_old_file_stays_until_the_new_one_is_complete(
    plan: Plan, whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "toy.gguf").write_bytes(b"old")
    rename = Path.replace

    def looking(self: Path, target: Path) -> Path:
        assert (out / "toy.gguf").read_bytes() == b"old" or target.parent.name == "shared"
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", looking)
    write_plan(plan, out, overwrite=True)
    assert hashes(out) == whole
