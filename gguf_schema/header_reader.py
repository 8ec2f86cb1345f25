"""The primitives of a GGUF header, read in order through a window and checked against the bytes that are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.types import ValueType
from nextn.gguf_schema.values import LEAST_BYTES, LENGTH, StoredArray, decode

if TYPE_CHECKING:
    from nextn.gguf_schema.contents import ByteSource, Scalar

DOWNLOAD_AGAIN = "Download or copy the file again."

_WINDOW = 1 << 20
_SMALL_ARRAY = 1 << 10  # encoded bytes; longer arrays stay in the file

# The file's size bounds every length, but a sparse file claims terabytes for nothing, and a header of nothing but short
# strings is slow to walk: these hold what a header can cost to less than a second. The largest vocabularies (a quarter
# of a million tokens, twice the merges) are three quarters of a million strings in 18 MiB.
_MAX_HEADER = 1 << 26
_MAX_STRINGS = 1 << 22

# Bytes of memory for names, and as many for strings and small arrays. Values that find no room stay in the file.
_ROOM = 1 << 22
_BYTES_PER_CHARACTER = 4  # of a decoded string, at worst
_BYTES_PER_ITEM = 64  # of a number or a short string in a tuple, its place there included

# A header with more faults than that is noise.
_MAX_FAULTS = 100


class HeaderReader:
    """A place in a header that moves forward; no length or count is used before its bytes are known to be there.

    `where` names the key or tensor being read, for the messages. Every method raises InputError. With a list of
    `faults`, those that reading can go on after are added to it instead.
    """

    def __init__(self, source: ByteSource, faults: list[InputError] | None = None) -> None:
        """Start at the beginning of `source`."""
        self.source = source
        self.where = "header"
        self.faults = faults
        self._room_for_names = _ROOM
        self._room_for_values = _ROOM
        self._strings_left = _MAX_STRINGS
        self._limit = min(source.size, _MAX_HEADER)
        self._window = b""
        self._start = 0  # where in the file the window begins
        self._at = 0  # where in the window reading goes on
        self._ready = 0  # bytes of the window that may be taken without looking

    @property
    def offset(self) -> int:
        """Where in the file reading goes on."""
        return self._start + self._at

    def error(self, code: str, message: str, remedy: str | None = None) -> InputError:
        """An error about what is being read."""
        return InputError(code, f"{self.where}: {message}", subject=self.source.name, remedy=remedy)

    def fault(self, error: InputError) -> None:
        """Raise an error that reading can go on after, unless such errors are collected."""
        if self.faults is None or len(self.faults) >= _MAX_FAULTS:
            raise error
        self.faults.append(error)

    def take(self, length: int, what: str) -> bytes:
        """The next `length` bytes."""
        if self._at + length > self._ready:
            self._require(length, what)
            self._fill(length)
        begin, self._at = self._at, self._at + length
        return self._window[begin : self._at]

    def unsigned(self, size: int, what: str) -> int:
        """The next integer, of `size` bytes."""
        return int.from_bytes(self.take(size, what), "little")

    def count(self, what: str, least_bytes: int, most: int | None = None) -> int:
        """The number of things that follow, each of `least_bytes` bytes or more."""
        count = self.unsigned(8, f"number of {what}")
        self._require(count * least_bytes, f"room for {count} {what}")
        if most is not None and count > most:
            raise self.error("too-long", f"{count} {what}, want at most {most}")
        return count

    def name(self, most: int) -> str:
        """The next string, a name of at most `most` bytes."""
        length = self.unsigned(LENGTH.size, "length of the name")
        if length > most:
            raise self.error("too-long", f"name at byte {self.offset} has {length} bytes, want at most {most}")
        self._require(length, "name")
        self._room_for_names -= length * _BYTES_PER_CHARACTER
        if self._room_for_names < 0:
            most = _ROOM // _BYTES_PER_CHARACTER
            raise self.error("too-long", f"with that at byte {self.offset}, all names have more than {most} bytes")
        return self._text(length, "name")

    def string(self, key: str) -> str | StoredArray:
        """The next string, the value of `key`; a very long one is passed over and left in the file."""
        begin = self.offset
        length = self.unsigned(LENGTH.size, "length of the string")
        self._require(length, "string")
        if self._fits(length * _BYTES_PER_CHARACTER):
            return self._text(length, "string")
        self._skip(length, "string")
        return StoredArray(self.source, begin, LENGTH.size + length, ValueType.STRING, 1, key)

    def value_type(self, what: str) -> ValueType:
        """The next value type."""
        offset = self.offset
        id_ = self.unsigned(4, what)
        try:
            return ValueType(id_)
        except ValueError:
            message = f"{what} at byte {offset} is {id_}, want 0 to {max(ValueType)}"
            raise self.error("unknown-value-type", message) from None

    def scalar(self, type_: ValueType) -> Scalar:
        """The next value of a type of fixed size."""
        offset = self.offset
        try:
            return decode(type_, 1, self.take(LEAST_BYTES[type_], type_.name))[0]
        except ValueError as error:
            raise self.error("bad-value", f"value at byte {offset} {error}") from None

    def values(self, element: ValueType, count: int, key: str) -> tuple[Scalar, ...] | StoredArray:
        """The next `count` values: decoded when they are few, else passed over and left in the file."""
        # With this much in the window a small array does not make it slide, so its bytes are still there afterwards.
        self._fill(_SMALL_ARRAY)
        begin, offset = self._at, self.offset
        if element is ValueType.STRING:
            self._skip_strings(count)
        else:
            self._skip(count * LEAST_BYTES[element], f"{count} × {element.name}")
        nbytes = self.offset - offset
        if nbytes > _SMALL_ARRAY or not self._fits(count * _BYTES_PER_ITEM + nbytes * _BYTES_PER_CHARACTER):
            return StoredArray(self.source, offset, nbytes, element, count, key)
        try:
            return decode(element, count, self._window[begin : self._at])
        except ValueError as error:
            raise self.error("bad-value", f"value at byte {offset} {error}") from None

    def _fits(self, nbytes: int) -> bool:
        """Whether there is room for a value of that many bytes of memory, which are then taken."""
        if nbytes > self._room_for_values:
            return False
        self._room_for_values -= nbytes
        return True

    def _text(self, length: int, what: str) -> str:
        offset = self.offset
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError as error:
            raise self.error("bad-value", f"{what} at byte {offset} is not UTF-8 from byte {error.start} on") from None

    def _require(self, length: int, what: str) -> None:
        if self.offset + length <= self._limit:
            return
        need = f"{what} at byte {self.offset} needs {length} bytes"
        left = self.source.size - self.offset
        if length > left:
            raise self.error("truncated", f"{need}, {left} left", DOWNLOAD_AGAIN)
        raise self.error("too-long", f"{need}, want a header of at most {_MAX_HEADER}")

    def _fill(self, length: int) -> None:
        """Slide the window unless it holds `length` more bytes, or all that are left."""
        if min(self._at + length, self.source.size - self._start) > len(self._window):
            self._start, self._at = self.offset, 0
            self._window = self.source.read(self._start, min(max(length, _WINDOW), self.source.size - self._start))
            self._ready = min(len(self._window), self._limit - self._start)

    def _skip(self, length: int, what: str) -> None:
        self._require(length, what)
        self._at += length

    def _skip_strings(self, count: int) -> None:
        # Vocabularies make this the one hot loop of reading a header: hence the local names, and one check for all the
        # strings of a window, of which only the last can reach beyond it.
        self._strings_left -= count
        if self._strings_left < 0:
            raise self.error("too-long", f"{count} strings, want at most {_MAX_STRINGS} in a header")
        length_at = LENGTH.unpack_from
        left = count
        while left:
            self._require(LENGTH.size, f"length of string {count - left}")
            self._fill(LENGTH.size)
            window, end = self._window, self._at
            last = len(window) - LENGTH.size
            while left and end <= last:
                begin = end + LENGTH.size
                end = begin + length_at(window, end)[0]
                left -= 1
            self._at = begin
            self._skip(end - begin, f"string {count - left - 1}")
