"""`nextn upload` when the hub, the network or the files misbehave: what is visible then, and what a rerun sends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_hub.faults import Fault, How, rate_limit, status
from fake_hub.routing import Request, Response
from fake_hub.store import Blob, StoredFile
from fake_hub.uploads import uploads_of
from uploading import REPO, Ended, Uploading, uploading

from nextn.gguf_schema.architecture import Role

TRUNK, MTP, SHARED = (
    "Step35-Tiny-trunk-F32.gguf",
    "mtp-Step35-Tiny-F32.gguf",
    "shared/mtp-Step35-Tiny-shared-F32.gguf",
)
COMMIT_TO_MAIN = "POST .*/commit/main"


@pytest.fixture
def up(tmp_path: Path, converted: Callable[[str], dict[Role, Path]]) -> Iterator[Uploading]:
    made = converted("step35")
    with uploading(
        tmp_path / "home", {TRUNK: made[Role.TRUNK], MTP: made[Role.MTP], SHARED: made[Role.MTP_SHARED]}
    ) as up:
        up.watch()
        yield up
        # Whatever happened, main had all of the files or none.
        assert up.half == []


def outcomes(done: Ended) -> dict[str, str]:
    return {file["path"]: file["outcome"] for file in json.loads(done.out)["files"]}


def requests_for(up: Uploading, path: str, part: str) -> int:
    """How many requests about the data of a file there were."""
    return len([seen for seen in up.hub.requests(part) if up.wanted[path] in seen.path])


def test_every_third_request_fails(up: Uploading) -> None:
    fault = up.hub.faults.add(status(500, every=3))
    done = up.run()
    assert done.status == 0, done.said
    assert up.is_published()
    assert fault.struck > 10
    assert set(up.sent().values()) == {1}
    for path in up.files:
        puts = requests_for(up, path, "PUT ")
        parts = 2 if up.files[path].stat().st_size > uploads_of(up.hub).part_size else 1
        # Each file, or part of one, is sent once more at most.
        assert parts <= puts <= 2 * parts


@pytest.mark.parametrize("how", [How.DISCONNECT_AFTER, pytest.param(How.DISCONNECT, marks=pytest.mark.long)])
def test_every_third_connection_breaks(up: Uploading, how: How) -> None:
    fault = up.hub.faults.add(Fault(how, every=3))
    done = up.run()
    assert done.status == 0, done.said
    assert up.is_published()
    assert fault.struck > 10
    assert list(up.hub.store.repositories[REPO].refs) == ["main"]


@pytest.mark.parametrize("how", [How.DISCONNECT_AFTER, pytest.param(How.DISCONNECT, marks=pytest.mark.long)])
def test_the_connection_breaks_during_the_commit_to_main(up: Uploading, how: How) -> None:
    up.hub.faults.add(Fault(how, COMMIT_TO_MAIN, times=1))
    done = up.run()
    assert done.status == 0, done.said
    assert up.is_published()
    repository = up.hub.store.repositories[REPO]
    # One commit, whether or not the first was done.
    assert repository.commits[repository.head().parent or ""].message == "initial commit"
    answers = [seen.status for seen in up.hub.requests("/commit/main")]
    assert answers == ([0, 200] if how is How.DISCONNECT else [200, 412])


@pytest.mark.parametrize("code", [503, pytest.param(409, marks=pytest.mark.long)])
def test_what_may_pass_is_tried_again(up: Uploading, code: int) -> None:
    up.hub.faults.add(status(code, "PUT /upload", times=1))
    up.hub.faults.add(status(code, COMMIT_TO_MAIN, times=1))
    assert up.run().status == 0
    assert up.is_published()


def test_the_hub_says_how_long_to_wait(up: Uploading) -> None:
    up.hub.faults.add(rate_limit("POST .*/branch/", seconds="17", times=1))
    up.hub.faults.add(rate_limit("PUT /upload", seconds="19", times=1))
    assert up.run().status == 0
    assert 17.0 in up.slept()
    # huggingface_hub adds one.
    assert 20.0 in up.slept()


@pytest.mark.parametrize(
    "code", [403, pytest.param(401, marks=pytest.mark.long), pytest.param(404, marks=pytest.mark.long)]
)
def test_a_refusal_is_final_and_shown(up: Uploading, code: int) -> None:
    up.hub.faults.add(status(code, "POST .*/branch/", message="because of the moon"))
    done = up.run()
    assert done.status == 4
    assert len(up.hub.requests("/branch/")) == 1
    assert "because of the moon" in done.err or code == 401
    assert len(done.err.strip().splitlines()) <= 2
    assert up.sent() == {}


def test_one_file_is_refused_and_the_others_are_sent(up: Uploading) -> None:
    refused = f"PUT /upload/{up.wanted[MTP]}"
    up.hub.faults.add(status(403, refused, message="this one is too heavy"))
    done = up.run("--json")
    assert done.status == 4
    assert outcomes(done) == {TRUNK: "sent", MTP: "failed", SHARED: "sent", "README.md": "sent"}
    assert "this one is too heavy" in done.out
    assert len(up.hub.requests(refused)) == 1
    assert up.main().keys() == {".gitattributes"}
    up.hub.faults.clear()
    up.hub.forget()
    again = up.run("--json")
    assert again.status == 0
    assert outcomes(again) == {TRUNK: "sent before", MTP: "sent", SHARED: "sent before", "README.md": "sent before"}
    assert up.sent() == {MTP: 1}
    assert up.is_published()


@pytest.mark.long
def test_the_storage_refuses_a_file_in_its_list(up: Uploading) -> None:
    uploads_of(up.hub).refuses[up.wanted[MTP]] = "over the quota of this account"
    done = up.run()
    assert done.status == 4
    assert "over the quota of this account" in done.err
    assert "connection" not in done.said
    assert up.sent() == {TRUNK: 1, SHARED: 1}


@pytest.mark.long
def test_the_hub_warns_of_the_card(up: Uploading) -> None:
    uploads_of(up.hub).warns.append("the base model is not there")
    done = up.run()
    assert done.status == 0
    assert "README.md: Warnings while validating metadata" in done.err
    assert "UserWarning" not in done.said


@pytest.mark.long
def test_a_storage_that_is_gone_is_not_asked_for_every_file(up: Uploading) -> None:
    up.watch(lambda _, request: up.hub.close_storage() if "objects/batch" in request.path else None)
    done = up.run("--json")
    assert done.status == 4
    assert list(outcomes(done).values()) == ["failed", "not tried", "not tried", "not tried"]


def test_a_stall_ends_and_is_tried_again(up: Uploading) -> None:
    up.hub.faults.add(Fault(How.STALL, "PUT /upload", times=1))
    up.hub.faults.add(Fault(How.STALL, COMMIT_TO_MAIN, times=1))
    done = up.run(seconds=2)
    assert done.status == 0, done.said
    assert up.is_published()
    up.hub.closing.set()


@pytest.mark.parametrize("believes", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_the_hub_holds_is_shorter(up: Uploading, believes: bool) -> None:
    uploads = uploads_of(up.hub)
    uploads.damage, uploads.believes = lambda data: data[:-4096], believes
    done = up.run("--json")
    assert done.status == 4
    assert [*outcomes(done).values()] == ["failed", "failed", "failed", "sent"]
    size = up.files[TRUNK].stat().st_size
    assert f"{TRUNK}: is not on the hub as it is here: the hub has {size - 4096} bytes of {size}" in done.err
    assert up.main().keys() == {".gitattributes"}
    assert json.loads(done.out)["draft"].startswith("nextn-upload-")
    # When the hub takes the right bytes, the same command publishes them.
    uploads.damage = None
    up.hub.store.objects.clear()
    up.hub.store.repositories.clear()
    assert up.run().status == 0
    assert up.is_published()


@pytest.mark.parametrize("place", [-10_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_what_the_hub_holds_has_another_byte(up: Uploading, place: int) -> None:
    def flipped(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[place] ^= 1
        return bytes(changed)

    uploads = uploads_of(up.hub)
    # A hub that states the hash of what it holds; one that only states what it was told, of which bytes are read.
    for uploads.believes in (False, True):
        uploads.damage = flipped
        done = up.run("--json")
        assert done.status == 4
        assert outcomes(done)[TRUNK] == "failed"
        assert ("are others" if uploads.believes else "other bytes: sha256") in done.out
        up.hub.store.objects.clear()
        up.hub.store.repositories.clear()


@pytest.mark.long
def test_what_comes_back_wrongly_once_is_looked_at_again_by_the_next_run(up: Uploading) -> None:
    up.hub.faults.add(Fault(How.TRUNCATE, "GET /cdn", times=1))
    up.hub.faults.add(Fault(How.CORRUPT, "GET /cdn", skip=1, times=1))
    assert up.run().status == 4
    assert up.main().keys() == {".gitattributes"}
    again = up.run("--json")
    assert again.status == 0
    assert set(outcomes(again).values()) == {"sent before"}
    assert up.sent() == dict.fromkeys(up.files, 1)
    assert up.is_published()


def test_a_file_that_changes_while_it_is_sent_is_noticed(up: Uploading, tmp_path: Path) -> None:
    changing = tmp_path / TRUNK
    shutil.copy(up.files[TRUNK], changing)
    up.files = {**up.files, TRUNK: changing}

    def change(_: int, request: Request) -> None:
        if request.path.startswith("/complete"):
            with changing.open("r+b") as file:
                file.seek(100_000)
                file.write(b"changed")

    up.watch(change)
    done = up.run("--json")
    assert done.status == 3
    assert outcomes(done) == {TRUNK: "failed", MTP: "sent", SHARED: "sent", "README.md": "sent"}
    assert "was changed after it was checked" in done.out
    assert up.main().keys() == {".gitattributes"}


@pytest.mark.long
def test_a_file_that_is_cut_after_it_was_validated_is_noticed(up: Uploading, tmp_path: Path) -> None:
    cut = tmp_path / TRUNK
    shutil.copy(up.files[TRUNK], cut)
    up.files = {**up.files, TRUNK: cut}

    def cut_off(_: int, request: Request) -> None:
        if request.path == "/api/whoami-v2":
            with cut.open("r+b") as file:
                file.truncate(1_000_000)

    up.watch(cut_off)
    done = up.run()
    assert done.status == 3
    assert TRUNK in done.err
    assert up.main() == {}


def test_somebody_else_commits_meanwhile(up: Uploading) -> None:
    other = StoredFile(Blob(b"---\nlicense: mit\n---\n# Theirs\n"), False)

    def commit(_: int, request: Request) -> None:
        if request.path.endswith("/commit/main") and "theirs.txt" not in up.main():
            up.hub.store.repositories[REPO].put({"README.md": other, "theirs.txt": other})

    up.watch(commit)
    done = up.run()
    assert done.status == 0, done.said
    assert up.is_published()
    assert len(up.hub.requests("/commit/main")) == 2
    files = up.hub.store.repositories[REPO].head().files
    assert "theirs.txt" in files
    assert files["README.md"].blob.read(0, 100).startswith(b"---\nlicense: mit\n")
    assert b"# Theirs" in files["README.md"].blob.read(0, 1000)


@pytest.mark.long
def test_a_proxys_page_about_an_error_is_no_answer(up: Uploading) -> None:
    answer = up.hub.answer
    shown: list[Request] = []

    def proxied(request: Request) -> Response:
        if request.path == "/api/validate-yaml" and not shown:
            shown.append(request)
            return Response(502, {"Content-Type": "text/html"}, Blob(b"<html>Bad gateway</html>"))
        return answer(request)

    up.hub.answer = proxied  # type: ignore[method-assign]
    assert up.run().status == 0
    assert shown
    assert up.is_published()


@pytest.mark.long
def test_a_branch_that_stays_is_removed_by_the_next_run(up: Uploading) -> None:
    up.hub.faults.add(status(403, "DELETE "))
    done = up.run()
    assert done.status == 0
    assert "no longer needed" in done.err
    assert len(up.hub.store.repositories[REPO].refs) == 2
    up.hub.faults.clear()
    assert up.run().status == 0
    assert list(up.hub.store.repositories[REPO].refs) == ["main"]
