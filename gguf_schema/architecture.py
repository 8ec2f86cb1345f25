"""The words of a file's description: roles, tensor and key specifications, and an architecture that joins them.

One table per architecture says what a file of each role holds. The converter plans from it, the validator judges by
it, surgery cuts by it and the runtime loads by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cached_property, lru_cache
from typing import Any, cast

from nextn.gguf_schema.contents import Contents, Scalar, Value, array
from nextn.gguf_schema.types import ValueType


class Role(StrEnum):
    """What a file is for."""

    COMBINED = "combined"
    TRUNK = "trunk"
    MTP = "mtp"
    MTP_SHARED = "mtp-shared"

    @property
    def has_trunk(self) -> bool:
        """Whether the trunk's blocks are in the file."""
        return self in (Role.COMBINED, Role.TRUNK)

    @property
    def has_head(self) -> bool:
        """Whether the nextn blocks are in the file."""
        return self is not Role.TRUNK


EVERY_ROLE = frozenset(Role)
WITH_TRUNK = frozenset(role for role in Role if role.has_trunk)
WITH_HEAD = frozenset(role for role in Role if role.has_head)
WITHOUT_SHARED = EVERY_ROLE - {Role.MTP_SHARED}


class Without(StrEnum):
    """What llama.cpp b11549 does with a file that lacks a tensor or key it should have."""

    REFUSES = "refuses to load"
    WRONG = "loads and computes something else"
    ABORTS = "loads and aborts when it computes"
    TOLERATES = "works the same"


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """What the tables need to know of a model; a field is named like its key, with `_` for `.`.

    Per-block values are tuples over all blocks, trunk first. `None` means that the key is not written.
    """

    trunk_blocks: int
    nextn_blocks: int
    vocab_size: int
    context_length: int
    embedding_length: int

    def block_count(self, role: Role) -> int:
        """Number of blocks that a file of this role declares: a head file counts the trunk's blocks too."""
        return self.trunk_blocks + (self.nextn_blocks if role.has_head else 0)

    def blocks(self, role: Role) -> range:
        """Indices of the blocks whose tensors are in a file of this role."""
        return range(0 if role.has_trunk else self.trunk_blocks, self.block_count(role))

    @property
    def nextn_predict_layers(self) -> int | None:
        """The value of the key of this name; not written when there is no head."""
        return self.nextn_blocks or None

    @property
    def head_input_width(self) -> int:
        """Width of a head's input: an embedding beside a hidden row."""
        return 2 * self.embedding_length

    def is_nextn(self, block: int) -> bool:
        """Whether the block is a head's."""
        return block >= self.trunk_blocks


class Rule(Enum):
    """How the value of a key follows from its hyper-parameter and the role of the file."""

    SCALAR = "as it is"
    BLOCK_COUNT = "number of blocks of the file"
    PER_BLOCK = "array over the blocks of the file"
    PER_TRUNK_BLOCK = "array over the trunk's blocks in every file"
    LIST = "array of a length of its own"
    FOUR = "array of four, or one value for all of them"


@dataclass(frozen=True)
class KeySpec:
    """One metadata key of an architecture: its type, its value rule, what its absence does and what is assumed then.

    `default` is what the loader takes for an absent key that it does not insist on. Where `array` is set it does not
    take one value for all blocks. It does not look at a key that is `unread`, or beside the key of that name.
    """

    name: str
    type: ValueType
    rule: Rule = Rule.SCALAR
    roles: frozenset[Role] = EVERY_ROLE
    without: Without = Without.REFUSES
    default: Scalar | None = None
    array: bool = False
    unread: bool | str = False

    def is_unread(self, contents: Contents) -> bool:
        """Whether no loader looks at the key in this file."""
        if isinstance(self.unread, bool):
            return self.unread
        return self.unread in contents.keys or contents.get(self.unread) is not None

    @cached_property
    def field(self) -> str:
        """The hyper-parameter that holds the value."""
        return self.name.replace(".", "_")

    def length(self, h: Hyperparameters, role: Role) -> int | None:
        """The length an array of this key must have in a file of this role; None for scalars and free lists."""
        lengths = {Rule.PER_BLOCK: h.block_count(role), Rule.PER_TRUNK_BLOCK: h.trunk_blocks}
        return lengths.get(self.rule)

    def value(self, h: Hyperparameters, role: Role) -> Value | None:
        """The value in a file of this role, or None when the key is not written."""
        if role not in self.roles:
            return None
        if self.rule is Rule.BLOCK_COUNT:
            return Value(self.type, h.block_count(role))
        held = getattr(h, self.field)
        if held is None:
            return None
        if self.rule is Rule.SCALAR:
            return Value(self.type, cast(Scalar, held))
        return array(self.type, held[: self.length(h, role)])


