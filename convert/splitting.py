"""Files in shards: which tensors go where, their names and keys.

Source: GGUFWriter in gguf-py and the loader of llama.cpp b11549: shards are named `<stem>-00001-of-0000N.gguf`,
`split.no` counts from 0, `split.tensors.count` counts all shards, and only the first shard carries the metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from nextn.convert.plan import PlannedFile, plan_file
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.container import ALIGNMENT_KEY
from nextn.gguf_schema.contents import TensorInfo, Value
from nextn.gguf_schema.errors import UsageError
from nextn.gguf_schema.shards import SPLIT_COUNT, SPLIT_KEYS, SPLIT_NO, SPLIT_TENSORS_COUNT, shard_name, shard_stem
from nextn.gguf_schema.types import ValueType

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
MOST_SHARDS = 65_535  # `split.count` is a UINT16.


@dataclass(frozen=True)
class Split:
    """Limits of a shard, 0 for none: bytes and number of tensors; and whether the first shard holds metadata alone."""

    max_bytes: int = 0
    max_tensors: int = 0
    metadata_first: bool = False

    def __bool__(self) -> bool:
        return bool(self.max_bytes or self.max_tensors)


def parse_size(text: str) -> int:
    """A size such as `48G` or `500M` in bytes; units are powers of 1000. Raises UsageError for anything else."""
    match = re.fullmatch(r"([0-9]{1,18})([KMG]?)", text.strip().upper())
    if match is None:
        raise UsageError(
            "bad-size", f"{text!r} is no size", subject="--split-max-size", remedy="for example 48G or 500M"
        )
    return int(match[1]) * UNITS[match[2]]


def plan_shards(
    role: Role,
    path: PurePosixPath,
    keys: Mapping[str, Value],
    tensors: Iterable[TensorInfo],
    split: Split,
    hashed: Iterable[str] = (),
) -> tuple[PlannedFile, ...]:
    """The file of a role, or its shards when it exceeds the limits."""
    return plan_groups(role, path, keys, list(grouped(tensors, split)), hashed)


def plan_groups(
    role: Role | None,
    path: PurePosixPath,
    keys: Mapping[str, Value],
    groups: Sequence[Sequence[TensorInfo]],
    hashed: Iterable[str] = (),
) -> tuple[PlannedFile, ...]:
    """A file, or one for each group of tensors; keys about splitting become those of this set, at their places."""
    if len(groups) == 1:
        keys = {key: value for key, value in keys.items() if key not in SPLIT_KEYS}
        return (plan_file(role, path, keys, groups[0], hashed),)
    if len(groups) > MOST_SHARDS:
        raise UsageError("too-many-shards", f"{len(groups)} shards; {MOST_SHARDS} are the most", subject=str(path))
    total = sum(map(len, groups))
    # Each file is read by its own alignment.
    repeated = {key: value for key, value in keys.items() if key == ALIGNMENT_KEY}
    return tuple(
        plan_file(
            role,
            path.with_name(shard_name(shard_stem(path), index, len(groups))),
            {**(keys if index == 0 else repeated), **_split_keys(index, len(groups), total)},
            [replace(tensor, shard=index) for tensor in group],
            hashed if index == 0 else (),
        )
        for index, group in enumerate(groups)
    )


def grouped(tensors: Iterable[TensorInfo], split: Split) -> Iterator[list[TensorInfo]]:
    """The tensors of each shard, by the limits."""
    shard: list[TensorInfo] = []
    size = 0
    if split and split.metadata_first:
        yield []
    for tensor in tensors:
        full = split.max_bytes and size + tensor.nbytes > split.max_bytes
        if shard and (full or (split.max_tensors and len(shard) >= split.max_tensors)):
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor.nbytes
    yield shard


def _split_keys(index: int, count: int, tensors: int) -> dict[str, Value]:
    return {
        SPLIT_NO: Value(ValueType.UINT16, index),
        SPLIT_COUNT: Value(ValueType.UINT16, count),
        SPLIT_TENSORS_COUNT: Value(ValueType.INT32, tensors),
    }
