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


def test_instructions_are_counted_for_any_number_of_rows() -> None:
    """Three rows, which no program is made for, gave an empty table; with TRITON_INTERPRET=1 there was a traceback."""
    printed = ran("gpu_bounds.py", "--rows", "2,3", "--types", "Q8_0,F32", TRITON_INTERPRET="1")
    rows = [[cell.strip() for cell in line.split("│")] for line in printed.splitlines() if line.startswith("│")]
    assert [row[1:3] for row in rows] == [["Q8_0", "1 to 4"], ["F32", "2"], ["F32", "3 to 4"]]
    # A warp has 32 columns of 16 rows, which are 16 weights a thread, in two products of 16 columns.
    assert [row[7] for row in rows] == ["0.12", "0.00", "0.00"]
