"""Values of one family's keys that a loader takes and computes wrongly with, or asserts on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from edited_contents import (
    COMBINED,
    ERROR,
    GLM,
    HEADS_KV,
    MTP,
    NOTE,
    PATTERN,
    QWEN,
    RATIOS,
    RECURRENT,
    STEP,
    TYPES,
    WARNING,
    found,
    items,
    message,
    planned,
    with_array,
    with_number,
    without,
    without_keys,
)

from nextn.gguf_schema.types import ValueType

if TYPE_CHECKING:
    from nextn.gguf_schema.architecture import Role


@pytest.mark.parametrize(
    ("role", "ratios", "severity", "text"),
    [
        (COMBINED, [0, 0, 0, 4, 0, 0, 0, 4, 0], ERROR, "aborts when it runs a head"),
        (MTP, [0, 0, 0, 4, 0, 0, 0, 4, 0], ERROR, "aborts when it runs a head"),
        (COMBINED, [0, 0, 0, 0, 0, 0, 0, 0, 4], ERROR, "aborts when it runs the trunk"),
        (COMBINED, [0, 0, 0, 4, 0, 0, 0, 4, 2], ERROR, "has 2 and 4"),
        (COMBINED, [0, 0, 0, 1, 0, 0, 0, 1, 1], ERROR, "above 1"),
        (COMBINED, [0, 0, 0, 3, 0, 0, 0, 3, 3], ERROR, "divides attention.indexer.top_k (32)"),
        (COMBINED, [0] * 9, ERROR, "has only zeros"),
        (COMBINED, [0, 0, 0, 4, 0, 0, 0, 0, 4], ERROR, "has 0 for blk.7"),
    ],
)
def test_compress_ratios(role: Role, ratios: list[int], severity: str, text: str) -> None:
    contents = with_array(planned(QWEN, role), RATIOS, ratios)
    assert found(contents) == [(severity, "compress-ratios", RATIOS)]
    assert text in message(contents, "compress-ratios")


def test_compress_ratios_that_load() -> None:
    """A ratio of a linear layer is ignored; in a file of heads only the head's entry matters."""
    assert not found(with_array(planned(QWEN), RATIOS, [4] * 9))
    assert not found(with_array(planned(QWEN, MTP), RATIOS, [0] * 8 + [4]))


def test_no_compress_ratios() -> None:
    contents = without_keys(planned(QWEN), RATIOS)
    assert found(contents) == [(ERROR, "compress-ratios", RATIOS)]
    assert message(contents, "compress-ratios").startswith("is missing")


@pytest.mark.parametrize(
    ("family", "key", "entries", "blocks"),
    [
        (QWEN, RECURRENT, {8: 1}, "blk.8"),  # Case S15: exported arrays end with the kind of the head.
        (QWEN, RECURRENT, {0: 0, 3: 1}, "blk.0, 3"),
        (GLM, HEADS_KV, {6: 0}, "blk.6"),
        (GLM, HEADS_KV, {0: 1}, "blk.0"),
    ],
)
def test_a_block_has_another_kind_of_attention(family: str, key: str, entries: dict[int, int], blocks: str) -> None:
    old = items(planned(family), key)
    contents = with_array(planned(family), key, [entries.get(i, old[i]) for i in range(len(old))], ValueType.INT32)
    assert found(contents) == [(ERROR, "layer-kinds", key)]
    assert f"says of {blocks} the kind" in message(contents, "layer-kinds")


def test_one_value_for_all_layers_of_a_hybrid() -> None:
    assert found(with_number(planned(GLM), HEADS_KV, 1)) == [(ERROR, "layer-kinds", HEADS_KV)]


def test_an_indexer_that_is_left_unused() -> None:
    contents = with_array(planned(GLM), TYPES, [False] * 6, ValueType.BOOL)
    assert found(contents) == [(ERROR, "indexer-types", TYPES)]


def test_a_head_slides_as_layers_with_as_many_heads_do() -> None:
    """Arrays padded with full attention: the shapes agree, the drafts do not (step35.md 7.5)."""
    pattern = items(planned(STEP), PATTERN)
    contents = with_array(planned(STEP), PATTERN, [*pattern[:5], 0, *pattern[6:]], ValueType.INT32)
    assert found(contents) == [(ERROR, "window-pattern", PATTERN)]
    assert "blk.5" in message(contents, "window-pattern")


def test_case_c17_the_key_has_its_old_name() -> None:
    contents = with_number(without_keys(planned(GLM), "attention.indexer.kpool"), "attention.indexer.block_size", 4)
    assert found(contents) == [
        (ERROR, "key-missing", "attention.indexer.kpool"),
        (NOTE, "key-alias", "attention.indexer.block_size"),
    ]


NGRAM_KEYS = [key for key in planned(QWEN).keys if ".ple." in key or key.endswith("per_layer_input")]


def test_ngram_keys_in_a_head() -> None:
    head = planned(QWEN, MTP)
    contents = replace(head, keys={**head.keys, **{key: planned(QWEN).keys[key] for key in NGRAM_KEYS}})
    assert found(contents) == [(ERROR, "ngram-keys-in-head", "ple.layers")]


def test_ngram_keys_without_which_the_table_is_not_asked_for() -> None:
    contents = without_keys(planned(QWEN), *(key.removeprefix("qwen4exp.") for key in NGRAM_KEYS))
    assert found(contents) == [(ERROR, "ngram-keys-missing", "ple.layers")]
    tensors = [name for name in contents.tensors if ".ple_" in name or name.startswith("per_layer")]
    assert found(without(contents, *tensors)) == [(WARNING, "ngram-keys-missing", "ple.layers")]


@pytest.mark.parametrize("key", ["ple.ngram_size", "ple.conv_kernel", "embedding_length_per_layer_input"])
def test_one_ngram_key_is_missing(key: str) -> None:
    assert found(without_keys(planned(QWEN), key)) == [(ERROR, "key-missing", key)]


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([1, 2], "lists 2 layers"),
        ([3], "not a linear attention layer"),
        ([2], "the n-gram tensors are in blk.1"),
        ([9], "past the 9 blocks"),
    ],
)
def test_the_ngram_layer(layers: list[int], text: str) -> None:
    contents = with_array(planned(QWEN), "ple.layers", layers)
    assert found(contents) == [(ERROR, "ngram-layers", "ple.layers")]
    assert text in message(contents, "ngram-layers")


def test_ngram_ranges() -> None:
    sizes = items(planned(QWEN), "ple.head_vocab_sizes")
    large = with_array(planned(QWEN), "ple.head_vocab_sizes", [*sizes[:-1], 2**31])
    assert found(large) == [(ERROR, "ngram-ranges", "ple.head_offsets")]
    beyond = with_array(planned(QWEN), "ple.head_vocab_sizes", [*sizes[:-1], 10**6])
    assert found(beyond) == [(ERROR, "ngram-ranges", "per_layer_token_embd.weight")]
    few = with_array(planned(QWEN), "ple.head_vocab_sizes", sizes[:-1])
    assert found(few) == [(ERROR, "array-length", "ple.head_vocab_sizes")]
