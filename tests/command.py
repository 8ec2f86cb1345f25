"""The installed `nextn` command as a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from families import FAMILIES

NEXTN = str(Path(sys.executable).with_name("nextn"))
STEP = FAMILIES["step35"].checkpoint
# Files of the step35 checkpoint; the last shard holds the heads and nothing else.
LAST_SHARD = "model-00003-of-00003.safetensors"
INDEX = "model.safetensors.index.json"
ROLES = ("combined", "trunk", "mtp", "mtp-shared")
ALL_ROLES = ("--emit", ",".join(ROLES))


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run to the end; output as text. Further options are those of `subprocess.run`."""
    command = [NEXTN, *map(str, arguments)]
    options = {"capture_output": True, "encoding": "utf-8", "timeout": 120, **options}
    return subprocess.run(command, check=False, **options)


def result(*arguments: object) -> dict[str, Any]:
    """The one JSON object of a run that succeeds."""
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed
