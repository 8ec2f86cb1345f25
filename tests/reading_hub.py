"""Commands that read from a fake hub, and what the hub says of their requests."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command import run
from fake_hub.server import FakeHub, Seen, running

STORAGE = "GET /cdn/"
# What is read of each shard before anything is known of it.
HEAD_BYTES = 128 << 10


@dataclass
class Reading:
    """A hub, and a home for the caches of commands that read from it."""

    hub: FakeHub
    home: Path
    token: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command."""
        asked = self.hub.environment(self.home, self.token)
        # A second without an answer is long on loopback; the default is ten.
        return {**os.environ, "HF_HUB_DOWNLOAD_TIMEOUT": "2", "HF_HUB_ETAG_TIMEOUT": "2", **asked}

    def run(
        self, *arguments: object, variables: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run the installed command to the end, with other variables of the environment where they are given."""
        return run(*arguments, env={**self.environment, **(variables or {})}, **options)

    def result(self, *arguments: object, status: int = 0) -> dict[str, Any]:
        """The one JSON object of a run that ends with a status."""
        done = self.run(*arguments, "--json")
        assert done.returncode == status, done.stderr
        printed: dict[str, Any] = json.loads(done.stdout)
        return printed

    def sent_twice(self) -> list[str]:
        """Ranges of large files that were sent more than once, in whole or in part."""
        ends: dict[str, int] = {}
        twice = []
        for path, start, end in sorted(map(_range, self.whole_answers())):
            if start < ends.get(path, 0):
                twice.append(f"{path} {start}-{end}")
            ends[path] = max(end, ends.get(path, 0))
        return twice

    def whole_answers(self) -> list[Seen]:
        """The requests of ranges of large files that were answered to the end."""
        return [seen for seen in self.hub.requests(STORAGE) if seen.status == 206 and seen.sent == _length(seen)]


def _range(seen: Seen) -> tuple[str, int, int]:
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", seen.asked_range or "")
    assert match, seen
    return seen.path, int(match[1]), int(match[2]) + 1


def _length(seen: Seen) -> int:
    _, start, end = _range(seen)
    return end - start


@contextmanager
def reading(home: Path, folders: Mapping[str, Path] | None = None) -> Iterator[Reading]:
    """A hub with repositories made of folders, by their names."""
    with running() as hub:
        for name, folder in (folders or {}).items():
            hub.store.create(name).put_folder(folder)
        yield Reading(hub, home)


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of the files below a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def tensor_bytes(shard: Path) -> dict[str, int]:
    """The sizes of the tensors of a safetensors file, by its header."""
    data = shard.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__", None)
    return {name: item["data_offsets"][1] - item["data_offsets"][0] for name, item in header.items()}
