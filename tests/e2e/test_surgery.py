"""`nextn split`, `join` and `retype` as installed: what they print, and that nothing is ever lost."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import surgery
from command import result, run
from interrupted import hashes
from surgery import carried_out, refused, seen, shown, untouched

from nextn.convert.splitting import Split
from nextn.convert.surgery.operations import plan_retype, plan_split
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.shards import open_gguf
from nextn.gguf_schema.types import Q8_0

COMBINED, TRUNK, MTP, SHARED = Role
Converted = Callable[[str], dict[Role, Path]]
KEYS = {"outputs", "dropped", "warnings", "seconds", "bytes_read", "peak_rss_bytes"}


@pytest.fixture
def files(converted: Converted, tmp_path: Path) -> dict[Role, Path]:
    """The four files of step35 in a folder of the test's own."""
    (tmp_path / "in").mkdir()
    return {role: Path(shutil.copy(path, tmp_path / "in")) for role, path in converted("step35").items()}


@pytest.fixture
def shards(files: dict[Role, Path], tmp_path: Path) -> list[Path]:
    """The combined file in three shards."""
    done = carried_out(plan_split(files[COMBINED], [COMBINED], None, Split(max_tensors=50)), tmp_path / "set")
    return [output.path for output in done.outputs]


# --- what they print


def test_split_tells_what_it_did(files: dict[Role, Path], tmp_path: Path) -> None:
    with untouched(tmp_path / "in"):
        printed = result("split", files[COMBINED], "-o", tmp_path / "out", "--emit", "trunk,mtp,mtp-shared")
    assert printed.keys() >= KEYS
    assert [(output["role"], output["tensors"], output["sha256"]) for output in printed["outputs"]] == [
        ("trunk", 79, None),
        ("mtp", 55, None),
        ("mtp-shared", 53, None),
    ]
    for output in printed["outputs"]:
        assert Path(output["path"]).stat().st_size == output["bytes"]
    # Every tensor is in one of them.
    assert printed["dropped"] == []


def test_a_manifest_leads_to_every_byte(files: dict[Role, Path], tmp_path: Path) -> None:
    """Case Q07: of each tensor the file, place and transform; where two have the same name, the one that was taken."""
    manifest = tmp_path / "manifest.json"
    printed = shown("join", files[TRUNK], files[SHARED], "-o", tmp_path / "j.gguf", "--manifest", manifest)
    (told,) = json.loads(manifest.read_text())["files"]
    data = (tmp_path / "j.gguf").read_bytes()
    assert told["sha256"] == printed["outputs"][0]["sha256"] == hashlib.sha256(data).hexdigest()
    assert len(told["tensors"]) == 130
    for tensor in told["tensors"]:
        (source,) = tensor["sources"]
        assert tensor["transform"] == "copy"
        assert Path(source["file"]) == (
            files[SHARED] if tensor["name"].startswith(("blk.5", "blk.6", "blk.7")) else files[TRUNK]
        )
        original = Path(source["file"]).read_bytes()[source["offset"] :][: tensor["bytes"]]
        assert data[tensor["offset"] :][: tensor["bytes"]] == original


def commands(files: dict[Role, Path], out: Path) -> dict[str, tuple[object, ...]]:
    return {
        "split": ("split", files[COMBINED], "-o", out),
        "join": ("join", files[TRUNK], files[MTP], "-o", out / "j.gguf"),
        "retype": ("retype", files[COMBINED], "-o", out / "r.gguf", "--outtype", "q8_0"),
    }


@pytest.mark.parametrize("name", ["split", "join", "retype"])
def test_a_dry_run_writes_nothing(name: str, files: dict[Role, Path], tmp_path: Path) -> None:
    with untouched(tmp_path):
        plan = shown(*commands(files, tmp_path / "out")[name], "--dry-run")
        assert not (tmp_path / "out").exists()
    assert plan["dry_run"] is True
    assert plan.keys() >= KEYS
    planned = {output["path"]: (output["bytes"], len(output["plan"])) for output in plan["outputs"]}
    done = shown(*commands(files, tmp_path / "out")[name])
    assert {output["path"]: (output["bytes"], output["tensors"]) for output in done["outputs"]} == planned


@pytest.mark.parametrize("name", ["split", "join", "retype"])
def test_an_existing_file_stays_unless_told(name: str, files: dict[Role, Path], tmp_path: Path) -> None:
    arguments = commands(files, tmp_path / "out")[name]
    first = Path(shown(*arguments)["outputs"][0]["path"])
    made = first.read_bytes()
    first.write_bytes(b"something dear")
    with untouched(tmp_path):
        assert refused(*arguments, status=2)["code"] == "output-exists"
    shown(*arguments, "--overwrite")
    assert first.read_bytes() == made


