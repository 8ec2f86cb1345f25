"""Findings about the blocks of an architecture without tables: what all heads have, and blocks that lack one thing.

Nothing is assumed of an architecture but what its loader asks of every head; the rest is a comparison of blocks.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from nextn.gguf_schema.architecture import block_of
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.nextn_architectures import HEAD_TENSORS, NEXTN_ARCHITECTURES, WHOLE_HEAD_TENSORS
from nextn.validators.findings import Findings
from nextn.validators.role import RoleReport
from nextn.validators.wording import dims, in_words, loader_of

# So many blocks must be alike before another one that lacks a single tensor of theirs is called incomplete.
ALIKE = 3
FROM_SOURCE = "take it from the source: nextn convert"


def examine_blocks(contents: Contents, report: RoleReport, findings: Findings) -> None:
    """Add what is wrong with the heads of any architecture that has them, and which block is less than its like."""
    known = NEXTN_ARCHITECTURES.get(contents.architecture)
    if known is None:
        return
    blocks = _by_block(contents)
    if known.whole:
        for name in WHOLE_HEAD_TENSORS:
            if name not in contents.tensors:
                message = "is missing: llama.cpp b11549 refuses the file"
                findings.error("tensor-missing", name, message, "convert it again", loader_of(known.name))
        heads: dict[int, frozenset[str]] = {}
    else:
        heads = {i: names for i, names in blocks.items() if i >= report.first_head}
        for i in sorted(heads):
            _examine_head(contents, i, report, findings)
    _compare_heads(heads, findings)
    _compare_alike({i: names for i, names in blocks.items() if i not in heads}, report.explained, findings)


def _by_block(contents: Contents) -> dict[int, frozenset[str]]:
    """The names of each block's tensors, without the block."""
    names: defaultdict[int, set[str]] = defaultdict(set)
    for name in contents.tensors:
        if (block := block_of(name)) is not None:
            names[block].add(name.split(".", 2)[2])
    return {block: frozenset(held) for block, held in names.items()}


def _examine_head(contents: Contents, block: int, report: RoleReport, findings: Findings) -> None:
    """A head's own tensors: the projection of an embedding beside a hidden row, and the norm of each."""
    width = contents.get("embedding_length")
    reason = loader_of(contents.architecture)
    for local, shape in HEAD_TENSORS.items():
        name = f"blk.{block}.{local}"
        info = contents.tensors.get(name)
        if info is None:
            if name not in report.explained:
                message = "is missing: llama.cpp b11549 refuses the file, and nothing drafts without it"
                findings.error("tensor-missing", name, message, FROM_SOURCE, reason)
        elif width and isinstance(width.value, int):
            H = width.value
            want = tuple({"2H": 2 * H, "H": H}[dim] for dim in shape.split())
            have = info.ne[: len(want)] if set(info.ne[len(want) :]) <= {1} else info.ne
            if have != want:
                message = f"has dimensions {dims(info.ne)}, want {dims(want)} (embedding_length {H})"
                findings.error("tensor-shape", name, message, "convert it again", reason)


def _compare_heads(heads: dict[int, frozenset[str]], findings: Findings) -> None:
    """Heads of one file have the same tensors."""
    for i, names in sorted(heads.items()):
        others = [held for j, held in heads.items() if j != i]
        lacks = frozenset.intersection(*others) - names - HEAD_TENSORS.keys() if others else frozenset()
        for name in sorted(lacks):
            message = f"is missing, but the other heads ({in_words(j for j in heads if j != i)}) have it"
            findings.warn("block-incomplete", f"blk.{i}.{name}", message, FROM_SOURCE)


def _compare_alike(blocks: dict[int, frozenset[str]], explained: frozenset[str], findings: Findings) -> None:
    """A block that is like several others but for one tensor that it alone lacks."""
    kinds = Counter(blocks.values())
    for i, names in sorted(blocks.items()):
        if kinds[names] > 1:
            continue
        for kind, number in kinds.items():
            if number >= ALIKE and names < kind and len(kind - names) == 1:
                (lacking,) = kind - names
                if f"blk.{i}.{lacking}" in explained:
                    continue
                message = f"is missing, but {number} blocks that are like this one otherwise have it"
                findings.warn("block-incomplete", f"blk.{i}.{lacking}", message, FROM_SOURCE)
