"""`nextn upload`: what becomes visible, what is refused, and what is said, with a hub on loopback."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_hub.store import Blob, StoredFile
from fake_hub.uploads import uploads_of
from families import FAMILIES
from uploading import READER, REPO, TOKEN, Uploading, uploading

from nextn.convert.pipeline import convert
from nextn.convert.planner import Options
from nextn.convert.splitting import Split
from nextn.gguf_schema.architecture import Role

Converted = Callable[[str], dict[Role, Path]]
TRUNK, MTP, SHARED = (
    "Step35-Tiny-trunk-F32.gguf",
    "mtp-Step35-Tiny-F32.gguf",
    "shared/mtp-Step35-Tiny-shared-F32.gguf",
)


@pytest.fixture(scope="session")
def three(converted: Converted) -> dict[str, Path]:
    """A trunk and its two heads, by the paths that they should have on the hub."""
    made = converted("step35")
    return {TRUNK: made[Role.TRUNK], MTP: made[Role.MTP], SHARED: made[Role.MTP_SHARED]}


@pytest.fixture
def up(tmp_path: Path, three: dict[str, Path]) -> Iterator[Uploading]:
    with uploading(tmp_path / "home", three) as made:
        yield made


def card(up: Uploading, repo: str = REPO) -> str:
    file = up.hub.store.repositories[repo].head().files["README.md"]
    return file.blob.read(0, file.blob.size).decode()


def test_the_installed_command_publishes_everything_with_one_commit(up: Uploading) -> None:
    up.watch()
    done = up.installed(*up.files.values(), REPO)
    assert done.status == 0, done.said
    assert up.is_published()
    assert up.half == []
    repository = up.hub.store.repositories[REPO]
    first = repository.commits[repository.head().parent or ""]
    assert first.message == "initial commit"
    assert list(repository.refs) == ["main"]
    # Nobody touched what the hub made itself.
    assert repository.head().files[".gitattributes"] == first.files[".gitattributes"]
    assert up.sent() == dict.fromkeys(up.files, 1)
    assert REPO in done.out
    assert repository.head().id in done.out


def test_a_second_run_sends_nothing_and_hashes_nothing(up: Uploading) -> None:
    assert up.run().status == 0
    up.hub.forget()
    again = up.run("--json")
    assert again.status == 0
    assert {file["outcome"] for file in json.loads(again.out)["files"]} == {"on the hub already"}
    assert {seen.method for seen in up.hub.requests()} == {"GET"}
    kept = next(up.home.rglob("sha256.json"))
    assert sorted(json.loads(kept.read_text()).values()) == sorted(up.wanted.values())


def test_json_lists_files_with_sizes_and_hashes(up: Uploading) -> None:
    told = json.loads(up.run("--json", "--quiet").out)
    for file in told["files"]:
        if file["path"] != "README.md":
            assert file["sha256"] == up.wanted[file["path"]]
            assert file["bytes"] == up.files[file["path"]].stat().st_size
    assert (told["ok"], told["published"], told["draft"], told["pull_request"]) == (True, True, None, None)
    assert told["commit"] == up.hub.store.repositories[REPO].head().id


def test_a_dry_run_only_reads(up: Uploading) -> None:
    done = up.run("--dry-run", token="")
    assert done.status == 0, done.said
    assert {seen.method for seen in up.hub.requests()} == {"GET"}
    assert up.hub.store.repositories == {}
    assert "would be made (public)" in done.out
    assert done.out.count("would be sent") == 4
    assert list(up.home.rglob("sha256.json")) == []


@pytest.mark.long
def test_a_dry_run_needs_no_place_to_keep_hashes(up: Uploading, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    up.home = tmp_path / "file"
    done = up.installed(*up.files.values(), REPO, "--dry-run")
    assert done.status == 0, done.said


@pytest.mark.long
def test_a_dry_run_shows_the_card_and_what_is_there(up: Uploading) -> None:
    assert up.run().status == 0
    told = json.loads(up.run("--dry-run", "--json").out)
    assert {file["outcome"] for file in told["files"]} == {"on the hub already"}
    assert told["card"] == card(up)


@pytest.mark.long
def test_listings_come_in_pages(up: Uploading) -> None:
    up.hub.page_size = 2
    assert up.run().status == 0
    up.hub.forget()
    assert up.run().status == 0
    assert up.sent() == {}
    assert up.hub.requests("cursor=")


def test_a_set_of_shards_is_published_as_one_model(up: Uploading, tmp_path: Path) -> None:
    split = Options((Role.TRUNK,), "f32", split=Split(max_tensors=30))
    convert(FAMILIES["step35"].checkpoint, tmp_path, options=split)
    shards = sorted(tmp_path.glob("*-of-*.gguf"))
    incomplete = up.installed(*shards[1:], REPO)
    assert incomplete.status == 3
    assert shards[0].name in incomplete.err
    assert up.hub.requests() == []
    assert up.installed(*shards, up.files[MTP], REPO).status == 0
    main, text = up.main(), card(up)
    for shard in shards:
        digest = hashlib.sha256(shard.read_bytes()).hexdigest()
        assert main[shard.name] == digest
        assert f"<code>{digest}</code>" in text
    commands = [line.strip() for line in text.splitlines() if line.startswith("    llama-server -m")]
    assert commands == [
        f"llama-server -m {shards[0].name}",
        f"llama-server -m {shards[0].name} -md {MTP} --spec-type draft-mtp",
    ]


@pytest.mark.long
def test_bars_on_a_terminal_and_none_when_quiet(up: Uploading) -> None:
    shown = up.on_a_terminal()
    assert f"{TRUNK}: 100%" in shown
    assert "hashing" in shown
    up.hub.store.repositories.clear()
    up.hub.store.objects.clear()
    assert up.on_a_terminal("--quiet") == ""


@pytest.mark.long
def test_private_repositories(up: Uploading) -> None:
    assert up.run("--private").status == 0
    assert up.hub.store.repositories[REPO].private
    public = up.hub.store.create("me/public")
    public.readers = frozenset({"me"})
    refused = up.run("--private", repo="me/public")
    assert refused.status == 2
    assert "is public" in refused.err


def test_a_pull_request_leaves_main_alone_and_is_found_again(up: Uploading) -> None:
    repository = up.hub.store.create("other/Tiny-GGUF")
    before = repository.head()
    done = up.run("--create-pr", "--json", repo="other/Tiny-GGUF")
    assert done.status == 0, done.said
    told = json.loads(done.out)
    assert repository.head() == before
    assert told["published"] is False
    assert told["draft"] == "refs/pr/1"
    assert told["pull_request"] == f"{up.hub.endpoint}/other/Tiny-GGUF/discussions/1"
    (made,) = uploads_of(up.hub).pull_requests["other/Tiny-GGUF"]
    assert made.status == "open"
    files = repository.head("refs/pr/1").files
    assert {path: files[path].blob.sha256 for path in up.wanted} == up.wanted
    up.hub.forget()
    again = up.run("--create-pr", repo="other/Tiny-GGUF")
    assert again.status == 0
    assert up.sent() == {}
    assert len(uploads_of(up.hub).pull_requests["other/Tiny-GGUF"]) == 1


def test_a_pull_request_of_somebody_else_is_left_alone(up: Uploading) -> None:
    """Its title says that it is ours; what else is in it would be merged, too."""
    repository = up.hub.store.create("other/Tiny-GGUF")
    assert up.run("--create-pr", repo="other/Tiny-GGUF").status == 0
    (made,) = uploads_of(up.hub).pull_requests["other/Tiny-GGUF"]
    made.author = "mallory"
    before = repository.head("refs/pr/1")
    done = up.run("--create-pr", "--json", repo="other/Tiny-GGUF")
    assert json.loads(done.out)["draft"] == "refs/pr/2"
    assert repository.head("refs/pr/1") == before


@pytest.mark.long
def test_a_pull_request_needs_a_repository(up: Uploading) -> None:
    done = up.run("--create-pr")
    assert done.status == 4
    assert "nobody can ask it to pull" in done.err
    assert up.hub.store.repositories == {}


@pytest.mark.long
def test_what_people_wrote_in_the_card_stays(up: Uploading) -> None:
    repository = up.hub.store.create(REPO)
    human = "---\nlicense: apache-2.0\ntags: [mine]\n---\n# My model\n\nIt is *good*.\n"
    repository.put({"README.md": StoredFile(Blob(human.encode()), False)})
    assert up.run().status == 0
    text = card(up)
    assert text.startswith("---\nlicense: apache-2.0\ntags: [mine]\n")
    assert "# My model\n\nIt is *good*.\n" in text
    for digest in up.wanted.values():
        assert digest in text


def test_the_card_names_the_target_of_a_sidecar(up: Uploading) -> None:
    assert up.run("--base", "maker/Step35@0123abc").status == 0
    text = card(up)
    # golden: the sha256 of the embeddings as the trunk file holds them, computed here from its bytes.
    from gguf import GGUFReader

    embedding = next(t for t in GGUFReader(up.files[TRUNK]).tensors if t.name == "token_embd.weight")
    assert hashlib.sha256(embedding.data.tobytes()).hexdigest() in text
    assert "base_model: maker/Step35" in text
    assert "0123abc" in text
    assert "tensor 'token_embd.weight' not found" in text


@pytest.mark.long
def test_the_card_keeps_what_it_says_of_earlier_files(up: Uploading) -> None:
    earlier, later = up.files[MTP], (up.files[TRUNK], up.files[SHARED])
    assert up.installed(earlier, REPO).status == 0
    assert up.installed(*later, REPO).status == 0
    for digest in up.wanted.values():
        assert card(up).count(f"<code>{digest}</code>") == 1


def test_invalid_files_stop_it_before_the_hub_is_asked(up: Uploading, tmp_path: Path) -> None:
    short = tmp_path / "Short-F32.gguf"
    short.write_bytes(up.files[TRUNK].read_bytes()[:-1000])
    done = up.installed(short, REPO, "--json")
    assert done.status == 1
    told = json.loads(done.out)
    assert told["ok"] is False
    assert [finding["rule"] for finding in told["findings"] if finding["severity"] == "error"] == ["truncated"]
    assert up.hub.requests() == []
    insisted = up.installed(short, REPO, "--allow-invalid")
    assert insisted.status == 0, insisted.said
    assert up.main()["Short-F32.gguf"] == hashlib.sha256(short.read_bytes()).hexdigest()


def test_a_head_must_fit_a_trunk_beside_it(up: Uploading, converted: Converted) -> None:
    done = up.installed(up.files[MTP], converted("qwen4exp")[Role.TRUNK], REPO)
    assert done.status == 1
    assert "error: " in done.err
    assert up.hub.requests() == []


@pytest.mark.long
def test_names_by_which_llama_cpp_picks(up: Uploading, tmp_path: Path) -> None:
    shutil.copy(up.files[MTP], tmp_path / "head-F32.gguf")
    shutil.copy(up.files[TRUNK], tmp_path / "mtp-trunk-F32.gguf")
    for name in ("head-F32.gguf", "mtp-trunk-F32.gguf"):
        done = up.installed(tmp_path / name, REPO)
        assert done.status == 1, name
        assert "mtp-" in done.err
    assert up.hub.requests() == []


def test_a_certificate_goes_along_and_must_be_about_these_files(up: Uploading, tmp_path: Path) -> None:
    told = {
        "format": "nextn identity 1",
        "identical": True,
        "verdict": "identical",
        "cause": None,
        "engines": [],
        "prompts": [],
        "runs": [
            {
                "engine": "reference", "prompt": "p", "category": "c", "n_max": n_max, "order": "B1", "status": "ok",
                "message": "", "tokens": [], "text": None, "stop": "end", "n_drafted": drafted,
                "n_accepted": accepted, "class": 0,
            }
            for n_max, drafted, accepted in ((0, 0, 0), (2, 100, 80), (3, 50, 40))
        ],
        "aggregate": [],
        "findings": [],
        "stream_sha256": "5" * 64,
        "files": [{"path": "trunk", "sha256": up.wanted[TRUNK]}],
        "versions": {},
        "settings": {},
        "command": [],
        "created": "2026-01-01",
    }  # fmt: skip
    path = tmp_path / "identity.json"
    path.write_text(json.dumps(told))
    assert up.run("--certificate", path).status == 0
    assert up.main()["identity.json"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "| identical | 0 | 2, 3 | 150 | 120 (80.0 %) |" in card(up)
    path.write_text(json.dumps({**told, "files": [{"path": "another.gguf", "sha256": "0" * 64}]}))
    refused = up.run("--certificate", path)
    assert refused.status == 3
    assert "another.gguf" in refused.err


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("", "the hub takes files only from who has a token"),
        pytest.param("hf_UnknownToAnybody", "does not accept the token", marks=pytest.mark.long),
        (READER, "the token can only read"),
    ],
)
def test_tokens_that_do_not_do(up: Uploading, token: str, said: str) -> None:
    done = up.run("--debug" if token else "--quiet", token=token)
    assert done.status == 4
    assert said in done.err
    assert not token or token not in done.said
    assert up.hub.store.repositories == {}


def test_somebody_elses_repository(up: Uploading) -> None:
    up.hub.store.create("other/Tiny-GGUF")
    done = up.run(repo="other/Tiny-GGUF")
    assert done.status == 4
    assert "You don't have the rights to write to other" in done.err
    assert len(up.hub.requests("/branch/")) == 1
    assert up.sent() == {}


def test_the_token_is_never_printed(up: Uploading) -> None:
    from fake_hub.faults import status

    # A server that repeats it.
    up.hub.faults.add(status(403, "POST .*branch", message=f"no rights for {TOKEN}, Authorization: Bearer {TOKEN}"))
    done = up.run("--json", "--debug")
    assert done.status == 4
    assert TOKEN not in done.said
    up.hub.faults.clear()
    assert TOKEN not in up.run("--debug").said
    assert all(TOKEN.encode() not in path.read_bytes() for path in up.home.rglob("*") if path.is_file())


@pytest.mark.parametrize("repo", ["Tiny", "me/with space"])
def test_names_that_are_no_repository(up: Uploading, repo: str) -> None:
    done = up.installed(up.files[TRUNK], repo)
    assert done.status == 2
    assert "give org/name" in done.err
    assert up.hub.requests() == []
