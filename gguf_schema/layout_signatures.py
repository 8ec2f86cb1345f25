"""What a layout is, as data, and how a file's is recognised: by which tensors and keys it has, and how large they are.

A signature takes the `Facts` of a file and says why the file is of its layout, or None. What the readers of some layout
take for granted is computed here too, from the keys of a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nextn.gguf_schema.architecture import MAX_BLOCKS
from nextn.gguf_schema.contents import array, u32
from nextn.gguf_schema.nextn_generic import SHARED, block_indices, declared, head_blocks
from nextn.gguf_schema.types import ValueType

if TYPE_CHECKING:
    from nextn.gguf_schema.contents import Contents, Value


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
        items = value.items if value and value.element is not None else ()
        if self.head is None or len(items) != self.head + 1 or not all(isinstance(item, int) for item in items):
            return None
        return max(map(int, items[:-1]), default=0), int(items[-1])

    @property
    def wide(self) -> int:
        """Values of all residual streams."""
        return self.number("hyper_connection.count") * self.number("embedding_length")


@dataclass(frozen=True)
class Implied:
    """A key whose value other keys imply, or readers take for granted; it stands behind key `behind` of the table."""

    key: str
    value: Callable[[Contents], Value | None]
    behind: str


@dataclass(frozen=True)
class Naming:
    """One layout of an architecture, as data.

    `evidence` says why a file is of it, or None. Maps are (upstream, here) pairs; names hold `{i}` for the head's
    block. `fused` maps an upstream tensor to the tensors here that it consists of, joined along the first dimension;
    `keys` maps keys, without the architecture; `values` are keys, with all their name, whose upstream value is another
    here. `spelling` is another `general.architecture`, which all keys begin with.

    `extra` keys are written here alone and `assumed` ones upstream alone. `last` names the arrays whose last entry is 0
    here and the trunk's upstream. `matrices` are gammas of all streams with a dimension for these. `marker` says that a
    sidecar is shared. `shown` are keys that a dimension of a tensor shows: (key, tensor of any block, dimension). `own`
    tensors are known nowhere else. A layout that `combines` goes with the names of any other. `closed` says of which
    subject, why and with which remedy nothing can be mapped to this layout and from it.
    """

    id: str
    architecture: str
    description: str
    evidence: Callable[[Facts], str | None]
    letter: str | None = None
    names: tuple[tuple[str, str], ...] = ()
    fused: tuple[tuple[str, tuple[str, ...]], ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    values: tuple[tuple[str, str, str], ...] = ()
    spelling: str | None = None
    extra: tuple[Implied, ...] = ()
    assumed: tuple[Implied, ...] = ()
    last: tuple[str, ...] = ()
    matrices: tuple[str, ...] = ()
    marker: str = SHARED
    shown: tuple[tuple[str, str, int], ...] = ()
    own: tuple[str, ...] = ()
    combines: bool = False
    closed: tuple[str, str, str] | None = None

    @property
    def renames(self) -> bool:
        """Whether names differ from upstream's in a way that is known, and not only values."""
        return bool(self.names or self.fused or self.keys or self.spelling)

    @property
    def prefix(self) -> str:
        """What the architecture's keys begin with."""
        return self.spelling or self.architecture

    def key(self, name: str) -> str:
        """All the name that an upstream key of the architecture's table has here."""
        return name if name.startswith("general.") else f"{self.prefix}.{dict(self.keys).get(name, name)}"


def facts_of(contents: Contents) -> Facts:
    """What the signatures look at. A head whose tensors are named `mtp.` stands at the last block that is declared."""
    heads, blocks = head_blocks(contents), block_indices(contents)
    head = min(heads, default=None)
    if head is None and any(name.startswith("mtp.") for name in contents.tensors):
        count = contents.get("block_count")
        head = max(int(count.value) - 1, 0) if count and isinstance(count.value, int) else max(blocks, default=0)
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


def matrix_gammas(facts: Facts) -> str | None:
    """A gamma of all streams has a dimension for them."""
    for name in ("nextn.hnorm.weight", "nextn.hc_head_norm.weight"):
        tensor = facts.contents.tensors.get(f"blk.{facts.head}.{name}")
        if tensor and 0 < facts.wide == tensor.elements > tensor.ne[0]:
            return f"{name.removesuffix('.weight')} is {list(tensor.ne)}, a matrix"
    return None


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


def shared_width(contents: Contents) -> Value | None:
    """The width of all shared experts, as one key of the old spelling has it; None when the keys do not say."""
    count, width = contents.get("expert_shared_count"), contents.get("expert_feed_forward_length")
    if count is None or width is None or not isinstance(count.value, int) or not isinstance(width.value, int):
        return None
    return u32(count.value * width.value)


def all_full(contents: Contents) -> Value | None:
    """An indexer in each block of the trunk; None when the keys do not say how many there are."""
    blocks = declared(contents).trunk_blocks
    return None if blocks is None or blocks > MAX_BLOCKS else array(ValueType.BOOL, [True] * blocks)
