"""Pre-tokenizer types of byte-level BPE vocabularies: their regexes, and how a tokenizer.json shows which one it is.

Source: the types and regexes of llama.cpp b11549 (src/llama-vocab.cpp), in the spelling that tokenizer.json files use.
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GLM = (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",)


@dataclass(frozen=True)
class Pretokenizer:
    """A pre-tokenizer type, named as in the key `tokenizer.ggml.pre`.

    `regexes` are applied one after the other, each to every piece that the one before it left; text between matches is
    a piece of its own. With `ignore_merges` a piece that is a token as a whole is taken without merging. Without
    `default_bos` a missing bos key means that there is none; with it llama.cpp takes id 11.
    """

    name: str
    regexes: tuple[str, ...]
    ignore_merges: bool = False
    default_bos: bool = True


# Where two types have the same regexes, the first is the one that is recognised.
PRETOKENIZERS: dict[str, Pretokenizer] = {
    p.name: p
    for p in (
        Pretokenizer(
            "deepseek-v3",
            (
                r"\p{N}{1,3}",
                "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
            ),
        ),
        Pretokenizer(
            "qwen35",
            (
                rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
            ),
        ),
        Pretokenizer("glm4", _GLM, ignore_merges=True, default_bos=False),
        Pretokenizer("glm5", _GLM, ignore_merges=True, default_bos=False),
        Pretokenizer("chatglm-bpe", _GLM, default_bos=False),
    )
}


def split_patterns(pre_tokenizer: object) -> tuple[str, ...] | None:
    """The regexes of a tokenizer.json's `pre_tokenizer`, with literal CR and LF spelled as `\\r` and `\\n`.

    None unless it is a Sequence of isolating regex Splits, then a ByteLevel that neither adds a space nor splits: only
    that shape means the same to llama.cpp.
    """
    match pre_tokenizer:
        case {
            "type": "Sequence",
            "pretokenizers": [*splits, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}],
        }:
            patterns = [_isolated_regex(split) for split in splits]
        case _:
            return None
    known = tuple(pattern for pattern in patterns if pattern is not None)
    return known if known and len(known) == len(patterns) else None


def recognise(pre_tokenizer: object) -> str | None:
    """The type whose regexes a tokenizer.json's `pre_tokenizer` has, or None.

    By structure rather than by a hash of encoded text (conversion/base.py of llama.cpp), which needs the exact
    vocabulary and so knows no fine-tuned or shortened one.
    """
    patterns = split_patterns(pre_tokenizer)
    return next((p.name for p in PRETOKENIZERS.values() if p.regexes == patterns), None)


def _isolated_regex(split: object) -> str | None:
    match split:
        case {"type": "Split", "pattern": {"Regex": str(regex)}, "behavior": "Isolated", "invert": False}:
            return regex.replace("\r", r"\r").replace("\n", r"\n")
    return None
