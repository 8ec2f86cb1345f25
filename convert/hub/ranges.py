"""A file on the hub as a source of bytes: each range is fetched once and kept on disk, whole files of the cache too."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nextn.convert.hub.client import fetch_range
from nextn.convert.hub.hashes import hashed
from nextn.convert.hub.retrying import Patience
from nextn.convert.hub.store import RangeStore
from nextn.gguf_schema.contents import ByteSource, LocalFile
from nextn.gguf_schema.errors import HubError, InputError

# From `start` up to `end`.
Range = tuple[int, int]
# Bytes between two ranges that cost less than a request of their own, and the most of them, as a share of all bytes.
GAP = 16 << 10
WASTE = 0.01
# Bytes of one request: large enough that its beginning costs nothing, small enough that all connections have work.
REQUEST_BYTES = 32 << 20
CONNECTIONS = 8
# Waits of a minute and a half in all: longer than it takes a router to start anew.
FAILURES_IN_A_ROW = 8
# The code of the error about a file that is not what the hub says.
WRONG_HASH = "wrong-hash"


def merged(ranges: Iterable[Range], gap: int = GAP) -> list[Range]:
    """Ranges in order, those that overlap, touch, or lie at most `gap` bytes apart made one."""
    result: list[Range] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1] + gap:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        elif start < end:
            result.append((start, end))
    return result


def worth_asking(ranges: Iterable[Range]) -> list[Range]:
    """Ranges to ask for: those near each other as one, unless what lies between them would be more than `WASTE`."""
    exact = merged(ranges, 0)
    joined = merged(exact)
    return joined if total(joined) <= total(exact) * (1 + WASTE) else exact


def minus(ranges: Iterable[Range], others: Iterable[Range]) -> Iterator[Range]:
    """What is left of ranges without others, all in order and apart."""
    others = list(others)
    for start, end in ranges:
        for other_start, other_end in others:
            if other_start < end and other_end > start:
                if other_start > start:
                    yield start, other_start
                start = max(start, other_end)
        if start < end:
            yield start, end


def pieces_of(ranges: Iterable[Range], most: int = REQUEST_BYTES) -> Iterator[Range]:
    """Ranges cut into pieces of at most `most` bytes."""
    for start, end in ranges:
        for at in range(start, end, most):
            yield at, min(at + most, end)


def total(ranges: Iterable[Range]) -> int:
    """Bytes of ranges that do not overlap."""
    return sum(end - start for start, end in ranges)


@dataclass(frozen=True)
class Remote:
    """A file of a repository at a commit: `etag` is its sha256, or, of a small one, its hash in git."""

    repo: str
    commit: str
    path: str
    size: int
    etag: str
    has_sha256: bool

    @property
    def url(self) -> str:
        """Where it is."""
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self.repo, self.path, revision=self.commit)

    @property
    def name(self) -> str:
        """The file's name for messages."""
        return f"{self.repo}/{self.path}"

    @property
    def identity(self) -> str:
        """A text that changes when the bytes may have changed."""
        return f"{self.repo} {self.commit} {self.path} {self.etag}"


