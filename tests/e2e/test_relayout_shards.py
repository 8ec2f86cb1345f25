"""Sets of shards: what changes in the metadata alone touches the first of them, and the others are linked or copied."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from by_hand import FORKS, OLD_GLM, Hand, by_hand
from command import result, run
from families import FAMILIES
from interrupted import RENAMES, calls, child, hashes
from surgery import seen
from verdicts import error, rules, verdict

from nextn.gguf_schema.architecture import Role
from nextn.runtime.engines import llama_cpp

Converted = Callable[[str], dict[Role, Path]]
NAMES = [f"glm-{index:05}-of-00003.gguf" for index in (1, 2, 3)]


def shards(folder: Path) -> list[Path]:
    return [folder / name for name in NAMES]


def relaid(source: Path, folder: Path, to: str = "upstream", *options: object) -> dict[str, Any]:
    return result("relayout", source, "-o", folder / "glm.gguf", "--to", to, *options)


def linked(one: Path, other: Path) -> list[bool]:
    """Of each shard whether it is the same file in both folders."""
    return [a.samefile(b) for a, b in zip(shards(one), shards(other), strict=True)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of GLM as it was published: the metadata in a shard of its own; and what the old spelling has for it."""
    folder = tmp_path_factory.mktemp("set")
    limits = ("--no-tensor-first-split", "--split-max-size", "6M")
    result(
        "convert",
        FAMILIES["glm5-next"].checkpoint,
        "--outfile",
        folder / "new" / "glm.gguf",
        "--outtype",
        "f32",
        *limits,
    )
    shutil.copytree(folder / "new", folder / "old")
    by_hand(folder / "new" / NAMES[0], folder / "old" / NAMES[0], OLD_GLM)
    return folder


@pytest.fixture
def old(made: Path, tmp_path: Path) -> Path:
    """A set in the old spelling, whose first shard gguf-py wrote."""
    return Path(shutil.copytree(made / "old", tmp_path / "old"))


@pytest.fixture
def new(made: Path) -> Path:
    """The set in upstream's spelling."""
    return made / "new"


@pytest.mark.parametrize("given", [pytest.param(0, marks=pytest.mark.long), 1, pytest.param(2, marks=pytest.mark.long)])
def test_case_c16_only_the_first_shard_changes(given: int, old: Path, new: Path, tmp_path: Path) -> None:
    """Cases C16 and S08: gigabytes stay where they are, whichever shard is given."""
    before = hashes(old)
    assert len(gguf.GGUFReader(shards(old)[0]).tensors) == 0
    printed = relaid(shards(old)[given], tmp_path / "out")
    assert [Path(each["path"]) for each in printed["outputs"]] == shards(tmp_path / "out")
    assert hashes(tmp_path / "out") == hashes(new)
    assert linked(tmp_path / "out", old) == [False, True, True]
    assert (hashes(old), printed["bytes_read"]) == (before, 0)
    shown = verdict("validate", shards(tmp_path / "out")[2], "--strict", "--role", "combined", status=0)
    assert (shown["layout"], shown["tensors"]) == ("upstream", 213)
    assert (tmp_path / "out" / NAMES[0]).stat().st_nlink == 1


def test_there_and_back(new: Path, tmp_path: Path) -> None:
    """Names of the output that look like a shard's are those of the set."""
    there = tmp_path / "there"
    result("relayout", shards(new)[1], "-o", there / NAMES[2], "--to", "glm5next")
    assert linked(there, new) == [False, True, True]
    assert hashes(there)[NAMES[0]] != hashes(new)[NAMES[0]]
    relaid(shards(there)[0], tmp_path / "back")
    assert hashes(tmp_path / "back") == hashes(new)


def test_again_with_overwrite(old: Path, new: Path, tmp_path: Path) -> None:
    """The links of the first run are replaced, not written to; and so is what another set left there."""
    out = tmp_path / "out"
    relaid(shards(old)[0], out)
    done = run("relayout", shards(old)[0], "-o", out / "glm.gguf", "--to", "upstream")
    assert (done.returncode, f"error: {out / NAMES[0]}: exists\n" in done.stderr) == (2, True)
    relaid(shards(old)[0], out, "upstream", "--overwrite")
    assert linked(out, old) == [False, True, True]
    other = Path(shutil.copytree(new, tmp_path / "other"))
    with shards(other)[1].open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(b"another")
    before = hashes(old), hashes(other)
    relaid(shards(other)[0], out, "glm5next", "--overwrite")
    assert linked(out, other) == [False, True, True]
    assert (hashes(old), hashes(other)) == before
    assert not list(out.glob("*.partial"))


