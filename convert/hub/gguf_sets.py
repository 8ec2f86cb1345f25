"""GGUF files of a repository: which belong to one set, what they are by their names, and their headers by range."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nextn.convert.hub.locations import Location
from nextn.convert.hub.picks import DRAFT_MARK, is_model, named
from nextn.convert.hub.ranges import CONNECTIONS, HubFile, Range, fetch_all
from nextn.convert.hub.repository import Repository, open_repository
from nextn.gguf_schema.container import read_header
from nextn.gguf_schema.errors import HubError, InputError
from nextn.gguf_schema.shards import FileSet, missing_shards, shard_names
from nextn.validators.structural import SMALL_BYTES


@dataclass(frozen=True)
class GGUFSet:
    """The files of one model in a repository, in order; `missing` is the error about those that are not there.

    `kind` is what its name says, as llama.cpp reads it: model, draft or companion.
    """

    path: str
    files: tuple[str, ...]
    kind: str
    tag: str
    missing: InputError | None = None


def gguf_sets(repository: Repository) -> list[GGUFSet]:
    """All GGUF files of a repository, shards together, in the order of the listing."""
    sets: dict[tuple[str, ...], GGUFSet] = {}
    for path in repository.files:
        if path.endswith(".gguf"):
            whole = _whole(path)
            if whole not in sets:
                sets[whole] = _set(repository, path, whole)
    return list(sets.values())


def _whole(path: str) -> tuple[str, ...]:
    """The paths of the set that a path is one of."""
    folder = path[: path.rfind("/") + 1]
    return tuple(folder + name for name in shard_names(Path(path)))


def _set(repository: Repository, path: str, whole: tuple[str, ...]) -> GGUFSet:
    there = tuple(each for each in whole if each in repository.files)
    missing = missing_shards(Path(path), [Path(each).name for each in whole], [Path(each) for each in there])
    if missing:
        missing.subject = f"{repository.name}/{path}"
        missing.remedy = "The repository is incomplete: ask its owner, or take another revision."
    kind = "model" if is_model(path) else "draft" if DRAFT_MARK in Path(path).name else "companion"
    return GGUFSet(there[0], there, kind, named(path).tag, missing)


def file_set(repository: Repository, path: str) -> FileSet:
    """The set that a file of a repository is one of, with its headers on disk; HubError when it is not there."""
    opened = repository.open(path)
    whole = _whole(path)
    found = _set(repository, path, whole)
    sources = tuple(repository.open(each) for each in found.files)
    prepare(sources)
    prefix = repository.location.repo
    return FileSet(opened.name, sources, tuple(f"{prefix}/{each}" for each in whole), found.missing)


def prepare(sources: Iterable[HubFile]) -> None:
    """Fetch headers, then all tensors that are small, in parallel; what is damaged is for who examines the files."""
    sources = tuple(sources)
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        small = dict(zip(sources, pool.map(_small_tensors, sources), strict=True))
    fetch_all(small)


def _small_tensors(source: HubFile) -> list[Range]:
    try:
        header = read_header(source, [])
    except InputError:
        return []
    start = header.data_offset
    small = (t for t in header.described if t.nbytes <= SMALL_BYTES and start + t.offset + t.nbytes <= source.size)
    return [(start + tensor.offset, start + tensor.offset + tensor.nbytes) for tensor in small]


def file_at(place: Location) -> FileSet:
    """The set that a file on the hub is one of, by range; InputError for a whole repository."""
    repository = open_repository(place)
    if place.path is None:
        raise InputError(
            "no-file",
            "is a repository; one file is wanted here",
            subject=str(place),
            remedy=f"give hf://{place.repo}/FILE.gguf",
        )
    if place.path not in repository.files:
        remedy = f"nextn inspect {repository.name} lists what is there"
        raise HubError("no-file", f"has no file {place.path}", subject=repository.name, remedy=remedy)
    return file_set(repository, place.path)