class HubFile:
    """Bytes of a file on the hub, a `ByteSource`. What is read is fetched when it is not on disk, and kept in `store`.

    `cached` is the whole file in huggingface_hub's cache, when that has it.
    """

    def __init__(self, remote: Remote, store: RangeStore, cached: Path | None = None) -> None:
        self.remote = remote
        self.name = remote.name
        self.size = remote.size
        self.identity = remote.identity
        self.store = store
        self._cached = LocalFile(cached) if cached is not None else None
        self._opened = self._verified = False
        self._given_up = threading.Event()
        self._lock = threading.Lock()

    @property
    def is_unchanged(self) -> bool:
        """A file of a commit never changes."""
        return True

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; InputError when the file is shorter, HubError when they do not come."""
        if offset < 0 or offset + length > self.size:
            missing = offset + length - self.size
            raise InputError("truncated", f"ends {missing} bytes early at byte {self.size}", subject=self.name)
        if self._cached:
            return self._cached.read(offset, length)
        for start, end in self.missing([(offset, offset + length)]):
            self.fetch(start, end)
        return self.store.read(offset, length)

    def missing(self, ranges: Iterable[Range]) -> list[Range]:
        """The parts of ranges that must be fetched."""
        if self._cached:
            return []
        with self._lock:
            if not self._opened:
                self.store.open()
                self._opened = True
        return [gap for start, end in merged(ranges, 0) for gap in self.store.missing(start, end)]

    def fetch(
        self,
        start: int,
        end: int,
        progress: Callable[[int], None] = lambda _: None,
        stop: threading.Event | None = None,
    ) -> None:
        """Fetch a range and keep it, until `stop` is set or the file given up; HubError when it does not come."""
        stopped = stop or self._given_up

        def keep(at: int, data: bytes) -> None:
            self.store.put(at, data)
            progress(len(data))
            go_on(0)

        def go_on(wait: float) -> None:
            if stopped.wait(wait):
                raise HubError("stopped", "is not wanted any more", subject=self.name)

        patience = Patience(FAILURES_IN_A_ROW, sleep=go_on)
        fetch_range(self.remote.url, self.name, self.size, start, end, keep, patience)

    @property
    def is_begun(self) -> bool:
        """Whether some of it may be on disk."""
        return self._cached is not None or self.store.list_path.exists()

    def give_up(self) -> None:
        """Let reading that waits for the hub in other threads fail soon."""
        self._given_up.set()

    def is_whole(self) -> bool:
        """Whether every byte is on disk, fetched by range."""
        return not self._cached and not self.missing([(0, self.size)])

    def verify(self) -> None:
        """Compare the hash of the whole file with the hub's; HubError, and nothing is kept, when it is another."""
        if not self._verified and digest_of(self, self.remote) != self.remote.etag:
            self.store.forget()
            raise HubError(
                WRONG_HASH,
                "what came does not have the hash that the hub states; it was thrown away",
                subject=self.name,
                remedy="run the same command again",
            )
        self._verified = True

    def distrust(self) -> None:
        """Do without the whole file of the cache if it is not what the hub says."""
        if self._cached and digest_of(self._cached, self.remote) != self.remote.etag:
            self._cached = None


def digest_of(source: ByteSource, remote: Remote) -> str:
    """The hash, of the kind that the hub states for a file, of all bytes of a source."""
    digest = hashlib.sha256()
    if not remote.has_sha256:
        digest = hashlib.sha1(f"blob {remote.size}\0".encode(), usedforsecurity=False)
    return hashed(source, digest)


Wanted = Mapping[HubFile, Sequence[Range]]


def fetch_all(
    wanted: Wanted,
    progress: Callable[[int], None] = lambda _: None,
    jobs: int = CONNECTIONS,
) -> int:
    """Fetch what is not on disk of the ranges of files, several at a time; how many bytes were fetched.

    Files that become whole are compared with the hub's hashes. `progress` is told of what is on disk already, too.
    InputError when there is no space, HubError when a range does not come.
    """
    work: list[tuple[HubFile, Range]] = []
    touched = []
    for file, ranges in wanted.items():
        asked = worth_asking(ranges)
        missing = file.missing(asked)
        progress(total(asked) - total(missing))
        if missing:
            touched.append(file)
        work += [(file, piece) for piece in pieces_of(missing)]
    check_space(work)
    stop = threading.Event()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for future in [pool.submit(file.fetch, start, end, progress, stop) for file, (start, end) in work]:
                future.result()
        except BaseException as error:
            stop.set()
            pool.shutdown(cancel_futures=True)
            error.add_note("what was fetched is kept")
            raise
    for file in touched:
        if file.is_whole():
            file.verify()
    return total(piece for _, piece in work)


def check_space(
    work: Iterable[tuple[HubFile, Range]], remedy: str = "free some space, or set HF_HOME to a folder on another disk"
) -> None:
    """InputError when the disk has no room for ranges that are to be fetched."""
    needed: dict[int, int] = {}
    folders: dict[int, Path] = {}
    for file, (start, end) in work:
        folder = file.store.path.parent
        device = folder.stat().st_dev
        folders[device] = folder
        needed[device] = needed.get(device, 0) + end - start
    for device, folder in folders.items():
        if (free := shutil.disk_usage(folder).free) < needed[device]:
            raise InputError(
                "no-space",
                f"{needed[device]:,} bytes are to be fetched, {free:,} are free",
                subject=str(folder),
                remedy=remedy,
            )
