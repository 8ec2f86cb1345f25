"""Where llama.cpp stops at the container, before it looks at a key of the model: its reader and loader on headers.

Source: `gguf_init_from_reader` in ggml/src/gguf.cpp and the constructor in src/llama-model-loader.cpp of llama.cpp
b11549, as bundled with xllamacpp. It names the first thing that it meets, so the order is the library's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nextn.gguf_schema.container import ALIGNMENT_KEY, MAX_TENSOR_NAME, padded
from nextn.gguf_schema.contents import DEFAULT_ALIGNMENT
from nextn.gguf_schema.shards import SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS_COUNT
from nextn.gguf_schema.types import ValueType
from nextn.validators.loader_keys import Outcome, Stop, refuse, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nextn.gguf_schema.container import Header
    from nextn.gguf_schema.contents import TensorInfo

SOURCE = "ggml/src/gguf.cpp and src/llama-model-loader.cpp of llama.cpp b11549"

_TYPES = 43  # GGML_TYPE_COUNT of ggml.h
_MAX_DIMENSIONS = 4
_INT64_MAX = 2**63 - 1
# Data is mapped, and must lie in memory as tensors do.
_MAPPED_ALIGNMENT = 32
UNALIGNED = Stop(
    Outcome.ABORTS, 'GGML_ASSERT((uintptr_t)ptr % TENSOR_ALIGNMENT == 0 && "buffer pointer must be aligned") failed'
)


def container_stop(names: Sequence[str], headers: Sequence[Header | None]) -> Stop | None:
    """Where the loader stops before it has read what the files of a set say; a file that is not there has no header."""
    return next(_stops(names, headers), None)


def _stops(names: Sequence[str], headers: Sequence[Header | None]) -> Iterator[Stop]:
    first = headers[0]
    if first is None:
        yield _not_there(names[0])
        return
    yield from _file_stops(first)
    keys = first.contents.keys
    if SPLIT_COUNT not in keys:
        if len(headers) > 1:
            yield Stop(Outcome.REFUSES, f"{SPLIT_COUNT} is missing: of the set only the first file is read")
        return
    yield from _wrong_type(first, SPLIT_COUNT, ValueType.UINT16)
    count = keys[SPLIT_COUNT].value
    if not isinstance(count, int) or count < 2:
        return
    yield from _wrong_type(first, SPLIT_NO, ValueType.UINT16)
    if number := keys[SPLIT_NO].value:
        yield refuse(f"illegal split file idx: {number} (file: {names[0]}), model must be loaded with the first split")
    if count != len(headers):
        yield refuse(f"invalid split file name: {names[0]}")
    for index, (name, header) in enumerate(zip(names, headers, strict=True)):
        if index:
            yield from _part_stops(index, name, header)
    yield from _wrong_type(first, SPLIT_TENSORS_COUNT, ValueType.INT32)
    described = [tensor.name for header in headers if header for tensor in header.described]
    if (want := keys[SPLIT_TENSORS_COUNT].value) != len(described):
        yield refuse(f"corrupted model: {want} tensors expected but {len(described)} found")
    seen: set[str] = set()
    for name in described:
        if name in seen:
            yield refuse(f"invalid model: tensor '{name}' is duplicated")
        seen.add(name)


def _part_stops(index: int, name: str, header: Header | None) -> Iterator[Stop]:
    if header is None:
        yield _not_there(name)
        return
    yield from _reader_stops(header)
    number = header.contents.keys.get(SPLIT_NO)
    if number is None:
        yield refuse(f"missing key {SPLIT_NO} in GGUF split {name}")
    elif number.value != index:
        yield refuse(f"invalid split file idx: {number.value} (file: {name}), expected {index}")
    yield from _beyond(header)


def _file_stops(header: Header) -> Iterator[Stop]:
    yield from _reader_stops(header)
    yield from _beyond(header)


def _reader_stops(header: Header) -> Iterator[Stop]:
    for text in _reader_problems(header):
        yield Stop(Outcome.REFUSES, text)


def _not_there(name: str) -> Stop:
    return Stop(Outcome.REFUSES, f"failed to open GGUF file '{name}'")


def _wrong_type(header: Header, key: str, want: ValueType) -> Iterator[Stop]:
    value = header.contents.keys.get(key)
    if value is None:
        yield refuse(f"key not found in model: {key}")
    elif value.type is not want:
        yield refuse(f"key {key} has wrong type {type_name(value.type)} but expected type {type_name(want)}")


def _reader_problems(header: Header) -> Iterator[str]:
    """What the reader of the container says: about keys, then tensors one by one, then their places."""
    for key in header.repeated:
        yield f"duplicate key '{key}'"
    value = header.contents.keys.get(ALIGNMENT_KEY)
    alignment = value.value if value else DEFAULT_ALIGNMENT
    if value and value.type is not ValueType.UINT32:
        yield f"key '{ALIGNMENT_KEY}' must be of type u32 but is {type_name(value.type)}"
    elif not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        yield f"alignment {alignment} is not a power of 2"
    else:
        yield from _tensor_problems(header)
        yield from _place_problems(header, alignment)


def _tensor_problems(header: Header) -> Iterator[str]:
    seen: set[str] = set()
    for index, tensor in enumerate(header.described):
        length = len(tensor.name.encode())
        if length > MAX_TENSOR_NAME:
            yield f"tensor name {index} is too long: {length} >= {MAX_TENSOR_NAME + 1}"
        if tensor.name in seen:
            yield f"duplicate tensor name '{tensor.name}' for tensor {index}"
        seen.add(tensor.name)
        yield from _dimension_problems(tensor)
        yield from _type_problems(tensor)


def _dimension_problems(tensor: TensorInfo) -> Iterator[str]:
    if len(tensor.ne) > _MAX_DIMENSIONS:
        yield f"tensor '{tensor.name}' has invalid number of dimensions: {len(tensor.ne)} > {_MAX_DIMENSIONS}"
    for index, dim in enumerate(tensor.ne):
        if dim > _INT64_MAX:
            yield f"tensor '{tensor.name}' dimension {index} has invalid number of elements: {dim - 2**64} < 0"
    elements = tensor.ne[0]
    for dim in tensor.ne[1:]:
        if dim > 1 and _INT64_MAX // dim < elements:
            yield f"incorrect shape for a tensor '{tensor.name}' may cause overflow errors"
        elements *= dim


def _type_problems(tensor: TensorInfo) -> Iterator[str]:
    type_ = tensor.type
    if type_.id >= _TYPES:
        yield f"tensor '{tensor.name}' has invalid ggml type {type_.id}. should be in [0, {_TYPES})"
    elif not type_.known:
        yield f"tensor '{tensor.name}' of type {type_.id}"
    elif tensor.ne[0] % type_.block:
        name = type_.name.lower().replace("_k", "_K")
        yield f"tensor '{tensor.name}' of type {type_.id} ({name}) has {tensor.ne[0]} elements per row"


def _place_problems(header: Header, alignment: int) -> Iterator[str]:
    """Data that does not begin where the tensors before it end, padded."""
    want = 0
    for tensor in header.described:
        if tensor.offset != want:
            yield f"tensor '{tensor.name}' has offset {tensor.offset}, expected {want}"
        want += padded(tensor.type.tensor_bytes(tensor.ne), alignment)


def _beyond(header: Header) -> Iterator[Stop]:
    """Data past the end of the file, or not where it can be mapped."""
    for tensor in header.described:
        if header.data_offset + tensor.offset + tensor.nbytes > header.source.size:
            text = f"tensor '{tensor.name}' data is not within the file bounds, model is corrupted or incomplete"
            yield refuse(text)
    value = header.contents.keys.get(ALIGNMENT_KEY)
    alignment = value.value if value and isinstance(value.value, int) else DEFAULT_ALIGNMENT
    # Where data begins with an alignment below the format's is not known here; at 32 by chance only.
    if alignment < min(header.alignment, _MAPPED_ALIGNMENT) or header.data_offset % _MAPPED_ALIGNMENT:
        yield UNALIGNED
