"""The benchmarks for GPUs run where there is none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from families import ROOT


def ran(script: str, *options: str, **environment: str) -> str:
    pytest.importorskip("triton", reason="there is no triton for this system")
    command = [sys.executable, str(ROOT / "bench" / script), *options]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_drafts_change_nothing_in_the_toy() -> None:
    printed = ran("gpu.py", "--toy", COLUMNS="140")
    rows = [line.split() for line in printed.splitlines() if line.endswith("yes │")]
    assert [row[1] for row in rows] == ["Q8_0", "Q4_0"]
    assert "NO" not in printed


def test_instructions_are_counted() -> None:
    printed = ran("gpu_bounds.py", "--rows", "4", "--types", "Q8_0", TRITON_INTERPRET="0")
    row = next(line.split("│") for line in printed.splitlines() if "Q8_0" in line)
    # A warp has 32 columns of 16 rows, which are 16 weights a thread, in two products of 16 columns.
    assert row[7].strip() == "0.12"
