"""Repair of the arrays over blocks: cut behind the last block, continued over heads where their tensors prove entries.

Sources: `get_key_or_arr` in src/llama-model-loader.cpp of llama.cpp b11549 insists on the length; step35.md 6.7,
glm5-next.md 6.3 and qwen4exp.md 6.4 say which arrays and what stands there for a head. Nothing is padded by guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nextn.convert.surgery.repair_ledger import Ledger
from nextn.gguf_schema.contents import Contents, Scalar, Value, array
from nextn.gguf_schema.errors import listed
from nextn.gguf_schema.nextn_architectures import NEXTN_ARCHITECTURES, array_keys
from nextn.gguf_schema.nextn_generic import Declared, block_indices, declared
from nextn.gguf_schema.reading import ARCHITECTURES
from nextn.gguf_schema.types import ValueType
from nextn.validators.kinds import KINDS, Kinds, kinds_shown
from nextn.validators.wording import in_words

Items = Sequence[Scalar]


@dataclass(frozen=True)
class Proof:
    """How tensors prove an entry of an array: `entry` gives that of a block, or None; `says` is the evidence.

    It sees the entries that are there. Where `checked`, these must be what it gives for the blocks that are in the
    file; `kind` compares only whether entries are zero.
    """

    says: str
    entry: Callable[[Contents, int, Items], int | None]
    checked: bool = True
    kind: bool = False

    def agrees(self, given: Scalar, proven: int) -> bool:
        """Whether an entry that is there says what the tensors do."""
        return bool(given) is bool(proven) if self.kind else given == proven


def _size(tensor: str, axis: int, over: str | None = None) -> Proof:
    """A dimension of a block's tensor, divided by the value of a key."""

    def entry(contents: Contents, block: int, _: Items) -> int | None:
        info = contents.tensors.get(f"blk.{block}.{tensor}")
        width = contents.get(over) if over else None
        unit = width.value if width else None if over else 1
        if info is None or len(info.ne) <= axis or not isinstance(unit, int) or unit <= 0 or info.ne[axis] % unit:
            return None
        return info.ne[axis] // unit

    what = f"{tensor} has {'rows' if axis else 'columns'} for so many"
    return Proof(f"{what} over {over}" if over else what, entry)


def _kind(kinds: Kinds) -> Proof:
    """The kind of a block's attention: one tensor shows linear attention, another full attention."""

    def entry(contents: Contents, block: int, _: Items) -> int | None:
        linear = kinds_shown(contents, kinds).get(block)
        return None if linear is None else int(kinds.linear_entry if linear else kinds.full_entry)

    says = f"{kinds.full} is there where attention is full, {kinds.linear} where it is linear"
    return Proof(says, entry, kind=True)


def _window(contents: Contents, block: int, given: Items) -> int | None:
    """Whether a head slides: as all trunk blocks with as many query heads, where no other block has as many."""
    heads, trunk = contents.get("attention.head_count"), declared(contents).trunk_blocks or 0
    if heads is None or heads.element is None or min(len(heads.items), len(given)) < trunk:
        return None
    counts = {bool(kind): {heads.items[i] for i in range(trunk) if bool(given[i]) is kind} for kind in (True, False)}
    if counts[True] & counts[False]:
        return None  # Entries of the trunk stand at other blocks than their own.
    own = QUERY_HEADS.entry(contents, block, ())
    fits = [kind for kind, held in counts.items() if own in held]
    return int(fits[0]) if len(fits) == 1 else None


def _ratio(contents: Contents, block: int, given: Items) -> int | None:
    """The ratio of a block with an indexer, 0 of one without: loaders take one for all layers (qwen4exp.md 6.4)."""
    used = {int(item) for item in given if item}
    if len(used) != 1:
        return None
    return used.pop() if f"blk.{block}.indexer.k_proj.weight" in contents.tensors else 0


QUERY_HEADS = _size("attn_q.weight", 1, "attention.key_length")
# What tensors prove in any architecture. Whether it holds for a given one, the entries that are there must show.
PROOFS: dict[str, Proof] = {
    "attention.head_count": QUERY_HEADS,
    "attention.head_count_kv": _size("attn_k.weight", 1, "attention.key_length"),
    "feed_forward_length": _size("ffn_up.weight", 1),
    "expert_feed_forward_length": _size("ffn_up_exps.weight", 1),
    "attention.recurrent_layers": _kind(Kinds("attention.recurrent_layers", "ssm_a", "attn_q.weight", True, False)),
}
# What they prove in the families with tables. Each query head of qwen4exp has a gate beside it in attn_q.
PROOFS_OF: dict[str, dict[str, Proof]] = {
    "step35": {
        "attention.sliding_window_pattern": Proof(
            "attn_q.weight has the heads of the trunk's blocks of this kind, and of no others", _window, checked=False
        ),
    },
    "qwen4exp": {
        "attention.head_count": _size("attn_output.weight", 0, "attention.value_length"),
        "attention.compress_ratios": Proof(
            "indexer.k_proj.weight is there, and the trunk has no other ratio", _ratio, kind=True
        ),
    },
}
for _family, _kinds in KINDS.items():
    PROOFS_OF.setdefault(_family, {})[_kinds.key] = _kind(_kinds)


def proofs(family: str) -> dict[str, Proof]:
    """How tensors prove entries of the arrays of an architecture, by key."""
    return PROOFS | PROOFS_OF.get(family, {})


