"""Running a command and measuring it: what the benchmarks have in common."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple


class Measured(NamedTuple):
    """What one run took."""

    seconds: float
    peak_bytes: int


def run(command: list[str], **environment: str) -> Measured:
    """Run a command to its end: seconds of wall clock and the largest resident memory of the process."""
    os.sync()
    # As pip installs them: with modules compiled.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | environment
    start = time.monotonic()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    return Measured(seconds, usage.ru_maxrss * 1024)


def emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
