"""`nextn split`, `join` and `retype` killed at every call that changes a file, and on a disk that is full."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import surgery
from edited_contents import generic
from interrupted import Striker, calls, child, hashes
from surgery import carried_out, untouched, write

from nextn.convert.surgery.operations import Operation, plan_join, plan_retype, plan_split
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError

COMBINED, TRUNK, MTP, SHARED = Role
Converted = Callable[[str], dict[Role, Path]]


def tiny(folder: Path) -> Path:
    """A combined file of eight small tensors."""
    folder.mkdir()
    whole = generic("qwen35moe", (0,), (1,), block_count=2, nextn_predict_layers=1)
    kept = ("attn_norm.weight", "ffn_up.weight", "eh_proj.weight", "token_embd.weight", "output_norm.weight")
    tensors = {name: tensor for name, tensor in whole.tensors.items() if name.endswith(kept)}
    return write(replace(whole, tensors=tensors), folder / "whole.gguf")


def forked(operation: Operation, out: Path, how: str, at: int, log: Path) -> int:
    """Carry it out in a process that is struck: the signal that ended it, or 0."""
    process = os.fork()
    if process == 0:
        try:
            # What was written outlives the process without it, and it takes most of the time.
            os.fsync = lambda _: None  # type: ignore[assignment]
            Striker(how, at, log)
            carried_out(operation, out)
        finally:
            os._exit(0)
    _, status = os.waitpid(process, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


@pytest.mark.parametrize(("name", "how"), [("split", "kill-within"), ("join", "kill"), ("retype", "kill-after")])
def test_killed_at_every_call(name: str, how: str, tmp_path: Path) -> None:
    """No incomplete file has a final name, the inputs stay, and the same command ends as if nothing had been."""
    whole = tiny(tmp_path / "in")
    parts = surgery.split(whole, tmp_path / "in", TRUNK, MTP)
    operation = {
        "split": lambda: plan_split(whole, [TRUNK, MTP, SHARED]),
        "join": lambda: plan_join(parts[TRUNK], parts[MTP], Path("j.gguf")),
        "retype": lambda: plan_retype(whole, Path("r.gguf"), surgery.type_of("f16")),
    }[name]()
    log = tmp_path / "log"
    assert forked(operation, tmp_path / "whole", how, -1, log) == 0
    expected, count = hashes(tmp_path / "whole"), len(calls(log))
    assert count > 6
    with untouched(tmp_path / "in"):
        for at in range(count):
            out = tmp_path / str(at)
            assert forked(operation, out, how, at, log) == signal.SIGKILL
            finals = {path: digest for path, digest in hashes(out).items() if path.endswith(".gguf")}
            assert finals.items() <= expected.items()
            assert forked(operation, out, how, -1, log) == 0
            assert hashes(out) == expected


def test_the_command_killed(converted: Converted, tmp_path: Path) -> None:
    """As installed, at a few calls; and continued by the same command."""
    (tmp_path / "in").mkdir()
    source = shutil.copy(converted("step35")[COMBINED], tmp_path / "in")
    arguments = ("split", source, "-o", tmp_path / "out", "--jobs", "1")
    log = tmp_path / "log"
    assert child("kill", -1, log, "split", source, "-o", tmp_path / "whole", "--jobs", "1").returncode == 0
    expected, count = hashes(tmp_path / "whole"), len(calls(log))
    with untouched(tmp_path / "in"):
        for at in (count // 2,):
            assert child("kill-within", at, log, *arguments).returncode == -signal.SIGKILL
            assert child("", -1, log, *arguments).returncode == 0
            assert hashes(tmp_path / "out") == expected
            shutil.rmtree(tmp_path / "out")


def test_space_is_looked_at_first(converted: Converted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = plan_split(converted("step35")[COMBINED], [TRUNK, MTP])
    usage = shutil.disk_usage(tmp_path)._replace(free=operation.plan.total_bytes - 1)
    monkeypatch.setattr("nextn.convert.preflight.shutil.disk_usage", lambda _: usage)
    with pytest.raises(InputError, match="bytes are needed") as caught:
        carried_out(operation, tmp_path / "out")
    assert caught.value.code == "no-space"
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []
