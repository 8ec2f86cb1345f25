"""`nextn fetch`, and GGUF repositories on the hub: what is taken, what pairs, what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import result
from fake_hub.faults import Fault, How
from reading_hub import STORAGE, Reading, digests, reading

from nextn.gguf_schema.architecture import Role

Converted = Callable[[str], dict[Role, Path]]
REPO = "org/tiny-GGUF"
COMBINED, TRUNK, HEAD = "Step35-Tiny-F32.gguf", "Step35-Tiny-trunk-F32.gguf", "mtp-Step35-Tiny-F32.gguf"
SHARED = "shared/mtp-Step35-Tiny-shared-F32.gguf"


@pytest.fixture(scope="module")
def files(converted: Converted) -> dict[str, Path]:
    folder = converted("step35")[Role.COMBINED].parent
    return {path: folder / path for path in (COMBINED, TRUNK, HEAD, SHARED)}


@pytest.fixture
def hub(tmp_path: Path, files: dict[str, Path]) -> Iterator[Reading]:
    with reading(tmp_path / "home") as hub:
        hub.hub.store.create(REPO).put({**files, "README.md": b"# Tiny"})
        yield hub


def shards(names: str, count: int = 4) -> dict[str, bytes]:
    """A set named as shards, of which those are there whose numbers are in `names`."""
    return {f"M-Q8_0-{int(n):05d}-of-{count:05d}.gguf": n.encode() * 1000 for n in names}


def outcomes(done: dict[str, list[dict[str, str]]], folder: Path) -> dict[str, str]:
    return {str(Path(file["path"]).relative_to(folder)): file["outcome"] for file in done["outputs"]}


def test_all_files_come_as_they_are_and_a_rerun_fetches_nothing(
    hub: Reading, files: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = hub.result("fetch", REPO, "-o", out)
    assert outcomes(done, out) == dict.fromkeys(files, "fetched")
    assert digests(out) == digests(files[COMBINED].parent)
    assert {file["path"]: file["sha256"] for file in done["outputs"]} == {
        str(out / path): digest for path, digest in digests(out).items()
    }
    assert done["bytes_fetched"] == hub.hub.bytes_sent(STORAGE) == sum(path.stat().st_size for path in files.values())
    hub.hub.forget()
    (out / HEAD).unlink()
    again = hub.result("fetch", REPO, "-o", out)
    assert outcomes(again, out) == {**dict.fromkeys(files, "there"), HEAD: "fetched"}
    assert hub.hub.bytes_sent(STORAGE) == files[HEAD].stat().st_size


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param((REPO, "--emit", "mtp"), [HEAD, SHARED], marks=pytest.mark.long),
        pytest.param((REPO, "--emit", "trunk"), [TRUNK], marks=pytest.mark.long),
        ((f"{REPO}:f32",), [COMBINED, TRUNK, HEAD, SHARED]),
        ((f"hf://{REPO}/{HEAD}",), [HEAD]),
    ],
)
def test_what_is_wanted(wanted: tuple[str, ...], expected: list[str], hub: Reading, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert list(outcomes(hub.result("fetch", *wanted, "-o", out), out)) == expected
    assert sorted(digests(out)) == sorted(expected)


@pytest.mark.long
def test_a_tag_brings_what_goes_with_it_though_it_has_another(hub: Reading, tmp_path: Path) -> None:
    """As `-hf` does: the head that is nearest in bits, here with all its shards, and the part for images."""
    names = ("M-Q4_K_M.gguf", "M-Q8_0.gguf", "mtp-M-Q8_0-00001-of-00002.gguf", "mtp-M-Q8_0-00002-of-00002.gguf")
    hub.hub.store.create("org/m").put({name: name.encode() for name in (*names, "mmproj-F16.gguf", "M.imatrix.gguf")})
    out = tmp_path / "out"
    assert sorted(outcomes(hub.result("fetch", "org/m:Q4_K_M", "-o", out), out)) == sorted(
        ["M-Q4_K_M.gguf", *names[2:], "mmproj-F16.gguf"]
    )


@pytest.mark.parametrize("there", ["124", *(pytest.param(there, marks=pytest.mark.long) for there in ("1", "234"))])
def test_an_incomplete_set_is_refused_before_the_first_byte(there: str, hub: Reading, tmp_path: Path) -> None:
    """U11: shards 1, 2 and 4 of 4."""
    hub.hub.store.create("org/m").put(shards(there))
    done = hub.run("fetch", "org/m", "-o", tmp_path / "out")
    assert done.returncode == 3
    for number in set("1234") - set(there):
        assert f"M-Q8_0-{int(number):05d}-of-00004.gguf" in done.stderr.partition("missing")[2]
    assert hub.hub.bytes_sent("/resolve/") == hub.hub.bytes_sent(STORAGE) == 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("emit", ["mtp", *(pytest.param(emit, marks=pytest.mark.long) for emit in ("trunk", "all"))])
def test_nothing_of_the_kind(emit: str, hub: Reading, tmp_path: Path) -> None:
    hub.hub.store.create("org/m").put({"config.json": b"{}"})
    done = hub.run("fetch", "org/m", "--emit", emit, "-o", tmp_path / "out")
    assert done.returncode == 3
    assert not (tmp_path / "out").exists()


def test_other_files_are_kept_unless_asked(hub: Reading, files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / HEAD).write_bytes(b"precious")
    done = hub.run("fetch", REPO, "--emit", "mtp", "-o", tmp_path)
    assert done.returncode == 2
    assert "exists" in done.stderr
    assert hub.hub.bytes_sent(STORAGE) == 0
    assert (tmp_path / HEAD).read_bytes() == b"precious"
    done = hub.run("fetch", REPO, "--emit", "mtp", "-o", tmp_path, "--overwrite")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / HEAD).read_bytes() == files[HEAD].read_bytes()


def test_a_partial_file_of_somebody_else_is_kept(hub: Reading, tmp_path: Path) -> None:
    (tmp_path / f"{HEAD}.partial").write_bytes(b"precious")
    done = hub.run("fetch", REPO, "--emit", "mtp", "-o", tmp_path)
    assert done.returncode == 2
    assert (tmp_path / f"{HEAD}.partial").read_bytes() == b"precious"
    assert hub.hub.bytes_sent(STORAGE) == 0


@pytest.mark.long
def test_what_does_not_have_the_hash_of_the_hub_gets_no_name(
    hub: Reading, files: dict[str, Path], tmp_path: Path
) -> None:
    hub.hub.faults.add(Fault(How.CORRUPT, "GET /cdn/.*mtp-Step35-Tiny-F32", times=1))
    done = hub.run("fetch", REPO, "--emit", "mtp", "-o", tmp_path, "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["error"]["code"] == "wrong-hash"
    assert not (tmp_path / HEAD).exists()
    done = hub.run("fetch", REPO, "--emit", "mtp", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / HEAD).read_bytes() == files[HEAD].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [HEAD]


def test_wrong_bytes_that_were_kept_are_not_copied_again_and_again(
    hub: Reading, files: dict[str, Path], tmp_path: Path
) -> None:
    """A header that came damaged, in a way that no reader of it notices, is what fetching begins with."""
    hub.hub.faults.add(Fault(How.CORRUPT, "GET /cdn/"))
    assert hub.run("validate", f"hf://{REPO}/{HEAD}").returncode in (0, 1, 3)
    hub.hub.faults.clear()
    for status in (4, 0):
        assert hub.run("fetch", f"hf://{REPO}/{HEAD}", "-o", tmp_path).returncode == status
    assert (tmp_path / HEAD).read_bytes() == files[HEAD].read_bytes()


def test_fetching_needs_no_place_to_keep_anything_else(hub: Reading, files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = hub.run(
        "fetch", f"hf://{REPO}/{HEAD}", "-o", tmp_path / "out", variables={"HF_ASSETS_CACHE": str(tmp_path / "file")}
    )
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "out") == {HEAD: digests(files[HEAD].parent)[HEAD]}
    assert list(hub.home.rglob("*.ranges")) == []


def test_a_path_that_leads_out_of_the_folder_is_refused(hub: Reading, tmp_path: Path) -> None:
    hub.hub.store.create("org/m").put({"../../evil-Q8_0.gguf": b"x"})
    done = hub.run("fetch", "org/m", "-o", tmp_path / "a" / "b")
    assert done.returncode == 4
    assert list(tmp_path.rglob("evil*")) == []


def test_what_hf_picks_and_what_pairs(hub: Reading, tmp_path: Path) -> None:
    shown = hub.result("inspect", REPO)
    assert shown["repository"]["id"] == REPO
    assert {each["path"]: each["role"] for each in shown["sets"]} == {
        COMBINED: "combined", TRUNK: "trunk", HEAD: "mtp", SHARED: "mtp-shared"
    }  # fmt: skip
    first, of_tag = shown["picks"]
    assert (first["tag"], first["model"], first["draft"]) == (None, [COMBINED], HEAD)
    assert (of_tag["tag"], of_tag["model"], of_tag["draft"]) == ("F32", [COMBINED], HEAD)
    pairs = {(pair["model"], pair["draft"]): pair["ok"] for pair in shown["pairs"]}
    assert pairs == {(model, draft): True for model in (COMBINED, TRUNK) for draft in (HEAD, SHARED)}
    assert shown["ok"]
    printed = hub.run("inspect", f"{REPO}:f32")
    assert printed.returncode == 0
    assert f"draft  {HEAD}" in printed.stdout


def test_a_pick_that_does_not_pair_is_a_negative_verdict(
    hub: Reading, converted: Converted, files: dict[str, Path]
) -> None:
    """U12: the head of another model beside a trunk."""
    hub.hub.store.create("org/m").put({"M-F32.gguf": files[TRUNK], "mtp-M-F32.gguf": converted("qwen4exp")[Role.MTP]})
    shown = hub.result("inspect", "org/m", status=1)
    (pair,) = shown["pairs"]
    assert (pair["model"], pair["draft"], pair["ok"]) == ("M-F32.gguf", "mtp-M-F32.gguf", False)
    assert pair["message"]


def test_a_file_on_the_hub_is_judged_as_the_local_one(hub: Reading, files: dict[str, Path]) -> None:
    local = result("validate", files[COMBINED], "--draft", files[HEAD])
    remote = hub.result("validate", f"hf://{REPO}/{COMBINED}", "--draft", f"hf://{REPO}/{HEAD}")
    for where, place in ((local, str(files[COMBINED].parent)), (remote, REPO)):
        text = json.dumps(where).replace(place, "HERE")
        where |= json.loads(text)
    assert remote == local
    whole = files[COMBINED].stat().st_size
    assert hub.hub.bytes_sent(f"{STORAGE}") < 0.5 * whole


@pytest.mark.long
def test_a_whole_repository_is_judged(hub: Reading, files: dict[str, Path]) -> None:
    assert hub.result("validate", REPO)["ok"]
    cut = files[TRUNK].read_bytes()[:-5000]
    hub.hub.store.repositories[REPO].put({"M-trunk-F32.gguf": cut, **shards("124")})
    judged = hub.result("validate", REPO, status=1)
    verdicts = {each["path"]: each["ok"] for each in judged["sets"]}
    sound = dict.fromkeys((COMBINED, TRUNK, HEAD, SHARED), True)
    assert verdicts == {**sound, "M-trunk-F32.gguf": False, "M-Q8_0-00001-of-00004.gguf": False}
    only = hub.result("validate", f"{REPO}:Q8_0", status=1)
    assert [each["path"] for each in only["sets"]] == ["M-Q8_0-00001-of-00004.gguf"]


@pytest.mark.parametrize("command", ["validate", "inspect"])
@pytest.mark.long
def test_a_file_that_is_not_there(command: str, hub: Reading) -> None:
    done = hub.run(command, f"hf://{REPO}/none.gguf", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["error"]["code"] == "no-file"
