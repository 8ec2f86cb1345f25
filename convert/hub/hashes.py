"""The sha256 of local files, computed once for as long as a file stays what it is, whatever becomes of the process."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nextn.gguf_schema.errors import InputError

if TYPE_CHECKING:
    from nextn.gguf_schema.contents import ByteSource, LocalFile

HASHED_AT_ONCE = 8 << 20
# Older ones are forgotten: the file is read and written as a whole.
MOST_KEPT = 10_000


class Digest(Protocol):
    """A hash of hashlib."""

    def update(self, data: bytes, /) -> None:
        """Add bytes."""
        ...

    def hexdigest(self) -> str:
        """The hash of all that was added."""
        ...


class Hashes:
    """Hashes that are known, kept in a file in `folder`. Where nothing can be kept, they are computed again."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "sha256.json"
        self._known = self._read()

    def known(self, file: LocalFile) -> str | None:
        """The sha256 of a file in hexadecimal, if it is known."""
        return self._known.get(_key(file))

    def of(self, file: LocalFile, progress: Callable[[int], None]) -> str:
        """The sha256 of a file in hexadecimal; InputError when it cannot be read or is changed meanwhile."""
        if (known := self.known(file)) is not None:
            progress(file.size)
            return known
        found = hashed(file, hashlib.sha256(), progress)
        assert_unchanged(file)
        self._keep(_key(file), found)
        return found

    def _read(self) -> dict[str, str]:
        try:
            kept = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        entries = kept.items() if isinstance(kept, dict) else ()
        return {key: value for key, value in entries if isinstance(value, str) and len(value) == 64}

    def _keep(self, key: str, digest: str) -> None:
        # Read again: another process may have added to it.
        self._known = dict(list({**self._read(), **self._known, key: digest}.items())[-MOST_KEPT:])
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(self._known), encoding="ascii")
            partial.replace(self._path)
        except OSError:
            with suppress(OSError):
                partial.unlink()


def hashed(source: ByteSource, digest: Digest, progress: Callable[[int], None] = lambda _: None) -> str:
    """A digest with all bytes of a source added, in hexadecimal; raises what reading the source raises."""
    for start in range(0, source.size, HASHED_AT_ONCE):
        data = source.read(start, min(HASHED_AT_ONCE, source.size - start))
        digest.update(data)
        progress(len(data))
    return digest.hexdigest()


def assert_unchanged(file: LocalFile) -> None:
    """InputError when a file is not what it was when it was opened, or another one has taken its place."""
    if not file.is_unchanged or not file.is_at_its_path:
        remedy = "run the command again when nothing writes to it"
        raise InputError("source-changed", "was changed after it was checked", subject=file.name, remedy=remedy)


def _key(file: LocalFile) -> str:
    """What changes with the file; times of change tell of writes that set the time of modification back."""
    return f"{file.identity} {file.path.stat().st_ctime_ns}"
