"""Tokens, token types and merges of a byte-level BPE tokenizer.json, as GGUF wants them.

Source of the rules: conversion/base.py (`get_vocab_base`) and gguf-py/gguf/vocab.py of llama.cpp b11549.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nextn.convert.checkpoint import shown
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.vocabulary import TokenType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

# Added tokens that are meant as control tokens whether or not their file says so.
SPECIAL_TEXTS = frozenset({"<pad>", "<mask>", "<2mass>", "[@BOS@]"})
SPECIAL_FRAMES = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
WORD_BOUNDARY = "\u2581"
# The byte-level alphabet's spelling of a space: the only way to write one inside a part of a merge.
BYTE_LEVEL_SPACE = "\u0120"


@dataclass(frozen=True)
class AddedToken:
    """An entry of `added_tokens`: cut out of the text before the pre-tokenizer sees it."""

    id: int
    text: str
    special: bool
    normalized: bool


@dataclass(frozen=True)
class Vocabulary:
    """Texts and types of the ids 0 … vocab_size−1, the merges in order of rank, and the added tokens' ids by text."""

    tokens: Sequence[str]
    types: Sequence[TokenType]
    merges: Sequence[str]
    added_ids: Mapping[str, int]


def read_vocabulary(tokenizer: Mapping[str, Any], vocab_size: int, path: Path) -> Vocabulary:
    """The vocabulary of a parsed tokenizer.json, `path`, padded with unused tokens to `vocab_size` entries.

    Raises InputError when the model is not a plain BPE, an entry is malformed, an id is taken twice or not below
    `vocab_size`, a text occurs twice, or merges are missing.
    """
    model = _bpe_model(tokenizer, path)
    added = _added_tokens(tokenizer, path)
    base = _base_ids(model, path)
    _check_ids(base, added, vocab_size, path)
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [TokenType.UNUSED] * vocab_size
    for text, id_ in base.items():
        tokens[id_], types[id_] = text, TokenType.NORMAL
    texts = _decoded_texts(tokenizer, added, path)
    for token, text in zip(added, texts, strict=True):
        is_control = token.special or looks_special(text)
        tokens[token.id] = text if is_control else text.replace(WORD_BOUNDARY, " ")
        types[token.id] = TokenType.CONTROL if is_control else TokenType.USER_DEFINED
    _check_unique(tokens, path)
    # The first of two entries with one text counts, as in upstream's search.
    added_ids = {token.text: token.id for token in reversed(added)}
    return Vocabulary(tokens, types, _merges(model, path), added_ids)


def looks_special(text: str) -> bool:
    """Whether an added token is a control token by its spelling, whatever its `special` says."""
    return text in SPECIAL_TEXTS or any(text.startswith(a) and text.endswith(b) for a, b in SPECIAL_FRAMES)


def _bpe_model(tokenizer: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    model = tokenizer.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "BPE":
        raise InputError(
            "unsupported-tokenizer",
            f"holds a tokenizer model of type {kind}; only byte-level BPE can be converted",
            subject=str(path),
        )
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(affix):
            raise InputError(
                "unsupported-tokenizer", f"uses {affix} {model[affix]!r}, which GGUF cannot express", subject=str(path)
            )
    return model


def _added_tokens(tokenizer: Mapping[str, Any], path: Path) -> list[AddedToken]:
    tokens = []
    for entry in _as_list(tokenizer.get("added_tokens") or [], "added_tokens", path):
        match entry:
            case {"id": int(id_), "content": str(text)}:
                special = bool(entry.get("special", False))
                tokens.append(AddedToken(id_, text, special, bool(entry.get("normalized", not special))))
            case _:
                raise _malformed(f"an entry of added_tokens has no id or no content: {shown(entry)}", path)
    return tokens


def _base_ids(model: Mapping[str, Any], path: Path) -> Mapping[str, int]:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict):
        raise _malformed("model.vocab is not an object", path)
    for text, id_ in vocab.items():
        if type(id_) is not int:
            raise _malformed(f"the id of token {text!r} is not an integer: {shown(id_)}", path)
    return vocab


def _check_ids(base: Mapping[str, int], added: Iterable[AddedToken], vocab_size: int, path: Path) -> None:
    owners: dict[int, str] = {}
    for text, id_ in (*base.items(), *((token.text, token.id) for token in added)):
        if not 0 <= id_ < vocab_size:
            raise InputError(
                "token-range",
                f"token {text!r} has id {id_}, but vocab_size is {vocab_size}",
                subject=str(path),
                remedy="take tokenizer.json and config.json from the same model",
            )
        if owners.setdefault(id_, text) != text:
            raise InputError("duplicate-id", f"tokens {owners[id_]!r} and {text!r} share id {id_}", subject=str(path))
        if base.get(text, id_) != id_:
            raise InputError(
                "duplicate-token",
                f"token {text!r} has id {base[text]} in model.vocab and {id_} in added_tokens",
                subject=str(path),
            )


def _check_unique(tokens: Sequence[str], path: Path) -> None:
    text, count = Counter(tokens).most_common(1)[0] if tokens else ("", 1)
    if count > 1:
        ids = [i for i, other in enumerate(tokens) if other == text]
        raise InputError(
            "duplicate-token",
            f"ids {', '.join(map(str, ids))} all have the text {text!r}, which llama.cpp refuses",
            subject=str(path),
        )


def _decoded_texts(tokenizer: Mapping[str, Any], added: Sequence[AddedToken], path: Path) -> list[str]:
    """The texts of added tokens as decoding gives them back.

    An added token that is not normalized is found in the raw text whatever the normalizer, so only the decoder can
    change it; the byte-level decoder leaves ASCII as it is. The library is loaded for what remains.
    """
    decoder = tokenizer.get("decoder")
    byte_level = isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"
    doubtful = {t.text for t in added if not t.normalized and not (byte_level and t.text.isascii())}
    if not doubtful:
        return [t.text for t in added]
    from tokenizers import Tokenizer

    try:
        library = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every refusal
        raise _malformed(f"the tokenizers library refuses it: {error}", path) from error
    decoded = {
        text: library.decode(library.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
        for text in doubtful
    }
    return [decoded.get(t.text, t.text) for t in added]


def _merges(model: Mapping[str, Any], path: Path) -> list[str]:
    merges = [_merge(entry, path) for entry in _as_list(model.get("merges") or [], "model.merges", path)]
    if not merges:
        raise InputError("no-merges", "holds no merges, without which llama.cpp refuses the file", subject=str(path))
    return merges


def _merge(entry: object, path: Path) -> str:
    match entry:
        case [str(left), str(right)]:
            return " ".join(part.replace(" ", BYTE_LEVEL_SPACE) for part in (left, right))
        case str(merge) if " " in merge[1:]:
            return merge
    raise _malformed(f"not a merge of two parts: {shown(entry)}", path)


def merge_parts(merge: str) -> tuple[str, str]:
    """The two parts of a written merge; readers split at the first space after the first character."""
    cut = merge.index(" ", 1)
    return merge[:cut], merge[cut + 1 :]


def _as_list(value: object, name: str, path: Path) -> list[Any]:
    if not isinstance(value, list):
        raise _malformed(f"{name} is not a list", path)
    return value


def _malformed(message: str, path: Path) -> InputError:
    return InputError("bad-tokenizer", message, subject=str(path))
