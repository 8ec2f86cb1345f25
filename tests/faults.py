"""Files with one fault each: a kit that edits GGUF files, and the table of everything that is done to them.

Every fault says what llama.cpp b11549 answers when the file is its model (`main`) and when the file's head is to draft
for the good trunk (`draft`). The answers are those of the loader sections of the specifications; where the library
says something else, the library's answer stands here and `note` says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.container import encode_header, lay_out
from nextn.gguf_schema.contents import Contents, TensorInfo, Value, array
from nextn.gguf_schema.shards import open_gguf
from nextn.gguf_schema.types import F32, TENSOR_TYPES, TensorType

KeyChange = Value | Callable[[Value], Value]
Floats = np.ndarray[Any, np.dtype[np.float32]]

# Types that nothing is quantized to: any data will do.
OPAQUE = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "NVFP4", "Q2_0", "MXFP4", "IQ4_NL")
# Keys that do not begin with the name of the architecture.
WHOLE_KEYS = ("general.", "tokenizer.", "nextn.", "split.")


@dataclass(frozen=True, kw_only=True)
class Edit:
    """What is done to a file. Patterns are regular expressions that match a whole name; keys are without the
    architecture. `rename` gives replacements for what the pattern matched; `retype` type names; `reshape` dimensions,
    fastest first, the data cut or filled up with zeros; `data` functions of a flat array in F32; `add` the dimensions
    of new F32 tensors, filled with ones.
    """

    drop: str = ""
    keep: str = ""
    keys: Mapping[str, KeyChange] = field(default_factory=dict)
    remove_keys: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)
    retype: Mapping[str, str] = field(default_factory=dict)
    reshape: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    data: Mapping[str, Callable[[Floats], Floats]] = field(default_factory=dict)
    add: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def edit(path_in: Path, path_out: Path, change: Edit | None = None, **changes: Any) -> Path:
    """Write an edited copy of a file (or set of shards, joined) to `path_out`; returns that path."""
    change = change or Edit(**changes)
    file = open_gguf(path_in)
    keys, tensors = _keys(file.contents, change), list(_tensors(file.contents, change))
    placed, _ = lay_out(tensor for tensor, _ in tensors)
    with path_out.open("wb") as out:
        out.write(encode_header(keys, placed))
        begin = out.tell()
        for tensor, source in zip(placed, (source for _, source in tensors), strict=True):
            raw = file.read_tensor(source.name) if source else b""
            out.seek(begin + tensor.offset)
            out.write(_payload(raw, source, tensor, change).ljust(tensor.nbytes + -tensor.nbytes % 32, b"\0"))
    return path_out


def edited(contents: Contents, change: Edit | None = None, **changes: Any) -> Contents:
    """The same edit on the contents of a file or of a plan, without any data."""
    change = change or Edit(**changes)
    return Contents(_keys(contents, change), {tensor.name: tensor for tensor, _ in _tensors(contents, change)})


def _keys(contents: Contents, change: Edit) -> dict[str, Value]:
    prefix = f"{contents.architecture}."
    keys = {
        key: value
        for key, value in contents.keys.items()
        if not (change.remove_keys and re.fullmatch(change.remove_keys, key.removeprefix(prefix)))
    }
    for name, new in change.keys.items():
        key = name if name.startswith(WHOLE_KEYS) else prefix + name
        keys[key] = new if isinstance(new, Value) else new(keys[key])
    return keys


def _tensors(contents: Contents, change: Edit) -> Iterator[tuple[TensorInfo, TensorInfo | None]]:
    """Every tensor of the edited file with the one that it comes from."""
    for tensor in contents:
        if change.drop and re.fullmatch(change.drop, tensor.name):
            continue
        if change.keep and not re.fullmatch(change.keep, tensor.name):
            continue
        name = tensor.name
        for pattern, replacement in change.rename.items():
            name = re.sub(pattern, replacement, name)
        type_ = TENSOR_TYPES[_first(change.retype, name) or tensor.type.name]
        yield _info(name, _first(change.reshape, name) or tensor.ne, type_), tensor
    for name, ne in change.add.items():
        yield _info(name, ne, F32), None


def _info(name: str, ne: tuple[int, ...], type_: TensorType) -> TensorInfo:
    return TensorInfo(name, ne, type_, type_.tensor_bytes(ne))


def _first(table: Mapping[str, Any], name: str) -> Any:
    return next((value for pattern, value in table.items() if re.fullmatch(pattern, name)), None)


def _payload(raw: bytes, source: TensorInfo | None, tensor: TensorInfo, change: Edit) -> bytes:
    if source is None:
        return np.ones(tensor.ne, "<f4").tobytes()
    changed = _first(change.data, tensor.name)
    if changed is not None or source.type != tensor.type:
        quantized = np.frombuffer(raw, np.uint8).reshape(*source.ne[:0:-1], -1)
        values = gguf.quants.dequantize(quantized, gguf.GGMLQuantizationType(source.type.id))
        values = values if changed is None else changed(values.reshape(-1)).astype("<f4").reshape(values.shape)
        if tensor.type.name in OPAQUE:
            return b"\x11" * tensor.nbytes
        raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType(tensor.type.id)).tobytes()
    return raw[: tensor.nbytes].ljust(tensor.nbytes, b"\0")


def first(count: int) -> Callable[[Value], Value]:
    """A change of an array key: its first entries only."""
    return lambda value: array(value.element, value.items[:count])  # type: ignore[arg-type]


def last(count: int) -> Callable[[Value], Value]:
    """A change of an array key: its last entries only."""
    return lambda value: array(value.element, value.items[-count:])  # type: ignore[arg-type]


def entry(index: int, new: Any) -> Callable[[Value], Value]:
    """A change of an array key: another value at one place (counted from the end when negative)."""

    def change(value: Value) -> Value:
        items = list(value.items)
        items[index] = new
        return array(value.element, items)  # type: ignore[arg-type]

    return change


def every(new: Any) -> Callable[[Value], Value]:
    """A change of an array key: the same value everywhere."""
    return lambda value: array(value.element, [new] * len(value.items))  # type: ignore[arg-type]


def scalar(index: int = 0) -> Callable[[Value], Value]:
    """A change of an array key: one of its entries instead of the array."""
    return lambda value: Value(value.element, value.items[index])  # type: ignore[arg-type]


LOADS, WRONG, HANGS = "loads", "loads silently wrong", "hangs"
REFUSES, ABORTS, SEGFAULTS = "refuses", "aborts", "segfaults"


@dataclass(frozen=True)
class Expect:
    """What a runtime does, and a text that its message holds."""

    outcome: str
    text: str = ""


OK, SILENT, CRASH, HANGING = Expect(LOADS), Expect(WRONG), Expect(SEGFAULTS), Expect(HANGS)
NO_HEAD = Expect(
    REFUSES, "context type MTP requested but model doesn't contain MTP layers; failed to create MTP context"
)


def refuses(text: str) -> Expect:
    """The loader's own words after `error loading model: `."""
    return Expect(REFUSES, f"error loading model: {text}")


