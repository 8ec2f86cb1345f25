"""The GGUF container: reading and writing headers.

Nothing a file says is believed before it is checked. Source of the rules: the GGUF format description, and llama.cpp's
loader (ggml/src/gguf.cpp) where that is stricter.

Codes of the errors: not-gguf, big-endian, unsupported-version, truncated, too-long, bad-value, bad-name, bad-alignment,
bad-dimensions, unknown-value-type, nested-array, duplicate-key, duplicate-tensor.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from nextn.gguf_schema.contents import DEFAULT_ALIGNMENT, ByteSource, Contents, TensorInfo, Value
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.header_reader import HeaderReader
from nextn.gguf_schema.types import TensorType, ValueType, tensor_type
from nextn.gguf_schema.values import LEAST_BYTES, LENGTH, encode, encode_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ALIGNMENT_KEY = "general.alignment"

_MAGIC = b"GGUF"
_PARTS_OF_CHECKPOINTS = (".safetensors", ".json")
_VERSION = 3
_READABLE_VERSIONS = (2, 3)
_ALIGNMENTS = frozenset(1 << bit for bit in range(3, 32))
_MAX_DIMENSIONS = 4

_MAX_LISTED_DIMENSIONS = 16  # more are not passed over to look at what follows

# Names may be as long as the format description lets a key be; written tensor names fit ggml.h's 64 bytes with a zero.
_MAX_NAME = 0xFFFF
MAX_TENSOR_NAME = 63

_LEAST_KEY_BYTES = 8 + 4 + 1  # name length, value type, a byte
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # name length, number of dimensions, a dimension, type, offset

# Far beyond any model; a header of many tiny entries costs many times its bytes in memory.
_MAX_KEYS = 1 << 12
_MAX_TENSORS = 1 << 14

# Takes the place of a size that does not follow from type and dimensions.
_UNKNOWN = -1


@dataclass(frozen=True)
class Header:
    """What one file says, and where its data begins: `alignment` and `data_offset` are in bytes.

    `described` are all tensors in file order; they are those of the contents unless a name is there twice. `repeated`
    are the keys that are there again.
    """

    contents: Contents
    described: tuple[TensorInfo, ...]
    version: int
    alignment: int
    data_offset: int
    source: ByteSource
    repeated: tuple[str, ...] = ()


def read_header(source: ByteSource, faults: list[InputError] | None = None) -> Header:
    """The header of a GGUF file of version 2 or 3; arrays of more than a kilobyte stay in the file as StoredArray.

    A tensor of unknown type is opaque: it reaches to the next one. InputError when the header is cut off, malformed or
    unsupported. With a list of `faults`, those that the rest can be read after are added to it instead:
    duplicate-key and duplicate-tensor (the first one counts), bad-dimensions (the tensor is opaque) and bad-alignment
    (taken for 32 bytes, so nothing is known of the places of the data).
    Whether the data is where the header says is for `layout_problems` and `order_problems`.
    """
    reader = HeaderReader(source, faults)
    version = _read_version(reader)
    n_tensors = reader.count("tensors", _LEAST_TENSOR_BYTES, _MAX_TENSORS)
    n_keys = reader.count("keys", _LEAST_KEY_BYTES, _MAX_KEYS)
    keys, repeated = _read_keys(reader, n_keys)
    alignment = DEFAULT_ALIGNMENT
    try:
        alignment = alignment_of(keys, source.name)
    except InputError as error:
        reader.fault(error)
    described = _read_tensors(reader, n_tensors)
    data_offset = padded(reader.offset, alignment)
    described = _with_opaque_sizes(described, source.size - data_offset)
    tensors: dict[str, TensorInfo] = {}
    for tensor in described:
        tensors.setdefault(tensor.name, tensor)
    contents = Contents(keys, tensors, source.name)
    return Header(contents, tuple(described), version, alignment, data_offset, source, repeated)


def encode_header(
    keys: Mapping[str, Value], tensors: Sequence[TensorInfo], alignment: int = DEFAULT_ALIGNMENT
) -> bytes:
    """The bytes of a file (version 3, little-endian) up to its data: keys and tensors in their order, then padding.

    `alignment`, which the offsets were made for, must be what the keys say. InputError, naming key or tensor, when it
    is not, when a value does not fit its type, for names and dimensions that a loader refuses, and for more keys or
    tensors than `read_header` takes.
    """
    for what, count, most in (("keys", len(keys), _MAX_KEYS), ("tensors", len(tensors), _MAX_TENSORS)):
        if count > most:
            raise InputError("too-long", f"{count} {what}, want at most {most}")
    if alignment_of(keys) != alignment:
        message = f"key {ALIGNMENT_KEY!r}: says {alignment_of(keys)}, want {alignment} as the data is laid out"
        raise InputError("bad-alignment", message)
    parts = [_MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(keys))]
    for key, value in keys.items():
        where = f"key {key!r}"
        parts += _encode_name(where, key, _MAX_NAME), encode_value(where, value)
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise InputError("duplicate-tensor", f"tensor {tensor.name!r}: is there twice")
        names.add(tensor.name)
        parts.append(_encode_tensor(tensor))
    header = b"".join(parts)
    return header.ljust(padded(len(header), alignment), b"\x00")


def lay_out(tensors: Iterable[TensorInfo], alignment: int = DEFAULT_ALIGNMENT) -> tuple[tuple[TensorInfo, ...], int]:
    """The tensors with offsets one after the other, each padded to `alignment`, the last too; and the bytes of all.

    Source: gguf.cpp takes no other offsets.
    """
    placed = []
    offset = 0
    for tensor in tensors:
        placed.append(replace(tensor, offset=offset))
        offset = padded(offset + tensor.nbytes, alignment)
    return tuple(placed), offset


def alignment_of(keys: Mapping[str, Value], name: str | None = None) -> int:
    """Bytes that data is aligned to: `general.alignment`, or 32; InputError, about the file `name`, when unusable."""
    value = keys.get(ALIGNMENT_KEY)
    if value is None:
        return DEFAULT_ALIGNMENT
    alignment = value.value
    if value.type is ValueType.UINT32 and isinstance(alignment, int) and alignment in _ALIGNMENTS:
        return alignment
    shown = f" {alignment}" if isinstance(alignment, int | float) else ""
    message = (
        f"key {ALIGNMENT_KEY!r}: {value.type_name}{shown}, want a UINT32 power of two of at least {min(_ALIGNMENTS)}"
    )
    raise InputError("bad-alignment", message, subject=name)


def padded(length: int, alignment: int) -> int:
    """`length` rounded up to a multiple of `alignment`."""
    return length + -length % alignment


def _read_version(reader: HeaderReader) -> int:
    magic = reader.take(len(_MAGIC), "magic")
    if magic != _MAGIC:
        remedy = "Check the path; a Git LFS pointer or a web page saved under this name must be downloaded again."
        if reader.source.name.endswith(_PARTS_OF_CHECKPOINTS):
            remedy = "It is part of a checkpoint: give its folder, to `nextn inspect` or `nextn convert`."
        raise reader.error("not-gguf", f"starts with {magic!r}, want {_MAGIC!r}", remedy)
    raw = reader.take(4, "version")
    version, swapped = int.from_bytes(raw, "little"), int.from_bytes(raw, "big")
    if version in _READABLE_VERSIONS:
        return version
    if swapped in (1, *_READABLE_VERSIONS):
        remedy = "Convert it with `gguf-convert-endian FILE little` of the gguf package."
        raise reader.error("big-endian", f"big-endian GGUF (version {swapped} at byte 4), want little-endian", remedy)
    remedy = "Convert the model again." if version == 1 else "A later release may read it."
    raise reader.error("unsupported-version", f"GGUF version {version} at byte 4, want 2 or 3", remedy)


def _read_keys(reader: HeaderReader, count: int) -> tuple[dict[str, Value], tuple[str, ...]]:
    """The keys, and the names of those that are there again."""
    keys: dict[str, Value] = {}
    repeated = []
    for index in range(count):
        reader.where = f"key {index + 1} of {count}"
        offset = reader.offset
        key = reader.name(_MAX_NAME)
        if not key:
            raise reader.error("bad-value", f"has no name at byte {offset}")
        reader.where = f"key {_short(key)}"
        if key in keys:
            repeated.append(key)
            reader.fault(reader.error("duplicate-key", f"is there twice, again at byte {offset}"))
        value = _read_value(reader, key)
        keys.setdefault(key, value)
    return keys, tuple(repeated)


def _read_value(reader: HeaderReader, key: str) -> Value:
    type_ = reader.value_type("value type")
    if type_ is ValueType.STRING:
        return Value(type_, reader.string(key))
    if type_ is not ValueType.ARRAY:
        return Value(type_, reader.scalar(type_))
    element = reader.value_type("element type")
    if element is ValueType.ARRAY:
        raise reader.error("nested-array", f"array of arrays at byte {reader.offset}, want an array of scalars")
    count = reader.count(f"{element.name} elements", LEAST_BYTES[element])
    return Value(type_, reader.values(element, count, key), element)


def _read_tensors(reader: HeaderReader, count: int) -> list[TensorInfo]:
    tensors = []
    names: set[str] = set()
    for index in range(count):
        reader.where = f"tensor {index + 1} of {count}"
        offset = reader.offset
        name = reader.name(_MAX_NAME)
        reader.where = f"tensor {_short(name)}"
        if name in names:
            reader.fault(reader.error("duplicate-tensor", f"is there twice, again at byte {offset}"))
        names.add(name)
        tensors.append(_read_tensor(reader, name))
    return tensors


def _read_tensor(reader: HeaderReader, name: str) -> TensorInfo:
    """What follows a tensor's name."""
    begin = reader.offset
    n_dims = reader.unsigned(4, "number of dimensions")
    if n_dims > _MAX_LISTED_DIMENSIONS:
        raise reader.error("bad-dimensions", f"{n_dims} dimensions at byte {begin}, want 1 to {_MAX_DIMENSIONS}")
    ne = tuple(reader.unsigned(8, f"dimension {index}") for index in range(n_dims))
    type_ = tensor_type(reader.unsigned(4, "type"))
    offset = reader.unsigned(8, "offset")
    problem = _dimensions_problem(ne, type_)
    if problem:
        reader.fault(reader.error("bad-dimensions", f"{problem}, at byte {begin}"))
        # Who goes on may rely on a first dimension.
        return TensorInfo(name, ne or (1,), type_, _UNKNOWN, offset)
    return TensorInfo(name, ne, type_, type_.tensor_bytes(ne) if type_.known else _UNKNOWN, offset)


