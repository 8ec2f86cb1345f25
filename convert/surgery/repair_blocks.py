"""Repair of the numbers of blocks: `block_count` and `nextn_predict_layers`, as the tensors show them.

Sources: `nextn_flags` and `load_hparams` in src/llama-model.cpp of llama.cpp b11549; step35.md 6.7 and 7, glm5-next.md
7 and qwen4exp.md 7.5 of the specifications. Blocks are never renumbered, and a tensor that is missing is not made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nextn.convert.surgery.repair_ledger import Ledger
from nextn.gguf_schema.architecture import block_of
from nextn.gguf_schema.contents import Contents, u32
from nextn.gguf_schema.errors import counted
from nextn.gguf_schema.nextn_architectures import NEXTN_ARCHITECTURES, array_keys
from nextn.gguf_schema.nextn_generic import (
    BLOCK_COUNT,
    NEXTN_PREDICT_LAYERS,
    Declared,
    block_indices,
    blocks_of,
    declared,
    head_blocks,
    is_whole_head,
)
from nextn.validators.kinds import Kinds, kinds_shown
from nextn.validators.wording import in_words

TYPE = "loaders read it as UINT32 only"
# How blocks with linear attention show in the architectures that have an interval of layers with full attention.
LINEAR = Kinds("full_attention_interval", "ssm_a", "attn_q.weight", True, False)


@dataclass(frozen=True)
class Blocks:
    """The numbers that the tensors prove, and the evidence for each."""

    block_count: int
    heads: int
    why_count: str = ""
    why_heads: str = ""


@dataclass(frozen=True)
class Doubt:
    """Why the tensors do not decide, and which repairs are possible."""

    text: str


def repair_blocks(ledger: Ledger) -> bool:
    """Set the keys about blocks to what the tensors prove; whether they now say it, so that arrays can be judged.

    Only for architectures with nextn blocks: what others count is not known here.
    """
    contents = ledger.contents
    if ledger.family not in NEXTN_ARCHITECTURES or not block_indices(contents):
        return False
    found = _proven(contents)
    if isinstance(found, Doubt):
        ledger.doubt(found.text)
        return False
    count, nextn = ledger.full(BLOCK_COUNT), ledger.full(NEXTN_PREDICT_LAYERS)
    keys = declared(contents)
    if contents.keys.get(count) != u32(found.block_count):
        why = TYPE if keys.block_count == found.block_count else found.why_count
        ledger.put(count, u32(found.block_count), why, ledger.following(BLOCK_COUNT))
    held = contents.keys.get(nextn)
    if found.heads and held != u32(found.heads):
        why = TYPE if keys.heads == found.heads else found.why_heads
        ledger.put(nextn, u32(found.heads), why, ledger.following(NEXTN_PREDICT_LAYERS))
    elif not found.heads and held not in (None, u32(0)):
        ledger.remove(nextn, found.why_heads)
    return True


def _proven(contents: Contents) -> Blocks | Doubt:
    blocks, heads, keys = block_indices(contents), head_blocks(contents), declared(contents)
    total = max(blocks) + 1
    if is_whole_head(contents):
        if (lost := set(range(total)) - blocks) and (keys.block_count, keys.heads) != (total, total):
            return _doubt(keys, f"no tensor of {in_words(lost)} is there", "it is incomplete", "blocks are renumbered")
        why = f"the file is a head as a whole, of {in_words(blocks)}"
        return Blocks(total, total, why, why)
    if not any(".nextn." in name for name in contents.tensors) and any(n.startswith("mtp.") for n in contents.tensors):
        return _forked(keys, heads, total)
    return _with_heads(contents, blocks, heads, keys) if heads else _trunk(contents, blocks, keys)


def _forked(keys: Declared, heads: set[int], total: int) -> Blocks | Doubt:
    """Names that begin with `mtp.` have no block's number: only the keys say which block is the head's."""
    if heads and (keys.block_count, keys.heads) == (total, 1):
        return _as_declared(keys, total)
    what = "the tensors mtp.* show a head, but not of which block"
    return _doubt(
        keys, what, f"blk.{total - 1} is the head's", "another is", "nextn relayout FILE -o FILE --to upstream"
    )


def _with_heads(contents: Contents, blocks: set[int], heads: set[int], keys: Declared) -> Blocks | Doubt:
    """The first head's index is the number of trunk blocks, whether these are in the file or not (step35.md 6.7)."""
    first, number = blocks_of(contents)
    total = first + number
    agree = (keys.block_count, keys.heads) == (total, number)
    trunk = {block for block in blocks if block < first}
    if first == 0:
        what = "the head stands at blk.0, and heads keep the numbers behind the trunk"
        return _doubt(keys, what, "it was renumbered, from a block that no tensor names", "there is no trunk at all")
    if lost := set(range(first, total)) - blocks:
        what = f"no tensor of {in_words(lost)} is there, of the heads {in_words(range(first, total))}"
        kept = in_words(heads if first in lost else range(first, min(lost)))
        return _doubt(keys, what, "the lost head is taken from the source", f"only {kept} stays")
    unmarked = (set(range(first, total)) & blocks) - heads
    if unmarked and not agree:
        what = f"{in_words(unmarked)} stands behind the first head, without a nextn tensor"
        return _doubt(keys, what, "it is a head that lost them", "it is a block of the trunk that stands wrong")
    if trunk and first - 1 not in trunk and not agree:
        return _doubt(keys, f"no tensor of blk.{first - 1} is there", "it was the trunk's", "it was a head")
    count = keys.block_count
    if not trunk and (keys.trunk_blocks or 0) > first and count != total and _arrays_say(contents, count):
        what = f"the head stands at blk.{first}, the keys and arrays are for {count} blocks"
        return _doubt(keys, what, f"the trunk has {first} blocks", f"the head was renumbered from {keys.trunk_blocks}")
    place = f"nextn tensors are in {in_words(heads)}"
    shows = f"{place}, behind {counted(first, 'trunk block')}" + ("" if trunk else " that are not in the file")
    return Blocks(total, number, shows, place)


