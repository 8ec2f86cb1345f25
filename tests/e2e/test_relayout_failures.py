"""`nextn relayout` and `nextn repair` on broken input: one clear error, its exit status, and nothing left behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from by_hand import FORKS, Hand, by_hand
from command import result, run
from families import FAMILIES
from interrupted import hashes

from nextn.gguf_schema.architecture import Role

Converted = Callable[[str], dict[Role, Path]]
COMBINED, TRUNK, MTP, SHARED = Role
EACH = pytest.mark.parametrize("command", ["relayout", pytest.param("repair", marks=pytest.mark.long)])
BOTH = pytest.mark.parametrize("command", ["relayout", "repair"])


def arguments(command: str, source: Path, output: Path, to: str = "split-fc") -> list[object]:
    return [command, source, "-o", output, *(["--to", to] if command == "relayout" else [])]


def refused(command: str, source: Path, output: Path, status: int, to: str = "split-fc", *options: object) -> str:
    """The words of the error; nothing that is there changes, and nothing is added."""
    folder = output.parent
    before = (sorted(folder.rglob("*")), hashes(folder))
    done = run(*arguments(command, source, output, to), *options)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    lines = done.stderr.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("error: "))
    assert 1 <= len(lines) - start <= 2
    assert (sorted(folder.rglob("*")), hashes(folder)) == before
    return "\n".join(lines[start:])


@pytest.fixture
def head(converted: Converted, tmp_path: Path) -> Path:
    """A head that both commands have something to do with: its keys do not declare it."""
    return by_hand(converted("qwen4exp")[MTP], tmp_path / "head.gguf", Hand(keys={"nextn_predict_layers": None}))


@EACH
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("header", "key 'tokenizer.ggml.tokens': room for 512 STRING elements"),
        ("data", "tensor 'blk.8.nextn.hnorm.weight': data at byte "),
        ("page", "want b'GGUF'"),
        ("empty", "magic at byte 0 needs 4 bytes, 0 left"),
        ("folder", "is a folder"),
        ("nothing", "cannot be opened"),
    ],
)
def test_what_cannot_be_read(command: str, damage: str, said: str, head: Path, tmp_path: Path) -> None:
    if damage in ("header", "data", "empty"):
        os.truncate(head, {"header": 2000, "data": head.stat().st_size - 1000, "empty": 0}[damage])
    elif damage == "page":
        head.write_bytes(b"<html>" * 100)
    else:
        head.unlink()
        if damage == "folder":
            head.mkdir()
    text = refused(command, head, tmp_path / "out.gguf", 3)
    assert text.startswith(f"error: {head}")
    assert said in text


@EACH
def test_case_v02_a_shard_that_is_not_there_or_short(command: str, tmp_path: Path) -> None:
    """Cases V02, S08: the shard is named."""
    folder = tmp_path / "set"
    limits = ("--split-max-tensors", 20, "--mtp")
    result("convert", FAMILIES["qwen4exp"].checkpoint, "--outfile", folder / "q.gguf", *limits)
    first, second = sorted(folder.glob("*.gguf"))
    os.truncate(second, second.stat().st_size - 100)
    assert str(second) in refused(command, first, tmp_path / "set" / "out.gguf", 3)
    second.unlink()
    assert second.name in refused(command, first, tmp_path / "set" / "out.gguf", 3)


@BOTH
@pytest.mark.parametrize("how", ["path", "symbolic link", "hard link", "link to the folder"])
def test_case_s07_the_output_is_the_input(command: str, how: str, head: Path, tmp_path: Path) -> None:
    """Cases S07, S11."""
    output = head if how == "path" else tmp_path / "other.gguf"
    match how:
        case "symbolic link":
            output.symlink_to(head)
        case "hard link":
            output.hardlink_to(head)
        case "link to the folder":
            (tmp_path / "sub").symlink_to(tmp_path)
            output = tmp_path / "sub" / "head.gguf"
    assert "is an input" in refused(command, head, output, 2, "split-fc", "--overwrite")


@EACH
def test_the_output_is_a_shard_of_the_input(command: str, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    limits = ("--split-max-tensors", 20, "--mtp")
    result("convert", FAMILIES["qwen4exp"].checkpoint, "--outfile", folder / "q.gguf", *limits)
    first, second = sorted(folder.glob("*.gguf"))
    if command == "repair":
        by_hand(first, first.with_suffix(".new"), Hand(keys={"nextn_predict_layers": None})).replace(first)
    for output in (folder / "q.gguf", second):
        assert "is an input" in refused(command, first, output, 2, "split-fc", "--overwrite")


@EACH
def test_an_output_that_exists(command: str, head: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    output.write_bytes(b"precious")
    assert refused(command, head, output, 2) == f"error: {output}: exists\n  choose another place or give --overwrite"
    (tmp_path / "folder.gguf").mkdir()
    assert "is a folder" in refused(command, head, tmp_path / "folder.gguf", 2, "split-fc", "--overwrite")
    assert "is a file; -o takes a folder" in refused(command, head, output / "x.gguf", 2)


def test_a_foreign_partial_file(head: Path, tmp_path: Path) -> None:
    (tmp_path / "out.gguf.partial").write_bytes(b"precious")
    assert "is in the way" in refused("repair", head, tmp_path / "out.gguf", 2)


def test_layouts_that_are_not_known(head: Path, converted: Converted, tmp_path: Path) -> None:
    text = refused("relayout", head, tmp_path / "out.gguf", 2, "nonsense")
    assert text.startswith("error: --to: no layout 'nonsense' of qwen4exp is known\n  one of upstream, ")
    glm = Path(shutil.copy(converted("glm5-next")[MTP], tmp_path))
    assert "no layout 'C' of glm5-next" in refused("relayout", glm, tmp_path / "out.gguf", 2, "C")
    assert run("relayout", head, "-o", tmp_path / "out.gguf").returncode == 2
    assert run("repair", head).returncode == 2


def test_a_layout_that_is_ambiguous(converted: Converted, tmp_path: Path) -> None:
    """A file with a trunk whose head has no mixer: the trunk's may have been overwritten with it, in two layouts."""
    mixer = tuple(f"b.hc_head_{part}.weight" for part in ("norm", "down", "up"))
    path = by_hand(converted("qwen4exp")[COMBINED], tmp_path / "whole.gguf", Hand(without=mixer))
    text = refused("relayout", path, tmp_path / "out.gguf", 1, "upstream")
    assert "may be in layout upstream or rocmfpx or ik-llama" in text


def test_a_half_that_is_missing(converted: Converted, tmp_path: Path) -> None:
    split = by_hand(converted("qwen4exp")[MTP], tmp_path / "split.gguf", FORKS["split-fc"])
    half = by_hand(split, tmp_path / "half.gguf", Hand(without=("b.fc_hidden.weight",)))
    text = refused("relayout", half, tmp_path / "out.gguf", 1, "upstream")
    assert text.startswith(
        "error: blk.8.nextn.fc_hidden.weight: is missing, the other half of blk.8.nextn.fc_embd.weight"
    )


@EACH
def test_bytes_behind_the_data_are_left_out(command: str, head: Path, tmp_path: Path) -> None:
    with head.open("ab") as file:
        file.write(b"\xff" * 1000)
    done = run(*arguments(command, head, tmp_path / "out.gguf"))
    assert done.returncode == 0
    assert "1000" in next(line for line in done.stderr.splitlines() if line.startswith("warning: "))
    assert b"\xff" * 1000 not in (tmp_path / "out.gguf").read_bytes()
