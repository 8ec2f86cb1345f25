"""What a GGUF file says, or what a plan will say: typed keys and tensor descriptions; and where bytes come from."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Protocol

from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.types import TensorType, ValueType

DEFAULT_ALIGNMENT = 32


class ByteSource(Protocol):
    """Random access to the bytes of a file: local, on the hub, or in memory."""

    @property
    def name(self) -> str:
        """The file's name for messages."""
        ...

    @property
    def size(self) -> int:
        """Length in bytes."""
        ...

    @property
    def identity(self) -> str:
        """A text that changes when the bytes may have changed."""
        ...

    @property
    def is_unchanged(self) -> bool:
        """Whether the bytes are still those of `identity`."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; InputError when they are not there."""
        ...


class LocalFile:
    """Bytes of a file on disk, by positional reads (no mapping: pages read are not kept resident)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        # Without waiting: a pipe that nobody writes to would be waited for.
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            self._descriptor = os.open(path, flags)
            status = os.fstat(self._descriptor)
        except OSError as error:
            message = f"cannot be opened: {error.strerror}"
            if path.is_symlink() and error.errno == errno.ENOENT:
                message = f"is a link to {str(path.readlink())!r}, which is not there"
            raise InputError("unreadable", message, subject=str(path)) from error
        if stat.S_ISDIR(status.st_mode):
            remedy = "Give a .gguf file; `nextn inspect` takes the folder of a checkpoint too."
            raise InputError("not-a-file", "is a folder", subject=str(path), remedy=remedy)
        if not stat.S_ISREG(status.st_mode):
            raise InputError("not-a-file", "is not a regular file", subject=str(path))
        self.size = status.st_size
        self.identity = self._identity(status)
        self._opened = status

    def _identity(self, status: os.stat_result) -> str:
        return f"{self.path.resolve()} {status.st_ino} {status.st_size} {status.st_mtime_ns}"

    @property
    def is_unchanged(self) -> bool:
        """Whether the file has the size and times of change that it was opened with.

        A link to it that comes or goes, as surgery makes them, changes its record too, and is no change.
        """
        now = os.fstat(self._descriptor)
        untouched = now.st_ctime_ns == self._opened.st_ctime_ns or now.st_nlink != self._opened.st_nlink
        return self._identity(now) == self.identity and untouched

    @property
    def is_at_its_path(self) -> bool:
        """Whether the path still leads to the file that was opened."""
        return self.path.exists() and os.path.samestat(os.fstat(self._descriptor), self.path.stat())

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; InputError when the file is shorter or the disk fails."""
        # Offsets come from files: the system call takes none beyond 2^63.
        if offset + length > self.size:
            missing = offset + length - self.size
            raise InputError("truncated", f"ends {missing} bytes early at byte {self.size}", subject=self.name)
        parts = []
        while length > 0:
            try:
                part = os.pread(self._descriptor, min(length, 1 << 30), offset)
            except OSError as error:
                raise InputError(
                    "read-error", f"read error at byte {offset}: {error.strerror}", subject=self.name
                ) from error
            if not part:
                raise InputError("truncated", f"ends {length} bytes early at byte {offset}", subject=self.name)
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def copy_range(self, offset: int, length: int, descriptor: int, to: int) -> int:
        """Copy up to `length` bytes from `offset` to byte `to` of an open file within the kernel; how many were copied.

        OSError when the system or the file system cannot do that; the caller then reads and writes.
        """
        if not hasattr(os, "copy_file_range"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return os.copy_file_range(self._descriptor, descriptor, length, offset, to)

    def __del__(self) -> None:
        """Close the descriptor with the last reference."""
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


@dataclass(frozen=True)
class MemoryFile:
    """Bytes held in memory, named for messages."""

    data: bytes
    name: str = "<memory>"

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.data)

    @property
    def identity(self) -> str:
        """The hash of the data."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def is_unchanged(self) -> bool:
        """Bytes in memory never change."""
        return True

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; InputError when the data is shorter."""
        if offset < 0 or length < 0 or offset + length > len(self.data):
            missing = offset + length - len(self.data)
            raise InputError("truncated", f"ends {missing} bytes early at byte {len(self.data)}", subject=self.name)
        return self.data[offset : offset + length]


Scalar = int | float | bool | str


@dataclass(frozen=True)
class Value:
    """A typed metadata value. `value` is a scalar, or for arrays a sequence of scalars of type `element`."""

    type: ValueType
    value: Scalar | Sequence[Scalar]
    element: ValueType | None = None

    @property
    def type_name(self) -> str:
        """The type as people write it, for example `UINT32` or `ARRAY[STRING]`."""
        return self.type.name if self.element is None else f"ARRAY[{self.element.name}]"

    @property
    def items(self) -> Sequence[Scalar]:
        """The elements of an array; a scalar counts as an array of one."""
        return self.value if isinstance(self.value, Sequence) and not isinstance(self.value, str) else (self.value,)


def u32(value: int) -> Value:
    """A UINT32 value."""
    return Value(ValueType.UINT32, value)


def i32(value: int) -> Value:
    """An INT32 value."""
    return Value(ValueType.INT32, value)


def f32(value: float) -> Value:
    """A FLOAT32 value; `value` is rounded when it is written."""
    return Value(ValueType.FLOAT32, value)


def boolean(value: bool) -> Value:
    """A BOOL value."""
    return Value(ValueType.BOOL, value)


def string(value: str) -> Value:
    """A STRING value."""
    return Value(ValueType.STRING, value)


def array(element: ValueType, values: Iterable[Scalar]) -> Value:
    """An ARRAY value with elements of type `element`."""
    return Value(ValueType.ARRAY, tuple(values), element)


@dataclass(frozen=True)
class TensorInfo:
    """Description of one tensor: dimensions `ne` (fastest first), type, and size in bytes.

    `offset` counts from the start of the data section of its file; `shard` is the index of that file in its set.
    """

    name: str
    ne: tuple[int, ...]
    type: TensorType
    nbytes: int
    offset: int = 0
    shard: int = 0

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.ne)


@dataclass(frozen=True)
class Contents:
    """Keys and tensors of a GGUF file (all its shards) or of a planned one, each in file order."""

    keys: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]
    name: str = field(default="<plan>", compare=False)

    @property
    def architecture(self) -> str:
        """`general.architecture`, or the empty string."""
        value = self.keys.get("general.architecture")
        return str(value.value) if value and value.type is ValueType.STRING else ""

    def get(self, key: str) -> Value | None:
        """The value of `<architecture>.<key>`, or None."""
        return self.keys.get(f"{self.architecture}.{key}")

    def __iter__(self) -> Iterator[TensorInfo]:
        """Tensors in file order."""
        return iter(self.tensors.values())
