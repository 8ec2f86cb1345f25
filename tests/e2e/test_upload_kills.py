"""`nextn upload` killed at any request, and run again: main never shows a half, and nothing is sent needlessly."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_hub.routing import Request
from uploading import REPO, Uploading, uploading

from nextn.gguf_schema.architecture import Role

TRUNK, MTP, SHARED = (
    "Step35-Tiny-trunk-F32.gguf",
    "mtp-Step35-Tiny-F32.gguf",
    "shared/mtp-Step35-Tiny-shared-F32.gguf",
)
# An upload of three files makes fewer requests than that; the test of all of them says so should it become more.
REQUESTS = 60
CHOSEN = random.Random(35)  # noqa: S311 - the same in each run
SOME = [(CHOSEN.randrange(3, REQUESTS - 15), after) for after in (False, True, False, True)]


@pytest.fixture
def up(tmp_path: Path, converted: Callable[[str], dict[Role, Path]]) -> Iterator[Uploading]:
    made = converted("step35")
    files = {TRUNK: made[Role.TRUNK], MTP: made[Role.MTP], SHARED: made[Role.MTP_SHARED]}
    with uploading(tmp_path / "home", files) as up:
        yield up
        assert up.half == []


def killed_at(up: Uploading, number: int, *, after: bool) -> bool:
    """Run until request `number` arrives, or was done; whether it came to that."""
    armed = [True]
    up.watch(lambda count, _: up.kill() if count == number and armed else None, after=after)
    was_killed = up.run().status == -signal.SIGKILL
    armed.clear()
    return was_killed


def ends_right(up: Uploading) -> None:
    before = up.sent()
    done = up.run()
    assert done.status == 0, done.said
    assert up.is_published()
    assert list(up.hub.store.repositories[REPO].refs) == ["main"]
    # Each file was sent once, and the one that was under way once more at most.
    every = up.sent()
    assert sum(every.values()) <= len(up.files) + 1
    assert all(every[path] <= 2 for path in up.files)
    assert before.keys() <= every.keys()


@pytest.mark.parametrize(
    ("number", "after"), [*SOME[:2], *(pytest.param(*each, marks=pytest.mark.long) for each in SOME[2:])]
)
def test_killed_at_some_requests(up: Uploading, number: int, after: bool) -> None:
    killed_at(up, number, after=after)
    ends_right(up)


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(REQUESTS))
def test_killed_at_every_request(up: Uploading, number: int, after: bool) -> None:
    was_killed = killed_at(up, number, after=after)
    assert number < REQUESTS - 1 or not was_killed
    ends_right(up)


@pytest.mark.long
def test_killed_again_and_again(up: Uploading) -> None:
    chosen = random.Random(9)  # noqa: S311
    for _ in range(4):
        killed_at(up, chosen.randrange(5, 25), after=chosen.random() < 0.5)
    done = up.run()
    assert done.status == 0, done.said
    assert up.is_published()


def test_killed_within_the_second_of_three_files(up: Uploading) -> None:
    def kill(_: int, request: Request) -> None:
        if request.path == f"/upload/{up.wanted[MTP]}" and not up.hub.requests("DELETE"):
            up.kill()

    up.watch(kill)
    assert up.run().status == -signal.SIGKILL
    assert up.main().keys() == {".gitattributes"}
    up.hub.forget()
    up.hub.store.objects.pop(up.wanted[MTP], None)
    del up.hub.answer
    assert up.run().status == 0
    assert up.sent() == {MTP: 1, SHARED: 1}
    assert up.is_published()


def test_interrupted_by_the_user(up: Uploading) -> None:
    def interrupt(_: int, request: Request) -> None:
        if request.path.startswith("/upload/") and up.child:
            os.kill(up.child.pid, signal.SIGINT)

    up.watch(interrupt)
    done = up.run()
    assert done.status == 130
    assert done.err.strip().splitlines()[-1].startswith("interrupted; the same command goes on")
    assert up.main().keys() == {".gitattributes"}