def _with_opaque_sizes(tensors: list[TensorInfo], data_bytes: int) -> list[TensorInfo]:
    """The tensors; those of unknown size reach to the next in order of offset, or to the end of the data."""
    if all(tensor.nbytes != _UNKNOWN for tensor in tensors):
        return tensors
    order = sorted(range(len(tensors)), key=lambda index: tensors[index].offset)
    ends = [tensors[index].offset for index in order[1:]] + [data_bytes]
    sized = tensors.copy()
    for index, end in zip(order, ends, strict=True):
        tensor = tensors[index]
        if tensor.nbytes == _UNKNOWN:
            sized[index] = replace(tensor, nbytes=max(end - tensor.offset, 0))
    return sized


def _encode_name(where: str, name: str, most: int) -> bytes:
    encoded = encode(where, ValueType.STRING, (name,))
    length = len(encoded) - LENGTH.size
    if not 1 <= length <= most:
        raise InputError("bad-name", f"{where}: a name of {length} bytes, want 1 to {most}")
    return encoded


def _encode_tensor(tensor: TensorInfo) -> bytes:
    where = f"tensor {tensor.name!r}"
    problem = _dimensions_problem(tensor.ne, tensor.type)
    if problem:
        raise InputError("bad-dimensions", f"{where}: {problem}")
    name = _encode_name(where, tensor.name, MAX_TENSOR_NAME)
    n_dims = len(tensor.ne)
    return name + struct.pack(f"<I{n_dims}QIQ", n_dims, *tensor.ne, tensor.type.id, tensor.offset)


def _dimensions_problem(ne: tuple[int, ...], type_: TensorType) -> str | None:
    if not 1 <= len(ne) <= _MAX_DIMENSIONS:
        return f"{len(ne)} dimensions, want 1 to {_MAX_DIMENSIONS}"
    if min(ne) < 1 or prod(ne) >= 1 << 63:
        return f"dimensions {list(ne)}, want each at least 1 and fewer than 2^63 elements"
    if ne[0] % type_.block:
        return f"rows of {ne[0]} elements, want a multiple of {type_.block}, the block of {type_.name}"
    return None


def _short(name: str) -> str:
    """A name for messages; of one garbled by a wrong length, the beginning."""
    return repr(name) if len(name) <= 80 else f"{name[:80]!r}…"
