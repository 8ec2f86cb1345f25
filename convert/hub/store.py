"""Ranges of a remote file on disk: a sparse file, and beside it a list of the ranges that it holds.

A range is listed, with the checksum of its bytes, when these were handed to the operating system; so the list outlives
the death of the process. After a crash of the machine the checksums tell which of the listed ranges are there.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import zlib
from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from nextn.convert.output import write_error

RANGES = ".ranges"
# No range that is listed is longer, so that little is lost with one that was not listed yet.
UNIT = 1 << 20
_LINE = re.compile(rb"(\d{1,19}) (\d{1,19}) ([0-9a-f]{8})")


class Held(NamedTuple):
    """A range that is listed, from `start` up to `end`, with the CRC-32 of its bytes."""

    start: int
    end: int
    checksum: int


class RangeStore:
    """The ranges of one file of `size` bytes that are on disk at `path`; `identity` names the content.

    What belongs to another content is forgotten. InputError when the disk fails or is full.
    """

    def __init__(self, path: Path, size: int, identity: str) -> None:
        self.path = path
        self.list_path = path.with_name(path.name + RANGES)
        self.size = size
        self._head = f"nextn {size} {identity}".encode()
        self._lock = threading.Lock()
        self._held: list[Held] = []
        self._trusted: set[Held] = set()
        self._descriptor = -1

    def open(self) -> RangeStore:
        """Open the file, made when missing; what the list does not vouch for counts for nothing."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            with self.list_path.open("a+b") as file:
                # Of two processes that find nothing, the second must not empty what the first has begun. There are file
                # systems without locks.
                with suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                head, *lines = file.read().split(b"\n")
                if head != self._head or os.fstat(self._descriptor).st_size != self.size:
                    lines = []
                    self._empty(file)
        except OSError as error:
            raise write_error(self.path, error) from error
        for line in lines:
            # A line that a dying process left unfinished is none.
            if match := _LINE.fullmatch(line):
                held = Held(int(match[1]), int(match[2]), int(match[3], 16))
                if held.start < held.end <= min(self.size, held.start + UNIT):
                    self._held.append(held)
        self._held.sort()
        return self

    def _empty(self, file: BinaryIO) -> None:
        """Begin anew with an open list; OSError when the disk fails."""
        # The list first: it must not tell of bytes that are gone.
        file.truncate(0)
        file.write(self._head + b"\n")
        file.flush()
        os.ftruncate(self._descriptor, 0)
        os.ftruncate(self._descriptor, self.size)

    def forget(self) -> None:
        """Forget everything that is on disk, which is not what the hub says, and begin anew.

        Another process that has it open keeps the bytes that it was told of: the files are new ones.
        """
        with self._lock:
            self._held.clear()
            self._trusted.clear()
        self.remove()
        self.close()
        self.open()

    def missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of a range that are not on disk, in order; what is there is checked when it is first asked for."""
        with self._lock:
            first = bisect_left(self._held, (start - UNIT,))
            near = [held for held in self._held[first : bisect_left(self._held, (end,))] if held.end > start]
            if bad := [held for held in near if not self._trust(held)]:
                self._held = [held for held in self._held if held not in bad]
        at = start
        for held in near:
            if held not in bad and held.end > at:
                if held.start > at:
                    yield at, held.start
                at = held.end
        if at < end:
            yield at, end

    def _trust(self, held: Held) -> bool:
        if held not in self._trusted:
            if zlib.crc32(os.pread(self._descriptor, held.end - held.start, held.start)) != held.checksum:
                return False
            self._trusted.add(held)
        return True

    def put(self, start: int, data: bytes) -> None:
        """Keep bytes, at most a UNIT, from byte `start` on."""
        held = Held(start, start + len(data), zlib.crc32(data))
        try:
            view = memoryview(data)
            while view:
                view = view[os.pwrite(self._descriptor, view, start + len(data) - len(view)) :]
            # Opened each time: of hundreds of shards each would have two files open. The line stands on its own even
            # behind one that was left unfinished.
            with self.list_path.open("ab", buffering=0) as file:
                file.write(f"\n{held.start} {held.end} {held.checksum:08x}\n".encode())
        except OSError as error:
            raise write_error(self.path, error) from error
        with self._lock:
            insort(self._held, held)
            self._trusted.add(held)

    @property
    def is_empty(self) -> bool:
        """Whether no range is on disk."""
        return not self._held

    def remove(self) -> None:
        """Delete what is on disk; InputError when that fails."""
        # The list first: it must not tell of bytes that are gone.
        for path in (self.list_path, self.path):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise write_error(path, error) from error

    def read(self, start: int, length: int) -> bytes:
        """Bytes that are on disk."""
        parts = []
        while length:
            parts.append(os.pread(self._descriptor, min(length, 1 << 30), start))
            if not parts[-1]:
                raise write_error(self.path, OSError(0, "it was cut while it was used"))
            start, length = start + len(parts[-1]), length - len(parts[-1])
        return b"".join(parts)

    def sync(self) -> None:
        """Force the bytes to the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise write_error(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        """Close the file with the last reference."""
        self.close()