def test_shards_that_are_links_elsewhere(old: Path, new: Path, tmp_path: Path) -> None:
    """As in the hub's cache: the output gets the files, not links to links."""
    store = tmp_path / "store"
    store.mkdir()
    for path in shards(old):
        path.rename(store / path.name)
        path.symlink_to(store / path.name)
    relaid(shards(old)[0], tmp_path / "out")
    assert hashes(tmp_path / "out") == hashes(new)
    assert not any(path.is_symlink() for path in shards(tmp_path / "out"))
    assert linked(tmp_path / "out", store) == [False, True, True]


def test_another_file_system(old: Path, new: Path) -> None:
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there
    if not memory.is_dir() or memory.stat().st_dev == old.stat().st_dev:
        pytest.skip("there is but one file system")
    out = memory / f"nextn-{os.getpid()}"
    try:
        relaid(shards(old)[0], out)
        assert hashes(out) == hashes(new)
        assert linked(out, old) == [False, False, False]
        relaid(shards(old)[0], out, "upstream", "--overwrite")
        assert hashes(out) == hashes(new)
    finally:
        shutil.rmtree(out, ignore_errors=True)


@pytest.mark.parametrize("code", ["EPERM", pytest.param("EMLINK", marks=pytest.mark.long)])
def test_a_file_system_without_links(code: str, old: Path, new: Path, tmp_path: Path) -> None:
    """What fails is every link to a shard: it is copied."""
    arguments = ("relayout", shards(old)[0], "-o", tmp_path / "out" / "glm.gguf", "--to", "upstream")
    child("", -1, tmp_path / "log", *arguments)
    first = next(number for number, (name, _) in enumerate(calls(tmp_path / "log")) if name == "link")
    shutil.rmtree(tmp_path / "out")
    assert getattr(errno, code)
    done = child(code, first, tmp_path / "log", *arguments)
    assert done.returncode == 0, done.stderr
    assert hashes(tmp_path / "out") == hashes(new)
    assert linked(tmp_path / "out", old) == [False, False, True]


def killed(old: Path, new: Path, tmp_path: Path, hows: dict[int, str]) -> None:
    """Killed at calls of these numbers; what has its final name is whole, and the same command ends the work."""
    before, expected, out = hashes(old), hashes(new), tmp_path / "killed"
    arguments = ("relayout", shards(old)[0], "-o", out / "glm.gguf", "--to", "upstream", "--jobs", "2")
    for at, how in hows.items():
        struck = child(how, at, tmp_path / "log", *arguments)
        assert struck.returncode == -signal.SIGKILL, struck.stderr
        finals = {name: digest for name, digest in hashes(out).items() if name.endswith(".gguf")}
        assert finals.items() <= expected.items()
        done = child("", -1, tmp_path / "log", *arguments)
        assert (done.returncode, hashes(out)) == (0, expected), (at, how, done.stderr)
        assert linked(out, old) == [False, True, True]
        assert hashes(old) == before
        shutil.rmtree(out)


def number_of_calls(old: Path, tmp_path: Path) -> tuple[int, list[int]]:
    """How many calls change files, and which of them give names."""
    done = child(
        "", -1, tmp_path / "log", "relayout", shards(old)[0], "-o", tmp_path / "x" / "glm.gguf", "--to", "upstream"
    )
    assert done.returncode == 0, done.stderr
    names = [name for name, _ in calls(tmp_path / "log")]
    return len(names), [number for number, name in enumerate(names) if name in RENAMES]


def test_killed_here_and_there(old: Path, new: Path, tmp_path: Path) -> None:
    count, renames = number_of_calls(old, tmp_path)
    assert len(renames) == 5, "two links to shards, and three final names"
    killed(old, new, tmp_path, {renames[0]: "kill-after", renames[3]: "kill", count - 1: "kill"})


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "kill-within", "kill-after"])
def test_killed_at_every_call(how: str, old: Path, new: Path, tmp_path: Path) -> None:
    count, _ = number_of_calls(old, tmp_path)
    killed(old, new, tmp_path, dict.fromkeys(range(count - (how == "kill-after")), how))


