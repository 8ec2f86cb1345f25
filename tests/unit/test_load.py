"""Files whose keys and shapes nothing can be computed with are refused before anything is: by the validator's rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
from hostile import hostile_tensors

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, Value, array, f32, string, u32
from nextn.gguf_schema.errors import VerdictError
from nextn.gguf_schema.shards import open_gguf
from nextn.gguf_schema.types import ValueType
from nextn.runtime import load

Converted = Callable[[str], dict[Role, Path]]
STEP, QWEN, GLM = "step35", "qwen4exp", "glm5-next"


def refused(path: Path, contents: Contents, monkeypatch: pytest.MonkeyPatch) -> VerdictError:
    file = replace(open_gguf(path), contents=contents)
    monkeypatch.setattr(load, "open_gguf", lambda _: file)
    with pytest.raises(VerdictError) as caught:
        load.load_pair(path)
    return caught.value


@pytest.mark.parametrize(
    ("family", "key", "value", "told"),
    [
        *((family, "expert_used_count", u32(n), "expert_used_count") for family in (STEP, QWEN, GLM) for n in (0, 99)),
        *((STEP, "attention.key_length", u32(n), "want") for n in (0, 33)),
        *((QWEN, "attention.head_count_kv", u32(n), "want") for n in (0, 3)),
        (GLM, "hyper_connection.count", u32(3), "want 4"),
        (QWEN, "hyper_connection.count", u32(3), "want"),
        *((GLM, "hyper_connection.sinkhorn_iterations", u32(n), "sinkhorn_iterations") for n in (0, 2**31 - 1, 2**31)),
        (GLM, "expert_group_count", u32(3), "cannot be divided"),
        (GLM, "attention.head_count_kv", array(ValueType.INT32, [0, 0, 0, -1, 0, 1, 1]), "head_count_kv is -1"),
        (QWEN, "ple.ngram_size", u32(2), "want"),
        (QWEN, "ple.conv_kernel", u32(0), "want"),
        (QWEN, "ssm.conv_kernel", u32(0), "want"),
        (GLM, "ssm.conv_kernel", u32(0), "want"),
        *((STEP, "attention.sliding_window", u32(n), "sliding_window") for n in (0, 2**32 - 1)),
        *((family, "block_count", u32(3), "block") for family in (STEP, QWEN, GLM)),
        *((f, "attention.layer_norm_rms_epsilon", f32(nan), "layer_norm_rms_epsilon") for f in (STEP, QWEN, GLM)),
        *((STEP, "rope.freq_base", f32(base), "rope.freq_base") for base in (0.0, nan)),
        (STEP, "tokenizer.ggml.tokens", array(ValueType.STRING, ["a", "b"]), "2 tokens"),
        (QWEN, "rope.dimension_sections", array(ValueType.INT32, [3, 3]), "length 2"),
    ],
)
def test_keys_that_nothing_can_be_computed_with(
    converted: Converted, family: str, key: str, value: Value, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = converted(family)[Role.COMBINED]
    contents = open_gguf(path).contents
    name = key if key.startswith("tokenizer.") else f"{family}.{key}"
    error = refused(path, replace(contents, keys={**contents.keys, name: value}), monkeypatch)
    assert told in error.message
    assert error.subject == str(path)
    assert error.remedy


@pytest.mark.parametrize("family", [STEP, QWEN, GLM])
def test_every_tensor_has_its_shape(converted: Converted, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any tensor with its dimensions in the other order, where that is another shape."""
    path = converted(family)[Role.COMBINED]
    contents, tried = open_gguf(path).contents, 0
    for told, edited in hostile_tensors(contents):
        name, _, what = told.partition(" ")
        ne = list(contents.tensors[name].ne)
        if what == f"{ne} -> {ne[::-1]} F32" and sorted(ne)[0] > 1:
            assert refused(path, edited, monkeypatch).code in ("tensor-shape", "vocabulary-size", "ngram-ranges"), told
            tried += 1
    assert tried > 30


def test_what_is_wrong_with_a_tokenizer_alone_is_told_when_it_is_used(
    converted: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = converted(STEP)[Role.COMBINED]
    file = open_gguf(path)
    keys = {**file.contents.keys, "tokenizer.ggml.pre": string("unheard-of")}
    monkeypatch.setattr(load, "open_gguf", lambda _: replace(file, contents=replace(file.contents, keys=keys)))
    assert load.load_pair(path).heads is not None
