"""What is wrong with the vocabulary of a file, of a head's too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from edited_contents import (
    COMBINED,
    ERROR,
    MERGES,
    MODEL,
    MTP,
    STEP,
    VOCABULARY,
    WARNING,
    examine,
    found,
    message,
    planned,
    with_key,
    with_number,
    without_keys,
)

from nextn.gguf_schema.contents import Value, array, i32, string, u32
from nextn.gguf_schema.types import ValueType

if TYPE_CHECKING:
    from nextn.gguf_schema.architecture import Role


def tokens(family: str) -> list[str]:
    return [str(token) for token in planned(family).keys[VOCABULARY].items]


@pytest.mark.parametrize("role", [COMBINED, MTP])
@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (MODEL, None, (ERROR, "tokenizer-missing", MODEL)),
        (MODEL, string("gpt3"), (ERROR, "tokenizer-unknown", MODEL)),
        ("tokenizer.ggml.pre", string("step35"), (ERROR, "tokenizer-unknown", "")),
        (VOCABULARY, None, (ERROR, "tokenizer-missing", VOCABULARY)),
        (MERGES, None, (ERROR, "tokenizer-missing", MERGES)),
        # The library loads these three, and cuts texts into other tokens.
        (MERGES, array(ValueType.STRING, []), (WARNING, "tokenizer-merges", MERGES)),
        (MERGES, array(ValueType.STRING, ["nospace"] * 9), (WARNING, "tokenizer-merges", MERGES)),
        ("tokenizer.ggml.pre", None, (WARNING, "tokenizer-pre-missing", "")),
        ("tokenizer.ggml.pre", string(""), (WARNING, "tokenizer-pre-missing", "")),
        ("tokenizer.ggml.pre", u32(1), (ERROR, "key-type", "")),
        (MODEL, string("llama"), (WARNING, "tokenizer-contradicted", MODEL)),
        (MODEL, string("bert"), (WARNING, "tokenizer-contradicted", MODEL)),
        (MERGES, array(ValueType.INT32, range(9)), (ERROR, "key-type", MERGES)),
        ("tokenizer.ggml.add_bos_token", u32(1), (ERROR, "key-type", "")),
        ("tokenizer.ggml.token_type", array(ValueType.INT32, [1]), (ERROR, "vocabulary-size", "")),
        ("tokenizer.ggml.token_type", array(ValueType.INT32, [1] * 999), (WARNING, "vocabulary-size", "")),
        ("tokenizer.ggml.token_type", array(ValueType.UINT32, [1] * 512), (ERROR, "key-type", "")),
        ("tokenizer.ggml.eos_token_id", u32(512), (WARNING, "special-id-range", "")),
        ("tokenizer.ggml.eos_token_id", i32(1), (ERROR, "key-type", "")),
        ("vocab_size", u32(500), (WARNING, "vocabulary-size", "vocab_size")),
    ],
)
def test_the_vocabulary(role: Role, key: str, value: Value | None, expected: tuple[str, str, str]) -> None:
    contents = planned(STEP, role)
    contents = without_keys(contents, key) if value is None else with_key(contents, key, value)
    severity, rule, subject = expected
    assert found(contents) == [(severity, rule, subject or key)]


def test_ids_that_no_loader_looks_at_may_be_of_any_type() -> None:
    assert not found(with_key(planned(STEP), "tokenizer.ggml.separator_token_id", i32(1)))


def test_fewer_tokens_than_rows_of_the_embedding() -> None:
    contents = with_key(planned(STEP), VOCABULARY, array(ValueType.STRING, tokens(STEP)[:-1]))
    assert (ERROR, "vocabulary-size", VOCABULARY) in found(contents)
    assert "511 tokens, token_embd.weight has 512 rows" in examine(contents)[1][0].message


def test_a_text_is_there_twice() -> None:
    texts = tokens(STEP)
    contents = with_key(planned(STEP), VOCABULARY, array(ValueType.STRING, [*texts[:-1], texts[7]]))
    assert found(contents) == [(ERROR, "vocabulary-text", VOCABULARY)]
    assert f"{texts[7]!r} is the text of the ids 7, 511" in message(contents, "vocabulary-text")
    # The loader gives empty texts a name.
    assert not found(with_key(planned(STEP), VOCABULARY, array(ValueType.STRING, [*texts[:-2], "", ""])))


def test_a_head_needs_no_tokens() -> None:
    """step35.md 6.6: the model "none" with a vocabulary size loads and drafts."""
    head = planned(STEP, MTP)
    head = without_keys(head, *(key for key in head.keys if key.startswith("tokenizer.")))
    head = with_key(head, MODEL, string("none"))
    assert found(with_number(head, "vocab_size", 512)) == []
    assert found(head) == [(ERROR, "vocabulary-size", "vocab_size")]
