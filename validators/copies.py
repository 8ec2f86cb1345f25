"""Findings about tensors that should differ and do not: in a head and the trunk, in two blocks, in the experts of one.

Bytes are compared by their beginnings first, so that little is read twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from math import ceil

from nextn.gguf_schema.architecture import block_of
from nextn.gguf_schema.contents import TensorInfo
from nextn.gguf_schema.errors import counted, listed
from nextn.gguf_schema.nextn_generic import EMBEDDING, OUTPUT, head_blocks
from nextn.gguf_schema.shards import GGUFFile
from nextn.validators.findings import Finding, Severity
from nextn.validators.scan import sha256
from nextn.validators.wording import FORMATS

_AGAIN = "convert it again from its source: one tensor took the place of another"
_TRAINED = "trained tensors are not equal"
_BEGINNING = 1 << 12  # bytes
_EXPERTS = "_exps.weight"


def compared(file: GGUFFile, names: set[str]) -> dict[str, list[str]]:
    """Tensors that should differ, in groups: outputs with heads' outputs, and what each head has of its own kind.

    A group is named by what its members have in common.
    """
    groups: dict[str, list[str]] = {}
    heads = head_blocks(file.contents)
    for name in sorted(names):
        block = block_of(name)
        if block in heads and len(file.contents.tensors[name].ne) > 1:
            groups.setdefault(name.removeprefix(f"blk.{block}."), []).append(name)
    # What a head may bring along, and what it stands for; a file without an output uses the embedding.
    output = OUTPUT if OUTPUT in names else EMBEDDING
    for own, original in (("nextn.shared_head_head.weight", output), ("nextn.embed_tokens.weight", EMBEDDING)):
        if own in groups and original in names:
            groups[own].insert(0, original)
    return {own: group for own, group in groups.items() if len(group) > 1}


def copies(file: GGUFFile, groups: dict[str, list[str]], digests: dict[str, str]) -> Iterator[Finding]:
    """Which tensors that should differ have the same bytes."""
    for own, group in groups.items():
        by_digest: dict[str, list[str]] = {}
        for name in group:
            by_digest.setdefault(digests[name], []).append(name)
        for first, *copies in by_digest.values():
            if not copies:
                continue
            nbytes = sum(file.contents.tensors[name].nbytes for name in copies)
            message = f"the same {file.contents.tensors[first].nbytes} bytes as in {listed(copies)}"
            if own == "nextn.embed_tokens.weight":
                remedy = f"the head needs no table of its own: leave it out to save {ceil(nbytes / 2**20)} MiB"
                yield Finding(Severity.NOTE, "embedding-copied", first, message, remedy, FORMATS)
            elif block_of(first) is None:
                remedy = "if the checkpoint has an output for each head, convert it again: the trunk's took its place"
                reason = "a head's own output that is lost costs nearly all acceptance"
                yield Finding(Severity.WARNING, "head-output-copied", first, message, remedy, reason)
            else:
                remedy = "convert it again if the checkpoint has several heads; the same head twice drafts no better"
                yield Finding(
                    Severity.WARNING, "heads-equal", first, message, remedy, "each head is trained for its step"
                )


def equal_blocks(file: GGUFFile, wanted: Iterable[TensorInfo], looked_at: Iterable[str]) -> Iterator[Finding]:
    """Matrices with the bytes of the same matrix of another block; those `looked_at` have findings of their own."""
    passed_over = set(looked_at)
    groups: dict[tuple[object, ...], list[TensorInfo]] = {}
    for tensor in wanted:
        if block_of(tensor.name) is None or tensor.elements == tensor.ne[0] or tensor.name in passed_over:
            continue
        source, offset, nbytes = file.tensor_bytes(tensor.name)
        mark = _mark(source.read(offset, min(nbytes, _BEGINNING)))
        groups.setdefault((tensor.name.split(".", 2)[2], tensor.type.id, tensor.ne, mark), []).append(tensor)
    for group in groups.values():
        if len(group) > 1:
            yield from _equal(file, group)


def _equal(file: GGUFFile, group: list[TensorInfo]) -> Iterator[Finding]:
    by_digest: dict[str, list[str]] = {}
    for tensor in group:
        by_digest.setdefault(sha256(*file.tensor_bytes(tensor.name)), []).append(tensor.name)
    for first, *others in by_digest.values():
        if others:
            message = f"the same {group[0].nbytes} bytes as in {listed(others)}"
            yield Finding(Severity.WARNING, "blocks-equal", first, message, _AGAIN, _TRAINED)


def equal_experts(file: GGUFFile, wanted: Iterable[TensorInfo]) -> Iterator[Finding]:
    """Experts of one block with the bytes of another expert."""
    for tensor in wanted:
        experts = tensor.ne[-1]
        if not tensor.name.endswith(_EXPERTS) or experts < 2 or tensor.nbytes % experts:
            continue
        source, offset, nbytes = file.tensor_bytes(tensor.name)
        size = nbytes // experts
        begins = [offset + i * size for i in range(experts)]
        by_mark: dict[bytes, list[int]] = {}
        for begin in begins:
            by_mark.setdefault(_mark(source.read(begin, min(size, _BEGINNING))), []).append(begin)
        candidates = [begin for same in by_mark.values() if len(same) > 1 for begin in same]
        copied = len(candidates) - len({sha256(source, begin, size) for begin in candidates})
        if copied:
            message = f"{counted(copied, 'expert')} of {experts} hold the same bytes as another one"
            yield Finding(Severity.WARNING, "experts-equal", tensor.name, message, _AGAIN, _TRAINED)


def _mark(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
