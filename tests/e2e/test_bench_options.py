"""The scripts in bench/ say what they can be asked, and refuse anything else before they measure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from families import ROOT

# What scripts import, and what runs in a Python of its own.
OTHERS = {"asked", "measured", "random_step", "transformers_peer", "upstream"}
SCRIPTS = sorted({path.stem for path in (ROOT / "bench").glob("*.py")} - OTHERS)
REFUSED = [
    ("checkpoints step OUT 1", "'step'"),
    ("checkpoints step35 OUT 0", "0 is not above zero"),
    ("convert nowhere OUT", "'nowhere' is no folder"),
    ("convert . OUT --peer PYTHON", "--upstream"),
    ("cpu_kernels --types Q4_K --in 100", "100 is no multiple of 256"),
    ("cpu_kernels --types FOO", "'FOO' is none of F32, "),
    ("cpu_kernels --rows 0", "0 is less than 1"),
    ("cpu_kernels --threads 9999", "9999 is more than"),
    ("decode --families foo", "'foo' is none of step35, "),
    ("decode --kernels foo", "'foo' is none of cpu, reference"),
    ("decode --peer /nonexistent", "'/nonexistent' is no program"),
    ("fuzz x", "'x' is no whole number"),
    ("gpu --toy --unchecked --types FOO", "'FOO' is none of F32, "),
    ("gpu --toy --unchecked --types Q4_K", "'Q4_K' is none of F32, "),
    ("gpu_bounds --types FOO", "'FOO' is none of F32, "),
    ("headers FILE", "FILE"),
    ("hub OUT --gigabytes nan", "nan is not above zero"),
    ("identity_soak 10 --outtypes foo", "'foo' is none of f32, "),
    ("plan .", "'.' is there already"),
    ("real_width . --prompt 3", "3 is less than 4"),
    ("surgery OUT --rounds 0", "0 is less than 1"),
]


def ran(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    if script.startswith("gpu"):
        pytest.importorskip("triton", reason="there is no triton for this system")
    command = [sys.executable, str(ROOT / "bench" / f"{script}.py"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not list(folder.iterdir())
    return done


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS)
def test_help_has_one_usage_and_does_nothing(script: str, tmp_path: Path) -> None:
    """`bench/plan.py --help` made a folder of that name."""
    done = ran(tmp_path, script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: python bench/{script}.py ")
    assert done.stdout.count("usage:") == 1


@pytest.mark.parametrize(("asked", "said"), REFUSED)
def test_what_cannot_be_measured_is_refused(asked: str, said: str, tmp_path: Path) -> None:
    done = ran(tmp_path, *[word.replace("PYTHON", sys.executable) for word in asked.split()])
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr.splitlines()[-1]


def test_refusals_cover_every_script() -> None:
    assert {asked.split()[0] for asked, _ in REFUSED} == set(SCRIPTS)
