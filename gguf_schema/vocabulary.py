"""Words of a file's vocabulary that the converter writes and readers act on."""

from __future__ import annotations

from enum import IntEnum


class TokenType(IntEnum):
    """Entries of `tokenizer.ggml.token_type` (llama.h of llama.cpp b11549, LLAMA_TOKEN_TYPE_*)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6
