"""Two processes that write the same files, and sources that fail while they are read."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import tiny_plan
from interrupted import hashes
from tiny_plan import NAMES, interrupted

from nextn.convert.linked import Linked
from nextn.convert.plan import Payload, Plan, PlannedFile, plan_file
from nextn.convert.preflight import make_way
from nextn.convert.source_tensor import SourceTensor
from nextn.convert.transforms import copy
from nextn.convert.writer import write_plan
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import LocalFile, TensorInfo, string
from nextn.gguf_schema.errors import InputError, NextnError, UsageError
from nextn.gguf_schema.types import F32

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


# --- names that unfinished work gets


@pytest.mark.parametrize("name", ["toy.gguf.partial", "toy.gguf.journal", "m.json.partial", "m.json", "toy.gguf"])
@pytest.mark.parametrize("how", ["named", "linked"])
def test_no_name_may_be_an_input(name: str, how: str, plan: Plan, tmp_path: Path) -> None:
    """Whatever their names are, the sources are inputs too."""
    out = tmp_path / "out"
    out.mkdir()
    source = tmp_path / "source"
    before = source.read_bytes()
    if how == "named":
        plan = tiny_plan.tiny_plan(source.rename(out / name))
    else:
        os.link(source, out / name)
    for overwrite in (False, True):
        with pytest.raises(UsageError) as caught:
            write_plan(plan, out, overwrite=overwrite, beside=[out / "m.json"])
        assert (caught.value.code, caught.value.subject) == ("output-is-input", str(out / name))
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {name: before}


@pytest.mark.parametrize(
    "manifest", ["toy.gguf.partial", "toy.gguf.journal", "shared/toy.gguf.partial", "shared", "toy.gguf/m.json"]
)
def test_no_two_files_get_one_name(manifest: str, plan: Plan, tmp_path: Path) -> None:
    for overwrite in (False, True):
        with pytest.raises(UsageError) as caught:
            write_plan(plan, tmp_path / "out", overwrite=overwrite, beside=[tmp_path / "out" / manifest])
        assert caught.value.code == "same-output"
    assert not (tmp_path / "out").exists()


def test_the_partial_file_of_a_manifest_is_no_output(plan: Plan, tmp_path: Path) -> None:
    file = replace(plan.files[0], path=PurePosixPath("a.partial"))
    with pytest.raises(UsageError) as caught:
        write_plan(replace(plan, files=(file,)), tmp_path, beside=[tmp_path / "a"])
    assert caught.value.code == "same-output"


@pytest.mark.parametrize("name", ["toy.gguf.partial", "toy.gguf.journal", "m.json.partial"])
@pytest.mark.parametrize("kind", ["text", "link"])
def test_files_of_others_are_kept_unless_asked(name: str, kind: str, plan: Plan, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    out.mkdir()
    other.write_text("precious")
    if kind == "text":
        (out / name).write_text("precious")
    else:
        (out / name).symlink_to(other)
    with pytest.raises(UsageError) as caught:
        write_plan(plan, out, beside=[out / "m.json"])
    assert (caught.value.code, caught.value.subject) == ("not-ours", str(out / name))
    assert [path.name for path in out.iterdir() if path.is_file()] == [name]
    assert (out / name).read_text() == "precious"
    if kind == "text":
        write_plan(plan, out, overwrite=True, beside=[out / "m.json"])
    else:
        with pytest.raises(InputError):
            write_plan(plan, out, overwrite=True, beside=[out / "m.json"])
    assert other.read_text() == "precious"


def test_what_is_written_beside_is_looked_at_when_all_else_is_done(plan: Plan, tmp_path: Path) -> None:
    """And its name is tried before the work."""
    out = tmp_path / "out"

    def full(_: object) -> None:
        raise InputError("no-space", "the disk is full")

    with pytest.raises(InputError):
        write_plan(plan, out, beside=[out / "m.json"], finish=full)
    (out / "mine.json").write_text("precious")
    with pytest.raises(UsageError) as caught:
        write_plan(plan, out, beside=[out / "mine.json"])
    assert (caught.value.code, caught.value.subject) == ("output-exists", str(out / "mine.json"))
    write_plan(plan, out, beside=[out / "new" / "m.json"], finish=lambda _: (out / "new" / "m.json").write_text(""))
    with pytest.raises(InputError) as failed:
        write_plan(plan, tmp_path / "fresh", beside=[tmp_path / ("m" * 250)])
    assert failed.value.code == "write-error"
    assert hashes(tmp_path / "fresh") == {}


def test_more_files_than_may_be_open(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 60))
    with pytest.raises(InputError) as caught:
        write_plan(plan, tmp_path / "out")
    assert caught.value.code == "too-many-files"
    assert not (tmp_path / "out").exists()
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    write_plan(plan, tmp_path / "out")
    assert raised == [(67, 1000)]


# --- sources that fail


def scaled(source: Path, scales: Path) -> Plan:
    """One FP8 tensor, with its scale in a file of its own."""
    source.write_bytes(bytes(64 * 64))
    scales.write_bytes(np.ones(1, "<f4").tobytes())
    return scaled_by(source, scales)


def scaled_by(source: Path, scales: Path) -> Plan:
    """The same of files that are there."""
    scale = SourceTensor("scale", "F32", (1, 1), LocalFile(scales), 0)
    weight = SourceTensor("weight", "F8_E4M3", (64, 64), LocalFile(source), 0, scale, (64, 64))
    info = TensorInfo("t", (64, 64), F32, F32.tensor_bytes((64, 64)))
    file = plan_file(Role.COMBINED, PurePosixPath("toy.gguf"), {"general.architecture": string("toy")}, [info])
    return Plan((file,), (Payload(info, copy(weight)),))


def test_a_scale_that_changes_is_seen(tmp_path: Path) -> None:
    scales = tmp_path / "scales"
    plan = scaled(tmp_path / "weights", scales)
    assert scales in plan.protected
    status = scales.stat()
    scales.write_bytes(np.float32(7).tobytes())
    # The time of the last change of the file's record cannot be set.
    os.utime(scales, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(InputError) as caught:
        write_plan(plan, tmp_path / "out")
    assert (caught.value.code, caught.value.subject) == ("source-changed", str(scales))
    assert hashes(tmp_path / "out") == {}


def test_a_link_to_a_source_is_no_change(tmp_path: Path) -> None:
    """Surgery links shards that stay as they are, perhaps while another command reads them."""
    scales = tmp_path / "scales"
    plan = scaled(tmp_path / "weights", scales)
    before = plan.fingerprint
    (tmp_path / "link").hardlink_to(scales)
    write_plan(plan, tmp_path / "out")
    assert scaled_by(tmp_path / "weights", scales).fingerprint == before, "and unfinished work is continued"


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


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    """Nor a device: `-o /dev/null --overwrite` would have made a file of it."""
    pipe = tmp_path / "out.gguf"
    os.mkfifo(pipe)
    with pytest.raises(UsageError) as caught:
        make_way([pipe], overwrite=True)
    assert caught.value.code == "output-not-file"
    assert pipe.is_fifo()


def test_a_link_leads_to_the_file_that_was_read(tmp_path: Path) -> None:
    """A shard that was replaced meanwhile would have been linked unread."""
    source, other = tmp_path / "in.gguf", tmp_path / "other.gguf"
    source.write_bytes(b"read")
    other.write_bytes(b"else")
    file = PlannedFile(None, PurePosixPath("out.gguf"), {}, (), b"read", 0, same_as=LocalFile(source))
    linked = Linked(file, tmp_path / "out.gguf", LocalFile(source))
    other.replace(source)
    with pytest.raises(InputError) as caught:
        linked.finish({})
    assert caught.value.code == "source-changed"
    assert not (tmp_path / "out.gguf.partial").exists()
