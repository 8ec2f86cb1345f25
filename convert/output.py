"""A file being written: positional writes into `<name>.partial`, which is locked meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nextn.convert.plan import PlannedFile
from nextn.gguf_schema.container import read_header
from nextn.gguf_schema.contents import LocalFile
from nextn.gguf_schema.errors import InputError, UsageError, VerdictError

PARTIAL = ".partial"
HASH_LENGTH = 64
BUFFER_BYTES = 8 << 20
# What unfinished work begins with: the stamp (or a part) of an Output, the head of a journal, a manifest.
UNFINISHED = re.compile(rb'[0-9a-f]{1,64}\Z|\{"fingerprint": "|\{\s+"nextn"')
# What file systems without hard links answer.
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class Output:
    """The partial file of a planned file; closed, but kept, when the context is left.

    Until all data is there the partial file begins with the plan's fingerprint in place of the header: it is no GGUF
    yet, and a partial file of another plan is not taken for one of this plan.
    """

    def __init__(self, file: PlannedFile, path: Path, fingerprint: str) -> None:
        self.file = file
        self.path = path
        self.partial = partial_of(path)
        self._stamp = fingerprint.encode()
        self._offsets = {tensor.name: len(file.header) + tensor.offset for tensor in file.tensors}
        self._descriptor = -1

    @property
    def is_begun(self) -> bool:
        """Whether the partial file is one that an earlier run of the same plan left unfinished."""
        return self._head(self.partial, len(self._stamp)) == self._stamp

    @property
    def is_stale(self) -> bool:
        """Whether the partial file holds something that a run of this plan cannot continue."""
        return self.partial.is_file() and self.partial.stat().st_size > 0 and not self.is_begun

    def is_finished(self, published: int | None) -> bool:
        """Whether the file is complete: under its other name, or under the final one and with the inode `published`."""
        if self._is_finished(self.partial):
            return True
        return self._is_finished(self.path) and self.path.stat().st_ino == published

    def _is_finished(self, path: Path) -> bool:
        head = self._head(path, len(self.file.header))
        return head is not None and self._masked(head) == self._masked(self.file.header)

    def _head(self, path: Path, length: int) -> bytes | None:
        """The first bytes of a file of the planned size; None for any other."""
        if not path.is_file() or path.stat().st_size != self.file.total_bytes:
            return None
        with path.open("rb") as opened:
            return opened.read(length)

    def _masked(self, header: bytes) -> bytes:
        """A header without the hashes that are known only when the data is written."""
        masked = bytearray(header)
        for offset in self.file.hash_fields.values():
            masked[offset : offset + HASH_LENGTH] = bytes(HASH_LENGTH)
        return bytes(masked)

    @property
    def allocated(self) -> int:
        """Bytes that the partial file takes on the disk already."""
        return min(self.partial.stat().st_blocks * 512, self.file.total_bytes) if self.partial.is_file() else 0

    def open(self, *, anew: bool) -> None:
        """Open the partial file, emptied and sized when `anew`. Raises UsageError when another process has it open."""
        try:
            self._descriptor = open_locked(self.partial)
            if anew:
                os.ftruncate(self._descriptor, 0)
                self._write(memoryview(self._stamp), 0)
                os.ftruncate(self._descriptor, self.file.total_bytes)
        except OSError as error:
            raise write_error(self.partial, error) from error

    def holds(self, name: str) -> bool:
        """Whether the file has the tensor."""
        return name in self._offsets

    def write(self, name: str, offset: int, data: memoryview) -> int:
        """Put data of a tensor at its place and return its length; 0 when the file does not hold the tensor."""
        if not self.holds(name):
            return 0
        self._write(data, self._offsets[name] + offset)
        return len(data)

    def copy(self, name: str, offset: int, source: LocalFile, start: int, length: int) -> int:
        """Copy `length` bytes from byte `start` of a file to byte `offset` of a tensor's data, and return the length.

        It is 0 when the file does not hold the tensor. InputError when the source cannot be read.
        """
        if not self.holds(name):
            return 0
        to, end = self._offsets[name] + offset, start + length
        # What goes wrong here is found out, and told, by reading and writing what is left.
        with suppress(OSError):
            while start < end and (copied := source.copy_range(start, end - start, self._descriptor, to)):
                start, to = start + copied, to + copied
        while start < end:
            part = source.read(start, min(end - start, BUFFER_BYTES))
            self._write(memoryview(part), to)
            start, to = start + len(part), to + len(part)
        return length

    def finish(self, digests: Mapping[str, str | None]) -> None:
        """Write the header, with the hashes (of the data of tensors, by name) that it has room for, and read it back.

        A file that has its final name was read back before. Raises VerdictError when it is not what was planned.
        """
        if not self.partial.exists():
            return
        if self._descriptor < 0:
            self.open(anew=False)
        if self.is_begun:
            self._write_header(digests)
        planned = {tensor.name: replace(tensor, shard=0) for tensor in self.file.tensors}
        try:
            told = read_header(LocalFile(self.partial)).contents.tensors
        except InputError as error:
            raise VerdictError("not-as-planned", f"cannot be read back: {error}", subject=str(self.path)) from error
        if told != planned:
            raise VerdictError("not-as-planned", "is not what was planned", subject=str(self.path))

    def _write_header(self, digests: Mapping[str, str | None]) -> None:
        header = bytearray(self.file.header)
        for name, offset in self.file.hash_fields.items():
            header[offset : offset + HASH_LENGTH] = (digests.get(name) or "").ljust(HASH_LENGTH).encode()
        # The stamp goes last: until then a run that dies here can be continued.
        stamped = len(self._stamp)
        self._write(memoryview(header)[stamped:], stamped)
        self._write(memoryview(header)[:stamped], 0)
        self.sync()

    def _write(self, data: memoryview, offset: int) -> None:
        try:
            while data:
                written = os.pwrite(self._descriptor, data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            raise write_error(self.partial, error) from error

    def sync(self) -> None:
        """Force the data to the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise write_error(self.partial, error) from error

    def publish(self, *, overwrite: bool) -> None:
        """Give the complete file its final name, unless it has it; UsageError when another file took it meanwhile."""
        if self.partial.exists():
            give_final_name(self.partial, self.path, overwrite=overwrite)

    def discard(self) -> None:
        """Delete the partial file, if it was opened here or an earlier run of the plan left it."""
        if self._descriptor >= 0 or self.is_begun:
            self.partial.unlink(missing_ok=True)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def give_final_name(partial: Path, path: Path, *, overwrite: bool) -> None:
    """Rename a complete file; UsageError when another one has the name, unless it may be overwritten."""
    try:
        if overwrite:
            partial.replace(path)
            # Renaming does nothing when both names are on one file.
            partial.unlink(missing_ok=True)
        else:
            _link(partial, path)
    except OSError as error:
        raise write_error(path, error) from error


