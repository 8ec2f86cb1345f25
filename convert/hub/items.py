"""The files of an upload, what the hub states of them, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nextn.convert.hub.drafts import Draft
from nextn.convert.hub.ranges import Remote, digest_of
from nextn.gguf_schema.contents import LocalFile, MemoryFile
from nextn.gguf_schema.errors import NextnError


class Outcome(StrEnum):
    """What became of a file."""

    PUBLISHED = "on the hub already"
    FOUND = "sent before"
    SENT = "sent"
    FAILED = "failed"
    NOT_TRIED = "not tried"
    WOULD_SEND = "would be sent"


@dataclass(frozen=True)
class Item:
    """A file to publish: its path in the repository, its bytes, and their sha256 in hexadecimal, None if not known."""

    path: str
    source: LocalFile | MemoryFile
    sha256: str | None

    def is_at(self, remote: Remote | None) -> bool:
        """Whether the hub states of a file that it is this one."""
        return remote is not None and self.difference(remote) is None

    def difference(self, remote: Remote) -> str | None:
        """What the hub states of a file that is not so of this one."""
        if remote.size != self.source.size:
            return f"the hub has {remote.size} bytes of {self.source.size}"
        # Files that the hub keeps in git are small.
        kind, own = ("sha256", self.sha256) if remote.has_sha256 else ("git hash", digest_of(self.source, remote))
        return None if remote.etag == own else f"the hub has other bytes: {kind} {remote.etag}, want {own}"


@dataclass(frozen=True)
class Result:
    """What became of a file, and why."""

    item: Item
    outcome: Outcome
    error: NextnError | None = None

    def as_json(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        return {
            "path": self.item.path,
            "bytes": self.item.source.size,
            "sha256": self.item.sha256,
            "outcome": str(self.outcome),
            "message": self.error.message if self.error else None,
        }


@dataclass(frozen=True)
class Uploaded:
    """What became of an upload: `commit` of the main branch is set when it is visible, `draft` while there is one."""

    results: tuple[Result, ...]
    commit: str | None = None
    draft: Draft | None = None

    @property
    def failure(self) -> NextnError | None:
        """The first error."""
        return next((result.error for result in self.results if result.error), None)
