"""Files that are there already under another name: a link to them is enough."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from nextn.convert.output import BUFFER_BYTES, NO_LINKS, Output, open_locked, write_error
from nextn.convert.plan import PlannedFile
from nextn.gguf_schema.contents import LocalFile
from nextn.gguf_schema.errors import InputError


class Linked(Output):
    """A file with the very bytes of another on the same file system: it gets a link to it, when the others are done."""

    def __init__(self, file: PlannedFile, path: Path, source: LocalFile) -> None:
        super().__init__(file, path, "")
        self._offsets = {}
        self._source = source

    @property
    def is_begun(self) -> bool:
        """Whether a run can go on with it: always."""
        return True

    @property
    def is_stale(self) -> bool:
        """Whether there is anything that a run cannot continue: never."""
        return False

    @property
    def allocated(self) -> int:
        """A link takes no space."""
        return self.file.total_bytes

    def is_finished(self, _: int | None) -> bool:
        """Whether either name is a link already."""
        return self._is_link(self.partial) or self._is_link(self.path)

    def _is_link(self, path: Path) -> bool:
        return path.exists() and path.samefile(self._source.path)

    def open(self, *, anew: bool) -> None:
        """There is nothing to write to."""

    def finish(self, _: Mapping[str, str | None]) -> None:
        """Make the link."""
        if self._is_link(self.partial) or self._is_link(self.path):
            return
        if not self._source.is_at_its_path:
            message = "was replaced while it was read"
            raise InputError("source-changed", message, subject=self._source.name, remedy="run the command again")
        try:
            os.link(self._source.path.resolve(), self.partial)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise write_error(self.partial, error) from error
            self._copy()

    def _copy(self) -> None:
        """Where the file system has no links, or none to files of others."""
        try:
            with os.fdopen(open_locked(self.partial), "wb") as file:
                for offset in range(0, self._source.size, BUFFER_BYTES):
                    file.write(self._source.read(offset, min(BUFFER_BYTES, self._source.size - offset)))
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise write_error(self.partial, error) from error

    def sync(self) -> None:
        """The bytes are on the disk."""

    def discard(self) -> None:
        """Delete the link, if there is one."""
        if self._is_link(self.partial):
            self.partial.unlink()


def output_of(file: PlannedFile, path: Path, fingerprint: str) -> Output:
    """Where a planned file goes: a link when its bytes are there already, on the same file system."""
    source = file.same_as
    if source is not None and path.parent.stat().st_dev == source.path.stat().st_dev:
        return Linked(file, path, source)
    return Output(file, path, fingerprint)