def _link(partial: Path, path: Path) -> None:
    """Rename without replacing: a link fails where a file is, and the old name goes afterwards."""
    try:
        os.link(partial, path)
    except FileExistsError as error:
        # A run that died between the two steps left both names on one file.
        if not partial.samefile(path):
            remedy = "remove it, or give --overwrite"
            raise UsageError("output-exists", "exists", subject=str(path), remedy=remedy) from error
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        partial.replace(path)
        return
    partial.unlink()


def partial_of(path: Path) -> Path:
    """The name of a file while it is written."""
    return path.with_name(path.name + PARTIAL)


def refuse_foreign(paths: Iterable[Path]) -> None:
    """Raise UsageError when a name that unfinished work gets is that of something else."""
    for path in paths:
        if not os.path.lexists(path):
            continue
        head = None
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                head = file.read(HASH_LENGTH)
        if head is None or (head and not UNFINISHED.match(head)):
            raise UsageError(
                "not-ours",
                "is in the way: unfinished work gets this name, and it is none of an earlier run",
                subject=str(path),
                remedy="move it away, or give --overwrite to lose it",
            )


def open_locked(path: Path) -> int:
    """Open a file for reading and writing, made when missing, that no other process gets until it is closed.

    Raises UsageError when another process has it.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise UsageError("in-use", "another process is writing this file", subject=str(path)) from error
        except OSError:
            return descriptor  # A file system without locks: two processes are then not kept apart.
        # Whoever had it may have renamed or deleted it in the meantime.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


def write_error(path: Path, error: OSError) -> InputError:
    """What a failed write means for the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space and run the same command again"
        return InputError("no-space", "the disk is full", subject=str(path), remedy=remedy)
    remedy = "run the same command again when the cause is gone"
    return InputError("write-error", f"cannot be written: {error.strerror}", subject=str(path), remedy=remedy)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which a file system that does this by itself may say
            raise write_error(folder, error) from error
    finally:
        os.close(descriptor)
