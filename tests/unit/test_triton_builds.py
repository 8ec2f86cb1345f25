"""Kernels compiled for GPUs that are not there: registers do not spill, and the order of sums is one at all widths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from families import ROOT

from nextn.kernels.triton.builds import BUILDS

SCRIPT = ROOT / "tests/ahead_of_time.py"
# What a thread can have, and a program of shared memory on the smallest of them (compute capability 8.6).
MOST_REGISTERS = 255
MOST_SHARED = 99 << 10


def built(capability: int, folder: Path, *names: str) -> list[dict[str, Any]]:
    """Builds, in a process of their own: what is interpreted in this one cannot be compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    command = [sys.executable, SCRIPT, str(capability), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(builds: list[dict[str, Any]]) -> None:
    assert not [build for build in builds if build["fuses"] or build["specialized"]]
    assert not [build for build in builds if build["hot"] and build["spilled"]]
    assert all(0 < build["registers"] <= MOST_REGISTERS and build["shared"] <= MOST_SHARED for build in builds)
    # Products take each value where it is read: what goes through shared memory are sums of warps alone.
    assert all(build["shared"] <= 4 << 10 for build in builds if build["name"].startswith("product"))
    layouts = defaultdict(set)
    for build in builds:
        layouts[build["group"] or build["name"]].add(json.dumps(build["layouts"]))
    assert not {name: found for name, found in layouts.items() if len(found) > 1}


def test_every_build_has_a_name_of_its_own() -> None:
    names = [build.name for build in BUILDS]
    assert len(set(names)) == len(names)


def test_some_kernels_for_a_gpu(tmp_path: Path) -> None:
    builds = built(90, tmp_path, "product BF16 *fp32", "product Q8_0 *fp32", "combine *bf16")
    plain = [f"product BF16 *fp32 {rows}" for rows in ("1", "2", "4", "1 expert")]
    packed = [f"product Q8_0 *fp32 {rows}" for rows in ("4", "8", "16", "4 expert")]
    assert [build["name"] for build in builds] == [*plain, *packed, "combine *bf16"]
    # Sums over the words of a row, or over the columns of a group and then the warps of a program.
    assert [len(build["layouts"]) for build in builds] == [1] * 4 + [2] * 4 + [0]
    check(builds)


@pytest.mark.long
@pytest.mark.parametrize("capability", [80, 90])
def test_all_kernels(capability: int, tmp_path: Path) -> None:
    builds = built(capability, tmp_path, "")
    assert [build["name"] for build in builds] == [build.name for build in BUILDS]
    check(builds)
