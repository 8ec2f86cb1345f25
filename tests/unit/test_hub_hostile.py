"""What a hub, a proxy or the owner of a repository may send that makes no sense, and what is made of it."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_hub.routing import Request, Response
from fake_hub.server import FakeHub, running
from fake_hub.store import Blob, StoredFile
from huggingface_hub.hf_api import RepoFile

from nextn.convert.hub.client import fetch_range
from nextn.convert.hub.errors import hub_error
from nextn.convert.hub.fetch import Emit, wanted_files
from nextn.convert.hub.gguf_sets import file_set, gguf_sets
from nextn.convert.hub.locations import Location
from nextn.convert.hub.paths import path_problem
from nextn.convert.hub.ranges import HubFile, Remote
from nextn.convert.hub.release import read_release
from nextn.convert.hub.repository import Repository, _listed
from nextn.convert.hub.retrying import Patience
from nextn.convert.hub.store import RangeStore
from nextn.convert.hub.survey import MOST_TAGS, survey
from nextn.gguf_schema.errors import HubError, InputError

COMMIT, HASH = "c" * 40, "a" * 64
DATA = bytes(range(256)) * 40


def repository(*paths: str, tag: str | None = None, path: str | None = None, size: int = 5) -> Repository:
    """A repository with files that nobody fetches."""
    files = {each: Remote("org/m", COMMIT, each, size, HASH, True) for each in paths}
    return Repository(Location("org/m", tag=tag, path=path), COMMIT, files)


# What paths are.


@pytest.mark.parametrize(
    "path",
    [
        "/a.gguf", "../a.gguf", "a/../b.gguf", "./a.gguf", "a//b.gguf", "a\\b.gguf", "C:a.gguf", "a\nb.gguf",
        "\x1b[31ma.gguf", "a\0b.gguf", "\ud800.gguf", "\u202ea.gguf", "x" * 251 + ".gguf", "",
    ],
)  # fmt: skip
def test_paths_that_cannot_be_used(path: str) -> None:
    assert path_problem(path)
    if path.endswith(".gguf"):
        with pytest.raises(HubError) as raised:
            gguf_sets(repository("M-Q8_0.gguf", path))
        assert raised.value.code == "bad-path"
        # Whatever it holds, a terminal obeys none of it.
        assert raised.value.message.isprintable()
    with pytest.raises(HubError):
        repository(path).open(path)


@pytest.mark.parametrize("path", ["ü/模型 Q8_0.gguf", "a.b/c-d_e.gguf", ".gguf", "x" * 250 + ".gguf"])
def test_paths_that_can(path: str) -> None:
    assert path_problem(path) is None
    assert [each.path for each in gguf_sets(repository(path))] == [path]


# What listings say.


def listing(*entries: dict[str, Any]) -> dict[str, Remote]:
    good = {"path": "M.gguf", "size": 5, "oid": "b" * 40, "lfs": None}
    made: Any = RepoFile
    files = [made(**{**good, **entry}) for entry in entries]
    client: Any = SimpleNamespace(list_repo_tree=lambda *_, **__: iter(files))
    return _listed(client, "org/m", COMMIT)


@pytest.mark.parametrize(
    "entry",
    [
        {"size": -1}, {"size": 1 << 63}, {"size": "5"}, {"size": None}, {"size": 1.5}, {"size": True}, {"path": 5},
        {"oid": "../../x"}, {"oid": ""}, {"oid": None}, {"oid": "b" * 40 + "\n"},
        {"lfs": {"oid": "../x", "size": 5, "pointerSize": 1}},
    ],
)  # fmt: skip
def test_entries_that_make_no_sense(entry: dict[str, Any]) -> None:
    assert list(listing({})) == ["M.gguf"]
    with pytest.raises(HubError) as raised:
        listing(entry)
    assert raised.value.code == "bad-listing"


def test_pages_that_lead_back_to_the_first_are_not_read_for_ever() -> None:
    with pytest.raises(HubError, match="twice"):
        listing({"path": "a"}, {"path": "b"}, {"path": "a"})


def test_a_file_to_be_parsed_that_would_fill_the_disk() -> None:
    with pytest.raises(InputError) as raised:
        repository("tokenizer.json", size=1 << 40).download(["tokenizer.json"])
    assert raised.value.code == "too-large"


def test_what_a_server_says_does_not_reach_the_terminal_as_it_is() -> None:
    response = SimpleNamespace(status_code=403, headers={"X-Error-Message": "no\x1b[2J\r\nway"})
    refused = Exception()
    refused.response = response  # type: ignore[attr-defined]
    assert hub_error(refused, "org/m").message == "the hub answered 403: no…[2J way"


# Sets and tags.


def test_sets_that_claim_many_shards() -> None:
    """Spelling out the names of all of them would take minutes."""
    names = [f"M{index}-00001-of-99999.gguf" for index in range(3000)]
    sets = gguf_sets(repository(*names))
    assert [each.files for each in sets] == [(name,) for name in names]
    missing = sets[7].missing
    assert missing
    listed = ", ".join(f"M7-{index:05d}-of-99999.gguf" for index in range(2, 10))
    assert missing.message == f"99998 of the 99999 files of the set are missing: {listed}, … 99990 more"


def test_shards_are_in_order_and_odd_numbers_are_files_of_their_own() -> None:
    names = ["d/M-00002-of-00002.gguf", "M-00003-of-00002.gguf", "d/M-00001-of-00002.gguf", "M-00000-of-00002.gguf"]
    sets = [(each.files, bool(each.missing)) for each in gguf_sets(repository(*names))]
    assert sets == [((names[2], names[0]), False), ((names[1],), False), ((names[3],), False)]


def test_of_very_many_quantizations_some_are_shown() -> None:
    shown = survey(repository(*(f"M-Q{index}_0-00001-of-00002.gguf" for index in range(MOST_TAGS + 50))))
    assert len(shown.sets) == MOST_TAGS + 50
    assert len(shown.picks) == MOST_TAGS + 1


def test_all_of_many_files_are_wanted() -> None:
    names = [f"M{index}-Q8_0.gguf" for index in range(10_000)]
    assert wanted_files(repository(*names), Emit.ALL) == names


@pytest.mark.parametrize("emit", Emit)
def test_a_tag_that_nothing_has_brings_nothing(emit: Emit) -> None:
    with pytest.raises(InputError) as raised:
        wanted_files(repository("M-Q4_0.gguf", "mtp-M-Q4_0.gguf", "mmproj-F16.gguf", tag="Q8_0"), emit)
    assert raised.value.code == "no-files"


def test_a_file_that_is_not_there() -> None:
    for asked in (wanted_files, lambda place, _: file_set(place, place.location.path or "")):
        with pytest.raises(HubError, match=r"has no file N\.gguf"):
            asked(repository("M.gguf", path="N.gguf"), Emit.ALL)


def test_a_folder_among_the_files_of_an_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (Path(), tmp_path, Path("..")):
        with pytest.raises(InputError, match="is a folder"):
            read_release([folder])


# Answers to requests of ranges.


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running() as hub:
        hub.linked[HASH] = StoredFile(Blob(DATA), True)
        yield hub


def fetched(hub: FakeHub, change: Callable[[Response], Response] | None, start: int = 0, end: int = 9000) -> bytes:
    """What is taken for a range, with answers that are changed, by a client with little patience."""
    answer, got = hub.answer, bytearray()

    def changed(request: Request) -> Response:
        return change(answer(request)) if change else answer(request)

    hub.answer = changed  # type: ignore[method-assign]
    patience = Patience(failures_allowed=2, sleep=lambda _: None)
    fetch_range(f"{hub.storage}/cdn/{HASH}", "M", len(DATA), start, end, lambda _, data: got.extend(data), patience)
    return bytes(got)


def requests(hub: FakeHub) -> int:
    """How many there were, when all are answered."""
    with hub.idle:
        hub.idle.wait_for(lambda: hub.answering == 0, timeout=10)
        return len(hub.requests())


def of(status: int, body: bytes, **headers: str) -> Callable[[Response], Response]:
    """An answer with other headers, and another body."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda was: Response(status, {**was.headers, **given}, Blob(body))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(of(200, b"<html>log in</html>", Content_Range=""), id="the page of a proxy"),
        pytest.param(of(200, DATA + b"x", Content_Range=""), id="a longer file"),
        pytest.param(of(206, gzip.compress(DATA[:9000]), Content_Encoding="gzip"), id="compressed on the way"),
        pytest.param(of(206, DATA[:10], Content_Range="bytes 0-9/10"), id="another file"),
        pytest.param(of(206, DATA[1:9001], Content_Range=f"bytes 1-9000/{len(DATA)}"), id="another range"),
        pytest.param(of(206, DATA[:9000], Content_Range="multipart"), id="no range"),
        pytest.param(of(204, b""), id="nothing"),
    ],
)
def test_answers_that_are_not_the_range(change: Callable[[Response], Response], hub: FakeHub) -> None:
    with pytest.raises(HubError) as raised:
        fetched(hub, change)
    assert raised.value.code == "no-range"
    assert requests(hub) == 1


