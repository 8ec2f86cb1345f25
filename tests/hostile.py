"""Files whose headers say what nobody would write: values for every key, and shapes for every tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan, prod
from typing import Any

from nextn.gguf_schema.contents import Contents, TensorInfo, Value, array
from nextn.gguf_schema.types import TENSOR_TYPES, ValueType

# What an edit is called, and what the file says then.
Edited = tuple[str, Contents]

INTEGERS = (0, 1, 2, 3, 5, 33, 99, 2**31 - 1, 2**31, 2**32 - 1)
SIGNED = (-(2**31), -1, 0, 1, 3, 99, 2**31 - 1)
FLOATS = (nan, inf, -inf, 0.0, -1.0, 1e30, 1e-30)
VALUES: dict[ValueType, tuple[Any, ...]] = {
    ValueType.UINT32: INTEGERS,
    ValueType.UINT64: (*INTEGERS, 2**63, 2**64 - 1),
    ValueType.INT32: SIGNED,
    ValueType.FLOAT32: FLOATS,
    ValueType.BOOL: (False, True),
}
TYPES = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "I8", "I32", "F64")
OTHER_TYPES = (
    Value(ValueType.STRING, "all of it"),
    Value(ValueType.FLOAT32, 1.5),
    Value(ValueType.INT32, -1),
    Value(ValueType.BOOL, True),
    array(ValueType.UINT32, []),
    array(ValueType.UINT32, [7] * 600),
    array(ValueType.STRING, ["a"]),
)


def hostile_keys(contents: Contents) -> Iterator[Edited]:
    """Every key of the architecture with every hostile value, and without it."""
    for key, held in contents.keys.items():
        if not key.startswith(f"{contents.architecture}."):
            continue
        yield f"{key} missing", replace(contents, keys={k: v for k, v in contents.keys.items() if k != key})
        for value in (*_values(held), *OTHER_TYPES):
            yield f"{key} {_told(value)}", replace(contents, keys={**contents.keys, key: value})


def hostile_tensors(contents: Contents) -> Iterator[Edited]:
    """Every tensor of other dimensions or another type with no more bytes than it has, and without it."""
    for name, info in contents.tensors.items():
        others = {k: v for k, v in contents.tensors.items() if k != name}
        yield f"{name} missing", replace(contents, tensors=others)
        for changed in _shapes(info):
            told = f"{name} {list(info.ne)} -> {list(changed.ne)} {changed.type.name}"
            yield told, replace(contents, tensors={**contents.tensors, name: changed})


def _values(held: Value) -> Iterator[Value]:
    if held.element is None:
        yield from (Value(held.type, value) for value in VALUES.get(held.type, ()))
        return
    items = list(held.items)
    for value in VALUES.get(held.element, ()):
        yield array(held.element, [value] * len(items))
        yield array(held.element, [value, *items[1:]])
        yield array(held.element, [*items[:-1], value])
    yield from (array(held.element, other) for other in ([], items[:-1], items * 2, items[::-1]))


def _told(value: Value) -> str:
    if value.element is None:
        return f"{value.type.name} {value.value}"
    items = list(value.items)
    return f"{value.element.name}[{len(items)}] {items[:3]} … {items[-2:]}"


def _shapes(info: TensorInfo) -> Iterator[TensorInfo]:
    ne, block = info.ne, info.type.block
    shapes = [ne[::-1], (prod(ne),), (*ne, 1), (1, *ne), (*ne[:-1], 1), (*ne[:-1], max(ne[-1] // 2, 1))]
    shapes += [(*ne[:-1], ne[-1] - 1), (max(ne[0] // 2, 1), *ne[1:-1], 2 * ne[-1] if len(ne) > 1 else 1)]
    for shape in dict.fromkeys(shapes):
        if shape != ne and min(shape) > 0 and shape[0] % block == 0 and prod(shape) <= prod(ne):
            yield replace(info, ne=shape, nbytes=info.type.tensor_bytes(shape))
    for type_ in map(TENSOR_TYPES.__getitem__, TYPES):
        if type_ != info.type and ne[0] % type_.block == 0 and type_.bits <= info.type.bits:
            yield replace(info, type=type_, nbytes=type_.tensor_bytes(ne))