# Marks the place of `general.file_type` among the keys of an architecture, where upstream writes it.
FILE_TYPE = KeySpec("general.file_type", ValueType.UINT32)


def everywhere(_: Any, __: int) -> bool:
    """The condition of tensors that every block has."""
    return True


@dataclass(frozen=True)
class TensorSpec:
    """One tensor, or one per block: name, dimensions, where it stands, its type policy, what its absence does.

    `name` holds `{i}` for the block. `dims` names the hyper-parameters that give its dimensions, fastest first; one
    that is a method or a per-block tuple is taken for the block. `when` says which blocks have it; `roles` applies to
    tensors outside blocks, a block's roles follow from its index. `f32` tensors are stored in F32 whatever
    type is asked for, `eight_bits` ones in Q8_0 at the least. `optional` tensors may be there or not. `reshape` ones
    may have any dimensions with as many elements. `without_in_head` replaces `without` in files without the trunk.
    """

    name: str
    dims: str
    when: Callable[[Any, int], bool] = everywhere
    roles: frozenset[Role] = EVERY_ROLE
    f32: bool = False
    eight_bits: bool = False
    optional: bool = False
    without: Without = Without.REFUSES
    reshape: bool = False
    without_in_head: Without | None = None

    @property
    def per_block(self) -> bool:
        """Whether each block has its own."""
        return "{i}" in self.name

    def ne(self, h: Hyperparameters, block: int) -> tuple[int, ...]:
        """Dimensions, fastest first."""
        return tuple(dim if isinstance(dim, int) else _dimension(h, dim, block) for dim in self._parsed_dims)

    @cached_property
    def _parsed_dims(self) -> tuple[int | str, ...]:
        """Numbers, and names of hyper-parameters."""
        return tuple(int(dim) if dim.isdigit() else dim for dim in self.dims.split())


def _dimension(h: Hyperparameters, name: str, block: int) -> int:
    held = getattr(h, name)
    if callable(held):
        held = held(block)
    return int(held[block] if isinstance(held, tuple) else held)


@dataclass(frozen=True)
class ExpectedTensor:
    """A tensor that a file holds by its tables: its name, dimensions, specification and block (-1 outside blocks)."""

    name: str
    ne: tuple[int, ...]
    spec: TensorSpec
    block: int


@dataclass(frozen=True)
class Architecture:
    """Everything the tables say about one architecture.

    `from_tensors` gives the hyper-parameters that no key holds but the tensors of a file show.
    """

    name: str
    hyperparameters: type[Hyperparameters]
    keys: tuple[KeySpec, ...]
    tensors: tuple[TensorSpec, ...]
    from_tensors: Callable[[Contents], dict[str, Any]] = lambda _: {}

    def key_values(self, h: Hyperparameters, role: Role, file_type: int) -> dict[str, Value]:
        """Every key of a file of this role in the order in which upstream writes them, `general.file_type` included."""
        values: dict[str, Value] = {}
        for spec in self.keys:
            if spec is FILE_TYPE:
                values[spec.name] = Value(spec.type, file_type)
            elif (value := spec.value(h, role)) is not None:
                values[f"{self.name}.{spec.name}"] = value
        return values

    def tensors_of(self, h: Hyperparameters, role: Role) -> Iterator[ExpectedTensor]:
        """Every tensor a file of this role may hold: first those outside blocks, then block by block."""
        for spec in self.tensors:
            if not spec.per_block and role in spec.roles and spec.when(h, -1):
                yield ExpectedTensor(spec.name, spec.ne(h, -1), spec, -1)
        for i in h.blocks(role):
            for spec in self.tensors:
                if spec.per_block and spec.when(h, i):
                    yield ExpectedTensor(spec.name.format(i=i), spec.ne(h, i), spec, i)


# LLAMA_MAX_LAYERS of llama.cpp: a file with more blocks ends the process that loads it.
MAX_BLOCKS = 512

_BLOCK = re.compile(r"blk\.([0-9]{1,3})\.")


# A file's names are looked at by many rules.
@lru_cache(maxsize=1 << 13)
def block_of(name: str) -> int | None:
    """The block that a tensor belongs to by its GGUF name, or None; numbers that no loader takes count as none."""
    match = _BLOCK.match(name)
    return block if match and (block := int(match[1])) < MAX_BLOCKS else None
