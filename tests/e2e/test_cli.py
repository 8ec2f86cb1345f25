"""The installed command: what it writes and prints when all is well."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command import ALL_ROLES, INDEX, LAST_SHARD, ROLES, STEP, result, run
from families import FAMILIES, FamilyFixture

import nextn

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def headers(folder: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            found |= json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    found.pop("__metadata__", None)
    return found


def text_bytes(folder: Path) -> int:
    """Bytes of the tensors that become tensors: no vision, no integer constants."""
    return sum(
        item["data_offsets"][1] - item["data_offsets"][0]
        for name, item in headers(folder).items()
        if not any(part in name for part in ("vision", "visual", "vit_")) and item["dtype"] != "I64"
    )


@EACH_FAMILY
def test_convert_writes_what_it_reports(family: FamilyFixture, tmp_path: Path) -> None:
    shown = result("convert", family.checkpoint, "-o", tmp_path / "out", "--outtype", "bf16", *ALL_ROLES)
    assert list(shown) == ["outputs", "dropped", "warnings", "seconds", "bytes_read", "bytes_fetched", "peak_rss_bytes"]
    assert [output["role"] for output in shown["outputs"]] == list(ROLES)
    for output in shown["outputs"]:
        assert list(output) == ["path", "role", "tensors", "bytes", "sha256"]
        assert Path(output["path"]).stat().st_size == output["bytes"]
        assert Path(output["path"]).name.endswith("-BF16.gguf")
        assert output["sha256"] is None
    counts = {output["role"]: output["tensors"] for output in shown["outputs"]}
    golden = {role: len(family.read(f"gguf/{role}-bf16.json")["tensors"]) for role in ROLES[:3]}
    assert counts == {**golden, "mtp-shared": golden["mtp"] - 2}
    assert {path for path in (tmp_path / "out").rglob("*") if path.is_file()} == {
        Path(output["path"]) for output in shown["outputs"]
    }
    assert shown["bytes_read"] == text_bytes(family.checkpoint)
    assert 0 < shown["seconds"] < 60
    assert shown["peak_rss_bytes"] > 10_000_000
    dropped = {item["name"]: item["reason"] for item in shown["dropped"]}
    assert dropped.keys() < headers(family.checkpoint).keys()
    assert all(dropped.values())


@EACH_FAMILY
def test_dry_run_prints_the_plan_and_writes_nothing(family: FamilyFixture, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = result("convert", family.checkpoint, "-o", out, "--outtype", "q8_0", *ALL_ROLES, "--dry-run")
    assert not out.exists()
    assert {"outputs", "dropped", "warnings", "seconds", "bytes_read", "peak_rss_bytes"} <= shown.keys()
    assert (shown["dry_run"], shown["bytes_read"]) == (True, 0)
    assert shown["bytes_to_read"] == text_bytes(family.checkpoint)
    assert shown["bytes_to_write"] == sum(output["bytes"] for output in shown["outputs"])
    names = set(headers(family.checkpoint))
    for output in shown["outputs"]:
        assert output["exists"] is False
        assert len(output["plan"]) == output["tensors"]
        if output["role"] == "mtp-shared":
            continue
        golden = family.read(f"gguf/{output['role']}-q8_0.json")["tensors"]
        planned = [(tensor["name"], tensor["ne"], tensor["type"]) for tensor in output["plan"]]
        assert planned == [(tensor["name"], tensor["ne"], tensor["type"]) for tensor in golden]
        ends = [tensor["offset"] + tensor["bytes"] for tensor in output["plan"]]
        starts = [tensor["offset"] for tensor in output["plan"]]
        assert all(end <= start < end + 32 for end, start in zip(ends, starts[1:], strict=False))
        assert output["bytes"] - 32 < ends[-1] <= output["bytes"]
        assert {source["name"] for tensor in output["plan"] for source in tensor["sources"]} <= names


def test_dry_run_for_people(tmp_path: Path) -> None:
    done = run("convert", STEP, "-o", tmp_path, *ALL_ROLES, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    combined, trunk, mtp, shared, dropped, space = done.stdout.splitlines()
    assert combined.split()[:4] == ["combined", "130", "tensors", "(81"]
    assert [line.split()[:2] for line in (trunk, mtp, shared)] == [["trunk", "79"], ["mtp", "55"], ["mtp-shared", "53"]]
    assert shared.endswith(str(tmp_path / "shared" / "mtp-Step35-Tiny-shared-BF16.gguf"))
    assert dropped.startswith("left out: 3 tensors, vision")
    assert space.startswith("to read ")
    assert " free " in space
    assert list(tmp_path.iterdir()) == []


def test_dry_run_marks_files_that_exist(tmp_path: Path) -> None:
    result("convert", STEP, "-o", tmp_path, "--emit", "mtp")
    shown = result("convert", STEP, "-o", tmp_path, "--emit", "mtp,trunk", "--dry-run")
    assert [output["exists"] for output in shown["outputs"]] == [True, False]


def test_output_into_the_checkpoint_itself(tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(STEP, tmp_path / "Step-Copy"))
    before = {path: path.read_bytes() for path in checkpoint.iterdir()}
    result("convert", checkpoint, "-o", checkpoint)
    assert run("convert", checkpoint, "-o", checkpoint).returncode == 2
    result("convert", checkpoint, "-o", checkpoint, "--overwrite")
    assert {path: path.read_bytes() for path in before} == before
    (new,) = set(checkpoint.iterdir()) - set(before)
    assert new.name == "Step-Copy-BF16.gguf"


def test_quiet_prints_only_the_result(tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(STEP, tmp_path / "Step-Copy"))
    (checkpoint / INDEX).unlink()
    (checkpoint / LAST_SHARD).unlink()
    for shard in checkpoint.glob("*-of-00003.safetensors"):
        shard.rename(shard.with_name(shard.name.replace("of-00003", "of-00002")))
    arguments = ("convert", checkpoint, "-o", checkpoint / "out", "--dry-run")
    loud, quiet = run(*arguments), run(*arguments, "--quiet")
    assert "warning: " in loud.stderr
    assert quiet.stderr == ""
    without_free_space = [output.stdout.rpartition(", free")[0] for output in (loud, quiet)]
    assert without_free_space[0] == without_free_space[1] != ""


def test_help_version_and_nothing_at_all() -> None:
    start = time.monotonic()
    helped = run("--help")
    assert time.monotonic() - start < 2, "about 0.1 s on an idle machine"
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "Exit status" in helped.stdout
    assert "  convert " in helped.stdout
    version = run("--version")
    assert (version.returncode, version.stdout) == (0, f"nextn, version {nextn.__version__}\n")
    nothing = run()
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert nothing.stderr == helped.stdout
    of_command = run("convert", "--help")
    assert of_command.returncode == 0
    assert "Examples:\n  nextn convert " in of_command.stdout.replace("    nextn", "  nextn")
    unknown = run("transmogrify")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("error: no such command 'transmogrify'")


def test_module_and_script_are_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "nextn", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == run("--version").stdout


def test_a_terminal_without_the_characters_is_no_obstacle(tmp_path: Path) -> None:
    latin = {"env": {**os.environ, "PYTHONIOENCODING": "latin-1"}, "encoding": "latin-1"}
    arguments = ("convert", STEP, "-o", tmp_path / "Żółć", "--emit", "mtp")
    done = run(*arguments, **latin)
    assert done.returncode == 0, done.stderr
    assert r"/\u017bó\u0142\u0107/mtp-Step35-Tiny-BF16.gguf" in done.stdout
    done = run(*arguments, "--json", **latin)
    assert json.loads(done.stdout)["error"]["subject"] == str(tmp_path / "Żółć" / "mtp-Step35-Tiny-BF16.gguf")