def bad_key(text: str) -> Expect:
    """A hyper-parameter that the loader does not take."""
    return refuses(f"error loading model hyperparameters: {text}")


def no_key(key: str) -> Expect:
    """A required key that is not there."""
    return bad_key(f"key not found in model: {key}")


def length(key: str, want: int, got: int) -> Expect:
    """A per-block array of another length."""
    return bad_key(f"key {key} has wrong array length; expected {want}, got {got}")


def no_vocabulary(text: str) -> Expect:
    """A tokenizer that the loader cannot make."""
    return refuses(f"error loading model vocabulary: {text}")


def not_found(tensor: str) -> Expect:
    """A required tensor that is not there."""
    return refuses(f"check_tensor_dims: tensor '{tensor}' not found")


def shape(tensor: str, want: tuple[int, ...], got: tuple[int, int, int, int]) -> Expect:
    """A tensor with other dimensions."""
    texts = (", ".join(f"{dim:6}" for dim in dims) for dims in (want, got))
    return refuses("check_tensor_dims: tensor '{}' has wrong shape; expected {}, got {}".format(tensor, *texts))


def count(want: int, got: int) -> Expect:
    """Tensors that the loader does not ask for."""
    return refuses(f"done_getting_tensors: wrong number of tensors; expected {want}, got {got}")


def aborts(text: str) -> Expect:
    """An assertion that ends the process."""
    return Expect(ABORTS, text)


@dataclass(frozen=True)
class Fault:
    """One edited file: what it is made from, and what llama.cpp b11549 does with it as model and as draft."""

    name: str
    family: str
    base: Role
    edit: Edit
    main: Expect
    draft: Expect
    note: str = ""
    # Whether the file is in the sample that every run of the tests loads.
    sampled: bool = False

    @property
    def id(self) -> str:
        """Name of the test case."""
        return f"{self.family} {self.base}: {self.name}"


class Table(list[Fault]):
    """The faults of one family, filled line by line."""

    def __init__(self, family: str) -> None:
        super().__init__()
        self.family = family

    def add(
        self, base: Role, name: str, main: Expect, draft: Expect | None = None, note: str = "", **edit: Any
    ) -> None:
        """One fault; `draft` is left out when it is the same as `main`."""
        self.append(Fault(name, self.family, base, Edit(**edit), main, draft or main, note))

    def sample(self) -> None:
        """Put the last fault into the sample."""
        self[-1] = replace(self[-1], sampled=True)