def test_empty_answers_are_not_asked_for_for_ever(hub: FakeHub) -> None:
    with pytest.raises(HubError, match="empty"):
        fetched(hub, of(206, b""))
    assert requests(hub) == 3


def test_a_whole_file_will_do_for_its_beginning_and_parts_for_the_range(hub: FakeHub) -> None:
    assert fetched(hub, None, 100, 200) == DATA[100:200]
    assert fetched(hub, of(200, DATA, Content_Range="")) == DATA[:9000]


def test_a_redirect_out_of_the_web(hub: FakeHub) -> None:
    with pytest.raises(HubError) as raised:
        fetched(hub, lambda _: Response(302, {"Location": "file:///etc/passwd"}))
    assert (raised.value.code, requests(hub)) == ("bad-address", 1)


# What is kept on disk, and by whom.


def test_what_one_process_throws_away_another_still_reads(tmp_path: Path) -> None:
    """It was told that the bytes are there; zeros in their place would become part of a model."""
    one, other = (RangeStore(tmp_path / "part", 1000, "one").open() for _ in range(2))
    other.put(100, b"x" * 50)
    one.forget()
    assert other.read(100, 50) == b"x" * 50
    assert list(one.missing(0, 1000)) == [(0, 1000)]
    one.put(0, b"y" * 10)
    assert list(RangeStore(tmp_path / "part", 1000, "one").open().missing(0, 20)) == [(10, 20)]


