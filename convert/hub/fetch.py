"""Fetching GGUF files: whole sets with what goes with them, each written beside its place, verified, then renamed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from nextn.convert.hub.gguf_sets import GGUFSet, gguf_sets
from nextn.convert.hub.picks import IMAGE_MARK, picks
from nextn.convert.hub.ranges import (
    WRONG_HASH,
    HubFile,
    check_space,
    digest_of,
    fetch_all,
    minus,
    pieces_of,
    total,
)
from nextn.convert.hub.repository import Repository
from nextn.convert.hub.store import UNIT, RangeStore
from nextn.convert.output import give_final_name, open_locked, partial_of, sync_folder, write_error
from nextn.convert.preflight import allow_open_files, make_way
from nextn.gguf_schema.contents import LocalFile
from nextn.gguf_schema.errors import HubError, InputError, UsageError

# In the names of files without heads, where the same repository has files with heads, too.
TRUNK_MARK = "-trunk-"


class Emit(StrEnum):
    """Which files of a repository are wanted."""

    MTP = "mtp"
    TRUNK = "trunk"
    ALL = "all"


@dataclass(frozen=True)
class FetchedFile:
    """A file in its place; `outcome` says whether it was fetched or there before, `sha256` is the hub's."""

    path: Path
    bytes: int
    sha256: str | None
    outcome: str

    def as_json(self) -> dict[str, Any]:
        """The file as `--json` prints it."""
        return asdict(self) | {"path": str(self.path)}


@dataclass(frozen=True)
class Fetched:
    """What a run fetched."""

    repository: Repository
    files: tuple[FetchedFile, ...]
    bytes_fetched: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        return {
            "repository": {"id": self.repository.location.repo, "commit": self.repository.commit},
            "outputs": [file.as_json() for file in self.files],
            "bytes_fetched": self.bytes_fetched,
            "seconds": round(self.seconds, 3),
        }


def wanted_files(repository: Repository, emit: Emit) -> list[str]:
    """The files to fetch, whole sets: of the location's path or tag, else of the whole repository.

    InputError when there are none, or a set is not complete; HubError when the location's path is not there.
    """
    chosen = _chosen(repository, emit)
    if not chosen:
        what = {Emit.MTP: "no head", Emit.TRUNK: "no model", Emit.ALL: "no GGUF file"}[emit]
        of = f" of {repository.location.tag}" if repository.location.tag else ""
        remedy = f"nextn inspect {repository.name} lists what is there"
        raise InputError("no-files", f"holds {what}{of}", subject=repository.name, remedy=remedy)
    for each in chosen:
        if each.missing:
            raise each.missing
    return [path for each in chosen for path in each.files]


def _chosen(repository: Repository, emit: Emit) -> list[GGUFSet]:
    sets, location = gguf_sets(repository), repository.location
    if location.path:
        wanted = repository.remote(location.path).path
        return [each for each in sets if wanted in each.files]
    models = [each for each in sets if each.kind == "model"]
    drafts = [each for each in sets if each.kind == "draft"]
    images = [each for each in sets if each.kind == "companion" and IMAGE_MARK in PurePosixPath(each.path).name]
    if tag := location.tag:
        # What has another tag may still be what goes with this one.
        taken = picks(list(repository.files), tag)
        models = [each for each in models if each.tag == tag.upper()]
        exact = [each for each in drafts if each.tag == tag.upper()]
        # What goes with nothing is not what was asked for.
        drafts = exact or [each for each in drafts if models and taken.draft in each.files]
        images = [each for each in images if taken.images in each.files]
    if emit is Emit.TRUNK:
        trunks = {each.tag for each in models if TRUNK_MARK in each.path}
        models = [each for each in models if TRUNK_MARK in each.path or each.tag not in trunks]
    if not models and tag:
        images = []
    chosen = {Emit.MTP: drafts, Emit.TRUNK: [*models, *images], Emit.ALL: [*models, *drafts, *images]}[emit]
    paths = {each.path for each in chosen}
    return [each for each in sets if each.path in paths]


