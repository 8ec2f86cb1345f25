"""Checkpoints and GGUF files on the hub: converted, inspected and judged by the installed command, by range."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import LAST_SHARD, STEP
from fake_hub.faults import status
from fake_hub.routing import Request, Response
from families import FAMILIES
from reading_hub import HEAD_BYTES, STORAGE, Reading, digests, reading, tensor_bytes

from nextn.gguf_schema.architecture import Role

Converted = Callable[[str], dict[Role, Path]]
EVERY_ROLE = ("--emit", "combined,trunk,mtp,mtp-shared", "--outtype", "f32")
MTP = "mtp-Step35-Tiny-F32.gguf"
TOKEN = "hf_ReaderOfPrivateThings"  # noqa: S105 - of the fake hub
OLD_TOKEN = "api_org_AnOldOne"  # noqa: S105 - as the hub gave them once


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Reading]:
    with reading(tmp_path / "home", {"org/step35-tiny": STEP}) as hub:
        yield hub


def weights(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize("family", FAMILIES)
def test_remote_files_are_the_local_ones(family: str, tmp_path: Path, converted: Converted) -> None:
    local, checkpoint = converted(family), FAMILIES[family].checkpoint
    name = f"org/{checkpoint.name}"
    with reading(tmp_path / "home", {name: checkpoint}) as hub:
        done = hub.result("convert", name, "-o", tmp_path / "out", *EVERY_ROLE)
        assert hub.sent_twice() == []
        small = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.suffix != ".safetensors")
        sent = hub.hub.bytes_sent("GET ")
        # Listings have some bytes; nothing that was dropped is needed.
        assert sent <= 1.02 * weights(checkpoint) + small + 20_000
    folder = local[Role.COMBINED].parent
    assert digests(tmp_path / "out") == digests(folder)
    assert done["bytes_fetched"] <= done["bytes_read"] * 1.01


def test_the_head_costs_its_own_bytes_and_those_of_embeddings_and_output(hub: Reading, tmp_path: Path) -> None:
    done = hub.run("convert", "org/step35-tiny", "-o", tmp_path / "out", "--mtp")
    assert done.returncode == 0, done.stderr
    shards = sorted(STEP.glob("*.safetensors"))
    # The last shard holds the heads and nothing else.
    needed = sum(tensor_bytes(STEP / LAST_SHARD).values())
    for shard in shards[:-1]:
        sizes = tensor_bytes(shard)
        needed += sum(size for name, size in sizes.items() if "embed_tokens" in name or name.startswith("lm_head"))
    sent = hub.hub.bytes_sent(STORAGE)
    assert needed <= sent <= 1.02 * needed + HEAD_BYTES * len(shards)
    assert sent < 0.6 * weights(STEP)
    assert hub.sent_twice() == []


def test_two_exports_of_one_repository_are_one_download(hub: Reading, tmp_path: Path) -> None:
    """U08: what both need is fetched once; HF_HOME decides where it is kept."""
    for emit, folder in (("mtp", "a"), ("combined", "b")):
        done = hub.run("convert", "org/step35-tiny", "-o", tmp_path / folder, "--emit", emit)
        assert done.returncode == 0, done.stderr
    assert hub.sent_twice() == []
    assert hub.hub.bytes_sent(STORAGE) <= weights(STEP)
    assert hub.hub.requests("GET /org/step35-tiny/resolve/") != []
    kept = {path.relative_to(hub.home).parts[0] for path in hub.home.rglob("*") if path.is_file()}
    assert {"hub", "assets"} <= kept


def test_what_is_in_the_cache_of_the_hub_is_not_fetched_again(hub: Reading, tmp_path: Path) -> None:
    script = f"from huggingface_hub import hf_hub_download; hf_hub_download('org/step35-tiny', {LAST_SHARD!r})"
    subprocess.run([sys.executable, "-c", script], env=hub.environment, check=True, capture_output=True)
    hub.hub.forget()
    done = hub.run("convert", "org/step35-tiny", "-o", tmp_path / "out", "--mtp")
    assert done.returncode == 0, done.stderr
    assert [seen.path for seen in hub.hub.requests(STORAGE) if LAST_SHARD in seen.path] == []


def test_a_dry_run_and_inspect_fetch_headers_alone(hub: Reading, tmp_path: Path) -> None:
    planned = hub.result("convert", "org/step35-tiny", "-o", tmp_path / "out", "--dry-run")
    assert planned["outputs"][0]["role"] == "combined"
    shown = hub.result("inspect", "org/step35-tiny")
    assert shown["checkpoint"] == {"path": "org/step35-tiny", "heads": 3, "heads_claimed": 3}
    assert shown["role"] == "combined"
    # Planning reads tensors of at most 64 KiB, too: few, if any.
    assert hub.hub.bytes_sent(STORAGE) <= 4 * HEAD_BYTES
    assert not (tmp_path / "out").exists()


def test_a_header_longer_than_what_is_read_at_first(hub: Reading, tmp_path: Path, converted: Converted) -> None:
    """Spaces behind the JSON object are part of the header; the format allows them."""
    data = (STEP / LAST_SHARD).read_bytes()
    header = data[8 : (end := 8 + int.from_bytes(data[:8], "little"))].ljust(3 * HEAD_BYTES)
    longer = len(header).to_bytes(8, "little") + header + data[end:]
    hub.hub.store.repositories["org/step35-tiny"].put({LAST_SHARD: longer})
    done = hub.run("convert", "org/step35-tiny", "-o", tmp_path / "out", "--emit", "mtp", "--outtype", "f32")
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "out").popitem()[1] == digests(converted("step35")[Role.MTP].parent)[MTP]
    assert hub.sent_twice() == []


def test_the_revision_is_one_commit_for_the_whole_run(hub: Reading, tmp_path: Path, converted: Converted) -> None:
    """Somebody pushes to main as soon as the run has looked at it."""
    repository = hub.hub.store.repositories["org/step35-tiny"]
    first, answer = repository.head().id, hub.hub.answer

    def pushing(request: Request) -> Response:
        response = answer(request)
        if repository.head().id == first:
            repository.put({"config.json": b"{}", LAST_SHARD: b"no shard", "tokenizer.json": None})
        return response

    hub.hub.answer = pushing  # type: ignore[method-assign]
    done = hub.run("convert", "org/step35-tiny", "-o", tmp_path / "out", *EVERY_ROLE)
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "out") == digests(converted("step35")[Role.COMBINED].parent)
    later = hub.run("convert", "org/step35-tiny", "-o", tmp_path / "later")
    assert later.returncode == 3
    at_commit = hub.run("convert", f"org/step35-tiny@{first}", "-o", tmp_path / "again", *EVERY_ROLE)
    assert at_commit.returncode == 0, at_commit.stderr


def test_a_local_path_wins(hub: Reading, tmp_path: Path) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "step35-tiny").symlink_to(STEP)
    done = hub.run("inspect", "org/step35-tiny", cwd=tmp_path)
    assert done.returncode == 0
    assert hub.hub.seen == []


@pytest.mark.parametrize(
    ("repository", "token", "code"),
    [
        ("org/missing", None, "no-repository"),
        pytest.param("org/missing", TOKEN, "no-repository", marks=pytest.mark.long),
        pytest.param("org/private", None, "no-repository", marks=pytest.mark.long),
        ("org/gated", None, "gated"),
        pytest.param("org/gated", "hf_Somebody", "gated", marks=pytest.mark.long),
        ("org/step35-tiny@v9", None, "no-revision"),
        ("org/step35-tiny", "hf_Unknown", "bad-token"),
    ],
)
def test_what_may_not_be_seen(repository: str, token: str | None, code: str, hub: Reading, tmp_path: Path) -> None:
    store = hub.hub.store
    store.users |= {TOKEN: "reader", "hf_Somebody": "somebody"}
    store.create("org/private", private=True).put_folder(STEP)
    store.create("org/gated", gated=True).put_folder(STEP)
    hub.token = token
    done = hub.run("convert", repository, "-o", tmp_path / "out", "--json")
    assert done.returncode == 4, done.stderr
    assert json.loads(done.stdout)["error"]["code"] == code
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"error: {repository}")
    assert len(lines) <= 2
    assert token is None or token not in done.stdout + done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["private", pytest.param("gated", marks=pytest.mark.long)])
def test_with_a_token_it_can_be_read_and_the_storage_never_gets_it(kind: str, hub: Reading, tmp_path: Path) -> None:
    """The fake hub's storage, another origin, refuses a request that bears a token."""
    hub.hub.store.users[TOKEN] = "reader"
    repository = hub.hub.store.create(f"org/{kind}", private=kind == "private", gated=kind == "gated")
    repository.readers = frozenset({"reader"})
    repository.put_folder(STEP)
    hub.token = TOKEN
    done = hub.run("convert", f"org/{kind}", "-o", tmp_path / "out", "--mtp", "--debug")
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert len(hub.hub.requests(STORAGE)) > 0