def test_the_same_inputs_give_the_same_bytes_wherever_they_are(files: dict[Role, Path], tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "in", tmp_path / "elsewhere")
    os.utime(tmp_path / "elsewhere" / files[MTP].name, (1, 1))
    made = []
    for place in ("in", "elsewhere"):
        there = {role: tmp_path / place / path.name for role, path in files.items()}
        for arguments in commands(there, tmp_path / f"of-{place}").values():
            shown(*arguments, "--provenance")
        made.append(hashes(tmp_path / f"of-{place}"))
    assert made[0] == made[1]
    assert len(made[0]) == 4


def test_provenance(files: dict[Role, Path], tmp_path: Path) -> None:
    """Case C09: which files it was made of; of an operation before this one nothing is left."""
    shown("join", files[TRUNK], files[MTP], "-o", tmp_path / "j.gguf", "--provenance")
    keys = seen(tmp_path / "j.gguf").keys
    for index, role in enumerate((TRUNK, MTP)):
        header = open_gguf(files[role]).headers[0]
        raw = files[role].read_bytes()
        assert keys[f"nextn.source.{index}.file"][1] == files[role].name
        assert keys[f"nextn.source.{index}.bytes"][1] == len(raw)
        assert keys[f"nextn.source.{index}.header_sha256"][1] == hashlib.sha256(raw[: header.data_offset]).hexdigest()
    assert keys["nextn.source.operation"][1] == "join"
    surgery.carried_out(plan_split(tmp_path / "j.gguf", [COMBINED], provenance=True), tmp_path / "again")
    told = {k: v[1] for k, v in seen(tmp_path / "again" / "j.gguf").keys.items() if k.startswith("nextn.source.")}
    assert told["nextn.source.operation"] == "split"
    assert told["nextn.source.0.file"] == "j.gguf"
    assert not any(key.startswith("nextn.source.1.") for key in told)
    surgery.carried_out(plan_split(tmp_path / "j.gguf", [COMBINED]), tmp_path / "silent")
    assert not any(key.startswith("nextn.source.") for key in seen(tmp_path / "silent" / "j.gguf").keys)


# --- what is refused


@pytest.mark.parametrize("way", ["itself", "symlink", "hard link", "dotted path"])
@pytest.mark.parametrize("role", [TRUNK, MTP])
def test_an_output_that_is_an_input(way: str, role: Role, files: dict[Role, Path], tmp_path: Path) -> None:
    """With --overwrite, which is the dangerous one."""
    output = tmp_path / "in" / "other.gguf"
    if way == "itself":
        output = files[role]
    elif way == "symlink":
        output.symlink_to(files[role])
    elif way == "hard link":
        output.hardlink_to(files[role])
    else:
        output = tmp_path / "in" / ".." / "in" / files[role].name
    with untouched(tmp_path / "in"):
        told = refused("join", files[TRUNK], files[MTP], "-o", output, "--overwrite", status=2)
    assert told["code"] == "output-is-input"


def test_split_and_retype_onto_their_input(files: dict[Role, Path], tmp_path: Path) -> None:
    source = files[COMBINED]
    with untouched(tmp_path / "in"):
        for arguments in (
            ("split", source, "-o", tmp_path / "in", "--emit", "combined", "--overwrite"),
            ("retype", source, "-o", source, "--outtype", "q8_0", "--overwrite"),
            ("retype", source, "-o", tmp_path / "in" / "x.gguf", "--outtype", "q8_0", "--manifest", source),
        ):
            assert refused(*arguments, status=2)["code"] == "output-is-input"


