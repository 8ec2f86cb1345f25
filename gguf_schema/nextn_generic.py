"""What every llama.cpp architecture with a nextn block has in common: the role of a file by its tensors."""

from __future__ import annotations

from nextn.gguf_schema.architecture import Role, block_of
from nextn.gguf_schema.contents import Contents

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"

# Keys of a shared sidecar: that it is one, and which target it borrows from. The hash is over the data bytes of the
# embedding that a self-contained file of the same run would hold, in hexadecimal.
SHARED = "nextn.shared"
TARGET_NAME = "nextn.target.name"
TARGET_EMBEDDING_SHA256 = "nextn.target.token_embd_sha256"


def role_of(contents: Contents) -> Role | None:
    """The role that the tensors of a file show, never a single probe; None when they show none.

    Blocks with a `nextn.` tensor are heads, all other blocks are the trunk's.
    """
    blocks = {block for name in contents.tensors if (block := block_of(name)) is not None}
    heads = {block for name in contents.tensors if ".nextn." in name and (block := block_of(name)) is not None}
    if not heads:
        return Role.TRUNK if blocks else None
    if blocks - heads:
        return Role.COMBINED
    return Role.MTP if EMBEDDING in contents.tensors else Role.MTP_SHARED
