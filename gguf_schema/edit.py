"""An edit: what a GGUF file becomes, said in terms of the tensors that it, or two files to be joined, hold already.

Edits are pure data, made from what files say. Surgery turns them into plans, and the writer executes these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nextn.gguf_schema.contents import Contents, TensorInfo, Value
from nextn.gguf_schema.errors import InputError

MATRIX = 2  # dimensions


@dataclass(frozen=True)
class Taken:
    """A tensor of the edited file, and the stored tensors of input `file` that it is made of.

    The rows of several `sources` stand side by side. Of a single one a row may be but the `part`-th of `parts` equal
    parts. The shard of `info` is the one that the tensor goes into.
    """

    info: TensorInfo
    sources: tuple[str, ...]
    file: int = 0
    part: int = 0
    parts: int = 1

    @property
    def is_copy(self) -> bool:
        """Whether a whole stored tensor is taken."""
        return len(self.sources) == 1 and self.parts == 1


def taken(tensor: TensorInfo, file: int = 0) -> Taken:
    """A stored tensor as it is."""
    return Taken(tensor, (tensor.name,), file)


@dataclass(frozen=True)
class Edit:
    """The keys and tensors of the edited file in order; what was changed, a line each; and what was left out, and why.

    `changes` is empty when the file is what it was.
    """

    keys: Mapping[str, Value]
    tensors: tuple[Taken, ...]
    changes: tuple[str, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()

    def contents(self, name: str) -> Contents:
        """What the edited file says."""
        return Contents(self.keys, {tensor.info.name: tensor.info for tensor in self.tensors}, name)


def unchanged(contents: Contents) -> Edit:
    """The edit that changes nothing."""
    return Edit(contents.keys, tuple(map(taken, contents)))


def renamed(tensor: Taken, name: str) -> Taken:
    """The same data under another name."""
    return replace(tensor, info=replace(tensor.info, name=name))


def joined(name: str, parts: Iterable[TensorInfo]) -> Taken:
    """Matrices side by side: row i is row i of each, in order. InputError when they are not alike."""
    parts = tuple(parts)
    first = parts[0]
    for part in parts[1:]:
        if (part.ne, part.type) != (first.ne, first.type) or len(first.ne) != MATRIX or not first.type.known:
            message = f"is {list(part.ne)} {part.type.name}, {first.name} {list(first.ne)} {first.type.name}: not alike"
            raise InputError("unlike-parts", message, subject=part.name, remedy=f"retype one of them to join {name}")
    ne = (sum(part.ne[0] for part in parts), *first.ne[1:])
    info = replace(first, name=name, ne=ne, nbytes=sum(part.nbytes for part in parts))
    return Taken(info, tuple(part.name for part in parts))


def divided(tensor: TensorInfo, names: Iterable[str]) -> tuple[Taken, ...]:
    """A matrix cut into equal parts of each row; InputError when a cut would go through a block of its type."""
    names = tuple(names)
    width, rest = divmod(tensor.ne[0], len(names))
    if len(tensor.ne) != MATRIX or rest or not tensor.type.known or width % tensor.type.block:
        message = f"rows of {tensor.ne[0]} cannot be cut into {len(names)} parts of whole blocks of {tensor.type.name}"
        raise InputError("indivisible", message, subject=tensor.name, remedy="retype it to f16, bf16 or f32 first")
    ne = (width, *tensor.ne[1:])
    return tuple(
        Taken(replace(tensor, name=name, ne=ne, nbytes=tensor.type.tensor_bytes(ne)), (tensor.name,), 0, i, len(names))
        for i, name in enumerate(names)
    )


def reshaped(tensor: TensorInfo, ne: tuple[int, ...]) -> Taken:
    """The same values in the same order under other dimensions."""
    return Taken(replace(tensor, ne=ne), (tensor.name,))


def insert_key(keys: Mapping[str, Value], key: str, value: Value, before: Iterable[str]) -> dict[str, Value]:
    """The keys with one more, or a new value for it at its old place; a new one stands before the first of `before`.

    Without any of them it stands last.
    """
    if key in keys:
        return {**keys, key: value}
    following = set(before)
    edited: dict[str, Value] = {}
    for name, held in keys.items():
        if name in following and key not in edited:
            edited[key] = value
        edited[name] = held
    return {**edited, key: value} if key not in edited else edited
