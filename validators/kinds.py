"""What the tensors show that keys say too: above all which kind of layer each block is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from nextn.gguf_schema.architecture import Hyperparameters, Rule, block_of
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.nextn_generic import EMBEDDING, block_indices
from nextn.gguf_schema.reading import ARCHITECTURES


@dataclass(frozen=True)
class Kinds:
    """How the two kinds of layers of a family show: in a key with an entry for each block, and by tensors.

    A block with the tensor `linear` has linear attention, one with `full` full attention; `linear_entry` and
    `full_entry` are what the key then says.
    """

    key: str
    linear: str
    full: str
    linear_entry: int | bool
    full_entry: int | bool

    @property
    def field(self) -> str:
        """The hyper-parameter of the key."""
        return self.key.replace(".", "_")

    def is_linear(self, entry: Any) -> bool:
        """What an entry of the key says."""
        return bool(entry) == bool(self.linear_entry)


# The number of residual streams that the loader of glm5-next knows.
HYPER_CONNECTIONS = 4

KINDS: dict[str, Kinds] = {
    "qwen4exp": Kinds("attention.recurrent_layers", "ssm_a", "attn_q.weight", True, False),
    "glm5-next": Kinds("attention.head_count_kv", "ssm_a", "attn_kv_a_mqa.weight", 0, 1),
}


def no_heads(h: Any) -> bool:
    """Whether a block is said to have no query heads, though every block has some."""
    count = h.attention_head_count
    return 0 in count if isinstance(count, tuple) else count == 0


HEADS: tuple[str, Callable[[Any], bool]] = ("attention_head_count", no_heads)

# Values that no loader takes, and that dimensions follow from.
REFUSED: dict[str, tuple[tuple[str, Callable[[Any], bool]], ...]] = {
    "step35": (HEADS,),
    "qwen4exp": (
        HEADS,
        ("hyper_connection_count", lambda h: (h.hyper_connection_count or 0) <= 1),
    ),
    "glm5-next": (
        HEADS,
        ("hyper_connection_count", lambda h: h.hyper_connection_count != HYPER_CONNECTIONS),
        ("attention_indexer_kpool", lambda h: not pools_fit(h)),
    ),
}


def pools_fit(h: Any) -> bool:
    """Whether the pools of the indexer have more than one key and divide what it selects."""
    kpool, top_k = h.attention_indexer_kpool, h.attention_indexer_top_k
    return kpool is None or (kpool > 1 and (top_k is None or top_k % kpool == 0))


def kinds_shown(contents: Contents, kinds: Kinds) -> dict[int, bool]:
    """Whether each block that shows a kind has linear attention."""
    shown: dict[int, bool] = {}
    for i in block_indices(contents):
        linear, full = (f"blk.{i}.{name}" in contents.tensors for name in (kinds.linear, kinds.full))
        if linear is not full:
            shown[i] = linear
    return shown


def kinds_wrong(contents: Contents, h: Hyperparameters) -> Iterator[tuple[int, bool]]:
    """Blocks whose tensors show another kind than the keys, and whether they have linear attention."""
    kinds = KINDS.get(contents.architecture)
    if kinds is None:
        return
    entries = entries_of(contents, h, kinds)
    for i, linear in sorted(kinds_shown(contents, kinds).items()):
        if i < len(entries) and kinds.is_linear(entries[i]) is not linear:
            yield i, linear


def entries_of(contents: Contents, h: Hyperparameters, kinds: Kinds) -> tuple[Any, ...]:
    """What the key says of each block, without entries that it does not have."""
    return tuple(_arrays_as_they_are(contents, h).get(kinds.field) or getattr(h, kinds.field) or ())


def as_shown(contents: Contents, h: Hyperparameters) -> Hyperparameters:
    """The hyper-parameters where tensors show them, so that one wrong key is not found again in each tensor.

    These are the kinds of layers, the place of the n-gram layer, the rows of the embedding; and that there is an output
    matrix, so that one that is missing is looked for: models of the families have their own. What keys do not tell,
    because they are too short or no loader takes their value, is left open.
    """
    changed: dict[str, Any] = {"tied_output": False} if hasattr(h, "tied_output") else {}
    changed |= _arrays_as_they_are(contents, h)
    if kinds := KINDS.get(contents.architecture):
        entries = list(entries_of(contents, h, kinds))
        entries += [None] * (h.trunk_blocks + h.nextn_blocks - len(entries))
        for i, linear in kinds_shown(contents, kinds).items():
            if i < len(entries) and (entries[i] is None or kinds.is_linear(entries[i]) is not linear):
                entries[i] = kinds.linear_entry if linear else kinds.full_entry
        changed[kinds.field] = tuple(entries)
    changed |= {name: None for name, refused in REFUSED.get(contents.architecture, ()) if refused(h)}
    if hasattr(h, "ple_layers") and (layers := ngram_layers(contents)):
        changed["ple_layers"] = layers
    if hasattr(h, "leading_dense_block_count") and contents.get("leading_dense_block_count") is None:
        changed["leading_dense_block_count"] = _leading_dense_blocks(contents)
    embedding = contents.tensors.get(EMBEDDING)
    if embedding and len(embedding.ne) > 1:
        changed["vocab_size"] = embedding.ne[1]
    return replace(h, **changed)


def _arrays_as_they_are(contents: Contents, h: Hyperparameters) -> dict[str, Any]:
    """Arrays over blocks that end before the last block, without the entries that reading made up."""
    cut: dict[str, Any] = {}
    for spec in ARCHITECTURES[contents.architecture].keys:
        value = contents.get(spec.name) if spec.rule in (Rule.PER_BLOCK, Rule.PER_TRUNK_BLOCK) else None
        held = getattr(h, spec.field, None)
        if value and value.element is not None and held is not None and len(value.items) < len(held):
            cut[spec.field] = held[: len(value.items)]
    return cut


def _leading_dense_blocks(contents: Contents) -> int | None:
    """Number of leading blocks with a plain feed-forward network; None in a file without the trunk."""
    blocks = block_indices(contents)
    dense = [i for i in blocks if f"blk.{i}.ffn_gate.weight" in contents.tensors]
    return max(dense, default=-1) + 1 if 0 in blocks else None


def ngram_layers(contents: Contents) -> tuple[int, ...]:
    """The blocks with the tensors of an n-gram layer."""
    names = (name for name in contents.tensors if ".ple_" in name)
    return tuple(sorted({block for name in names if (block := block_of(name)) is not None}))
