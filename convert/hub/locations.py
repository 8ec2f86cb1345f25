"""How things on the hub are named on the command line: `org/name`, `org/name@revision`, `hf://org/name/file.gguf`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nextn.gguf_schema.errors import UsageError

SCHEME = "hf://"
_PART = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?"
# llama.cpp puts a tag behind a colon; a revision may hold slashes, as pull requests do (refs/pr/1).
_REPOSITORY = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[^:]+?))?(?::(?P<tag>[\w.-]+))?")
_FILE = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>refs/pr/\d+|(?!refs/)[^/:]+))?/(?P<path>[^/].*)")


@dataclass(frozen=True)
class Location:
    """A repository at a revision, or with `path` one of its files; a `tag` names a quantization, as llama.cpp does."""

    repo: str
    revision: str | None = None
    tag: str | None = None
    path: str | None = None

    def __str__(self) -> str:
        """As it is written on the command line."""
        revision, tag = (f"@{self.revision}" if self.revision else ""), (f":{self.tag}" if self.tag else "")
        return f"{SCHEME}{self.repo}{revision}/{self.path}" if self.path else f"{self.repo}{revision}{tag}"


def location_of(text: str) -> Location | None:
    """The place on the hub that a text names; None for what is there locally, or looks like no repository.

    UsageError for `hf://` and what is none.
    """
    if text.startswith(SCHEME):
        rest = text.removeprefix(SCHEME)
        match = _FILE.fullmatch(rest) or _REPOSITORY.fullmatch(rest)
        if match is None:
            remedy = f"write {SCHEME}org/name, or {SCHEME}org/name/file.gguf"
            raise UsageError("bad-location", "names no repository or file of the hub", subject=text, remedy=remedy)
        return Location(**match.groupdict())
    # A local path wins.
    if Path(text).exists() or Path(text).is_symlink():
        return None
    match = _REPOSITORY.fullmatch(text)
    return Location(**match.groupdict()) if match and not text.endswith(".gguf") else None
