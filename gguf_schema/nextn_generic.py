"""What every llama.cpp architecture with a nextn block has in common: the role of a file by its tensors."""

from __future__ import annotations

from nextn.gguf_schema.architecture import Role, block_of
from nextn.gguf_schema.contents import Contents

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
TOKENS = "tokenizer.ggml.tokens"

# Keys of a shared sidecar: that it is one, and which target it borrows from. The hash is over the data bytes of the
# embedding that a self-contained file of the same run would hold, in hexadecimal.
SHARED = "nextn.shared"
TARGET_NAME = "nextn.target.name"
TARGET_EMBEDDING_SHA256 = "nextn.target.token_embd_sha256"


def block_indices(contents: Contents) -> set[int]:
    """Indices of all blocks that have a tensor."""
    return {block for name in contents.tensors if (block := block_of(name)) is not None}


def head_blocks(contents: Contents) -> set[int]:
    """Indices of the blocks that have a `nextn.` tensor: the heads."""
    return {block for name in contents.tensors if ".nextn." in name and (block := block_of(name)) is not None}


def blocks_of(contents: Contents) -> tuple[int, int]:
    """Number of trunk blocks and of nextn blocks: by the tensors where they show a head, else as the keys declare."""
    blocks, heads = block_indices(contents), head_blocks(contents)
    if heads:
        return min(heads), max(blocks) + 1 - min(heads)
    declared, nextn = (contents.get(key) for key in ("block_count", "nextn_predict_layers"))
    if declared is None or not isinstance(declared.value, int):
        return max(blocks, default=-1) + 1, 0
    return declared.value - (nextn.value if nextn and isinstance(nextn.value, int) else 0), 0


def role_of(contents: Contents) -> Role | None:
    """The role that the tensors of a file show, never a single probe; None when they show none.

    Blocks with a `nextn.` tensor are heads, all other blocks are the trunk's.
    """
    blocks, heads = block_indices(contents), head_blocks(contents)
    if not heads:
        return Role.TRUNK if blocks else None
    if blocks - heads:
        return Role.COMBINED
    return Role.MTP if EMBEDDING in contents.tensors else Role.MTP_SHARED
