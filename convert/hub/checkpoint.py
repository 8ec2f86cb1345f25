"""A checkpoint on the hub: small files whole, headers of weights by range, all in parallel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from nextn.convert.chat_template import ADDITIONAL, JINJA
from nextn.convert.chat_template import JSON as TEMPLATE_JSON
from nextn.convert.checkpoint import CONFIG, INDEX
from nextn.convert.hub.ranges import HubFile, fetch_all
from nextn.convert.hub.repository import Repository
from nextn.convert.metadata import CARD, GENERATION
from nextn.convert.safetensors_header import LENGTH_BYTES, MAX_HEADER
from nextn.convert.tokenizer import TOKENIZER, TOKENIZER_CONFIG
from nextn.gguf_schema.contents import ByteSource

# Every file that a conversion reads whole, if it is there.
READ_WHOLE = (CONFIG, INDEX, TOKENIZER, TOKENIZER_CONFIG, GENERATION, CARD, JINJA, TEMPLATE_JSON)
READ_WHOLE_TOO = f"{ADDITIONAL}/*.jinja"
# What the header of a shard with some hundreds of tensors fits in.
HEAD_BYTES = 128 << 10


@dataclass(frozen=True)
class HubFiles:
    """A checkpoint in a repository on the hub."""

    source: Repository

    @property
    def repository(self) -> str:
        """The name on the hub."""
        return self.source.name

    @cached_property
    def folder(self) -> Path:
        """The commit's folder in huggingface_hub's cache, with all that is no weights."""
        wanted = (path for path in self.source.files if path in READ_WHOLE or PurePosixPath(path).match(READ_WHOLE_TOO))
        return self.source.download(wanted)

    def parts(self) -> set[str]:
        """The names of the .safetensors files."""
        return {path for path in self.source.files if path.endswith(".safetensors") and "/" not in path}

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return name in self.source.files

    def open(self, parts: Iterable[str]) -> dict[str, ByteSource]:
        """The weight files of these names, with their headers on disk: the first bytes of all, then of the longer ones.

        HubError when they do not come.
        """
        files = {part: self.source.open(part) for part in parts}
        fetch_all({file: [(0, min(HEAD_BYTES, file.size))] for file in files.values()})
        fetch_all({file: [(0, _header_end(file))] for file in files.values()})
        return dict(files)


def _header_end(file: HubFile) -> int:
    """Where the header of a shard ends; of one that cannot be, 0: who parses it says so."""
    length = int.from_bytes(file.read(0, min(LENGTH_BYTES, file.size)), "little")
    return LENGTH_BYTES + length if length <= min(file.size - LENGTH_BYTES, MAX_HEADER) else 0