def test_a_process_that_opens_second_empties_nothing(tmp_path: Path) -> None:
    made = RangeStore(tmp_path / "made", 1000, "one").open()
    made.put(0, b"x" * 50)
    second = RangeStore(tmp_path / "part", 1000, "one")
    opening = threading.Thread(target=second.open)
    with second.list_path.open("ab") as lists:
        # As if the first had just begun: nothing is there but its lock.
        fcntl.flock(lists, fcntl.LOCK_EX)
        opening.start()
        opening.join(0.3)
        second.path.write_bytes(made.path.read_bytes())
        lists.write(made.list_path.read_bytes())
    opening.join()
    assert second.read(0, 50) == b"x" * 50
    assert list(second.missing(0, 100)) == [(50, 100)]


@pytest.mark.parametrize("sound", [True, False])
def test_a_file_of_the_cache_that_is_not_what_the_hub_says(sound: bool, tmp_path: Path) -> None:
    remote = Remote("org/m", COMMIT, "M", len(DATA), hashlib.sha256(DATA).hexdigest(), True)
    (tmp_path / "cached").write_bytes(DATA if sound else DATA[:-1] + b"x")
    file = HubFile(remote, RangeStore(tmp_path / "part", len(DATA), remote.etag), tmp_path / "cached")
    file.distrust()
    assert file.missing([(0, len(DATA))]) == ([] if sound else [(0, len(DATA))])