@pytest.mark.parametrize("token", [OLD_TOKEN, pytest.param(TOKEN, marks=pytest.mark.long)])
def test_a_token_that_the_server_repeats_is_not_shown(token: str, hub: Reading) -> None:
    hub.token = token
    hub.hub.faults.add(status(403, message=f"{token} may not"))
    done = hub.run("inspect", "org/step35-tiny", "--debug")
    assert done.returncode == 4
    assert "may not" in done.stderr
    assert token not in done.stdout + done.stderr


def test_offline(hub: Reading) -> None:
    done = hub.run("inspect", "org/step35-tiny", variables={"HF_HUB_OFFLINE": "1"})
    assert (done.returncode, hub.hub.seen) == (4, [])
    assert "HF_HUB_OFFLINE" in done.stderr


@pytest.mark.long
def test_a_setting_that_makes_no_sense(hub: Reading) -> None:
    done = hub.run("inspect", "org/step35-tiny", "--json", variables={"HF_HUB_DOWNLOAD_TIMEOUT": "soon"})
    assert (done.returncode, hub.hub.seen) == (2, [])
    assert json.loads(done.stdout)["error"]["code"] == "bad-setting"


@pytest.mark.long
def test_a_token_of_letters_that_no_token_has(hub: Reading) -> None:
    done = hub.run("inspect", "org/step35-tiny", "--json", variables={"HF_TOKEN": "tökén"})
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (4, "bad-token")


@pytest.mark.parametrize("source", ["org/step35-tiny", pytest.param("hf://org/gguf/M.gguf", marks=pytest.mark.long)])
def test_nowhere_to_keep_anything(source: str, hub: Reading, tmp_path: Path) -> None:
    hub.hub.store.create("org/gguf").put({"M.gguf": b"GGUF"})
    (tmp_path / "file").touch()
    done = hub.run("inspect", source, variables={"HF_HOME": str(tmp_path / "file")})
    assert done.returncode == 3, done.stderr
    assert str(tmp_path / "file") in done.stderr
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.long
def test_nobody_answers(hub: Reading) -> None:
    done = hub.run("inspect", "org/step35-tiny", variables={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert done.returncode == 4
    assert "cannot be reached" in done.stderr
