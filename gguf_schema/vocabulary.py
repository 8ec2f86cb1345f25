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


# Texts that end a generation wherever a vocabulary has them as a token (llama.cpp b11549, src/llama-vocab.cpp).
_TEXTS = """
<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|>
<EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜>
[e~[ <|ifm|im_end|>
"""
END_TEXTS: frozenset[str] = frozenset(_TEXTS.split())
# Fill-in-the-middle tokens that end it too, by key or else by the first of these texts that is a token.
FIM_END: dict[str, tuple[str, ...]] = {
    "tokenizer.ggml.fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "tokenizer.ggml.fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "tokenizer.ggml.fim_sep_token_id": ("<|file_sep|>", "<|plamo:file_separator|>"),
}
END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
# What llama.cpp takes for an absent bos or eos of a byte-level BPE vocabulary.
DEFAULT_SPECIAL_ID = 11
