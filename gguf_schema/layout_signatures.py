"""How a file's layout is recognised: by which tensors and keys it has, and how large they are.

A signature takes the `Facts` of a file and says why the file is of its layout, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nextn.gguf_schema.nextn_generic import block_indices, head_blocks

if TYPE_CHECKING:
    from nextn.gguf_schema.contents import Contents


@dataclass(frozen=True)
class Facts:
    """What signatures look at: the file, its head's block (None without one), whether it has blocks before that."""

    contents: Contents
    head: int | None
    has_trunk: bool

    def has(self, *names: str) -> str | None:
        """The first of these tensors that is there; `{i}` stands for the head's block."""
        return next((name for n in names if (name := n.format(i=self.head)) in self.contents.tensors), None)

    def elements(self, name: str) -> int:
        """Number of elements of a tensor of the head's block; 0 when it is not there."""
        tensor = self.contents.tensors.get(name.format(i=self.head))
        return tensor.elements if tensor else 0

    def number(self, key: str) -> int:
        """An integer key of the architecture; 0 when it is not there."""
        value = self.contents.get(key)
        return value.value if value and isinstance(value.value, int) else 0

    @property
    def ratios(self) -> tuple[int, int] | None:
        """A trunk block's compress ratio and the head's, when the file has an entry for each block."""
        value = self.contents.get("attention.compress_ratios")
        items = value.items if value else ()
        if self.head is None or len(items) != self.head + 1 or not all(isinstance(item, int) for item in items):
            return None
        return max(map(int, items[:-1]), default=0), int(items[-1])

    @property
    def wide(self) -> int:
        """Values of all residual streams."""
        return self.number("hyper_connection.count") * self.number("embedding_length")


def facts_of(contents: Contents) -> Facts:
    """What the signatures look at. A head whose tensors are named `mtp.` stands at the last block that is declared."""
    heads, blocks = head_blocks(contents), block_indices(contents)
    head = min(heads, default=None)
    if head is None and any(name.startswith("mtp.") for name in contents.tensors):
        declared = contents.get("block_count")
        head = int(declared.value) - 1 if declared and isinstance(declared.value, int) else max(blocks, default=0)
    return Facts(contents, head, any(head is None or block < head for block in blocks))


def there(*names: str) -> Callable[[Facts], str | None]:
    """One of these tensors is there."""
    return lambda facts: f"{found} is there" if (found := facts.has(*names)) else None


def last_ratio(facts: Facts) -> str | None:
    """The head's compress ratio is 0 while the trunk's are not."""
    ratios = facts.ratios
    if ratios is None or facts.has("blk.{i}.nextn.hc_head_norm.weight") is None or ratios[0] == 0 or ratios[1]:
        return None
    return f"attention.compress_ratios ends with 0 and has {ratios[0]} before"


def trunk_mixer(facts: Facts) -> str | None:
    """A file without a trunk has the trunk's mixer, and no mixer of the head."""
    named = facts.has("blk.{i}.nextn.hc_head_norm.weight", "blk.{i}.nextn.shared_head_norm.weight")
    if facts.has_trunk or facts.head is None or named:
        return None
    return "output_hc_down.weight is there without a trunk" if facts.has("output_hc_down.weight") else None


def split_hidden(facts: Facts) -> str | None:
    """The head's projection is in two, under upstream's names otherwise."""
    if facts.has("blk.{i}.nextn.hc_head_norm.weight") is None or facts.has("blk.{i}.nextn.eh_proj.weight"):
        return None
    found = facts.has("blk.{i}.nextn.embed_proj.weight", "blk.{i}.nextn.hidden_proj.weight")
    return f"{found} is there instead of nextn.eh_proj" if found else None


def wide_shared_norm(facts: Facts) -> str | None:
    """The norm that other architectures call the shared head's holds the mixer's gamma."""
    width = facts.elements("blk.{i}.nextn.shared_head_norm.weight")
    return f"nextn.shared_head_norm holds {width} values, a gamma of all streams" if 0 < width == facts.wide else None


def narrow_shared_norm(facts: Facts) -> str | None:
    """The same norm is narrow, and nothing mixes the head's streams."""
    width = facts.elements("blk.{i}.nextn.shared_head_norm.weight")
    if not width or width == facts.wide or facts.has("blk.{i}.nextn.hc_head_norm.weight", "output_hc_down.weight"):
        return None
    return f"nextn.shared_head_norm holds {width} values, and there is no mixer of the head"


def short_arrays(facts: Facts) -> str | None:
    """Arrays over blocks are as long as the trunk."""
    heads, blocks = facts.contents.get("attention.head_count"), facts.number("block_count")
    if heads is None or heads.element is None or facts.head != len(heads.items) or blocks <= len(heads.items):
        return None
    return f"attention.head_count has {len(heads.items)} entries for {blocks} blocks"


def fork_pretokenizer(facts: Facts) -> str | None:
    """The pre-tokenizer has a name that only the fork knows."""
    pre = facts.contents.keys.get("tokenizer.ggml.pre")
    return "tokenizer.ggml.pre is step35" if pre and pre.value == "step35" else None
