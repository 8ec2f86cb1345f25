"""Interrupted at every system call: no incomplete file has a final name, and the same call ends with the same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_plan
from interrupted import PUTS, RENAMES, hashes

JOURNAL = "toy.gguf.journal"
ERRORS = {"ENOSPC": "no-space", "EDQUOT": "no-space", "EIO": "write-error"}


def seen(folder: Path, how: str, *lost: str) -> dict[str, Any]:
    command = [sys.executable, tiny_plan.__file__, str(folder), how, *lost]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("lost", [[], ["lost"]], ids=["", "a partial file lost before"])
@pytest.mark.parametrize("how", ["kill", "kill-within", "kill-after"])
def test_killed_at_every_call(how: str, lost: list[str], tmp_path: Path) -> None:
    """Case S12. Calls are those that change files: writes, renames, syncs, the journal's, and its removal."""
    found = seen(tmp_path, how, *lost)
    names = [name for name, _ in found["calls"]]
    assert sum(name in RENAMES for name in names) == 2
    assert names[-1] == "unlink"
    assert [struck["at"] for struck in found["struck"]] == list(range(len(names)))
    for struck in found["struck"]:
        finals = {name: digest for name, digest in struck["after"].items() if name.endswith(".gguf")}
        assert finals.items() <= found["whole"].items(), struck
        # When the journal is gone, the run is over, and its files are no longer its own to replace.
        over = how == "kill-after" and struck["at"] == len(names) - 1
        assert struck["resumed"] == [0, "output-exists" if over else ""], struck
        assert struck["end"] == found["whole"], struck
    assert found["source"] == hashes(tmp_path)["source"]


def test_finished_tensors_are_not_written_again(tmp_path: Path) -> None:
    found = seen(tmp_path, "kill")
    every = [3072, 1536, 2 * 3072, 2 * 816]
    headers_and_stamps = sum(size for name, size in found["calls"] if name in PUTS) - sum(every)
    kept = set()
    for struck in found["struck"]:
        kept.add(struck["finished"])
        todo = sum(every[struck["finished"] :])
        assert todo <= struck["written"] <= todo + headers_and_stamps, struck
    assert kept == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_at_every_call(error: str, tmp_path: Path) -> None:
    """A full or failing disk: a clear error, and the same call continues. Freed space is the user's to find."""
    found = seen(tmp_path, error)
    for struck in found["struck"]:
        assert struck["error"] == ERRORS[error], struck
        assert {name for name in struck["after"] if name.endswith(".gguf")} <= found["whole"].keys()
        assert struck["resumed"] == [0, ""], struck
        assert struck["end"] == found["whole"], struck
        if struck["finished"] == 0:
            assert struck["after"] == {}, "nothing is left of a run that finished nothing"