def _trunk(contents: Contents, blocks: set[int], keys: Declared) -> Blocks | Doubt:
    """Without a head's tensors all blocks are the trunk's, unless the keys give reason to doubt that."""
    total, count = max(blocks) + 1, keys.block_count
    there = f"the blocks are {in_words(blocks)}"
    lost = set(range(total)) - blocks
    bare = 0 < (keys.trunk_blocks or 0) <= min(blocks)
    if count == total and (bare or not keys.heads):
        return _as_declared(keys, total)  # What is missing of a trunk, or of heads alone, is nobody's to repair.
    if lost:
        what = f"no tensor of {in_words(lost)} is there"
        return _doubt(keys, what, "a part of the file is missing", "the keys are another model's")
    none = f"no tensor is named blk.N.nextn.*, and {there}"
    if count is not None and keys.heads and count == total + keys.heads:
        gone = f"blk.{total}" + (f"-{count - 1}" if keys.heads > 1 else "")  # A file may declare billions.
        return Blocks(total, 0, f"no tensor of {gone} is there, {there}", none)
    if count is not None and count > total:
        if not keys.heads and _arrays_say(contents, total) and not _arrays_say(contents, count):
            return Blocks(total, 0, f"{there}, and the arrays over blocks have {total} entries", none)
        what = f"{there}, fewer than declared, and none has a nextn tensor"
        return _doubt(keys, what, "the missing tensors are taken from the source", f"the model has {total} blocks")
    # Blocks that the keys take for heads, or do not count.
    doubted = range(total - 1 if keys.trunk_blocks is None else keys.trunk_blocks, total) if keys.heads else ()
    if count is not None and not keys.heads:
        doubted = range(count, total)
    likes = {block: _alike(contents, block, min(doubted)) for block in doubted}
    if unlike := [block for block, like in likes.items() if like is None]:
        what = f"{in_words(unlike)} has no nextn tensor, and is not like the blocks of the trunk before it"
        return _doubt(keys, what, "it is a head that lost them", f"the trunk has {total} blocks")
    like = {other for other in likes.values() if other is not None}
    if like:
        none += f"; {in_words(likes)} has the tensors of a trunk block ({in_words(like)})"
    return Blocks(total, 0, none if like else there, none)


def _as_declared(keys: Declared, total: int) -> Blocks:
    """The numbers that the keys give; types that no loader reads are set right."""
    return Blocks(total, keys.heads, TYPE, TYPE)


def _doubt(keys: Declared, what: str, one: str, other: str, remedy: str = "convert it again") -> Doubt:
    says = " and ".join(
        f"{name} {'(missing)' if value is None else value}"
        for name, value in ((BLOCK_COUNT, keys.block_count), (NEXTN_PREDICT_LAYERS, keys.nextn_predict_layers))
    )
    return Doubt(f"{says}: {what}: either {one}, or {other}; {remedy}")


def _arrays_say(contents: Contents, length: int | None) -> bool:
    """Whether an array over blocks has so many entries."""
    values = (contents.get(name) for name in array_keys(contents.architecture))
    return any(value.element is not None and len(value.items) == length for value in values if value)


def _alike(contents: Contents, block: int, end: int) -> int | None:
    """A trunk block before `end` with tensors of the same names, and no sign that `block` is a head all the same.

    Dense blocks at the beginning are no witness for others: heads may be dense behind a trunk of experts (step35). Nor
    is a block one of the trunk's that breaks the rule of every n-th layer, as heads, which all have full attention, do.
    """
    dense, interval = (contents.get(key) for key in ("leading_dense_block_count", LINEAR.key))
    begin = int(dense.value) if dense and isinstance(dense.value, int) else 0
    kinds = kinds_shown(contents, LINEAR)
    if interval and isinstance(interval.value, int) and interval.value > 0:
        breaks = {i for i, linear in kinds.items() if linear is ((i + 1) % interval.value == 0)}
        if block in breaks and breaks.isdisjoint(range(end)):
            return None
    names = _names(contents, block)
    return next((i for i in _near(block, begin, end) if _names(contents, i) == names), None)


def _near(block: int, begin: int, end: int) -> Iterable[int]:
    return range(end - 1, (0 if block < begin else begin) - 1, -1)


def _names(contents: Contents, block: int) -> frozenset[str]:
    """The names of a block's tensors, without the block."""
    return frozenset(name.split(".", 2)[2] for name in contents.tensors if block_of(name) == block)
