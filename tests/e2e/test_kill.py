"""The installed command killed with SIGKILL, again and again, and on a disk that is full or fails."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from command import ALL_ROLES, NEXTN, STEP, run
from families import ROOT
from interrupted import PUTS, RENAMES, calls, child, hashes

JOURNAL = "Step35-Tiny-BF16.gguf.journal"


def whole(tmp_path: Path) -> tuple[dict[str, str], list[str]]:
    """Hashes of an uninterrupted run, and the names of its calls."""
    done = child("kill", -1, tmp_path / "log", "convert", STEP, "-o", tmp_path / "whole", *ALL_ROLES, "--jobs", "2")
    assert done.returncode == 0, done.stderr
    return hashes(tmp_path / "whole"), [name for name, _ in calls(tmp_path / "log")]


def test_killed_here_and_there(tmp_path: Path) -> None:
    """At the start, at the end, at renames, and at random places between; each resumed by the command itself."""
    expected, names = whole(tmp_path)
    before = hashes(STEP)
    renames = [number for number, name in enumerate(names) if name in RENAMES]
    assert len(renames) == 4
    last = len(names) - 1
    out = tmp_path / "out"
    for at in (5, renames[0], renames[2], last, *np.random.default_rng(0).integers(10, renames[0], 4)):
        arguments = ("convert", STEP, "-o", out, *ALL_ROLES, "--jobs", "2")
        struck = child("kill-within", at, tmp_path / "log", *arguments)
        assert struck.returncode == -signal.SIGKILL, struck.stderr
        finals = {name: digest for name, digest in hashes(out).items() if name.endswith(".gguf")}
        assert finals.items() <= expected.items()
        done = child("", -1, tmp_path / "log", *arguments)
        assert done.returncode == 0, done.stderr
        assert hashes(out) == expected
        shutil.rmtree(out)
    assert hashes(STEP) == before


@pytest.mark.parametrize(("error", "message"), [("ENOSPC", "the disk is full"), ("EIO", "cannot be written")])
def test_a_disk_that_fails(error: str, message: str, tmp_path: Path) -> None:
    expected, names = whole(tmp_path)
    middle = [number for number, name in enumerate(names) if name in PUTS][200]
    arguments = ("convert", STEP, "-o", tmp_path / "out", *ALL_ROLES, "--jobs", "2")
    done = child(error, middle, tmp_path / "log", *arguments)
    assert done.returncode == 3
    # On a slow machine progress stands before the error.
    *_, line, remedy = done.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path / 'out'}")
    assert line.split(".partial: ")[1].startswith(message)
    assert "run the same command again" in remedy
    finished = (tmp_path / "out" / JOURNAL).read_text().count('"done"')
    assert finished > 10
    again = child("", -1, tmp_path / "log", *arguments)
    assert again.returncode == 0, again.stderr
    assert hashes(tmp_path / "out") == expected
    assert len(calls(tmp_path / "log")) < len(names) - finished


def test_a_file_that_may_not_grow_so_large(tmp_path: Path) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    done = run("convert", STEP, "-o", tmp_path / "out", preexec_fn=limit)
    assert done.returncode == 3
    assert "Step35-Tiny-BF16.gguf.partial: cannot be written: File too large" in done.stderr
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_two_commands_at_once(tmp_path: Path) -> None:
    """The second is refused; the first, stopped in the meantime, ends as if nothing had been."""
    expected, _ = whole(tmp_path)
    out = tmp_path / "out"
    arguments = ["convert", str(STEP), "-o", str(out), *ALL_ROLES, "--jobs", "2"]
    stopping = f"""
import os, signal, sys
from nextn.cli import main
from nextn.convert.journal import Journal
done = Journal.done
def stopping(self, name, *digest):
    done(self, name, *digest)
    if name == "blk.2.attn_q.weight":
        os.kill(os.getpid(), signal.SIGSTOP)
Journal.done = stopping
main({arguments!r})
"""
    with subprocess.Popen([sys.executable, "-c", stopping], stdout=subprocess.DEVNULL) as first:
        _, status = os.waitpid(first.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        for other in (arguments, ["convert", str(STEP), "-o", str(out), "--no-mtp"]):
            second = run(*other, "--json")
            assert (second.returncode, json.loads(second.stdout)["error"]["code"]) == (2, "in-use")
        os.kill(first.pid, signal.SIGCONT)
        assert first.wait(60) == 0
    assert hashes(out) == expected


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_real_kills_of_a_large_conversion(seed: int, tmp_path: Path) -> None:
    """Case S12 on 400 MB of output: killed at random times until it completes."""
    maker = [sys.executable, str(ROOT / "bench" / "checkpoints.py"), "step35", str(tmp_path / "model"), "0.2"]
    subprocess.run(maker, check=True, capture_output=True)
    arguments = [NEXTN, "convert", str(tmp_path / "model"), *ALL_ROLES, "--outtype", "q8_0", "--jobs", "2", "-o"]
    start = time.monotonic()
    subprocess.run([*arguments, str(tmp_path / "whole")], check=True, capture_output=True)
    seconds = time.monotonic() - start
    expected = hashes(tmp_path / "whole")
    assert sum((tmp_path / "whole" / name).stat().st_size for name in expected) > 200_000_000
    before = hashes(tmp_path / "model")
    chance, kills, out = np.random.default_rng(seed), 0, tmp_path / "out"
    while True:
        with subprocess.Popen([*arguments, str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            try:
                _, stderr = process.communicate(timeout=chance.uniform(0.2, 0.8 * seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                finals = {name: digest for name, digest in hashes(out).items() if name.endswith(".gguf")}
                assert finals.items() <= expected.items()
                continue
        # Killed between the end of the work and the end of the process, there is nothing left to do.
        assert process.returncode == 0 or hashes(out) == expected, stderr
        break
    assert kills > 0
    assert hashes(out) == expected
    assert hashes(tmp_path / "model") == before
