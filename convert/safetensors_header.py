"""The header of a safetensors file: 8 bytes of length, a JSON object, then the data.

The header is parsed here because the library wants the whole file mapped and names neither tensor nor missing bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from nextn.gguf_schema.contents import ByteSource
from nextn.gguf_schema.errors import InputError, counted

# Of the length of the header, which a file begins with.
LENGTH_BYTES = 8
# The library's own limit for a header.
MAX_HEADER = 100_000_000

DTYPE_BYTES: dict[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip


class Entry(NamedTuple):
    """A tensor in a safetensors file: dtype, torch shape, and its absolute byte range."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    end: int


def parse_header(source: ByteSource) -> dict[str, Entry]:
    """Names and byte ranges of all tensors of a file.

    Raises InputError when the header is damaged, when a range disagrees with dtype and shape, when ranges overlap or
    leave gaps, and when the file is shorter or longer than `8 + header + last end`.
    """
    if source.size < LENGTH_BYTES:
        raise _bad(source, f"is {source.size} bytes long, too short for a safetensors file")
    length = int.from_bytes(source.read(0, LENGTH_BYTES), "little")
    if length > min(source.size - LENGTH_BYTES, MAX_HEADER):
        raise _bad(source, f"declares a header of {length} bytes in a file of {source.size}")
    try:
        header = json.loads(source.read(LENGTH_BYTES, length), object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise _bad(source, f"the header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise _bad(source, "the header is not a JSON object")
    header.pop("__metadata__", None)
    start = LENGTH_BYTES + length
    entries = {name: _entry(source, name, item, start) for name, item in header.items()}
    _check_ranges(source, entries, start)
    return entries


def _bad(source: ByteSource, message: str, remedy: str | None = "download the file again") -> InputError:
    return InputError("bad-shard", message, subject=source.name, remedy=remedy)


def unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object from its members; ValueError when a name occurs twice, of which one value would be lost."""
    result = dict(pairs)
    if len(result) != len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"a name occurs twice: {name!r:.80}")
    return result


def _entry(source: ByteSource, name: str, item: object, start: int) -> Entry:
    try:
        dtype, shape, (begin, end) = item["dtype"], tuple(item["shape"]), item["data_offsets"]  # type: ignore[index]
        whole = [*shape, begin, end]
    except (TypeError, KeyError, ValueError) as error:
        raise _bad(source, f"tensor {name}: no dtype, shape and data_offsets") from error
    if not isinstance(dtype, str) or not all(type(number) is int and number >= 0 for number in whole) or begin > end:
        raise _bad(source, f"tensor {name}: bad dtype, shape or data_offsets")
    if dtype not in DTYPE_BYTES:
        known = ", ".join(DTYPE_BYTES)
        raise _bad(source, f"tensor {name}: dtype {dtype} is not supported", f"supported: {known}")
    if end - begin != prod(shape) * DTYPE_BYTES[dtype]:
        want = prod(shape) * DTYPE_BYTES[dtype]
        raise _bad(source, f"tensor {name}: {dtype} {list(shape)} takes {want} bytes, its range holds {end - begin}")
    return Entry(dtype, shape, start + begin, start + end)


def _check_ranges(source: ByteSource, entries: dict[str, Entry], position: int) -> None:
    last = ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].end)):
        if entry.offset < position:
            raise _bad(source, f"tensors {last} and {name} overlap")
        if entry.offset > position:
            raise _bad(source, f"no tensor owns the {counted(entry.offset - position, 'byte')} before {name}")
        position, last = entry.end, name
    if position > source.size:
        cut = [name for name, entry in entries.items() if entry.end > source.size]
        first, lost = min(cut, key=lambda name: entries[name].offset), position - source.size
        raise InputError(
            "truncated-shard",
            f"is {counted(lost, 'byte')} short: {counted(len(cut), 'tensor')} cut off from {first} on",
            subject=source.name,
            remedy="download the file again",
        )
    if position < source.size:
        raise _bad(source, f"no tensor owns the last {counted(source.size - position, 'byte')}")
