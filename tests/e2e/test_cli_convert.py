"""The options of `nextn convert`: names of files, roles in short, shards, threads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command import ALL_ROLES, STEP, result, run
from interrupted import hashes


def paths(shown: dict[str, Any], folder: Path) -> dict[str, str]:
    return {output["role"]: str(Path(output["path"]).relative_to(folder)) for output in shown["outputs"]}


def error(*arguments: object, cwd: Path) -> tuple[int, dict[str, Any]]:
    done = run("convert", *arguments, "--json", cwd=cwd)
    assert not list(cwd.rglob("*.gguf*"))
    return done.returncode, json.loads(done.stdout)["error"]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("x.gguf", "x.gguf"),
        ("{name}-{role}.gguf", "Step35-Tiny-trunk.gguf"),
        ("{outtype}/{OUTTYPE}.gguf", "q8_0/Q8_0.gguf"),
        ("{ftype}-{FTYPE}.gguf", "q8_0-Q8_0.gguf"),
        ("model-{}.gguf", "model-q8_0.gguf"),
        ("a{{b}}.gguf", "a{b}.gguf"),
    ],
)
def test_templates(template: str, name: str, tmp_path: Path) -> None:
    shown = result("convert", STEP, "--outfile", tmp_path / template, "--no-mtp", "--outtype", "q8_0")
    assert paths(shown, tmp_path) == {"trunk": name}
    assert hashes(tmp_path).keys() == {name}


def test_a_template_for_several_roles(tmp_path: Path) -> None:
    shown = result("convert", STEP, "--outfile", tmp_path / "{role}" / "{name}.gguf", *ALL_ROLES)
    roles = ("combined", "trunk", "mtp", "mtp-shared")
    assert paths(shown, tmp_path) == {role: f"{role}/Step35-Tiny.gguf" for role in roles}


def test_a_template_names_shards(tmp_path: Path) -> None:
    result("convert", STEP, "--outfile", tmp_path / "{role}.gguf", "--emit", "trunk,mtp", "--split-max-tensors", "50")
    assert sorted(hashes(tmp_path)) == [
        "mtp-00001-of-00002.gguf",
        "mtp-00002-of-00002.gguf",
        "trunk-00001-of-00002.gguf",
        "trunk-00002-of-00002.gguf",
    ]


def test_a_template_is_taken_from_the_working_folder(tmp_path: Path) -> None:
    done = run("convert", STEP, "--outfile", "x.gguf", "--mtp", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert hashes(tmp_path).keys() == {"x.gguf"}


@pytest.mark.parametrize(("exists", "slash"), [(True, ""), (True, "/"), (False, "/")])
def test_a_template_that_is_a_folder(exists: bool, slash: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    if exists:
        folder.mkdir()
    result("convert", STEP, "--outfile", f"{folder}{slash}", "--mtp")
    assert hashes(folder).keys() == {"mtp-Step35-Tiny-BF16.gguf"}


@pytest.mark.parametrize(
    "template",
    ["{nmae}.gguf", "{name.gguf", "{0}.gguf", "{}{}.gguf", "{name.x}.gguf", "}.gguf", "{name:d}.gguf", "{name:{x}}"],
)
def test_templates_that_cannot_be_filled_in(template: str, tmp_path: Path) -> None:
    status, told = error(STEP, "--outfile", template, cwd=tmp_path)
    assert (status, told["code"], told["subject"]) == (2, "bad-template", template)
    assert "{name}, {role}, {outtype}" in told["remedy"]


def test_several_roles_without_role_in_the_template(tmp_path: Path) -> None:
    status, told = error(STEP, "--outfile", "x.gguf", "--emit", "trunk,mtp", cwd=tmp_path)
    assert (status, told["code"], told["subject"]) == (2, "same-output", "x.gguf")
    assert "{role}" in told["remedy"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], "no-output"),
        (["-o", "out", "--outfile", "x.gguf"], "no-output"),
        (["-o", "out", "--mtp", "--emit", "trunk"], "emit-twice"),
        (["-o", "out", "--no-tensor-first-split"], "no-split"),
        (["-o", "out", "--split-max-size", "48GB"], "bad-size"),
        (["-o", "out", "--split-max-size", "9" * 5000], "bad-size"),
        (["-o", "out", "--split-max-tensors", "-1"], "usage"),
        (["-o", "out", "--jobs", "0"], "usage"),
        (["-o", "out", "--mtp", "--no-mtp"], "emit-twice"),
        (["--outfile", ""], "usage"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], code: str, tmp_path: Path) -> None:
    status, told = error(STEP, *options, cwd=tmp_path)
    assert (status, told["code"]) == (2, code)
    assert told["subject"] or told["remedy"]


@pytest.mark.parametrize(("short", "role"), [("--mtp", "mtp"), ("--no-mtp", "trunk")])
def test_roles_in_short(short: str, role: str, tmp_path: Path) -> None:
    result("convert", STEP, "-o", tmp_path / "short", short)
    result("convert", STEP, "-o", tmp_path / "long", "--emit", role)
    assert hashes(tmp_path / "short") == hashes(tmp_path / "long")


def test_combined_is_what_comes_without_asking(tmp_path: Path) -> None:
    assert [output["role"] for output in result("convert", STEP, "-o", tmp_path)["outputs"]] == ["combined"]


@pytest.mark.parametrize("outtype", ["bf16", "q8_0", "q4_1"])
def test_any_number_of_threads_writes_the_same_bytes(outtype: str, tmp_path: Path) -> None:
    for jobs in (1, 2, 4, 16):
        result("convert", STEP, "-o", tmp_path / str(jobs), *ALL_ROLES, "--outtype", outtype, "--jobs", jobs)
    one, *others = (hashes(tmp_path / str(jobs)) for jobs in (1, 2, 4, 16))
    assert len(one) == 4
    assert all(other == one for other in others)


def test_shards_are_printed_and_reported(tmp_path: Path) -> None:
    split = ("--split-max-size", "1M", "--no-tensor-first-split")
    shown = result("convert", STEP, "-o", tmp_path / "out", *split)
    names = [Path(output["path"]).name for output in shown["outputs"]]
    count = len(names)
    assert names == [f"Step35-Tiny-BF16-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    assert shown["outputs"][0]["tensors"] == 0
    assert sum(output["tensors"] for output in shown["outputs"]) == 130
    assert {output["role"] for output in shown["outputs"]} == {"combined"}
    dry = result("convert", STEP, "-o", tmp_path / "dry", *split, "--dry-run")
    assert [output["bytes"] for output in dry["outputs"]] == [output["bytes"] for output in shown["outputs"]]
    assert not (tmp_path / "dry").exists()


def test_an_existing_shard_is_kept_unless_asked(tmp_path: Path) -> None:
    arguments = ("convert", STEP, "-o", tmp_path, "--mtp", "--split-max-tensors", "50")
    second = Path(result(*arguments)["outputs"][1]["path"])
    first = Path(shutil.move(second.with_name(second.name.replace("00002-of", "00001-of")), tmp_path / "elsewhere"))
    done = run(*arguments)
    assert done.returncode == 2
    assert str(second) in done.stderr
    result(*arguments, "--overwrite")
    assert second.with_name(second.name.replace("00002-of", "00001-of")).read_bytes() == first.read_bytes()