@dataclass(frozen=True)
class _Array:
    """An array of a wrong length: its key, what is in it, the blocks of the file, and how entries are proven."""

    key: str
    value: Value
    contents: Contents
    family: str
    proof: Proof | None

    def witnesses(self, length: int) -> Iterator[tuple[int, bool]]:
        """Of the first entries those that tensors show too: the block, and whether both agree."""
        proof, items = self.proof, self.value.items[:length]
        if proof is None or not proof.checked:
            return
        for i in sorted(block_indices(self.contents)):
            if i < len(items) and (entry := proof.entry(self.contents, i, items)) is not None:
                yield i, proof.agrees(items[i], entry)

    def denied(self, length: int) -> list[int]:
        """The blocks of which the first entries say something else than the tensors."""
        return [i for i, agrees in self.witnesses(length) if not agrees]

    def proven(self, blocks: range) -> list[int | None]:
        """The entries of these blocks; None where nothing proves one.

        Where no table says what a tensor's size means, an entry that is there must show it.
        """
        known = self.family in ARCHITECTURES or any(agrees for _, agrees in self.witnesses(len(self.value.items)))
        if self.proof is None or not known:
            return [None] * len(blocks)
        return [self.proof.entry(self.contents, i, self.value.items) for i in blocks]

    def with_items(self, items: Sequence[Scalar]) -> Value:
        """The same array with other entries, each of the array's type."""
        element = self.value.element or self.value.type
        return array(element, [bool(item) if element is ValueType.BOOL else item for item in items])


def repair_arrays(ledger: Ledger, before: Declared) -> None:
    """Give every array over blocks the length that the keys now want; `before` is what they declared at first."""
    keys, family = declared(ledger.contents), ledger.family
    if keys.block_count is None or keys.trunk_blocks is None:
        return
    rules, all_proofs = array_keys(family), proofs(family)
    values = {name: value for name in rules if (value := ledger.contents.get(name)) and value.element is not None}
    arrays = {n: _Array(ledger.full(n), v, ledger.contents, family, all_proofs.get(n)) for n, v in values.items()}
    # A head that was cut off before the keys were written: of most architectures there is just one.
    usual = NEXTN_ARCHITECTURES[family].heads or 0
    lengths = {before.block_count, keys.block_count, *(keys.trunk_blocks + n for n in (before.heads, usual))}
    lengths |= {
        len(held.value.items)
        for held in arrays.values()
        if not held.denied(keys.block_count) and any(held.witnesses(keys.block_count))
    }
    for name, held in arrays.items():
        want, have = rules[name].length(keys.block_count, keys.heads), len(held.value.items)
        if have != want and _is_blind(held, keys.trunk_blocks):
            what = (
                f"{held.key} has {have} entries, want {want}, and no block of the trunk is there to hold them against"
            )
            ledger.doubt(f"{what}: either they are missing, or too many, at the end, or in between")
        elif have > want and not rules[name].at_least:
            _cut(ledger, held, want, have in lengths, lenient=rules[name].lenient)
        elif have < want:
            _continue(ledger, held, want, keys.trunk_blocks)


def _is_blind(held: _Array, trunk_blocks: int) -> bool:
    """Whether entries of the trunk that differ stand in a file without the trunk: nothing shows their places."""
    return min(block_indices(held.contents), default=0) >= trunk_blocks and len(set(held.value.items)) > 1


def _cut(ledger: Ledger, held: _Array, want: int, explained: bool, *, lenient: bool) -> None:
    """Leave out the entries behind the last block; where it is clear that they are a head's."""
    have, extra = len(held.value.items), in_words(range(want, len(held.value.items)))
    wrong = held.denied(want) if held.family in ARCHITECTURES else []
    if wrong:
        what = f"has {have} entries, want {want}, and those of {in_words(wrong)} are not what the tensors show"
        ledger.doubt(f"{held.key} {what}: either entries were put in between, or they are another model's")
    elif explained:
        keys = declared(ledger.contents)
        whole = f"the model's {want}" if want == keys.block_count and keys.heads else f"the trunk's {want}"
        why = f"an entry for each of {whole} blocks, none for {extra}"
        ledger.put_array(held.key, held.with_items(held.value.items[:want]), why)
    elif not lenient:  # What is too much there is ignored.
        what = f"has {have} entries, want {want}: nothing shows whose the others are"
        ledger.doubt(f"{held.key} {what}: either {extra} were heads, or the array is another model's")


def _continue(ledger: Ledger, held: _Array, want: int, trunk_blocks: int) -> None:
    """Add the entries of heads that tensors prove."""
    items, missing = held.value.items, range(len(held.value.items), want)
    what = f"{held.key} has {len(items)} entries, want {want}"
    if len(items) < trunk_blocks:
        lost = in_words(range(len(items), min(want, trunk_blocks)))
        ledger.doubt(
            f"{what}: those of {lost} are the trunk's: either they are missing at the end, or others in between; "
            "convert it again"
        )
        return
    if wrong := held.denied(len(items)):
        shows = f"{what}, and those of {in_words(wrong)} are not what the tensors show"
        ledger.doubt(f"{shows}: either entries are missing in between, or they are another model's")
        return
    entries = held.proven(missing)
    if None in entries or held.proof is None:
        unproven = [i for i, entry in zip(missing, entries, strict=True) if entry is None]
        has_trunk = min(block_indices(held.contents)) < trunk_blocks
        other = "give up the head (nextn split FILE -o DIR --emit trunk)" if has_trunk else "make the head again"
        ledger.doubt(
            f"{what}: no tensor proves the entry of {in_words(unproven)}: either take it from the trunk's source "
            f"(nextn convert, nextn join), or {other}"
        )
        return
    value = held.with_items([*items, *(entry for entry in entries if entry is not None)])
    added = listed(map(str, value.items[len(items) :]), 8)
    ledger.put_array(held.key, value, f"{added} for {in_words(missing)}: {held.proof.says}")
