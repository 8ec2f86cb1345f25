"""What every llama.cpp architecture with a nextn block has in common: the blocks and the role of a file by its tensors.

Source of what the loader computes: `nextn_flags` and `load_hparams` in src/llama-model.cpp of llama.cpp b11549.
"""

from __future__ import annotations

from dataclasses import dataclass

from nextn.gguf_schema.architecture import MAX_BLOCKS, Role, block_of
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.nextn_architectures import NEXTN_ARCHITECTURES, WHOLE_HEAD_TENSORS
from nextn.gguf_schema.types import ValueType

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
TOKENS = "tokenizer.ggml.tokens"

BLOCK_COUNT = "block_count"
NEXTN_PREDICT_LAYERS = "nextn_predict_layers"
EH_PROJ = "nextn.eh_proj.weight"

# Keys of a shared sidecar: that it is one, and which target it borrows from. The hash is over the data bytes of the
# embedding that a self-contained file of the same run would hold, in hexadecimal.
SHARED = "nextn.shared"
TARGET_NAME = "nextn.target.name"
TARGET_EMBEDDING_SHA256 = "nextn.target.token_embd_sha256"
# Says that a file without an output matrix is meant to be so: the embedding is the model's output matrix too.
TIED_OUTPUT = "nextn.tied_output"


def block_indices(contents: Contents) -> set[int]:
    """Indices of all blocks that have a tensor."""
    return {block for name in contents.tensors if (block := block_of(name)) is not None}


def is_tied(contents: Contents) -> bool:
    """Whether the file says that the embedding takes the place of the output matrix, which it does not hold."""
    value = contents.keys.get(TIED_OUTPUT)
    return value is not None and value.value is True and OUTPUT not in contents.tensors


def head_blocks(contents: Contents) -> set[int]:
    """Indices of the blocks that a tensor shows to be a head's.

    These have a `nextn.` tensor; where a file is a head as a whole (gemma4-assistant), all blocks are the head's. Forks
    that name a head's own tensors `mtp.` do not number it: it is the first one that the keys declare.
    """
    if is_whole_head(contents):
        return block_indices(contents)
    heads = {block for name in contents.tensors if ".nextn." in name and (block := block_of(name)) is not None}
    keys = declared(contents)
    if not heads and keys.heads and keys.trunk_blocks and any(name.startswith("mtp.") for name in contents.tensors):
        return {keys.trunk_blocks} & block_indices(contents)
    return heads


def is_whole_head(contents: Contents) -> bool:
    """Whether the file is of an architecture that is a draft head and nothing else."""
    known = NEXTN_ARCHITECTURES.get(contents.architecture)
    return bool(known and known.whole) or any(name in contents.tensors for name in WHOLE_HEAD_TENSORS)


@dataclass(frozen=True)
class Declared:
    """What the keys say about blocks; a key that is absent or no integer is None."""

    block_count: int | None
    nextn_predict_layers: int | None

    @property
    def heads(self) -> int:
        """Number of heads that a loader assumes."""
        return self.nextn_predict_layers or 0

    @property
    def trunk_blocks(self) -> int | None:
        """Number of blocks that a loader takes for the trunk; None when the keys do not say, or contradict."""
        if self.block_count is None or self.heads > self.block_count:
            return None
        return self.block_count - self.heads


def declared(contents: Contents) -> Declared:
    """What the keys say about blocks."""
    return Declared(_unsigned(contents, BLOCK_COUNT), _unsigned(contents, NEXTN_PREDICT_LAYERS))


def _unsigned(contents: Contents, key: str) -> int | None:
    value = contents.get(key)
    if value is None or value.type is ValueType.BOOL or not isinstance(value.value, int) or value.value < 0:
        return None
    return value.value


def blocks_of(contents: Contents) -> tuple[int, int]:
    """Number of trunk blocks of the model and of nextn blocks: by the tensors; without a head also by the keys.

    The first number is also the index of the first head; a file without the trunk has none of the blocks before it.
    """
    blocks, heads = block_indices(contents), head_blocks(contents)
    keys = declared(contents)
    if heads:
        first, start = min(heads), keys.trunk_blocks or 0
        # A first head that is missing, or lost all its `nextn.` tensors in a file that has no trunk, is one still.
        if keys.heads and 0 < start < first and (start <= min(blocks) or blocks.isdisjoint(range(start, first))):
            first = start
        return first, max(blocks) + 1 - first
    return max(min(keys.trunk_blocks or 0, MAX_BLOCKS), max(blocks, default=-1) + 1), 0


def role_of(contents: Contents) -> Role | None:
    """The role that the tensors of a file show, never a single probe; None when they show none.

    Blocks with a `nextn.` tensor are heads, all other blocks before them are the trunk's.
    """
    blocks, heads = block_indices(contents), head_blocks(contents)
    if not heads:
        return Role.TRUNK if blocks else None
    first_head, _ = blocks_of(contents)
    if min(blocks) < first_head:
        return Role.COMBINED
    return Role.MTP if EMBEDDING in contents.tensors else Role.MTP_SHARED


@dataclass(frozen=True)
class Flags:
    """The two booleans by which llama.cpp b11549 makes the tensors of the trunk, or of the heads, optional."""

    mtp_only: bool = False
    trunk_only: bool = False


def trunk_probe(contents: Contents) -> str | None:
    """The tensor whose absence makes llama.cpp b11549 take a file for MTP-only; None when its loader does not look."""
    known = NEXTN_ARCHITECTURES.get(contents.architecture)
    return f"blk.0.{known.probe}" if known and known.probe else None


def head_probe(contents: Contents) -> str | None:
    """The tensor whose absence makes llama.cpp b11549 take a file for trunk-only; None when its loader does not look.

    It is of the first head that the keys declare.
    """
    start = declared(contents).trunk_blocks
    return None if start is None or trunk_probe(contents) is None else f"blk.{start}.{EH_PROJ}"


def flags_of(contents: Contents) -> Flags:
    """The flags exactly as llama.cpp b11549 computes them: only where heads are declared, by one tensor each."""
    trunk, head = trunk_probe(contents), head_probe(contents)
    if not declared(contents).heads or trunk is None or head is None:
        return Flags()
    return Flags(mtp_only=trunk not in contents.tensors, trunk_only=head not in contents.tensors)
