"""Reading that dies, as by kill -9, at any moment: the same command then ends right and fetches nothing twice."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import STEP
from interrupted import calls, child
from reading_hub import STORAGE, Reading, digests, reading

from nextn.gguf_schema.architecture import Role

Converted = Callable[[str], dict[Role, Path]]
MIB = 1 << 20
# Large enough for several requests and many units; what is in it is nothing to `fetch`.
LARGE = random.Random(3).randbytes(40 * MIB + 12345)  # noqa: S311 - no secrets
FETCH, CONVERT = ("fetch", "org/large", "-o"), ("convert", "org/step35-tiny", "--outtype", "f32", "--emit")
ROLES = "combined,trunk,mtp,mtp-shared"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    with reading(tmp_path / "home", {"org/step35-tiny": STEP}) as hub:
        hub.hub.store.create("org/large").put({"M-Q8_0.gguf": LARGE, "mtp-M-Q8_0.gguf": LARGE[:MIB]})
        for name, value in hub.environment.items():
            monkeypatch.setenv(name, value)
        yield hub


def held(folder: Path) -> int:
    """Bytes of the ranges that are listed as being on disk below a folder."""
    found = 0
    for path in folder.rglob("*.ranges"):
        lines = re.findall(rb"^(\d+) (\d+) [0-9a-f]{8}$", path.read_bytes(), re.MULTILINE)
        ends = 0
        for start, end in sorted((int(start), int(end)) for start, end in lines):
            found += max(end - max(start, ends), 0)
            ends = max(end, ends)
    return found


def asked(hub: Reading) -> int:
    """Bytes of large files that were asked for."""
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", seen.asked_range or "") for seen in hub.hub.requests(STORAGE)]
    return sum(int(match[2]) + 1 - int(match[1]) for match in ranges if match)


def moments(tmp_path: Path, hub: Reading, arguments: tuple[str, ...], count: int) -> list[tuple[str, int]]:
    """Ways and numbers of system calls to die at: the last one but one, and some before."""
    log = tmp_path / "log"
    done = child("never", -1, log, *arguments, str(tmp_path / "whole"))
    assert done.returncode == 0, done.stderr
    number = len(calls(log))
    chance = random.Random(number)  # noqa: S311 - no secrets
    chosen = {number - 2, *(chance.randrange(number) for _ in range(count))}
    return [(chance.choice(("kill", "kill-within", "kill-after")), at) for at in sorted(chosen)]


@pytest.mark.parametrize("count", [1, pytest.param(60, marks=pytest.mark.long)])
def test_fetch(count: int, hub: Reading, tmp_path: Path) -> None:
    total = len(LARGE) + MIB
    for how, at in moments(tmp_path, hub, FETCH, count):
        out = tmp_path / f"{how}-{at}"
        killed = child(how, at, tmp_path / "log", *FETCH, str(out))
        there, finished = held(out), sum(path.stat().st_size for path in out.rglob("*.gguf"))
        # A file that has its name, and its list still, is listed, too.
        beside = sum(path.stat().st_size for path in out.rglob("*.gguf") if Path(f"{path}.partial.ranges").exists())
        hub.hub.forget()
        done = hub.run(*FETCH, out)
        assert done.returncode == 0, (how, at, killed.stderr, done.stderr)
        assert digests(out) == digests(tmp_path / "whole"), (how, at)
        assert asked(hub) == total - there - finished + beside, (how, at)


@pytest.mark.long
def test_convert(hub: Reading, tmp_path: Path, converted: Converted) -> None:
    """Each run has a cache of its own; dying early, while ranges come, and late, while files are written."""
    arguments = (*CONVERT, ROLES, "-o")
    whole = converted("step35")[Role.COMBINED].parent
    deaths, weights = 0, sum(path.stat().st_size for path in STEP.glob("*.safetensors"))
    for how, at in moments(tmp_path, hub, arguments, 40):
        home = tmp_path / f"home-{how}-{at}"
        out = tmp_path / f"out-{how}-{at}"
        environment = pytest.MonkeyPatch()
        environment.setenv("HF_HOME", str(home))
        killed = child(how, at, tmp_path / "log", *arguments, str(out))
        environment.undo()
        if killed.returncode == 0:
            continue  # Threads that write at a time can both step over the number of a call.
        deaths += 1
        there = held(home)
        hub.hub.forget()
        done = hub.run(*arguments, out, variables={"HF_HOME": str(home)})
        assert done.returncode == 0, (how, at, done.stderr)
        assert digests(out) == digests(whole), (how, at)
        assert asked(hub) <= weights - there, (how, at)
    assert deaths > 0


@pytest.mark.long
def test_an_interrupted_conversion_continues(hub: Reading, tmp_path: Path) -> None:
    """The journal knows the sources again: a file of a commit is the same for the next run."""
    arguments = (*CONVERT, ROLES, "-o", str(tmp_path / "out"))
    # Twice: the second run finds all ranges on disk, as the one that is killed does.
    for folder in ("first", "whole"):
        done = child("never", -1, tmp_path / "log", *CONVERT, ROLES, "-o", str(tmp_path / folder))
        assert done.returncode == 0, done.stderr
    renames = [number for number, (name, _) in enumerate(calls(tmp_path / "log")) if name == "link"]
    assert child("kill", renames[0] - 1, tmp_path / "log", *arguments).returncode < 0
    hub.hub.forget()
    again = hub.run(*arguments)
    assert again.returncode == 0, again.stderr
    assert "starting over" not in again.stderr
    assert asked(hub) == 0
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