@pytest.mark.parametrize("name", ["split", "join", "retype"])
def test_more_arguments_than_there_should_be(name: str, shards: list[Path], tmp_path: Path) -> None:
    """Case S07: as a shell's pattern gives them; the last one would be the output of other tools."""
    options = {"split": ("-o", tmp_path / "out"), "retype": ("-o", tmp_path / "o.gguf", "--outtype", "q8_0")}
    with untouched(tmp_path):
        told = refused(name, *shards, *options.get(name, ("-o", tmp_path / "o.gguf")), status=2)
        assert "unexpected extra argument" in told["message"]
        # Without -o there is no output at all.
        assert run(name, *shards).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("split", TRUNK, "-o", "out"), 1, "lacks-part"),
        (("split", MTP, "-o", "out", "--emit", "mtp", "--heads", "4"), 2, "no-such-heads"),
        (("split", "absent.gguf", "-o", "out"), 3, "unreadable"),
        (("join", MTP, TRUNK, "-o", "o.gguf"), 1, "pair-refused"),
        (("join", COMBINED, MTP, "-o", "o.gguf"), 2, "has-head"),
        (("join", TRUNK, MTP, "-o", "o.gguf", "--emit", "mtp"), 2, "not-shared"),
        (("join", TRUNK, MTP, "-o", "in"), 2, "output-is-folder"),
        (("retype", TRUNK, "-o", "o.gguf"), 2, "no-type"),
        (("retype", TRUNK, "-o", "o.gguf", "--tensor-type", "nothing=q8_0"), 2, "unused-pattern"),
        (("retype", TRUNK, "-o", "o.gguf", "--outtype", "q2_k"), 2, "usage"),
    ],
)
def test_statuses(
    arguments: tuple[object, ...], status: int, code: str, files: dict[Role, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    given = [files[each] if isinstance(each, Role) else each for each in arguments]
    with untouched(tmp_path):
        assert refused(*given, status=status)["code"] == code


def damage(kind: str, shards: list[Path]) -> None:
    match kind:
        case "missing-shard":
            shards[2].unlink()
        case "mixed-shards":
            other = carried_out(
                plan_retype(shards[0], shards[0].parent / "o" / shards[0].name, Q8_0), shards[0].parent / "o"
            )
            data = bytearray(other.outputs[1].path.read_bytes())
            assert data.count(b"split.tensors.count") == 1
            place = data.index(b"split.tensors.count") + 23
            data[place] += 1
            shards[1].write_bytes(data)
        case "truncated":
            os.truncate(shards[1], shards[1].stat().st_size - 40)
        case "not-gguf":
            shards[1].write_bytes(b"version https://git-lfs.github.com/spec/v1\n")


@pytest.mark.parametrize("kind", ["missing-shard", "mixed-shards", "truncated", "not-gguf"])
def test_broken_sets(kind: str, shards: list[Path], tmp_path: Path) -> None:
    damage(kind, shards)
    with untouched(tmp_path):
        told = refused("split", shards[0], "-o", tmp_path / "out", status=3)
    assert told["code"] == kind if kind != "mixed-shards" else told["code"] in ("mixed-shards", "shard-tensors")
    named = shards[2] if kind == "missing-shard" else shards[1]
    assert named.name in told["subject"] + told["message"]


def test_a_companion_that_is_a_link_is_named(shards: list[Path], tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    moved = shards[1].rename(tmp_path / "far" / "data")
    shards[1].symlink_to(moved)
    printed = shown("split", shards[0], "-o", tmp_path / "out")
    (warning,) = printed["warnings"]
    assert (warning["rule"], warning["subject"]) == ("symlink", str(shards[1]))
    assert str(moved) in warning["message"]


# --- shards


def test_shards_that_stay_as_they_are_become_links(
    shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first one, where a tensor changes its type, takes space."""
    usage = shutil.disk_usage(tmp_path)._replace(free=shards[0].stat().st_size)
    monkeypatch.setattr("nextn.convert.preflight.shutil.disk_usage", lambda _: usage)
    with untouched(tmp_path / "set"):
        output = tmp_path / "out" / "r.gguf"
        surgery.retyped(shards[2], output, None, {r"^token_embd": "q8_0"})
    made = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in made] == [f"r-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert [path.samefile(shard) for path, shard in zip(made, shards, strict=True)] == [False, True, True]
    before, after = seen(shards[0]).tensors, seen(made[0]).tensors
    assert {name for name in before if before[name] != after[name]} == {"token_embd.weight"}


def test_one_file_of_many_shards(shards: list[Path], files: dict[Role, Path], tmp_path: Path) -> None:
    shown("split", shards[1], "-o", tmp_path / "out", "--emit", "combined", "--split-max-tensors", "1000")
    assert [path.read_bytes() for path in (tmp_path / "out").iterdir()] == [files[COMBINED].read_bytes()]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV])
def test_where_there_are_no_links(
    number: int, shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between two places where the same file system is mounted: the shards are copied."""

    def refusing(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refusing)
    surgery.retyped(shards[0], tmp_path / "out" / "r.gguf", None, {r"^token_embd": "q8_0"})
    made = sorted((tmp_path / "out").iterdir())
    assert [path.stat().st_nlink for path in made] == [1, 1, 1]
    assert [path.read_bytes() for path in made[1:]] == [shard.read_bytes() for shard in shards[1:]]


def test_a_shard_of_other_data_is_no_link(files: dict[Role, Path], tmp_path: Path) -> None:
    """Its header is that of the old shard, to the byte: names, types and places are the same, the head is not."""
    pieces = carried_out(plan_split(files[COMBINED], [COMBINED], None, Split(max_tensors=70)), tmp_path / "set").outputs
    head = bytearray(files[MTP].read_bytes())
    head[-1] ^= 1
    files[MTP].write_bytes(head)
    made = surgery.joined(pieces[0].path, files[MTP], tmp_path / "out" / "x.gguf", replace_head=True)
    *_, last = seen(files[MTP]).tensors
    assert seen(made).tensors == seen(files[COMBINED]).tensors | {last: seen(files[MTP]).tensors[last]}
    assert len(pieces) == len(list((tmp_path / "out").iterdir())) == 2
