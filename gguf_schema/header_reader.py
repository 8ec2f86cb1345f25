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

# The file's size bounds every length, but a sparse file claims terabytes for nothing; this holds what its header can
# cost to about a second. The largest vocabularies (a quarter of a million tokens, twice the merges) take 18 MiB.
_MAX_HEADER = 1 << 26


class HeaderReader:
    """A place in a header that moves forward; no length or count is used before its bytes are known to be there.

    `where` names the key or tensor being read, for the messages. Every method raises InputError.
    """

    def __init__(self, source: ByteSource) -> None:
        """Start at the beginning of `source`."""
        self.source = source
        self.where = "header"
        self._limit = min(source.size, _MAX_HEADER)
        self._window = b""
        self._start = 0  # where in the file the window begins
        self._at = 0  # where in the window reading goes on

    @property
    def offset(self) -> int:
        """Where in the file reading goes on."""
        return self._start + self._at

    def error(self, code: str, message: str, remedy: str | None = None) -> InputError:
        """An error about what is being read."""
        return InputError(code, f"{self.where}: {message}", subject=self.source.name, remedy=remedy)

    def take(self, length: int, what: str) -> bytes:
        """The next `length` bytes."""
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

    def string(self, what: str, most: int | None = None) -> str:
        """The next string, of at most `most` bytes."""
        length = self.unsigned(LENGTH.size, f"length of the {what}")
        offset = self.offset
        if most is not None and length > most:
            raise self.error("too-long", f"{what} at byte {offset} has {length} bytes, want at most {most}")
        raw = self.take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error("bad-value", f"{what} at byte {offset} is not UTF-8 from byte {error.start} on") from None

    def value_type(self, what: str) -> ValueType:
        """The next value type."""
        offset = self.offset
        id_ = self.unsigned(4, what)
        try:
            return ValueType(id_)
        except ValueError:
            message = f"{what} at byte {offset} is {id_}, want 0 to {max(ValueType)}"
            raise self.error("unknown-value-type", message) from None

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
        if nbytes > _SMALL_ARRAY:
            return StoredArray(self.source, offset, nbytes, element, count, key)
        try:
            return decode(element, count, self._window[begin : self._at])
        except ValueError as error:
            raise self.error("bad-value", f"value at byte {offset} {error}") from None

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

    def _skip(self, length: int, what: str) -> None:
        self._require(length, what)
        self._at += length

    def _skip_strings(self, count: int) -> None:
        # Vocabularies make this the one hot loop of reading a header: hence the local names, and one check for all the
        # strings of a window, of which only the last can reach beyond it.
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
