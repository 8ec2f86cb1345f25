"""What was paired: a trunk and a head, each with the types that its weights are stored in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nextn.gguf_schema.contents import Contents, TensorInfo
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.nextn_generic import TARGET_EMBEDDING_SHA256, head_blocks
from nextn.gguf_schema.shards import open_gguf


@dataclass(frozen=True)
class Part:
    """A trunk or a head: its file, and the bytes of its weights by type, the largest part first.

    `target_sha256` is of the embedding that a shared sidecar was made for.
    """

    path: str
    types: dict[str, int]
    target_sha256: str | None = None

    @property
    def main_type(self) -> str | None:
        """The type of most of its bytes; None when it has no weights."""
        return next(iter(self.types), None)


@dataclass(frozen=True)
class Pairing:
    """A trunk, and the head that drafts for it; None when there is none."""

    architecture: str
    trunk: Part
    head: Part | None


def pairing(model: Path, draft: Path | None) -> Pairing:
    """What a model and its draft are; InputError for files that cannot be read."""
    trunk = open_gguf(model).contents
    head, path = (trunk, model) if draft is None else (open_gguf(draft).contents, draft)
    blocks = tuple(f"blk.{block}." for block in head_blocks(head))
    of_head = [tensor for tensor in head if tensor.name.startswith(blocks)] if blocks else []
    of_trunk = [tensor for tensor in trunk if not blocks or not tensor.name.startswith(blocks)]
    drafts = Part(str(path), _types(of_head), _target(head)) if of_head else None
    return Pairing(trunk.architecture, Part(str(model), _types(of_trunk)), drafts)


def pairing_with_head(model: Path, draft: Path | None) -> Pairing:
    """The pairing; InputError when nothing in it drafts, and as `pairing` raises it."""
    paired = pairing(model, draft)
    if paired.head is None:
        remedy = "give one with -d FILE"
        raise InputError("no-heads", "has no head to draft with", subject=str(draft or model), remedy=remedy)
    return paired


def _types(tensors: Iterable[TensorInfo]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for tensor in tensors:
        found[tensor.type.name] += tensor.nbytes
    return dict(found.most_common())


def _target(head: Contents) -> str | None:
    value = head.keys.get(TARGET_EMBEDDING_SHA256)
    return str(value.value) if value else None