def fetch(
    repository: Repository,
    paths: Sequence[str],
    folder: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Fetched:
    """Fetch files of a repository into a folder, or go on with that.

    Files that are there already, with the hub's hash, are left as they are. Raises UsageError when another file is in
    the way or another process writes one, InputError for no space, HubError when a file does not come or is not what
    the hub says. After an error what was fetched is kept.
    """
    start = time.monotonic()
    # No path that the repository gives away leads out of the folder.
    targets = {path: folder / repository.remote(path).path for path in paths}
    there = {path for path, target in targets.items() if _is_there(repository, path, target)}
    todo = [path for path in paths if path not in there]
    make_way([targets[path] for path in todo], overwrite)
    _refuse_foreign([targets[path] for path in todo], overwrite)
    progress(sum(repository.files[path].size for path in there))
    allow_open_files(3 * len(todo))
    with ExitStack() as cleanup:
        files = {path: cleanup.enter_context(_Arriving(repository, path, targets[path])) for path in todo}
        for file in files.values():
            file.copy_what_is_kept()
        gaps = [(file.source, gap) for file in files.values() for gap in file.missing()]
        check_space(gaps, "free some space, or choose a folder on another disk")
        fetched = sum(file.finish(overwrite, progress) for file in files.values())
    for path in {target.parent for target in targets.values()}:
        sync_folder(path)
    done = (_fetched(repository, path, targets[path], path in there) for path in paths)
    return Fetched(repository, tuple(done), fetched, time.monotonic() - start)


def _fetched(repository: Repository, path: str, target: Path, there: bool) -> FetchedFile:
    remote = repository.files[path]
    sha256 = remote.etag if remote.has_sha256 else None
    return FetchedFile(target, remote.size, sha256, "there" if there else "fetched")


def _is_there(repository: Repository, path: str, target: Path) -> bool:
    """Whether a file is in its place, as the hub has it; what an earlier run left beside it goes."""
    remote = repository.files[path]
    if not target.is_file() or target.stat().st_size != remote.size:
        return False
    if digest_of(LocalFile(target), remote) != remote.etag:
        return False
    store = RangeStore(partial_of(target), remote.size, remote.etag)
    if store.list_path.exists():
        store.remove()
    return True


def _refuse_foreign(targets: Sequence[Path], overwrite: bool) -> None:
    """UsageError when a name that unfinished work gets is that of something else."""
    for partial in map(partial_of, targets):
        lists = RangeStore(partial, 0, "").list_path
        for path in (partial, lists):
            if os.path.lexists(path) and not overwrite and not lists.is_file():
                message = "is in the way: unfinished work gets this name, and it is none of an earlier run"
                remedy = "move it away, or give --overwrite to lose it"
                raise UsageError("not-ours", message, subject=str(path), remedy=remedy)


class _Arriving:
    """A file on its way: beside its place, locked meanwhile; kept when the context is left, unless it is empty."""

    def __init__(self, repository: Repository, path: str, target: Path) -> None:
        remote = repository.files[path]
        self.target = target
        self.store = RangeStore(partial_of(target), remote.size, remote.etag)
        self.source = HubFile(remote, self.store)
        self._kept = repository.open(path)
        self._lock = -1

    def __enter__(self) -> _Arriving:
        try:
            self._lock = open_locked(self.store.path)
        except OSError as error:
            raise write_error(self.store.path, error) from error
        self.source.missing([])
        return self

    def __exit__(self, *_: object) -> None:
        if self.store.is_empty and not self.target.exists():
            self.store.remove()
        os.close(self._lock)

    def missing(self) -> Iterator[tuple[int, int]]:
        """The ranges that are not there yet."""
        yield from self.source.missing([(0, self.source.size)])

    def copy_what_is_kept(self) -> None:
        """Take from the caches what is there, whether or not anything can be kept there."""
        if not self._kept.is_begun:
            return
        missing = list(self.missing())
        try:
            self._kept.distrust()
            gaps = self._kept.missing(missing)
        except InputError:
            return
        for start, end in pieces_of(minus(missing, gaps), UNIT):
            self.store.put(start, self._kept.read(start, end - start))

    def finish(self, overwrite: bool, progress: Callable[[int], None]) -> int:
        """Fetch what is missing, verify, and give the file its name; how many bytes were fetched."""
        missing = total(self.missing())
        try:
            fetch_all({self.source: [(0, self.source.size)]}, progress)
            self.source.verify()
        except HubError as error:
            if error.code == WRONG_HASH and self._kept.is_begun:
                # The wrong bytes may be those that were copied: the next run must not copy them again.
                self._kept.store.forget()
            raise
        self.store.sync()
        give_final_name(self.store.path, self.target, overwrite=overwrite)
        self.store.list_path.unlink(missing_ok=True)
        return missing
