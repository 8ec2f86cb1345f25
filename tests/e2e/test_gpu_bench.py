"""bench/gpu.py runs from end to end without a GPU, and says that drafts change nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from families import ROOT


@pytest.mark.long
def test_toy() -> None:
    pytest.importorskip("triton", reason="there is no triton for this system")
    command = [sys.executable, str(ROOT / "bench/gpu.py"), "--toy"]
    environment = {**os.environ, "COLUMNS": "140"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.endswith("yes │")]
    assert [row[1] for row in rows] == ["Q8_0", "IQ4_XS"]
    assert "NO" not in done.stdout
