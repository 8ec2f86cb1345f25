"""A program that dies, or gets an error, at one of its system calls: `python interrupted.py HOW AT LOG ARGUMENTS`.

It is nextn with ARGUMENTS. Calls that change files are counted and noted in LOG. At number AT (from 0; -1 is never)
happens what HOW says: `kill` (before the call), `kill-within` (half of a write is done), `kill-after`, or an error such
as `ENOSPC`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WRITES = ("pwrite", "write")
RENAMES = ("replace", "link")
COPIES = ("copy_file_range",)
# Calls that put data at a place of a file.
PUTS = ("pwrite", *COPIES)
CHANGING = (*WRITES, *COPIES, *RENAMES, "ftruncate", "fsync", "unlink")


class Striker:
    """Wraps calls of `os`; standard streams and the log itself are left out."""

    def __init__(self, how: str, at: int, log: Path, names: tuple[str, ...] = CHANGING) -> None:
        self.how, self.at, self.count = how, at, 0
        self.log = log.open("w", encoding="utf-8")
        for name in names:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if arguments[0] in (0, 1, 2, self.log.fileno()):
                return function(*arguments, **options)
            size = len(arguments[1]) if name in WRITES else arguments[2] if name in COPIES else 0
            self.log.write(json.dumps([name, size]) + "\n")
            self.log.flush()
            self.count += 1
            if self.count - 1 == self.at:
                self._strike(name, function, arguments)
            return function(*arguments, **options)

        return wrapped

    def _strike(self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if (number := getattr(errno, self.how, None)) is not None:
            # What a copy cannot do is tried by reading and writing, which fails then too.
            self.at += name in COPIES
            raise OSError(number, os.strerror(number))
        if self.how == "kill-within" and name in WRITES:
            descriptor, data, *place = arguments
            function(descriptor, data[: len(data) // 2], *place)
        if self.how == "kill-within" and name in COPIES:
            source, descriptor, size, *places = arguments
            function(source, descriptor, size // 2, *places)
        if self.how == "kill-after":
            function(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)


def child(how: str, at: int, log: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `nextn` with arguments in a process that is struck."""
    command = [sys.executable, __file__, how, str(at), str(log), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def calls(log: Path) -> list[tuple[str, int]]:
    """The calls of a process: their names, and for writes the number of bytes."""
    return [(name, size) for name, size in map(json.loads, log.read_text(encoding="utf-8").splitlines())]


def hashes(folder: Path) -> dict[str, str]:
    """The files under a folder with the sha256 of their bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


if __name__ == "__main__":
    from nextn.cli import main

    Striker(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    main(sys.argv[4:])
