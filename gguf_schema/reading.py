"""The hyper-parameters of a file, read back from its keys and tensors by the same tables that converting writes by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from nextn.gguf_schema.architecture import (
    FILE_TYPE,
    MAX_BLOCKS,
    Architecture,
    Hyperparameters,
    KeySpec,
    Role,
    Rule,
    Without,
)
from nextn.gguf_schema.contents import Contents, Value
from nextn.gguf_schema.glm5_next import GLM5_NEXT
from nextn.gguf_schema.nextn_architectures import ARRAY_KEYS, upstream_spelling
from nextn.gguf_schema.nextn_generic import EMBEDDING, TOKENS, blocks_of, role_of
from nextn.gguf_schema.qwen4exp import QWEN4EXP
from nextn.gguf_schema.step35 import STEP35
from nextn.gguf_schema.types import ValueType

ARCHITECTURES: dict[str, Architecture] = {a.name: a for a in (STEP35, QWEN4EXP, GLM5_NEXT)}


def table_of(architecture: str) -> Architecture | None:
    """The tables of an architecture, also under an old spelling; None without any."""
    return ARCHITECTURES.get(upstream_spelling(architecture))


class Kind(StrEnum):
    """What is wrong with a key."""

    MISSING = "missing"
    TYPE = "wrong type"
    LENGTH = "wrong length"


@dataclass(frozen=True)
class KeyProblem:
    """A key that does not say what its table wants: which, what is wrong, and what a loader does about it."""

    key: str
    kind: Kind
    message: str
    without: Without


FOUR = 4  # entries under Rule.FOUR
# Keys that may be an array over blocks in any architecture, also where its tables have one value.
MAY_BE_ARRAYS = frozenset(key.name for key in ARRAY_KEYS)

# Element types that loaders take for each other in arrays (`get_arr` in src/llama-model-loader.cpp of llama.cpp).
_SMALL = frozenset({ValueType.UINT32, ValueType.INT32, ValueType.BOOL})
_INTEGERS = frozenset({ValueType.UINT32, ValueType.INT32})
ELEMENTS: dict[ValueType, frozenset[ValueType]] = {
    ValueType.UINT32: _SMALL,
    ValueType.INT32: _SMALL,
    ValueType.BOOL: _SMALL,
}
# Lists of a length of their own are read into vectors, which take no BOOL.
LIST_ELEMENTS: dict[ValueType, frozenset[ValueType]] = {ValueType.UINT32: _INTEGERS, ValueType.INT32: _INTEGERS}
# One value for all blocks is read as unsigned, whatever its array may hold. A single value has exactly one type.
SCALARS: dict[ValueType, ValueType] = {ValueType.INT32: ValueType.UINT32, ValueType.BOOL: ValueType.UINT32}


def read_hyperparameters(architecture: Architecture, contents: Contents) -> tuple[Hyperparameters, list[KeyProblem]]:
    """The hyper-parameters that a file shows, and what is wrong with its keys.

    A value that cannot be had is None, so that as much as possible can still be checked. Blocks are counted by the
    tensors: blocks with `nextn.` tensors are heads; without any, there are as many as the keys declare, or more.
    """
    trunk_blocks, nextn_blocks = blocks_of(contents)
    role = role_of(contents) or Role.TRUNK
    values: dict[str, Any] = {field.name: None for field in fields(architecture.hyperparameters)}
    values |= {"trunk_blocks": trunk_blocks, "nextn_blocks": nextn_blocks}
    problems: list[KeyProblem] = []
    for spec in architecture.keys:
        if spec is not FILE_TYPE and spec.field in values:
            length = _length(spec, contents, trunk_blocks)
            values[spec.field] = _read(spec, contents, role, length, trunk_blocks + nextn_blocks, problems)
    values["vocab_size"] = _vocab_size(contents)
    return architecture.hyperparameters(**values | architecture.from_tensors(contents)), problems


def _length(spec: KeySpec, contents: Contents, trunk_blocks: int) -> int | None:
    """The length a loader wants of an array: by the declared block count, not by the tensors."""
    if spec.rule is Rule.PER_TRUNK_BLOCK:
        return trunk_blocks
    declared = contents.get("block_count")
    return int(declared.value) if spec.rule is Rule.PER_BLOCK and declared and isinstance(declared.value, int) else None


def _read(
    spec: KeySpec, contents: Contents, role: Role, length: int | None, blocks: int, problems: list[KeyProblem]
) -> Any:
    key = f"{contents.architecture}.{spec.name}"
    value = contents.keys.get(key)
    per_block = spec.rule in (Rule.PER_BLOCK, Rule.PER_TRUNK_BLOCK)
    if value is None:
        if role in spec.roles and spec.without is not Without.TOLERATES:
            assumed = "" if spec.default is None else f"; the loader assumes {spec.default}"
            problems.append(KeyProblem(key, Kind.MISSING, f"is missing{assumed}", spec.without))
        return (spec.default,) * blocks if per_block and spec.default is not None else spec.default
    problem = _type_problem(spec, value)
    if problem:
        without = Without.TOLERATES if spec.is_unread(contents) else Without.REFUSES
        problems.append(KeyProblem(key, Kind.TYPE, problem, without))
        return None
    # A hostile file has millions of entries: no loader takes more than it has blocks.
    if spec.rule is Rule.FOUR:
        return tuple(value.items[:FOUR]) if value.element is not None else (value.value,) * FOUR
    if spec.rule is Rule.LIST:
        return tuple(value.items[:MAX_BLOCKS])
    if not per_block:  # Of an array over blocks loaders take the first entry where they expect one value for all.
        return next(iter(value.items[:1]), None)
    if value.element is None:
        return (value.value,) * blocks
    if length is not None and len(value.items) != length:
        message = f"has {len(value.items)} entries, the file's block count wants {length}"
        problems.append(KeyProblem(key, Kind.LENGTH, message, Without.REFUSES))
    items = tuple(value.items[:MAX_BLOCKS])
    return items + items[-1:] * (blocks - len(items))


def _type_problem(spec: KeySpec, value: Value) -> str | None:
    """Why a loader does not take the type of a value; where it takes an array over blocks it may take one value too."""
    wants_array = spec.rule is Rule.LIST or spec.array
    per_block = spec.rule in (Rule.PER_BLOCK, Rule.PER_TRUNK_BLOCK) or spec.name in MAY_BE_ARRAYS
    may_be_array = wants_array or per_block or spec.rule is Rule.FOUR
    if value.element is not None:
        compatible = LIST_ELEMENTS if spec.rule is Rule.LIST else ELEMENTS
        if may_be_array and value.element in compatible.get(spec.type, {spec.type}):
            return None
    elif not wants_array and value.type is (SCALARS.get(spec.type, spec.type) if per_block else spec.type):
        return None
    wants = wants_array or spec.rule in (Rule.PER_BLOCK, Rule.PER_TRUNK_BLOCK, Rule.FOUR)
    return f"is {value.type_name}, want {f'ARRAY[{spec.type.name}]' if wants else spec.type.name}"


def _vocab_size(contents: Contents) -> int | None:
    """Size of the vocabulary: its key, else the token list's length, else the embedding's rows."""
    for value in _sizes(contents):
        return value
    return None


def _sizes(contents: Contents) -> Iterator[int]:
    declared, tokens = contents.get("vocab_size"), contents.keys.get(TOKENS)
    if declared and isinstance(declared.value, int):
        yield declared.value
    if tokens and isinstance(tokens.value, Sequence):
        yield len(tokens.value)
    embedding = contents.tensors.get(EMBEDDING)
    if embedding and len(embedding.ne) > 1:
        yield embedding.ne[1]