def test_case_c14_an_array_that_the_rewritten_header_forgot(new: Path, tmp_path: Path) -> None:
    """One of three arrays is of the trunk's length: llama.cpp wants one more entry; only the first shard changes."""
    broken = tmp_path / "broken"
    shutil.copytree(new, broken)
    by_hand(new / NAMES[0], broken / NAMES[0], Hand(keys={"attention.head_count_kv": lambda old: old[:-1]}))
    shown = verdict("validate", shards(broken)[1], status=1)
    assert rules(shown) == {"array-length"}
    done = run("repair", shards(broken)[1], "-o", tmp_path / "out" / "glm.gguf")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("glm5-next.attention.head_count_kv 6 → 7 entries: ")
    assert hashes(tmp_path / "out") == hashes(new)
    assert linked(tmp_path / "out", broken) == [False, True, True]
    pytest.importorskip("xllamacpp")
    said = llama_cpp.load(shards(broken)[0])
    assert "head_count_kv has wrong array length; expected 7, got 6" in said.message
    assert llama_cpp.load(shards(tmp_path / "out")[0], mtp=True).ok


def test_numbers_of_a_set_that_are_wrong(new: Path, tmp_path: Path) -> None:
    """Opening tells of them before any repair: a set is read by its keys, and so is what is missing."""
    broken = tmp_path / "broken"
    shutil.copytree(new, broken)
    by_hand(new / NAMES[0], broken / NAMES[0], Hand(keys={"split.tensors.count": 200}))
    failed = error("repair", shards(broken)[0], "-o", tmp_path / "out" / "glm.gguf", status=3)
    assert failed["code"] in ("shard-tensors", "mixed-shards")
    assert not (tmp_path / "out").exists()


def test_later_shards_that_repeat_keys(old: Path, new: Path, tmp_path: Path) -> None:
    """A repeated architecture may not be left behind in the old spelling: such shards are written anew, without it."""
    repeated = tmp_path / "repeated"
    shutil.copytree(old, repeated)
    for name in NAMES[1:]:
        extra = Hand(behind={"split.tensors.count": ("attention.indexer.block_size", 4)}, architecture="glm5next")
        by_hand(old / name, repeated / name, extra)
    fields = set(gguf.GGUFReader(shards(repeated)[2]).fields)
    assert {"general.architecture", "glm5next.attention.indexer.block_size"} <= fields
    relaid(shards(repeated)[1], tmp_path / "out")
    assert hashes(tmp_path / "out") == hashes(new)
    verdict("validate", shards(tmp_path / "out")[0], "--strict", status=0)


@pytest.mark.parametrize("layout", ["split-fc", pytest.param("pull-request", marks=pytest.mark.long)])
def test_a_set_of_qwen4exp_in_which_tensors_change(layout: str, tmp_path: Path) -> None:
    """The shard with the head's projection is written, and the first, which has the keys; the others are linked."""
    whole = tmp_path / "whole"
    options = ("--split-max-tensors", 60, "--outtype", "q8_0")
    result("convert", FAMILIES["qwen4exp"].checkpoint, "--outfile", whole / "q.gguf", *options)
    before = sorted(whole.glob("*.gguf"))
    holder = next(n for n, p in enumerate(before) for t in gguf.GGUFReader(p).tensors if "eh_proj" in t.name)
    there, back = tmp_path / "there", tmp_path / "back"
    result("relayout", before[2], "-o", there / "q.gguf", "--to", layout)
    links = [path.samefile(there / path.name) for path in before]
    changed = {0, holder} if layout == "split-fc" else {0}
    assert (len(before), holder > 0) == (5, True)
    assert [not link for link in links] == [layout == "split-fc" or number in changed for number in range(5)]
    shown = verdict("validate", sorted(there.glob("*.gguf"))[1], status=1)
    assert (shown["layout"], shown["tensors"]) == (layout, 247 if layout == "split-fc" else 246)
    result("relayout", there / before[3].name, "-o", back / "q.gguf", "--to", "upstream")
    assert hashes(back) == hashes(whole)
    assert seen(sorted(there.glob("*.gguf"))[0]).number("block_count") == 9
    assert FORKS[layout].names or FORKS[layout].keys
