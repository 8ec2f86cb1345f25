"""The `tokenizer.*` keys of a checkpoint, from its tokenizer.json and the files beside it.

Source of the rules: conversion/base.py (`_set_vocab_gpt2`, `_set_vocab_glm`) of llama.cpp b11549.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nextn.convert.chat_template import chat_template_keys
from nextn.convert.checkpoint import read_json, shown
from nextn.convert.special_tokens import Style, find_special_tokens
from nextn.convert.vocabulary import Vocabulary, merge_parts, read_vocabulary
from nextn.gguf_schema.contents import Value, array, string
from nextn.gguf_schema.errors import InputError, UsageError, counted, listed
from nextn.gguf_schema.pretokenizers import PRETOKENIZERS, Pretokenizer, recognise, split_patterns
from nextn.gguf_schema.types import ValueType
from nextn.validators.findings import Finding, Findings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
REPLACEMENT = "\ufffd"  # what a decoder puts for bytes that are no text


@dataclass(frozen=True)
class TokenizerKeys:
    """The `tokenizer.*` keys in file order, and what was doubtful about them."""

    keys: Mapping[str, Value]
    findings: tuple[Finding, ...]


def tokenizer_keys(
    folder: Path, config: Mapping[str, Any], vocab_size: int, *, style: Style, pre: str | None = None
) -> TokenizerKeys:
    """Read the tokenizer of the checkpoint in `folder`; `config` is its config.json, `vocab_size` the text model's.

    `pre` names the pre-tokenizer instead of recognising it. Raises UsageError for an unknown `pre`, and InputError when
    tokenizer.json is missing, malformed, no byte-level BPE, larger than `vocab_size`, or not recognised.
    """
    if pre is not None and pre not in PRETOKENIZERS:
        raise UsageError(
            "unknown-pre", f"no pre-tokenizer type is named {pre!r}", subject="--pre", remedy=f"known: {_known()}"
        )
    path = folder / TOKENIZER
    if not path.is_file():
        raise InputError(
            "no-tokenizer",
            "is missing: tokens and merges are read from it",
            subject=str(path),
            remedy="put the model's tokenizer.json there; transformers writes one with AutoTokenizer.save_pretrained",
        )
    tokenizer = read_json(path)
    tokenizer_config = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
    vocabulary = read_vocabulary(tokenizer, vocab_size, path)
    findings = Findings()
    pretokenizer = _pretokenizer(tokenizer, pre, path, findings)
    _compare_added_tokens(tokenizer_config, vocabulary.added_ids, folder, findings)
    for text, id_ in vocabulary.added_ids.items():
        if REPLACEMENT in vocabulary.tokens[id_] and REPLACEMENT not in text:
            message = f"added token {text!r} ({id_}) does not survive decoding: no text will match it"
            findings.warn("added-token-text", str(path), message, "set `normalized` of this token to true")
    _check_texts(vocabulary, path, findings)
    _note_normalizer(tokenizer.get("normalizer"), path, findings)
    special = find_special_tokens(
        tokenizer.get("post_processor"),
        tokenizer_config,
        config,
        added_ids=vocabulary.added_ids,
        vocab_size=vocab_size,
        style=style,
        default_bos=pretokenizer.default_bos,
    )
    findings += special.findings
    keys = {
        "tokenizer.ggml.model": string("gpt2"),
        "tokenizer.ggml.pre": string(pretokenizer.name),
        "tokenizer.ggml.tokens": array(ValueType.STRING, vocabulary.tokens),
        "tokenizer.ggml.token_type": array(ValueType.INT32, map(int, vocabulary.types)),
        "tokenizer.ggml.merges": array(ValueType.STRING, vocabulary.merges),
    }
    keys |= special.keys()
    keys |= chat_template_keys(folder, tokenizer_config, findings)
    return TokenizerKeys(keys, tuple(findings))


def _known() -> str:
    return ", ".join(PRETOKENIZERS)


def _pretokenizer(tokenizer: Mapping[str, Any], pre: str | None, path: Path, findings: Findings) -> Pretokenizer:
    seen = tokenizer.get("pre_tokenizer")
    recognised = recognise(seen)
    name = pre or recognised
    if name is None:
        shown = json.dumps(split_patterns(seen) or seen, ensure_ascii=False)
        raise InputError(
            "unknown-pre-tokenizer",
            f"its pre-tokenizer is not known: {shown[:400]}",
            subject=str(path),
            remedy=f"if it is equal to a known type, name it with --pre ({_known()})",
        )
    chosen = PRETOKENIZERS[name]
    if recognised is not None and PRETOKENIZERS[recognised].regexes != chosen.regexes:
        findings.warn("pre-tokenizer", str(path), f"has the regexes of {recognised}; {name} is written as asked")
    ignores = bool(tokenizer["model"].get("ignore_merges", False))
    if ignores != chosen.ignore_merges:
        findings.warn(
            "ignore-merges",
            str(path),
            f"says ignore_merges {ignores}, but llama.cpp takes {chosen.ignore_merges} for {name}: some words are"
            " tokenized differently",
            "name another type with --pre if one fits",
        )
    return chosen


def _compare_added_tokens(
    tokenizer_config: Mapping[str, Any], added_ids: Mapping[str, int], folder: Path, findings: Findings
) -> None:
    """Warn of added tokens that only tokenizer_config.json lists: transformers would add them on loading."""
    declared = tokenizer_config.get("added_tokens_decoder")
    entries = declared.items() if isinstance(declared, dict) else ()
    strangers = [
        f"{text!r} ({id_})"
        for id_, entry in entries
        if isinstance(entry, dict) and isinstance(text := entry.get("content"), str) and str(added_ids.get(text)) != id_
    ]
    if strangers:
        findings.warn(
            "added-tokens",
            str(folder / TOKENIZER_CONFIG),
            f"lists {len(strangers)} tokens that added_tokens of tokenizer.json has not, such as {strangers[0]}",
            "save the tokenizer again with transformers, so that tokenizer.json holds them",
        )


def _check_texts(vocabulary: Vocabulary, path: Path, findings: Findings) -> None:
    """Warn of tokens and merges that a reader cannot use."""
    if empty := [str(id_) for id_, text in enumerate(vocabulary.tokens) if not text]:
        findings.warn("empty-token", str(path), f"tokens without a text, which no text will match: ids {listed(empty)}")
    known = set(vocabulary.tokens)
    useless = [m for m in vocabulary.merges if not known.issuperset((*(parts := merge_parts(m)), "".join(parts)))]
    if useless:
        message = f"{counted(len(useless), 'merge')} of parts, or to a whole, that are no tokens: {shown(useless[0])}"
        findings.warn("unknown-merge", str(path), message, "take vocabulary and merges from the same tokenizer")


def _note_normalizer(normalizer: object, path: Path, findings: Findings) -> None:
    match normalizer:
        case None | {"type": "Sequence", "normalizers": []}:
            return
        case {"type": "Sequence", "normalizers": [*parts]}:
            names = [str(part.get("type")) for part in parts if isinstance(part, dict)]
        case {"type": str(name)}:
            names = [name]
        case _:
            names = ["?"]
    message = f"normalizes text ({', '.join(names)}), llama.cpp does not: text that this changes is tokenized otherwise"
    findings.note("normalizer", str(path), message)
