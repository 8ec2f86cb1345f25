"""Reading from a hub that misbehaves: every fault ends in the right state, whatever is read."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from command import NEXTN, STEP
from fake_hub.faults import Fault, How, rate_limit, status
from reading_hub import STORAGE, Reading, digests, reading

from nextn.gguf_schema.architecture import Role

Converted = Callable[[str], dict[Role, Path]]
HEAD, SHARED = "mtp-Step35-Tiny-F32.gguf", "shared/mtp-Step35-Tiny-shared-F32.gguf"
COMMANDS = {
    "convert": ("convert", "org/step35-tiny", "--emit", "mtp,mtp-shared", "--outtype", "f32", "-o"),
    "fetch": ("fetch", "org/tiny-GGUF", "-o"),
}
LARGE = f"{STORAGE}"
RESOLVE = "(GET|HEAD) /org/.*/resolve/"

# What passes when it is tried again, for each command; of most requests the third fails, and so does every third after.
PASSING: dict[str, Fault] = {
    "every third request fails": status(503, every=3),
    "every other answer of the storage is an error": status(500, LARGE, every=2),
    "a timeout of the hub": status(408, LARGE, times=2),
    "too many requests": rate_limit(RESOLVE, seconds="1", every=2, times=2),
    "too many requests at the very first": rate_limit("GET /api/", seconds="1", times=1),
    "bodies that end early": Fault(How.TRUNCATE, LARGE, every=2, after_bytes=50_000),
    "bodies that do not begin": Fault(How.TRUNCATE, LARGE, every=2, after_bytes=0),
    "connections that break": Fault(How.DISCONNECT, every=3),
    "a stall of the storage": Fault(How.STALL, LARGE, times=1),
    "a stall of the listing": Fault(How.STALL, "GET /api/.*/tree/", times=1),
    "a stall of the very first request": Fault(How.STALL, "GET /api/models", times=1),
}  # fmt: skip
# What is final: the exit status is 4, nothing is written, and the hub is asked once.
FINAL: dict[str, tuple[Fault, str]] = {
    "forbidden": (status(403, RESOLVE, message="You have been banned"), "You have been banned"),
    "forbidden by the storage": (status(403, LARGE, message="Signature expired"), "Signature expired"),
    "gone": (status(404, RESOLVE, code="EntryNotFound"), "not in the repository"),
    "legal reasons": (status(451, RESOLVE, message="Not in your country"), "Not in your country"),
    "a circle of redirects": (Fault(How.REDIRECT, LARGE), "circle"),
}
QUICK = {
    ("every third request fails", "convert"),
    ("every third request fails", "fetch"),
    ("bodies that end early", "convert"),
    ("too many requests", "fetch"),
}
QUICK_FINAL = {("forbidden", "convert"), ("a circle of redirects", "fetch")}


def cases(names: Mapping[str, object], quick: Callable[[str, str], bool]) -> list[object]:
    """Each name with each command; those that are not quick are for `make test-all`."""
    return [
        pytest.param(name, command, marks=() if quick(name, command) else pytest.mark.long)
        for name in names
        for command in COMMANDS
    ]


@pytest.fixture
def hub(tmp_path: Path, converted: Converted) -> Iterator[Reading]:
    with reading(tmp_path / "home", {"org/step35-tiny": STEP}) as hub:
        folder = converted("step35")[Role.MTP].parent
        hub.hub.store.create("org/tiny-GGUF").put({path: folder / path for path in (HEAD, SHARED)})
        yield hub


def expected(converted: Converted) -> dict[str, str]:
    folder = converted("step35")[Role.MTP].parent
    return {path: digest for path, digest in digests(folder).items() if path in (HEAD, SHARED)}


@pytest.mark.parametrize(("fault", "command"), cases(PASSING, lambda *case: case in QUICK))
def test_what_may_pass_is_tried_again(
    fault: str, command: str, hub: Reading, tmp_path: Path, converted: Converted
) -> None:
    struck = hub.hub.faults.add(replace(PASSING[fault]))
    done = hub.run(*COMMANDS[command], tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert struck.struck > 0
    assert digests(tmp_path / "out") == expected(converted)
    assert hub.sent_twice() == []
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("fault", "command"), cases(FINAL, lambda *case: case in QUICK_FINAL))
def test_what_is_final_is_asked_once(fault: str, command: str, hub: Reading, tmp_path: Path) -> None:
    wanted, said = FINAL[fault]
    struck = hub.hub.faults.add(replace(wanted))
    done = hub.run(*COMMANDS[command], tmp_path / "out")
    assert done.returncode == 4, done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) <= 3  # fetch says before what it is about to do
    assert list(tmp_path.rglob("*.gguf")) == []
    failed = hub.hub.requests()
    if struck.how is How.STATUS:
        # Several ranges are asked for at a time; none of them twice.
        struck_lines = [(seen.line, seen.asked_range) for seen in failed if seen.status == wanted.status]
        assert len(struck_lines) == len(set(struck_lines)) > 0


def test_a_hub_that_is_down_is_left_alone_at_last(hub: Reading, tmp_path: Path) -> None:
    """With less patience than the command has, which would wait for a minute and a half."""
    hub.hub.faults.add(status(503, LARGE, message="We are down"))
    script = (
        "import sys; from nextn.convert.hub import ranges; from nextn.cli import main; "
        "ranges.FAILURES_IN_A_ROW = 2; main(sys.argv[1:])"
    )
    arguments = [sys.executable, "-c", script, *COMMANDS["fetch"], str(tmp_path / "out")]
    done = subprocess.run(arguments, env=hub.environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 4
    assert "We are down" in done.stderr
    asked = [seen.line for seen in hub.hub.requests(STORAGE)]
    assert len(asked) == 3 * len(set(asked))
    assert list(tmp_path.rglob("*.gguf")) == []


@pytest.mark.parametrize("command", ["fetch", "validate"])
def test_an_interrupt_does_not_wait_for_the_hub(command: str, hub: Reading, tmp_path: Path) -> None:
    """The hub wants to be left alone for a hundred seconds; the command ends before, or the test fails."""
    hub.hub.faults.add(rate_limit(LARGE, seconds="100"))
    arguments = (*COMMANDS["fetch"], str(tmp_path / "out")) if command == "fetch" else (command, "org/tiny-GGUF")
    child = subprocess.Popen([NEXTN, *arguments], env=hub.environment, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if hub.hub.requests(STORAGE):
            break
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=50)
    assert child.returncode == 130
    assert "interrupted" in said


@pytest.mark.long
def test_a_server_that_ignores_ranges_is_not_believed(hub: Reading, tmp_path: Path, converted: Converted) -> None:
    """What it sends from the beginning is taken; what would be something else than was asked for is not."""
    hub.hub.ignores_ranges = True
    done = hub.run(*COMMANDS["fetch"], tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "whole") == expected(converted)
    done = hub.run(*COMMANDS["convert"], tmp_path / "parts")
    assert done.returncode == 4, done.stderr
    assert "something else came" in done.stderr
    assert list((tmp_path / "parts").rglob("*.gguf")) == []


def test_a_damaged_checkpoint_gets_no_output(hub: Reading, tmp_path: Path) -> None:
    """A shard that becomes whole on disk is compared with the hub's hash; headers are checked as they are read."""
    hub.hub.faults.add(Fault(How.CORRUPT, f"{LARGE}.*model-00003", skip=1))
    done = hub.run("convert", "org/step35-tiny", "-o", tmp_path / "out")
    assert done.returncode == 4, done.stderr
    assert "hash" in done.stderr
    assert list(tmp_path.rglob("*.gguf")) == []
    hub.hub.faults.clear()
    assert hub.run("convert", "org/step35-tiny", "-o", tmp_path / "out").returncode == 0


def test_a_full_disk_is_found_out_before_the_first_byte(hub: Reading, tmp_path: Path) -> None:
    """No test has a disk that large: the shard claims to be larger."""
    repository = hub.hub.store.repositories["org/tiny-GGUF"]
    repository.put({"M-F32.gguf": b""})
    vars(repository.head().files["M-F32.gguf"].blob).update(size=1 << 42, sha256="0" * 64, git_oid="0" * 40)
    done = hub.run("fetch", "org/tiny-GGUF", "-o", tmp_path / "out")
    assert done.returncode == 3
    assert "free" in done.stderr
    assert hub.hub.bytes_sent(STORAGE) == 0
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []
