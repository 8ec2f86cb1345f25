"""The installed command when something is wrong: one clear error, its exit status, and nothing written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import ALL_ROLES, INDEX, LAST_SHARD, NEXTN, STEP, result, run

from nextn.cli.report import exit_status_of
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the step35 checkpoint to damage."""
    return Path(shutil.copytree(STEP, tmp_path / "Step-Copy"))


def damaged(kind: str, folder: Path) -> None:
    last = folder / LAST_SHARD
    match kind:
        case "truncated":
            os.truncate(last, last.stat().st_size - 5)
        case "unreadable":
            last.unlink()
            last.mkdir()
        case "no head":
            last.unlink()
            (folder / INDEX).unlink()
            for shard in folder.glob("*-of-00003.safetensors"):
                shard.rename(shard.with_name(shard.name.replace("of-00003", "of-00002")))
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
        case "config":
            (folder / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("kind", "options", "status", "code", "subject", "said"),
    [
        ("truncated", [], 3, "truncated-shard", LAST_SHARD, "5 bytes short"),
        ("unreadable", [], 3, None, LAST_SHARD, LAST_SHARD),
        ("no head", ["--require-mtp"], 3, "no-head", "Step-Copy", "--require-mtp"),
        ("no head", ["--emit", "mtp"], 3, "no-head", "Step-Copy", "--emit trunk"),
        ("no tokenizer", [], 3, None, "tokenizer.json", "tokenizer.json"),
        ("config", [], 3, "bad-json", "config.json", "not valid JSON"),
        ("", ["--pre", "llama"], 2, None, "--pre", "qwen35"),
        ("", ["--emit", "trunk,head"], 2, "usage", None, "combined, trunk, mtp, mtp-shared"),
        ("", ["--emit", ""], 2, "usage", None, "--emit"),
        ("", ["--outtype", "q9"], 2, "usage", None, "q8_0"),
        ("", ["--model-name", " "], 2, "usage", None, "--model-name"),
        ("", ["--nonsense"], 2, "usage", None, "--nonsense"),
        ("", ["--metadata", "absent.json"], 3, "no-file", "absent.json", "absent.json"),
        ("", ["--metadata", "."], 3, "unreadable", ".", "regular file"),
    ],
)
def test_a_failure_is_one_clear_error(
    kind: str, options: list[str], status: int, code: str | None, subject: str | None, said: str, checkpoint: Path
) -> None:
    damaged(kind, checkpoint)
    before = sorted(checkpoint.parent.rglob("*"))
    done = run("convert", checkpoint, "-o", checkpoint.parent / "out", "--json", *options, cwd=checkpoint.parent)
    assert done.returncode == status, done.stderr
    errors = done.stderr.splitlines()
    assert errors[0].startswith("error: ")
    assert len(errors) <= 2
    assert said in done.stderr
    error = json.loads(done.stdout)["error"]
    assert list(error) == ["code", "message", "subject", "remedy"]
    assert code in (None, error["code"])
    assert error["subject"] == subject or error["subject"].endswith(subject)
    assert sorted(checkpoint.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [("[]", "no JSON object"), ('{"general.nmae": "x"}', "general.name"), ('{"general.name": 3}', "must be a text")],
)
def test_bad_metadata_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text(text)
    done = run("convert", STEP, "-o", tmp_path / "out", "--metadata", tmp_path / "metadata.json")
    assert (done.returncode, done.stdout) == (3, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("source", ["nowhere", "no/where/at-all"])
def test_a_source_that_is_not_there(source: str, tmp_path: Path) -> None:
    done = run("convert", source, "-o", "out", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith(f"error: {source}: does not exist\n")
    assert not (tmp_path / "out").exists()


def test_an_existing_output_is_kept_unless_asked(tmp_path: Path) -> None:
    (output,) = result("convert", STEP, "-o", tmp_path, "--emit", "mtp")["outputs"]
    path = Path(output["path"])
    path.write_bytes(b"precious")
    done = run("convert", STEP, "-o", tmp_path, *ALL_ROLES)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {path}: exists\n  choose another place or give --overwrite\n"
    assert path.read_bytes() == b"precious"
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path]
    result("convert", STEP, "-o", tmp_path, "--emit", "mtp", "--overwrite")
    assert path.stat().st_size == output["bytes"]


@pytest.mark.parametrize("below", ["", "sub/folder"])
def test_an_output_folder_that_is_a_file(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = run("convert", STEP, "-o", tmp_path / "file" / below)
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path / 'file'}: is a file; -o takes a folder\n"
    assert (tmp_path / "file").read_text() == "x"


def test_debug_shows_where_it_failed(tmp_path: Path) -> None:
    done = run("convert", tmp_path / "nowhere", "-o", tmp_path / "out", "--debug")
    assert done.returncode == 3
    assert "Traceback" in done.stderr
    assert "error: " in done.stderr.splitlines()[-2]


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    command = [NEXTN, "convert", str(STEP), "-o", str(tmp_path), "--dry-run", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""


# A job in the background of a shell ignores interrupts, and so would what it starts.
WAITING = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from nextn.cli import main
from nextn.convert import pipeline

def wait(_):
    print("waiting", flush=True)
    time.sleep(60)

pipeline.open_checkpoint = wait
main(sys.argv[1:])
"""


def test_an_interrupt_ends_quietly_and_leaves_no_file(tmp_path: Path) -> None:
    """While planning, after which there is nothing to continue."""
    out = tmp_path / "out"
    command = [sys.executable, "-c", WAITING, "convert", str(STEP), "-o", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr.strip()) == (130, "", "interrupted")
    assert not out.exists()


def test_what_is_kept_is_promised(capsys: pytest.CaptureFixture[str]) -> None:
    error = KeyboardInterrupt()
    error.add_note("the same command continues what it left unfinished")
    assert exit_status_of(error, []) == 130
    full = InputError("no-space", "the disk is full", remedy="free some space")
    full.add_note("more")
    assert exit_status_of(full, []) == 3
    assert capsys.readouterr().err == (
        "interrupted; the same command continues what it left unfinished\n"
        "error: the disk is full\n  free some space; more\n"
    )


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&- <&-"])
def test_closed_streams(closed: str, tmp_path: Path) -> None:
    command = f'"{NEXTN}" convert "{STEP}" -o "{tmp_path}" --mtp {closed}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=60)  # noqa: S607
    assert done.returncode == 0
    assert [path.suffix for path in tmp_path.iterdir()] == [".gguf"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("json_option", ["", "--json"])
def test_a_full_disk_behind_stdout(json_option: str, converted: Callable[[str], dict[Role, Path]]) -> None:
    """It ended with a traceback, and with 1 as if the verdict were negative."""
    command = f'"{NEXTN}" validate "{converted("step35")[Role.MTP]}" {json_option} > /dev/full'
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=60, text=True)  # noqa: S607
    assert (done.returncode, done.stderr) == (3, "error: stdout: cannot be written: No space left on device\n")


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(STEP, tmp_path / os.fsdecode(b"model\xff")))
    out = tmp_path / os.fsdecode(b"out\xfe")
    arguments = ("--mtp", "--model-name", "X", "--manifest", out / "m.json")
    done = run("convert", checkpoint, "-o", out, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    (file,) = json.loads((out / "m.json").read_text())["files"]
    assert Path(file["path"]).parent == out


@pytest.mark.parametrize("arguments", [["", "-o", "out"], ["CHECKPOINT", "-o", ""], ["CHECKPOINT", "--manifest", ""]])
def test_empty_paths_are_refused(arguments: list[str], tmp_path: Path) -> None:
    done = run("convert", *(str(STEP) if text == "CHECKPOINT" else text for text in arguments), cwd=tmp_path)
    assert done.returncode == 2
    assert "is empty" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_refuses_the_same_names(tmp_path: Path) -> None:
    out = tmp_path / "a.gguf"
    out.write_text("an older file")
    arguments = ("convert", STEP, "--outfile", out, "--mtp", "--dry-run")
    assert "(exists)" in run(*arguments).stdout
    done = run(*arguments, "--manifest", tmp_path / "a.gguf.journal")
    assert (done.returncode, "several files would get this name" in done.stderr) == (2, True)
    done = run(*arguments, "--manifest", STEP / "config.json")
    assert (done.returncode, "is an input" in done.stderr) == (2, True)
