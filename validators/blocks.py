"""Findings about the blocks of an architecture without tables: what all heads have, and blocks that lack one thing.

Nothing is assumed of an architecture but what its loader asks of every head; the rest is a comparison of blocks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from nextn.gguf_schema.architecture import MAX_BLOCKS, block_of
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.nextn_architectures import HEAD_TENSORS, NEXTN_ARCHITECTURES, WHOLE_HEAD_TENSORS
from nextn.gguf_schema.nextn_generic import EMBEDDING, block_indices
from nextn.gguf_schema.types import F32
from nextn.validators.findings import Findings
from nextn.validators.role import RoleReport
from nextn.validators.wording import FORMATS, dims, in_words, loader_of

# So many blocks must be alike before another one that lacks a single tensor of theirs is called incomplete.
ALIKE = 3
# So many where no other kind of block is there.
UNIFORM = 2
OUTPUT_NORM, QUERY = "output_norm.weight", "attn_q.weight"
RECURRENT, INTERVAL = "attention.recurrent_layers", "full_attention_interval"
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
    trunk = {i: names for i, names in blocks.items() if i not in heads}
    _compare_heads(heads, findings)
    if report.role and report.role.has_trunk and not known.whole:
        _examine_outside(contents, findings)
    if not _compare_uniform(trunk, report.explained, findings):
        _compare_alike(trunk, report.explained, findings)
    if len(heads) == 1:  # Several are compared with each other.
        _compare_with_trunk(contents, heads, trunk, findings)
    _examine_kinds(contents, heads, findings)
    _examine_norms(contents, findings)


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


def _examine_outside(contents: Contents, findings: Findings) -> None:
    """What every trunk has outside of its blocks, whatever its architecture."""
    width, embedding = contents.get("embedding_length"), contents.tensors.get(EMBEDDING)
    reason = loader_of(contents.architecture)
    if embedding is None:
        message = "is missing: llama.cpp b11549 refuses the file"
        findings.error("tensor-missing", EMBEDDING, message, FROM_SOURCE, reason)
    elif width and isinstance(width.value, int) and embedding.ne[0] != width.value:
        message = f"has dimensions {dims(embedding.ne)}, want rows of embedding_length {width.value}"
        findings.error("tensor-shape", EMBEDDING, message, "convert it again", reason)
    if OUTPUT_NORM not in contents.tensors:
        message = "is missing: nearly every architecture has it, and llama.cpp b11549 then refuses the file"
        findings.warn("tensor-missing", OUTPUT_NORM, message, FROM_SOURCE, reason)


def _examine_norms(contents: Contents, findings: Findings) -> None:
    """Gammas are multiplied with rows in F32, for which there is no operation in another type, and are as wide."""
    width = contents.get("embedding_length")
    for tensor in contents:
        if width and tensor.name.endswith(".attn_norm.weight") and tensor.ne != (width.value,):
            message = f"has dimensions {dims(tensor.ne)}, want [{width.value}] (embedding_length)"
            findings.error("tensor-shape", tensor.name, message, "convert it again", loader_of(contents.architecture))
        if len(tensor.ne) == 1 and tensor.name.endswith("_norm.weight") and tensor.type != F32 and tensor.type.known:
            message = f"is {tensor.type.name}, want F32: llama.cpp aborts when it computes with it (unsupported types)"
            remedy = f"nextn retype FILE -o OUT.gguf --tensor-type {tensor.name}=f32"
            findings.error("tensor-type", tensor.name, message, remedy, loader_of(contents.architecture))


def _examine_kinds(contents: Contents, heads: Iterable[int], findings: Findings) -> None:
    """A head has attention: a key that tells which blocks are recurrent must not count it among them."""
    value = contents.get(RECURRENT)
    if value is None:
        _examine_interval(contents, heads, findings)
    if value is None or value.element is None:
        return
    items = value.items[:MAX_BLOCKS]
    attention = [i for i in heads if i < len(items) and items[i] and f"blk.{i}.{QUERY}" in contents.tensors]
    if attention:
        message = f"says that {in_words(attention)} are recurrent, but they are heads, and their tensors attention's"
        key, remedy = f"{contents.architecture}.{RECURRENT}", f"set the entries of {in_words(attention)} to false"
        findings.error("layer-kinds", key, message, remedy, loader_of(contents.architecture))


def _examine_interval(contents: Contents, heads: Iterable[int], findings: Findings) -> None:
    """Builds that count a head as a block of the trunk take the kind of its layer from its number."""
    value = contents.get(INTERVAL)
    every = value.value if value and isinstance(value.value, int) else 0
    wrong = [i for i in heads if every > 1 and (i + 1) % every and f"blk.{i}.{QUERY}" in contents.tensors]
    if wrong and 0 in block_indices(contents):
        message = (
            f"is {every}: a build that does not know heads of {contents.architecture} takes {in_words(wrong)}, a head, "
            f"for a recurrent layer, and stops: blk.{wrong[0]}.ssm_conv1d is missing. llama.cpp b11549 knows better"
        )
        remedy = "for old builds: nextn split FILE -o DIR --emit trunk"
        findings.note("old-builds-misread", f"{contents.architecture}.{INTERVAL}", message, remedy, FORMATS)


def _compare_uniform(blocks: dict[int, frozenset[str]], explained: frozenset[str], findings: Findings) -> bool:
    """Whether all blocks of a trunk are alike but for one, which lacks a tensor; then a finding."""
    kinds = Counter(blocks.values())
    if len(kinds) != 2:
        return False
    (kind, number), (less, once) = kinds.most_common()
    if once != 1 or number < UNIFORM or not less < kind or len(kind - less) != 1:
        return False
    (block,), (name,) = (i for i, names in blocks.items() if names == less), kind - less
    if f"blk.{block}.{name}" not in explained:
        message = f"is missing, but all {number} other blocks of the trunk have it"
        findings.warn("block-incomplete", f"blk.{block}.{name}", message, FROM_SOURCE)
    return True


def _compare_with_trunk(
    contents: Contents, heads: dict[int, frozenset[str]], trunk: dict[int, frozenset[str]], findings: Findings
) -> None:
    """A head whose block is one of the trunk's but for a single matrix."""
    kinds = Counter(trunk.values())
    for i, names in sorted(heads.items()):
        block = frozenset(name for name in names if not name.startswith("nextn."))
        lacking = {min(kind - block) for kind, n in kinds.items() if n > 1 and block < kind and len(kind - block) == 1}
        if block in kinds or len(lacking) != 1:
            continue
        (name,) = lacking
        like = next(j for j, held in trunk.items() if name in held and block < held)
        if len(contents.tensors[f"blk.{like}.{name}"].ne) > 1:
            message = f"is missing, but blk.{like} and others of the trunk, which are like it otherwise, have it"
            findings.warn("block-incomplete", f"blk.{i}.{name}", message, FROM_SOURCE)


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
