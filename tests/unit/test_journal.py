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

from nextn.convert import journal, output
from nextn.convert.output import Output
from nextn.convert.plan import Plan
from nextn.convert.writer import write_plan
from nextn.gguf_schema.errors import InputError, UsageError, VerdictError

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
    [
        (b'{"done": "tens', 2),
        (b"\0" * 100, 2),
        (b'[]\n{"done": "tensor.2"}\n', 2),
        (b'{"done": "tensor.2"}', 2),
        (b'{"done": ["tensor.2"]}\n', 2),
        (b'{"done": "tensor.2", "sha256": 1}\n', 2),
        (b'{"fingerprint": "x"}\n', 2),
        (b"[" * 200_000 + b"\n", 2),
        (b'{"published": 1}\n', 2),
    ],
    ids=lambda value: str(value)[:40],
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


@pytest.mark.parametrize("options", ["same", "others"])
def test_a_run_tells_whether_it_continues(
    options: str, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of another plan is no use to this one; it does not go without a word."""
    told: list[str] = []
    out = tmp_path / "out"
    interrupted(plan, out, monkeypatch)
    if options == "others":
        plan = Plan(plan.files[:1], plan.payload)
    write_plan(plan, out, notice=told.append)
    (line,) = told
    if options == "same":
        assert line == "continuing: 2 of 4 tensors are there"
    else:
        assert line.startswith("starting over: ")
        assert str(out / "toy.gguf.partial") in line
    write_plan(plan, tmp_path / "fresh", notice=told.append)
    assert len(told) == 1


def test_an_old_file_is_not_taken_for_the_lost_new_one(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file has the same header: only what the journal saw getting its name counts."""
    source, out = tmp_path / "source", tmp_path / "out"
    write_plan(plan, out)
    source.write_bytes(bytes(source.stat().st_size))
    plan = tiny_plan.tiny_plan(source)
    monkeypatch.setattr(Output, "publish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_plan(plan, out, overwrite=True)
    monkeypatch.undo()
    (out / "toy.gguf.partial").unlink()
    with pytest.raises(UsageError) as caught:
        write_plan(plan, out)
    assert caught.value.code == "output-exists"
    write_plan(plan, out, overwrite=True)
    write_plan(plan, tmp_path / "new")
    assert hashes(out) == hashes(tmp_path / "new")


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_overwriting_goes_on_when_both_names_are_on_one_file(
    plan: Plan, whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_plan(plan, out)
    assert (out / "toy.gguf.partial").samefile(out / "toy.gguf")
    write_plan(plan, out, overwrite=True)
    assert hashes(out) == whole


# --- read back


def failing(*_: object) -> None:
    raise InputError("too-long", "4201 keys")


def test_a_file_that_cannot_be_read_back_is_never_published(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(output, "read_header", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_plan(plan, out)
    monkeypatch.setattr(output, "read_header", failing)
    for _ in range(2):  # the first one continues after the header was written, the second one starts anew
        with pytest.raises(VerdictError) as caught:
            write_plan(plan, out)
        assert caught.value.code == "not-as-planned"
        assert "4201 keys" in caught.value.message
        assert hashes(out) == {}
