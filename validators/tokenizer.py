"""Findings about the vocabulary of a file: whether there is one, and whether its parts and the embedding agree."""

from __future__ import annotations

from collections import Counter

from nextn.gguf_schema.contents import Contents, Value
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.nextn_generic import EMBEDDING, TOKENS
from nextn.gguf_schema.types import ValueType
from nextn.validators.findings import Findings
from nextn.validators.layout import TO_UPSTREAM
from nextn.validators.loader_vocabulary import (
    BYTE_PAIRS,
    MERGES,
    MODEL,
    OTHER_MODELS,
    PRE,
    PRE_TOKENIZERS,
    WITHOUT_TOKENS,
)
from nextn.validators.wording import typed

VOCABULARY = "src/llama-vocab.cpp of llama.cpp b11549"

# The pre-tokenizer that does without merges.
WITHOUT_MERGES = "kimi-k2"

# Arrays with an entry for each token, and the types that the loader takes.
PER_TOKEN: dict[str, tuple[ValueType, ...]] = {
    "tokenizer.ggml.token_type": (ValueType.INT32,),
    "tokenizer.ggml.scores": (ValueType.FLOAT32, ValueType.INT32),
}
MAX_SHOWN = 3
FROM_SOURCE = "take it from the trunk, or from the source: nextn convert"
UNKNOWN_TYPE = f"convert it again with nextn convert --pre TYPE, or, if a fork named the type, {TO_UPSTREAM}"


def examine_tokenizer(contents: Contents, findings: Findings) -> None:
    """Add what is wrong with the vocabulary; every file needs one, heads too: it says how many tokens there are."""
    model = contents.keys.get(MODEL)
    if model is None or model.type is not ValueType.STRING:
        state = "is missing" if model is None else f"is {typed(model)}, want STRING"
        message = f"{state}: no loader reads the file without it"
        findings.error("tokenizer-missing", MODEL, message, FROM_SOURCE, VOCABULARY)
        return
    if model.value in WITHOUT_TOKENS:
        _compare_size(contents, _declared_size(contents), f"{contents.architecture}.vocab_size", findings)
        return
    tokens = contents.keys.get(TOKENS)
    if tokens is None or tokens.element is not ValueType.STRING:
        state = "is missing" if tokens is None else f"is {typed(tokens)}, want ARRAY[STRING]"
        findings.error("tokenizer-missing", TOKENS, state, FROM_SOURCE, VOCABULARY)
        return
    count = len(tokens.items)
    _compare_size(contents, count, TOKENS, findings)
    declared = _declared_size(contents)
    if declared is not None and declared != count:
        message = f"is {declared}, but there are {count} tokens, which is what counts"
        findings.warn("vocabulary-size", f"{contents.architecture}.vocab_size", message, FROM_SOURCE, VOCABULARY)
    _examine_arrays(contents, count, findings)
    _examine_merges(contents, str(model.value), findings)
    _examine_ids(contents, count, findings)
    _examine_texts(tokens, findings)


def _declared_size(contents: Contents) -> int | None:
    value = contents.get("vocab_size")
    return value.value if value and isinstance(value.value, int) else None


def _compare_size(contents: Contents, count: int | None, subject: str, findings: Findings) -> None:
    embedding = contents.tensors.get(EMBEDDING)
    if embedding is None or len(embedding.ne) < 2 or count == embedding.ne[1]:
        return
    have = "the key is missing" if count is None else f"{count} tokens"
    message = f"{have}, {EMBEDDING} has {embedding.ne[1]} rows: llama.cpp b11549 refuses the shape of the embedding"
    findings.error("vocabulary-size", subject, message, "pad the tokens as the source's vocab_size says", VOCABULARY)


def _examine_arrays(contents: Contents, count: int, findings: Findings) -> None:
    for key, types in PER_TOKEN.items():
        value = contents.keys.get(key)
        if value is None:
            continue
        if value.element not in types:
            want = " or ".join(f"ARRAY[{type_.name}]" for type_ in types)
            findings.error("key-type", key, f"is {typed(value)}, want {want}", FROM_SOURCE, VOCABULARY)
        elif (have := len(value.items)) != count:
            add = findings.error if have < count else findings.warn
            add("vocabulary-size", key, f"has {have} entries for {count} tokens", FROM_SOURCE, VOCABULARY)


def _examine_merges(contents: Contents, model: str, findings: Findings) -> None:
    pre, merges = contents.keys.get(PRE), contents.keys.get(MERGES)
    if model not in BYTE_PAIRS:
        if model not in OTHER_MODELS:
            message = f"is {model!r}, which llama.cpp b11549 does not know"
            findings.error("tokenizer-unknown", MODEL, message, FROM_SOURCE, VOCABULARY)
        return
    if pre and pre.value not in PRE_TOKENIZERS:
        message = f"is {pre.value!r}, which llama.cpp b11549 does not know: it refuses the file"
        findings.error("tokenizer-unknown", PRE, message, UNKNOWN_TYPE, VOCABULARY)
    if merges is None or not len(merges.items):
        if pre is None or pre.value != WITHOUT_MERGES:
            state = "is missing" if merges is None else "is empty"
            message = f"{state}: llama.cpp b11549 stops with 'cannot find tokenizer merges in model file'"
            findings.error("tokenizer-missing", MERGES, message, FROM_SOURCE, VOCABULARY)
    elif merges.element is not ValueType.STRING:
        findings.error("key-type", MERGES, f"is {typed(merges)}, want ARRAY[STRING]", FROM_SOURCE, VOCABULARY)


def _examine_ids(contents: Contents, count: int, findings: Findings) -> None:
    for key, value in contents.keys.items():
        if not (key.startswith("tokenizer.ggml.") and key.endswith("_token_id")):
            continue
        if value.type is not ValueType.UINT32:
            findings.error("key-type", key, f"is {typed(value)}, want UINT32", FROM_SOURCE, VOCABULARY)
        elif isinstance(value.value, int) and value.value >= count:
            message = f"is {value.value}, but ids end at {count - 1}: llama.cpp b11549 takes its default instead"
            findings.warn("special-id-range", key, message, FROM_SOURCE, VOCABULARY)


def _examine_texts(tokens: Value, findings: Findings) -> None:
    """Texts must be unique; the loader names empty ones by their index."""
    try:
        texts = tuple(tokens.items)
    except InputError as error:
        findings.error("vocabulary-text", TOKENS, error.message, FROM_SOURCE, VOCABULARY)
        return
    if len(set(texts)) + max(texts.count("") - 1, 0) == len(texts):
        return
    repeated = [text for text, times in Counter(texts).items() if times > 1 and text]
    first = [index for index, text in enumerate(texts) if text == repeated[0]]
    message = (
        f"{repeated[0]!r} is the text of the ids {', '.join(map(str, first[:MAX_SHOWN]))}"
        f"{' …' if len(first) > MAX_SHOWN else ''}: llama.cpp b11549 aborts"
    )
    if len(repeated) > 1:
        message += f"; {len(repeated) - 1} more texts are there twice"
    findings.error("vocabulary-text", TOKENS, message, "give each id a text of its own", VOCABULARY)
