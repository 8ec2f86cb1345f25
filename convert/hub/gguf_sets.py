"""GGUF files of a repository: which belong to one set, what they are by their names, and their headers by range."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nextn.convert.hub.locations import Location
from nextn.convert.hub.picks import DRAFT_MARK, is_model, named
from nextn.convert.hub.ranges import CONNECTIONS, HubFile, Range, fetch_all
from nextn.convert.hub.repository import Repository, open_repository
from nextn.gguf_schema.container import read_header
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.shards import FileSet, shard_name
from nextn.validators.structural import SMALL_BYTES

# Missing files that are named.
MOST_LISTED = 8


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
    """All GGUF files of a repository, shards together, in the order of the listing.

    HubError when the path of one cannot be used.
    """
    sets: dict[tuple[str, int], list[str]] = {}
    for path in repository.files:
        if path.endswith(".gguf"):
            sets.setdefault(_set_of(repository.remote(path).path), []).append(path)
    return [_set(repository, count, files) for (_, count), files in sets.items()]


def _set_of(path: str) -> tuple[str, int]:
    """What the files of a set have in common, and how many they are; of a file that is no shard, its path and 1.

    The names of all shards are not spelled out: a file may claim to be one of a hundred thousand.
    """
    found = named(path)
    is_shard = 1 <= found.index <= found.count and path == shard_name(found.stem, found.index - 1, found.count)
    return (found.stem, found.count) if is_shard and found.count > 1 else (path, 1)


def _set(repository: Repository, count: int, files: list[str]) -> GGUFSet:
    path = files[0]
    kind = "model" if is_model(path) else "draft" if DRAFT_MARK in Path(path).name else "companion"
    there = tuple(sorted(files))
    return GGUFSet(there[0], there, kind, named(path).tag, _missing(repository, count, there))


def _missing(repository: Repository, count: int, there: tuple[str, ...]) -> InputError | None:
    """The error about files of a set of `count` that are not there."""
    number, path = count - len(there), there[0]
    if not number:
        return None
    held = set(there)
    every = (shard_name(named(path).stem, index, count) for index in range(count))
    first = [Path(name).name for name in islice((name for name in every if name not in held), MOST_LISTED)]
    more = f", … {number - len(first)} more" if number > len(first) else ""
    are = "is" if number == 1 else "are"
    message = f"{number} of the {count} files of the set {are} missing: {', '.join(first)}{more}"
    remedy = "The repository is incomplete: ask its owner, or take another revision."
    return InputError("missing-shard", message, subject=f"{repository.name}/{path}", remedy=remedy)


def file_set(repository: Repository, path: str) -> FileSet:
    """The set that a file of a repository is one of, with its headers on disk; HubError when it is not there."""
    opened = repository.open(path)
    common, count = _set_of(path)
    files = [each for each in repository.files if each.startswith(common) and _set_of(each) == (common, count)]
    found = _set(repository, count, files)
    sources = tuple(repository.open(each) for each in found.files)
    prepare(sources)
    whole = found.files if count == len(files) else (shard_name(common, index, count) for index in range(count))
    prefix = repository.location.repo
    return FileSet(opened.name, sources, tuple(f"{prefix}/{each}" for each in whole), found.missing)


def prepare(sources: Iterable[HubFile]) -> None:
    """Fetch headers, then all tensors that are small, in parallel; what is damaged is for who examines the files."""
    sources = tuple(sources)
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        try:
            small = dict(zip(sources, pool.map(_small_tensors, sources), strict=True))
        except BaseException:
            for source in sources:
                source.give_up()
            pool.shutdown(cancel_futures=True)
            raise
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
    """The set that a file on the hub is one of, by range; InputError for a whole repository, HubError for no file."""
    repository = open_repository(place)
    if place.path is None:
        raise InputError(
            "no-file",
            "is a repository; one file is wanted here",
            subject=str(place),
            remedy=f"give hf://{place.repo}/FILE.gguf",
        )
    return file_set(repository, place.path)
