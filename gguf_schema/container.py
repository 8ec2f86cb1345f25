"""The GGUF container: reading and writing headers, and the places of the tensors' data.

Nothing a file says is believed before it is checked. Source of the rules: the GGUF format description, and llama.cpp's
loader (ggml/src/gguf.cpp) where that is stricter.

Codes of the errors: not-gguf, big-endian, unsupported-version, truncated, too-long, bad-value, bad-name, bad-alignment,
bad-dimensions, unknown-value-type, nested-array, duplicate-key, duplicate-tensor; of the layout: misaligned, overlap,
truncated, trailing-bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from nextn.gguf_schema.contents import DEFAULT_ALIGNMENT, ByteSource, Contents, TensorInfo, Value
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.header_reader import DOWNLOAD_AGAIN, HeaderReader
from nextn.gguf_schema.types import TensorType, ValueType, tensor_type
from nextn.gguf_schema.values import LEAST_BYTES, LENGTH, encode, encode_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ALIGNMENT_KEY = "general.alignment"

_MAGIC = b"GGUF"
_VERSION = 3
_READABLE_VERSIONS = (2, 3)
_ALIGNMENTS = frozenset(1 << bit for bit in range(3, 32))
_MAX_DIMENSIONS = 4

# Names may be as long as the format description lets a key be; written tensor names fit ggml.h's 64 bytes with a zero.
_MAX_NAME = 0xFFFF
_MAX_WRITTEN_TENSOR_NAME = 63

_LEAST_KEY_BYTES = 8 + 4 + 1  # name length, value type, a byte
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # name length, number of dimensions, a dimension, type, offset

# Far beyond any model; a header of many tiny entries costs many times its bytes in memory.
_MAX_KEYS = 1 << 12
_MAX_TENSORS = 1 << 17


@dataclass(frozen=True)
class Header:
    """What one file says, and where its data begins: `alignment` and `data_offset` are in bytes."""

    contents: Contents
    version: int
    alignment: int
    data_offset: int
    source: ByteSource


def read_header(source: ByteSource) -> Header:
    """The header of a GGUF file of version 2 or 3; arrays of more than a kilobyte stay in the file as StoredArray.

    A tensor of unknown type is opaque: it reaches to the next one. InputError when the header is cut off, malformed or
    unsupported. Whether the data is where the header says is for `layout_problems`.
    """
    reader = HeaderReader(source)
    version = _read_version(reader)
    n_tensors = reader.count("tensors", _LEAST_TENSOR_BYTES, _MAX_TENSORS)
    n_keys = reader.count("keys", _LEAST_KEY_BYTES, _MAX_KEYS)
    keys = _read_keys(reader, n_keys)
    alignment = alignment_of(keys, source.name)
    tensors = _read_tensors(reader, n_tensors)
    data_offset = padded(reader.offset, alignment)
    tensors = _with_opaque_sizes(tensors, source.size - data_offset)
    return Header(Contents(keys, tensors, source.name), version, alignment, data_offset, source)


def encode_header(
    keys: Mapping[str, Value], tensors: Sequence[TensorInfo], alignment: int = DEFAULT_ALIGNMENT
) -> bytes:
    """The bytes of a file (version 3, little-endian) up to its data: keys and tensors in their order, then padding.

    `alignment`, which the offsets were made for, must be what the keys say. InputError, naming key or tensor, when it
    is not, when a value does not fit its type, and for names and dimensions that a loader refuses.
    """
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


def layout_problems(header: Header) -> Iterator[InputError]:
    """What is wrong with the places of the data, in order of offset: `misaligned`, `overlap`, `truncated` when it
    reaches past the end of the file, and last `trailing-bytes` after the padding of the last.
    """
    name, size = header.source.name, header.source.size
    end, last = 0, ""
    for tensor in sorted(header.contents, key=lambda tensor: tensor.offset):
        # An opaque tensor without a byte of its own shares its place with another, or lies past the end.
        nbytes = max(tensor.nbytes, 1)
        begin = header.data_offset + tensor.offset
        where = f"tensor {tensor.name!r}: data at byte {begin}"
        if tensor.offset % header.alignment:
            message = f"{where} has offset {tensor.offset}, want a multiple of {header.alignment}"
            yield InputError("misaligned", message, subject=name)
        if tensor.offset < end:
            message = f"{where} begins before that of {last!r} ends at byte {header.data_offset + end}"
            yield InputError("overlap", message, subject=name)
        if begin + nbytes > size:
            message = f"{where} needs {nbytes} bytes, {max(size - begin, 0)} left: {begin + nbytes - size} missing"
            yield InputError("truncated", message, subject=name, remedy=DOWNLOAD_AGAIN)
        if tensor.offset + nbytes > end:
            end, last = tensor.offset + nbytes, tensor.name
    extra = size - header.data_offset - padded(end, header.alignment)
    if extra > 0:
        message = f"{extra} bytes from byte {size - extra} on belong to no tensor"
        yield InputError("trailing-bytes", message, subject=name)


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


def _read_keys(reader: HeaderReader, count: int) -> dict[str, Value]:
    keys: dict[str, Value] = {}
    for index in range(count):
        reader.where = f"key {index + 1} of {count}"
        offset = reader.offset
        key = reader.string("name", _MAX_NAME)
        if not key:
            raise reader.error("bad-value", f"has no name at byte {offset}")
        reader.where = f"key {_short(key)}"
        if key in keys:
            raise reader.error("duplicate-key", f"is there twice, again at byte {offset}")
        keys[key] = _read_value(reader, key)
    return keys


def _read_value(reader: HeaderReader, key: str) -> Value:
    type_ = reader.value_type("value type")
    if type_ is ValueType.STRING:
        return Value(type_, reader.string("string"))
    if type_ is not ValueType.ARRAY:
        return Value(type_, reader.values(type_, 1, key)[0])
    element = reader.value_type("element type")
    if element is ValueType.ARRAY:
        raise reader.error("nested-array", f"array of arrays at byte {reader.offset}, want an array of scalars")
    count = reader.count(f"{element.name} elements", LEAST_BYTES[element])
    return Value(type_, reader.values(element, count, key), element)


def _read_tensors(reader: HeaderReader, count: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for index in range(count):
        reader.where = f"tensor {index + 1} of {count}"
        offset = reader.offset
        name = reader.string("name", _MAX_NAME)
        reader.where = f"tensor {_short(name)}"
        if name in tensors:
            raise reader.error("duplicate-tensor", f"is there twice, again at byte {offset}")
        tensors[name] = _read_tensor(reader, name)
    return tensors


def _read_tensor(reader: HeaderReader, name: str) -> TensorInfo:
    """What follows a tensor's name; the size of an unknown type is left at 0."""
    begin = reader.offset
    n_dims = reader.unsigned(4, "number of dimensions")
    if not 1 <= n_dims <= _MAX_DIMENSIONS:
        raise reader.error("bad-dimensions", f"{n_dims} dimensions at byte {begin}, want 1 to {_MAX_DIMENSIONS}")
    ne = tuple(reader.unsigned(8, f"dimension {index}") for index in range(n_dims))
    type_ = tensor_type(reader.unsigned(4, "type"))
    offset = reader.unsigned(8, "offset")
    problem = _dimensions_problem(ne, type_)
    if problem:
        raise reader.error("bad-dimensions", f"{problem}, at byte {begin}")
    return TensorInfo(name, ne, type_, type_.tensor_bytes(ne), offset)


def _with_opaque_sizes(tensors: dict[str, TensorInfo], data_bytes: int) -> dict[str, TensorInfo]:
    """The tensors; those of unknown type reach to the next in order of offset, or to the end of the data."""
    if all(tensor.type.known for tensor in tensors.values()):
        return tensors
    by_offset = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    ends = [tensor.offset for tensor in by_offset[1:]] + [data_bytes]
    room = {tensor.name: max(end - tensor.offset, 0) for tensor, end in zip(by_offset, ends, strict=True)}
    return {
        name: tensor if tensor.type.known else replace(tensor, nbytes=room[name]) for name, tensor in tensors.items()
    }


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
    name = _encode_name(where, tensor.name, _MAX_WRITTEN_TENSOR_NAME)
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
