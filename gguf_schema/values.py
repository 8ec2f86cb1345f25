"""Metadata values as bytes: encoding, decoding, and arrays that stay in their file until someone looks at them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import overload

from nextn.gguf_schema.contents import ByteSource, MemoryFile, Scalar, Value
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.types import SCALAR_FORMATS, ValueType

# The length before the bytes of a string.
LENGTH = struct.Struct("<Q")

# Where a slice of the first strings is looked for before all of them are decoded.
_FIRST_BYTES = 1 << 16

# Bytes of a value of each type; of a string, the least it takes.
LEAST_BYTES = {type_: struct.calcsize(f"<{code}") for type_, code in SCALAR_FORMATS.items()} | {
    ValueType.STRING: LENGTH.size
}

# What packing raises for a value that its type cannot hold.
_MISFIT = (struct.error, OverflowError, TypeError, UnicodeEncodeError)


@dataclass(frozen=True, eq=False, repr=False)
class StoredArray(Sequence[Scalar]):
    """An array of `length` values of type `element`, left in `source` where they take `nbytes` bytes from `offset`.

    A string so long that it is left there too is an array of one. It equals the tuple of its values. Who only copies
    the array never pays for decoding it; a slice decodes no more than it gives, of strings only one of the first: these
    have no index, so that finding one means walking the others. Any other look decodes all values, once. InputError
    when a value is malformed.
    """

    source: ByteSource
    offset: int
    nbytes: int
    element: ValueType
    length: int
    key: str

    def raw(self) -> bytes:
        """The encoded values (`nbytes` bytes), for exact copying."""
        return self.source.read(self.offset, self.nbytes)

    @cached_property
    def _values(self) -> tuple[Scalar, ...]:
        return self._decoded(self.length, self.offset, self.nbytes)

    def _decoded(self, count: int, offset: int, nbytes: int) -> tuple[Scalar, ...]:
        """The `count` values that take `nbytes` bytes from `offset`."""
        try:
            return decode(self.element, count, self.source.read(offset, nbytes))
        except ValueError as error:
            message = f"key {self.key!r}: value at byte {self.offset} {error}"
            raise InputError("bad-value", message, subject=self.source.name) from None

    def __len__(self) -> int:
        """Number of values, without decoding them."""
        return self.length

    @overload
    def __getitem__(self, index: int) -> Scalar: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Scalar, ...]: ...
    def __getitem__(self, index: int | slice) -> Scalar | tuple[Scalar, ...]:
        """A value, or a tuple of them."""
        if not isinstance(index, slice) or "_values" in self.__dict__:
            return self._values[index]
        wanted = range(self.length)[index]
        if wanted.step != 1:
            return self._values[index]
        if self.element is ValueType.STRING:
            return self._first_strings(len(wanted)) if wanted.start == 0 else self._values[index]
        size = LEAST_BYTES[self.element]
        return self._decoded(len(wanted), self.offset + wanted.start * size, len(wanted) * size)

    def _first_strings(self, count: int) -> tuple[Scalar, ...]:
        """The first strings: from the first bytes, if these hold them."""
        with suppress(ValueError):
            return _strings(self.source.read(self.offset, min(self.nbytes, _FIRST_BYTES)), count)
        return self._values[:count]

    def __iter__(self) -> Iterator[Scalar]:
        """The values in order."""
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        """Whether `other` is a tuple or a stored array of the same values."""
        if isinstance(other, StoredArray):
            return self._values == other._values
        return self._values == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        """The hash of the tuple of values, which this equals."""
        return hash(self._values)

    def __repr__(self) -> str:
        """Where the values are; not the values, which are many."""
        return f"<{self.length} × {self.element.name} at byte {self.offset} of {self.source.name}>"


def decode(element: ValueType, count: int, raw: bytes) -> tuple[Scalar, ...]:
    """The `count` values of type `element` that `raw` holds; ValueError says what is malformed."""
    if element is ValueType.STRING:
        return _strings(raw, count)
    if element is ValueType.BOOL and raw.strip(b"\x00\x01"):
        raise ValueError("has a BOOL that is neither 0 nor 1")
    return struct.unpack(f"<{count}{SCALAR_FORMATS[element]}", raw)


def _strings(raw: bytes, count: int) -> tuple[str, ...]:
    # A hot loop like that of HeaderReader: a vocabulary has a quarter of a million strings.
    length_at, size, end, width = LENGTH.unpack_from, len(raw), 0, LENGTH.size
    encoded: list[bytes] = []
    for index in range(count):
        begin = end + width
        end = begin + length_at(raw, end)[0] if begin <= size else begin
        if end > size:
            raise ValueError(f"ends within string {index}")
        encoded.append(raw[begin:end])
    try:
        return tuple([text.decode() for text in encoded])
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 in string {encoded.index(error.object)}") from None


def encode_value(where: str, value: Value) -> bytes:
    """A value with its type, as a file has it; InputError, which begins with `where`, when its type cannot hold it.

    Floats are rounded to the nearest FLOAT32; an array stored in a file is copied without decoding it.
    """
    element, items = value.element, value.items
    if value.type is not ValueType.ARRAY:
        head = struct.pack("<I", value.type)
        if isinstance(items, StoredArray) and items.element is value.type:
            return head + items.raw()
        return head + encode(where, value.type, items)
    if element is None or element is ValueType.ARRAY:
        raise InputError("nested-array", f"{where}: {value.type_name}, want an array of scalars")
    head = struct.pack("<IIQ", value.type, element, len(items))
    if isinstance(items, StoredArray) and items.element is element:
        return head + items.raw()
    return head + encode(where, element, items)


def encode(where: str, type_: ValueType, items: Sequence[Scalar]) -> bytes:
    """Values of one type, one after the other; InputError, which begins with `where`, when the type cannot hold one."""
    try:
        return _pack(type_, items)
    except _MISFIT:
        index = next(index for index, item in enumerate(items) if not _fits(type_, item))
        place = f"element {index} of {len(items)}: " if len(items) > 1 else ""
        raise InputError("bad-value", f"{where}: {place}{items[index]!r} does not fit {type_.name}") from None


def _fits(type_: ValueType, item: Scalar) -> bool:
    try:
        _pack(type_, (item,))
    except _MISFIT:
        return False
    return True


def _pack(type_: ValueType, items: Sequence[Scalar]) -> bytes:
    if type_ is ValueType.STRING:
        encoded = [str.encode(item) for item in items]  # type: ignore[arg-type]  # TypeError for what is no string
        return b"".join(part for text in encoded for part in (LENGTH.pack(len(text)), text))
    # `struct` would take anything for a BOOL, and a bool for any number.
    if not all(isinstance(item, bool) is (type_ is ValueType.BOOL) for item in items):
        raise TypeError
    return struct.pack(f"<{len(items)}{SCALAR_FORMATS[type_]}", *items)


def encoded_once(key: str, value: Value) -> Value:
    """The array with its bytes made now, for values that go into several headers: a vocabulary takes its time."""
    if value.element is None:
        return value
    raw = encode(key, value.element, value.items)
    stored = StoredArray(MemoryFile(raw, key), 0, len(raw), value.element, len(value.items), key)
    return Value(value.type, stored, value.element)
