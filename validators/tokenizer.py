"""Findings about the vocabulary of a file: whether there is one, and whether its parts and the embedding agree."""

from __future__ import annotations

from collections import Counter

from nextn.gguf_schema.contents import Contents, Value
from nextn.gguf_schema.errors import InputError, counted
from nextn.gguf_schema.nextn_generic import EMBEDDING, TOKENS
from nextn.gguf_schema.types import ValueType
from nextn.validators.findings import Findings
from nextn.validators.layout import TO_UPSTREAM
from nextn.validators.loader_vocabulary import (
    ARRAYS,
    BYTE_PAIRS,
    LAST,
    MERGES,
    MODEL,
    OTHER_MODELS,
    PRE,
    PRE_TOKENIZERS,
    SCORES,
    TYPES,
    WITHOUT_MERGES,
    WITHOUT_TOKENS,
    short_text,
)
from nextn.validators.wording import typed

VOCABULARY = "src/llama-vocab.cpp of llama.cpp b11549"

# Arrays with an entry for each token, and the types that the loader takes.
PER_TOKEN = (TYPES, SCORES)
# Texts that are looked at: four times those of the largest vocabularies. Merges of which a look tells what they are.
MOST_TEXTS, MERGES_SEEN = 1 << 20, 64
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
    if short_text(model) in WITHOUT_TOKENS:
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
    _examine_merges(contents, short_text(model), findings)
    _examine_types(contents, findings)
    _examine_ids(contents, count, findings)
    embedding = contents.tensors.get(EMBEDDING)
    _examine_texts(tokens, embedding.ne[1] if embedding and len(embedding.ne) > 1 else None, findings)


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
    for key in PER_TOKEN:
        value, types = contents.keys.get(key), ARRAYS[key]
        if value is None:
            continue
        if value.element not in types:
            want = " or ".join(f"ARRAY[{type_.name}]" for type_ in types)
            findings.error("key-type", key, f"is {typed(value)}, want {want}", FROM_SOURCE, VOCABULARY)
        elif (have := len(value.items)) != count:
            add = findings.error if have < count else findings.warn
            add("vocabulary-size", key, f"has {have} entries for {count} tokens", FROM_SOURCE, VOCABULARY)


def _examine_merges(contents: Contents, model: str | None, findings: Findings) -> None:
    if model not in BYTE_PAIRS:
        if model not in OTHER_MODELS:
            message = f"is {typed(contents.keys[MODEL])}, which llama.cpp b11549 does not know"
            findings.error("tokenizer-unknown", MODEL, message, FROM_SOURCE, VOCABULARY)
        elif MERGES in contents.keys:
            message = f"is {model!r}, but there are merges, as only byte pairs have: texts are cut into other tokens"
            findings.warn("tokenizer-contradicted", MODEL, message, FROM_SOURCE, VOCABULARY)
        return
    pre = _examine_pre(contents, findings)
    merges = contents.keys.get(MERGES)
    if merges is None:
        if pre != WITHOUT_MERGES:
            message = "is missing: llama.cpp b11549 stops with 'cannot find tokenizer merges in model file'"
            findings.error("tokenizer-missing", MERGES, message, FROM_SOURCE, VOCABULARY)
    elif merges.element is not ValueType.STRING:
        findings.error("key-type", MERGES, f"is {typed(merges)}, want ARRAY[STRING]", FROM_SOURCE, VOCABULARY)
    elif problem := "is empty" if not len(merges.items) else _no_pair(merges):
        message = f"{problem}: llama.cpp b11549 loads it, and cuts texts into other tokens than the model knows"
        findings.warn("tokenizer-merges", MERGES, message, FROM_SOURCE, VOCABULARY)


def _examine_pre(contents: Contents, findings: Findings) -> str | None:
    """The pre-tokenizer of byte pairs: empty when it is not said, None when it is no text."""
    value, pre = contents.keys.get(PRE), short_text(contents.keys.get(PRE))
    if value and value.type is not ValueType.STRING:
        findings.error("key-type", PRE, f"is {typed(value)}, want STRING", FROM_SOURCE, VOCABULARY)
    elif pre == "":
        state = "is empty" if value else "is missing"
        message = f"{state}: llama.cpp b11549 takes its default, and warns that output is worse"
        findings.warn("tokenizer-pre-missing", PRE, message, UNKNOWN_TYPE, VOCABULARY)
    elif value and pre not in PRE_TOKENIZERS:
        message = f"is {repr(pre) if pre else typed(value)}, which llama.cpp b11549 does not know: it refuses the file"
        findings.error("tokenizer-unknown", PRE, message, UNKNOWN_TYPE, VOCABULARY)
    return pre


def _no_pair(merges: Value) -> str:
    """What shows that merges are none: a pair has a space between its parts. A sample is enough, and quick."""
    if len(merges.items) > MOST_TEXTS:
        return ""
    try:
        sample = merges.items[:MERGES_SEEN]
    except InputError as error:
        return error.message
    bad = [str(merge) for merge in sample if " " not in str(merge)[1:]]
    return f"{counted(len(bad), 'merge')} of the first {len(sample)}, as {bad[0]!r:.60}, have no space" if bad else ""


def _examine_types(contents: Contents, findings: Findings) -> None:
    """Keys of one value that the loader wants of one type; it looks at no others."""
    for key, type_ in LAST.items():
        value = contents.keys.get(key)
        if value and value.type is not type_:
            findings.error("key-type", key, f"is {typed(value)}, want {type_.name}", FROM_SOURCE, VOCABULARY)


def _examine_ids(contents: Contents, count: int, findings: Findings) -> None:
    for key, value in contents.keys.items():
        number = value.value
        is_id = value.type is ValueType.UINT32 and LAST.get(key) is ValueType.UINT32
        if is_id and isinstance(number, int) and number >= count:
            message = f"is {number}, but ids end at {count - 1}: llama.cpp b11549 takes its default instead"
            findings.warn("special-id-range", key, message, FROM_SOURCE, VOCABULARY)


def _examine_texts(tokens: Value, rows: int | None, findings: Findings) -> None:
    """Texts must be unique; the loader names empty ones by their index."""
    count = len(tokens.items)
    if count > MOST_TEXTS or (rows is not None and rows < count):
        # What has more tokens than rows is refused for that; millions of texts take seconds, and no model has them.
        if rows is None or rows >= count:
            message = f"has {count} tokens, more than any model: whether each has a text of its own was not looked at"
            findings.warn("vocabulary-text", TOKENS, message, FROM_SOURCE, VOCABULARY)
        return
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
