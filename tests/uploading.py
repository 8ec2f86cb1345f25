"""`nextn upload` against a fake hub, and a hub that looks after every request whether its main branch is whole.

As a program, `python uploading.py LOG SECONDS ARGUMENTS`, it is nextn with ARGUMENTS that waits for nothing: how long
it would sleep is noted in LOG. An answer may take SECONDS, a whole number.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from command import NEXTN
from fake_hub.routing import Request, Response
from fake_hub.server import FakeHub, running

TOKEN = "hf_WriterOfEverything"  # noqa: S105 - of the fake hub
READER = "hf_readerOfEverything"
REPO = "me/Tiny-GGUF"
SECONDS = 20


@dataclass
class Uploading:
    """A hub with a user, a home for its cache, and the files to upload with the sha256 they must have there."""

    hub: FakeHub
    home: Path
    files: Mapping[str, Path]
    wanted: dict[str, str] = field(default_factory=dict)
    half: list[str] = field(default_factory=list)
    child: subprocess.Popen[str] | None = None

    @property
    def log(self) -> Path:
        """Where the seconds are that were slept."""
        return self.home / "slept"

    def run(self, *options: object, repo: str = REPO, token: str = TOKEN, seconds: int = SECONDS) -> Ended:
        """`nextn upload` of all files without waits."""
        script = [sys.executable, __file__, str(self.log), str(seconds), "upload"]
        return self._run([*script, *map(str, self.files.values()), repo, *map(str, options)], token)

    def installed(self, *arguments: object, token: str = TOKEN) -> Ended:
        """The installed command with arguments."""
        return self._run([NEXTN, "upload", *map(str, arguments)], token)

    def _run(self, command: list[str], token: str) -> Ended:
        output = {"text": True, "encoding": "utf-8", "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.child = subprocess.Popen(command, env=self._environment(token), **output)
        out, err = self.child.communicate(timeout=120)
        return Ended(self.child.returncode, out, err)

    def _environment(self, token: str) -> dict[str, str]:
        every = {**os.environ, **self.hub.environment(self.home, token)}
        return {name: value for name, value in every.items() if value}

    def on_a_terminal(self, *options: str) -> str:
        """What the installed command shows on a terminal of 100 columns that is its stderr."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        command = [NEXTN, "upload", *map(str, self.files.values()), REPO, *options]
        with subprocess.Popen(command, env=self._environment(TOKEN), stdout=subprocess.DEVNULL, stderr=theirs):
            os.close(theirs)
            shown = []
            # Reading fails when the other end is closed.
            with suppress(OSError):
                while part := os.read(ours, 1 << 16):
                    shown.append(part)
        os.close(ours)
        return b"".join(shown).decode()

    def main(self, repo: str = REPO) -> dict[str, str]:
        """The sha256 of what is on the main branch, by path."""
        repository = self.hub.store.repositories.get(repo)
        files = repository.head().files if repository else {}
        return {path: hashlib.sha256(file.blob.read(0, file.blob.size)).hexdigest() for path, file in files.items()}

    def is_published(self) -> bool:
        """Whether main has every file as it is here, and a card."""
        main = self.main()
        return "README.md" in main and self.wanted.items() <= main.items()

    def sent(self) -> Counter[str]:
        """How often each file was sent whole, by the last request of it."""
        ends = [seen.path for seen in self.hub.requests() if seen.status == 200 and _is_end(seen.method, seen.path)]
        by_hash = {digest: path for path, digest in self.wanted.items()}
        return Counter(by_hash[path.split("/")[2]] for path in ends)

    def slept(self) -> list[float]:
        """The seconds that were slept."""
        return [float(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def watch(self, before: Callable[[int, Request], None] = lambda *_: None, *, after: bool = False) -> None:
        """Look at main after each request; call `before` with the number of a request, or after it, and the request."""
        answer, count = self.hub.answer, 0

        def watched(request: Request) -> Response:
            nonlocal count
            number, count = count, count + 1
            if not after:
                before(number, request)
            response = answer(request)
            if not self._is_whole():
                self.half.append(f"{request.method} {request.path}")
            if after:
                before(number, request)
            return response

        self.hub.answer = watched  # type: ignore[method-assign]

    def _is_whole(self) -> bool:
        """Whether main has all of ours, or nothing."""
        repository = self.hub.store.repositories.get(REPO)
        files = repository.head().files if repository else {}
        there = {path: file.blob.sha256 for path, file in files.items() if path in self.wanted}
        return there in ({}, self.wanted)

    def kill(self) -> None:
        """End the command at once, as kill -9 does."""
        if self.child is not None:
            os.kill(self.child.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Everything that was printed."""
        return self.out + self.err


def _is_end(method: str, path: str) -> bool:
    return (method, path.split("/")[1]) in {("PUT", "upload"), ("POST", "complete")}


@contextmanager
def uploading(home: Path, files: Mapping[str, Path]) -> Iterator[Uploading]:
    """A hub, and files by the paths that they should have there."""
    with running() as hub:
        hub.store.users |= {TOKEN: "me", READER: "me"}
        wanted = {path: hashlib.sha256(local.read_bytes()).hexdigest() for path, local in files.items()}
        home.mkdir(exist_ok=True)
        yield Uploading(hub, home, files, wanted)


if __name__ == "__main__":
    log, seconds, *arguments = sys.argv[1:]

    def note(wanted: float) -> None:
        with Path(log).open("a") as file:
            file.write(f"{wanted}\n")

    # Before anything binds them.
    time.sleep = note
    os.environ["HF_HUB_DOWNLOAD_TIMEOUT"] = seconds
    from nextn.cli import main as nextn
    from nextn.convert.hub import publishing

    publishing.TIMEOUT = float(seconds)
    nextn(arguments)
