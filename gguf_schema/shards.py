"""A model in one GGUF file or in several shards, opened from any of them.

Codes of the errors: missing-shard, shard-number, shard-count, shard-tensors, mixed-shards, duplicate-tensor,
no-such-tensor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from nextn.gguf_schema.container import Header, read_header
from nextn.gguf_schema.contents import ByteSource, Contents, LocalFile, TensorInfo
from nextn.gguf_schema.errors import InputError, counted, listed
from nextn.gguf_schema.placement import layout_problems

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

SPLIT_COUNT = "split.count"
SPLIT_NO = "split.no"
SPLIT_TENSORS_COUNT = "split.tensors.count"
SPLIT_KEYS = (SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS_COUNT)

# Identity of a conversion. Only the first shard must have the keys that are not about splitting.
_SAME_IN_A_SET = ("general.architecture", "general.uuid", "general.name", SPLIT_TENSORS_COUNT)

_SHARD_NAME = re.compile(r"(.*)-[0-9]{5}-of-([0-9]{5})\.gguf", re.DOTALL)
ONE_SET = "Files of a set come from one conversion and keep the names they were written under."


@dataclass(frozen=True)
class GGUFFile:
    """What a model's files say together, and the way to their bytes; `headers` are in the order of the shards."""

    contents: Contents
    headers: tuple[Header, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in the order of the shards."""
        return tuple(Path(header.source.name) for header in self.headers)

    def tensor_bytes(self, name: str) -> tuple[ByteSource, int, int]:
        """Where a tensor's data is: the file, its place from the beginning of that file and its length, in bytes.

        InputError when there is no such tensor.
        """
        tensor = self.contents.tensors.get(name)
        if tensor is None:
            raise InputError("no-such-tensor", f"tensor {name!r}: not in the file", subject=self.contents.name)
        header = self.headers[tensor.shard]
        return header.source, header.data_offset + tensor.offset, tensor.nbytes

    def read_tensor(self, name: str) -> bytes:
        """A tensor's data as it is stored; InputError when there is no such tensor or the file cannot be read."""
        source, offset, nbytes = self.tensor_bytes(name)
        return source.read(offset, nbytes)


def open_gguf(path: Path, *, strict: bool = True, tolerated: Collection[str] = ()) -> GGUFFile:
    """The model that `path` belongs to: that file, or all the shards `path` is one of.

    InputError for what cannot be read, shards that are missing or do not belong together, and, when `strict`, the first
    of the `layout_problems`; otherwise these are the caller's to look for. Faults of the set whose code is among the
    `tolerated` are none.
    """
    names = shard_names(path)
    there = shards_there(path, names)
    if missing := missing_shards(path, names, there):
        raise missing
    faults: list[InputError] = []
    file = join_shards([read_header(LocalFile(shard)) for shard in there], faults)
    for fault in faults:
        if fault.code not in tolerated:
            raise fault
    if strict:
        for header in file.headers:
            for problem in layout_problems(header):
                raise problem
    return file


@dataclass(frozen=True)
class FileSet:
    """The files of a model that are there, in order, wherever they are.

    `paths` are the names of all files of the set; `missing` is the error about those that are not there.
    """

    name: str
    sources: tuple[ByteSource, ...]
    paths: tuple[str, ...] = ()
    missing: InputError | None = None


def local_set(path: Path) -> FileSet:
    """The set that a file on disk is one of; InputError when one of its files cannot be opened."""
    names = shard_names(path)
    there = shards_there(path, names)
    if path not in there:
        there = [path]  # Who opens it says why it cannot be read.
    folder = str(path).removesuffix(path.name)
    sources = tuple(LocalFile(shard) for shard in there)
    return FileSet(str(path), sources, tuple(folder + name for name in names), missing_shards(path, names, there))


def shard_name(stem: str, index: int, count: int) -> str:
    """The file name of shard `index` (from 0) of `count`. Source: llama_split_path (llama.h)."""
    return f"{stem}-{index + 1:05d}-of-{count:05d}.gguf"


def shard_stem(path: PurePath) -> str:
    """The name that the files of a set have in common; of a file that is not named as a shard, its own."""
    match = _SHARD_NAME.fullmatch(path.name)
    return match[1] if match else path.name.removesuffix(".gguf")


def shard_names(path: Path) -> tuple[str, ...]:
    """The names of the set that `path` is one of, in order; its own alone when it is not named as a shard."""
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return (path.name,)
    stem, count = match[1], int(match[2])
    names = tuple(shard_name(stem, index, count) for index in range(count))
    return names if path.name in names else (path.name,)


def shards_there(path: Path, names: Sequence[str]) -> list[Path]:
    """The files of a set that are there; of a file of its own, that one, for who opens it."""
    if len(names) == 1:
        return [path]
    try:
        # Once, and not a hundred thousand times, which a name may ask for.
        beside = {beside.name for beside in path.parent.iterdir()}
    except OSError:
        beside = {*names}  # They may be read, though their folder may not be listed.
    there = [path.with_name(name) for name in names if name in beside]
    return [shard for shard in there if shard.exists()]


def missing_shards(path: Path, names: Sequence[str], there: Sequence[Path]) -> InputError | None:
    """The error about files of a set that are not there."""
    held = {shard.name for shard in there}
    missing = [name for name in names if name not in held]
    if not missing:
        return None
    are = "is" if len(missing) == 1 else "are"
    message = f"{len(missing)} of the {len(names)} files of the set {are} missing: {listed(missing, 8)}"
    return InputError("missing-shard", message, subject=str(path), remedy="Put all of them into one folder.")


def join_shards(headers: Sequence[Header], faults: list[InputError] | None = None) -> GGUFFile:
    """One model from the headers of all its shards, in order: the keys of the first and the tensors of each.

    InputError when something shows that the shards are not of one set, or a `split.*` key contradicts the place or the
    number of shards; only when neither does, for another number of tensors, then for a tensor in two of them: one cause
    is one error. With a list of `faults` these are added to it instead.
    """
    tensors: dict[str, TensorInfo] = {}
    twice: list[InputError] = []
    for index, header in enumerate(headers):
        for tensor in header.contents:
            if tensor.name in tensors:
                other = headers[tensors[tensor.name].shard].source.name
                message = f"tensor {tensor.name!r}: is there twice, also in {other}"
                twice.append(InputError("duplicate-tensor", message, subject=header.source.name, remedy=ONE_SET))
            else:
                tensors[tensor.name] = replace(tensor, shard=index) if index else tensor
    for error in [*_mixture(headers), *_place_problems(headers)] or [*_count_problems(headers)] or twice:
        if faults is None:
            raise error
        faults.append(error)
    first = headers[0]
    return GGUFFile(Contents(first.contents.keys, tensors, first.source.name), tuple(headers))


def _place_problems(headers: Sequence[Header]) -> Iterator[InputError]:
    """Where the keys say of a file that it is another one of the set, or of a set of another size."""
    first = headers[0]
    count, number = (_integer(first, key) for key in (SPLIT_COUNT, SPLIT_NO))
    if len(headers) == 1 and count is not None and count > 1:
        message = (
            f"says that it is file {(number or 0) + 1} of {count} ({SPLIT_NO} {number or 0}, {SPLIT_COUNT} {count}), "
            "and is not named so: nothing leads to the others"
        )
        remedy = f"Put it beside the others under a name like {shard_name('NAME', number or 0, count)}."
        yield InputError("shard-count", message, subject=first.source.name, remedy=remedy)
        return
    # Merging with llama-gguf-split leaves a count of 0 in a file that is whole.
    counts = (1, 0) if len(headers) == 1 else (len(headers),)
    for index, header in enumerate(headers):
        place = f"file {index + 1} of {len(headers)}"
        for code, key, wanted in (("shard-number", SPLIT_NO, (index,)), ("shard-count", SPLIT_COUNT, counts)):
            yield from _contradiction(header, code, key, wanted, place)


def _count_problems(headers: Sequence[Header]) -> Iterator[InputError]:
    """Where the keys count other tensors than there are."""
    tensors = sum(len(header.described) for header in headers)
    for index, header in enumerate(headers):
        place = f"file {index + 1} of {len(headers)} with {counted(tensors, 'tensor')} in all"
        yield from _contradiction(header, "shard-tensors", SPLIT_TENSORS_COUNT, (tensors,), place)


def _contradiction(header: Header, code: str, key: str, wanted: tuple[int, ...], place: str) -> Iterator[InputError]:
    value = header.contents.keys.get(key)
    if value is not None and value.value not in wanted:
        have = value.value if isinstance(value.value, int) else value.type_name
        message = f"key {key!r}: {have}, want {wanted[0]} for {place}"
        yield InputError(code, message, subject=header.source.name, remedy=ONE_SET)


def _integer(header: Header, key: str) -> int | None:
    value = header.contents.keys.get(key)
    return value.value if value and isinstance(value.value, int) else None


def _mixture(headers: Sequence[Header]) -> Iterator[InputError]:
    """What gives away that shards are not of one set: they differ where one conversion writes them alike."""
    first = headers[0]
    for header in headers[1:]:
        pairs: list[tuple[str, object, object]] = [
            ("GGUF version", header.version, first.version),
            ("alignment", header.alignment, first.alignment),
        ]
        for key in _SAME_IN_A_SET:
            # The later shards need not repeat a key.
            if key in header.contents.keys and key in first.contents.keys:
                pairs.append((f"key {key!r}", header.contents.keys[key].value, first.contents.keys[key].value))
        for what, have, want in pairs:
            if have != want:
                # A string of a hostile file may be long.
                message = f"{what}: {str(have)[:80]}, but {str(want)[:80]} in {first.source.name}: not of one set"
                yield InputError("mixed-shards", message, subject=header.source.name, remedy=ONE_SET)
