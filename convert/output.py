"""A file being written: positional writes into `<name>.partial`."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from nextn.convert.plan import PlannedFile
from nextn.gguf_schema.errors import InputError

PARTIAL = ".partial"


class Output:
    """The partial file of a planned file; closed, but kept, when the context is left."""

    def __init__(self, file: PlannedFile, path: Path) -> None:
        self.file = file
        self.partial = path.with_name(path.name + PARTIAL)
        self._offsets = {tensor.name: len(file.header) + tensor.offset for tensor in file.tensors}
        self._descriptor = -1

    @property
    def is_whole(self) -> bool:
        """Whether the partial file has its full size, as an earlier run leaves it."""
        return self.partial.is_file() and self.partial.stat().st_size == self.file.total_bytes

    @property
    def allocated(self) -> int:
        """Bytes that the partial file takes on the disk already."""
        return min(self.partial.stat().st_blocks * 512, self.file.total_bytes) if self.partial.is_file() else 0

    def open(self, *, anew: bool) -> None:
        """Open the partial file, emptied and sized when `anew`, and write the header."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if anew else 0)
        try:
            self._descriptor = os.open(self.partial, flags, 0o666)
            os.ftruncate(self._descriptor, self.file.total_bytes)
        except OSError as error:
            raise self._failed(error) from error
        self._write(memoryview(self.file.header), 0)

    def write(self, name: str, offset: int, data: memoryview) -> int:
        """Put data of a tensor at its place and return its length; 0 when the file does not hold the tensor."""
        if name not in self._offsets:
            return 0
        self._write(data, self._offsets[name] + offset)
        return len(data)

    def write_hashes(self, digests: Mapping[str, str]) -> None:
        """Put the sha256 of tensors' data, in hexadecimal, where the header has room for them."""
        for name, offset in self.file.hash_fields.items():
            self._write(memoryview(digests[name].encode()), offset)

    def _write(self, data: memoryview, offset: int) -> None:
        try:
            while data:
                written = os.pwrite(self._descriptor, data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            raise self._failed(error) from error

    def sync(self) -> None:
        """Force the data to the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> InputError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = "the disk is full"
            remedy = "free some space and run the same command again: it continues where it stopped"
            return InputError("no-space", message, subject=str(self.partial), remedy=remedy)
        return InputError("write-error", f"cannot be written: {error.strerror}", subject=str(self.partial))

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
