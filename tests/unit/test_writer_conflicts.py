"""Two processes that write the same files, and sources that fail while they are read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_plan
from interrupted import hashes
from tiny_plan import NAMES, interrupted

from nextn.convert.plan import Plan
from nextn.convert.writer import write_plan
from nextn.gguf_schema.errors import InputError, NextnError, UsageError

JOURNAL = "toy.gguf.journal"
Written = Callable[[], list[str]]


def test_a_second_process_is_refused(plan: Plan, whole: dict[str, str], tmp_path: Path) -> None:
    """By the journal, and by the partial file when it writes other files beside it."""
    out = tmp_path / "out"
    sidecar = Plan(plan.files[1:], plan.payload)
    refused = []

    def another(_: int) -> None:
        for other in (plan, sidecar):
            with pytest.raises(UsageError) as caught:
                write_plan(other, out)
            refused.append((caught.value.code, str(caught.value.subject)))

    write_plan(plan, out, progress=another)
    assert set(refused) == {
        ("in-use", str(out / JOURNAL)),
        ("in-use", str(out / "shared" / "toy.gguf.partial")),
    }
    assert hashes(out) == whole


def test_a_refused_run_leaves_the_journal_of_another(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    interrupted(plan, out, monkeypatch)
    before = hashes(out)
    (out / "shared" / "toy.gguf").write_bytes(b"precious")
    os.utime(tmp_path / "source")
    with pytest.raises(UsageError):
        write_plan(tiny_plan.tiny_plan(tmp_path / "source"), out)
    (out / "shared" / "toy.gguf").unlink()
    assert hashes(out) == before


# --- sources that fail


@pytest.mark.parametrize("failure", ["EIO", "shrunk"])
def test_a_source_that_fails(
    failure: str,
    plan: Plan,
    whole: dict[str, str],
    written: Written,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, source = tmp_path / "out", tmp_path / "source"
    size = source.stat().st_size // 4
    pread = os.pread

    def failing(descriptor: int, length: int, offset: int) -> bytes:
        if length == size and offset == 3 * size:
            if failure == "EIO":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            length //= 2
            return pread(descriptor, length, offset) if offset == 3 * size else b""
        return b"" if offset > 3 * size else pread(descriptor, length, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", failing)
        with pytest.raises(InputError) as caught:
            write_plan(plan, out, jobs=1)
    error: NextnError = caught.value
    assert (error.code, error.subject) == ("read-error" if failure == "EIO" else "truncated", str(source))
    assert f"byte {3 * size if failure == 'EIO' else 3 * size + size // 2}" in error.message
    assert not list(out.rglob("*.gguf"))
    written()
    write_plan(plan, out)
    assert written() == NAMES[3:]
    assert hashes(out) == whole
