"""A model in one GGUF file or in several shards, opened from any of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nextn.gguf_schema.container import Header, layout_problems, read_header
from nextn.gguf_schema.contents import ByteSource, Contents, LocalFile, TensorInfo
from nextn.gguf_schema.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

SPLIT_COUNT = "split.count"
SPLIT_NO = "split.no"
SPLIT_TENSORS_COUNT = "split.tensors.count"

_SHARD_NAME = re.compile(r"(.*)-[0-9]{5}-of-([0-9]{5})\.gguf", re.DOTALL)
_ONE_SET = "Files of a set come from one conversion and keep the names they were written under."


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


def open_gguf(path: Path, *, strict: bool = True) -> GGUFFile:
    """The model that `path` belongs to: that file, or all the shards `path` is one of.

    InputError for what cannot be read, shards that are missing or do not belong together, and, when `strict`, the first
    of the `layout_problems`; otherwise these are the caller's to look for.
    """
    paths = shard_paths(path)
    missing = [shard.name for shard in paths if not shard.exists()]
    if missing and len(paths) > 1:
        shown = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        message = f"{len(missing)} of the {len(paths)} files of the set are missing: {shown}"
        raise InputError("missing-shard", message, subject=str(path), remedy="Put all of them into one folder.")
    file = join_shards([read_header(LocalFile(shard)) for shard in paths])
    if strict:
        for header in file.headers:
            for problem in layout_problems(header):
                raise problem
    return file


def shard_name(stem: str, index: int, count: int) -> str:
    """The file name of shard `index` (from 0) of `count`. Source: llama_split_path (llama.h)."""
    return f"{stem}-{index + 1:05d}-of-{count:05d}.gguf"


def shard_paths(path: Path) -> tuple[Path, ...]:
    """The set of files that `path` is one of by its name, in order; `path` alone when it is not named as a shard."""
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return (path,)
    stem, count = match[1], int(match[2])
    paths = tuple(path.with_name(shard_name(stem, index, count)) for index in range(count))
    return paths if path in paths else (path,)


def join_shards(headers: Sequence[Header]) -> GGUFFile:
    """One model from the headers of all its shards, in order: the keys of the first and the tensors of each.

    InputError when a `split.*` key contradicts the place or the number of shards, and for a tensor in two of them.
    """
    _check_split_keys(headers)
    tensors: dict[str, TensorInfo] = {}
    for index, header in enumerate(headers):
        for tensor in header.contents:
            if tensor.name in tensors:
                other = headers[tensors[tensor.name].shard].source.name
                message = f"tensor {tensor.name!r}: is there twice, also in {other}"
                raise InputError("duplicate-tensor", message, subject=header.source.name, remedy=_ONE_SET)
            tensors[tensor.name] = replace(tensor, shard=index)
    first = headers[0]
    return GGUFFile(Contents(first.contents.keys, tensors, first.source.name), tuple(headers))


def _check_split_keys(headers: Sequence[Header]) -> None:
    tensors = sum(len(header.contents.tensors) for header in headers)
    # Merging with llama-gguf-split leaves a count of 0 in a file that is whole.
    counts = (1, 0) if len(headers) == 1 else (len(headers),)
    for index, header in enumerate(headers):
        for key, wanted in ((SPLIT_COUNT, counts), (SPLIT_NO, (index,)), (SPLIT_TENSORS_COUNT, (tensors,))):
            value = header.contents.keys.get(key)
            if value is not None and value.value not in wanted:
                have = value.value if isinstance(value.value, int) else value.type_name
                place = f"file {index + 1} of {len(headers)} with {tensors} tensors in all"
                message = f"key {key!r}: {have}, want {wanted[0]} for {place}"
                raise InputError("wrong-shard", message, subject=header.source.name, remedy=_ONE_SET)
