"""What llama.cpp b11549 wants of a vocabulary. Source: src/llama-vocab.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nextn.gguf_schema.nextn_generic import TOKENS
from nextn.gguf_schema.types import ValueType
from nextn.validators.loader_keys import refuse, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nextn.gguf_schema.contents import Contents, Value
    from nextn.validators.loader_keys import Stop

MODEL, PRE = "tokenizer.ggml.model", "tokenizer.ggml.pre"
MERGES, TYPES, SCORES = "tokenizer.ggml.merges", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"

# Types that the loader insists on: of keys before the tokens, of arrays, of keys behind the tokens, each in its order.
FIRST = {MODEL: ValueType.STRING, PRE: ValueType.STRING, "tokenizer.ggml.token_type_count": ValueType.UINT32}
ARRAYS: dict[str, tuple[ValueType, ...]] = {
    TOKENS: (ValueType.STRING,),
    SCORES: (ValueType.FLOAT32, ValueType.INT32),
    TYPES: (ValueType.INT32,),
    MERGES: (ValueType.STRING,),
}
_IDS = """
bos eos eot eom unknown seperator padding mask fim_pre fim_suf fim_mid fim_pad fim_rep fim_sep prefix suffix middle
"""
_FLAGS = "add_space_prefix remove_extra_whitespaces add_bos_token add_eos_token add_sep_token"
LAST = {
    **{f"tokenizer.ggml.{name}_token_id": ValueType.UINT32 for name in _IDS.split()},
    **{f"tokenizer.ggml.{name}": ValueType.BOOL for name in _FLAGS.split()},
}

# The pre-tokenizer that does without merges.
WITHOUT_MERGES = "kimi-k2"

# Models that have no tokens at all; models with merges; the others.
WITHOUT_TOKENS = frozenset({"no_vocab", "none"})
BYTE_PAIRS = frozenset({"gpt2", "hybriddna", "whitespace"})
OTHER_MODELS = frozenset({"llama", "bert", "t5", "rwkv", "test", "plamo2", "plamo3", "gemma4"})

_PRE_TOKENIZERS = """
a.x-4.0 afmoe bailingmoe bailingmoe2 bloom chameleon chatglm-bpe codeshell cohere2moe command-r dbrx deepseek-coder
deepseek-llm deepseek-r1-qwen deepseek-v3 default exaone exaone-moe exaone4 f2llmv2 falcon falcon-h1 falcon3 gemma4
gigachat glm4 glm5 gpt-2 gpt-4o gpt3-finnish granite-docling granite-embed-multi-311m granite-embed-multi-97m grok-2
hunyuan hunyuan-dense hy_v4 jais jais-2 jina-de jina-es jina-v1-en jina-v2-code jina-v2-de jina-v2-es jina-v5-nano
joyai-llm k2-horizon kanana2 kimi-k2 kormo laguna lfm2 llada-moe llama-bpe llama-v3 llama3 llama4 megrez mellum
mellum2 midm-2.0 minerva-7b minicpm5 minimax-m2 mmbert modern-bert mpt olmo phi-2 pixtral poro-chat qwen2 qwen35
refact roberta-bpe sarvam-moe seed-coder smaug-bpe smollm solar-open spark2_5 stablelm2 starcoder superbpe talkie
tekken tiny_aya trillion ufakzeka viking whitespace youtu
"""
PRE_TOKENIZERS = frozenset(_PRE_TOKENIZERS.split())


def vocabulary_problem(contents: Contents) -> Stop | None:
    """Where the loader stops at the vocabulary; tokens are counted, not looked at."""
    for problem in _problems(contents):
        return refuse(f"error loading model vocabulary: {problem}")
    return None


def _problems(contents: Contents) -> Iterator[str]:
    keys = contents.keys
    if MODEL not in keys:
        yield f"key not found in model: {MODEL}"
        return
    yield from _wrong_types(contents, FIRST)
    model = short_text(keys[MODEL])
    if model in WITHOUT_TOKENS:
        return
    pre = short_text(keys.get(PRE))
    if model in BYTE_PAIRS:
        if MERGES not in keys and pre != WITHOUT_MERGES:
            yield "cannot find tokenizer merges in model file"
        yield from _wrong_array(contents, MERGES)
        if pre != "" and pre not in PRE_TOKENIZERS:
            yield f"unknown pre-tokenizer type: '{pre}'"
    elif model not in OTHER_MODELS:
        yield f"unknown tokenizer: '{model}'"
    if TOKENS not in keys:
        yield "cannot find tokenizer vocab in model file"
        return
    for key in (TOKENS, SCORES, TYPES):
        yield from _wrong_array(contents, key)
    if TYPES in keys and len(keys[TYPES].items) < len(keys[TOKENS].items):
        counts = f"{len(keys[TYPES].items)} < {len(keys[TOKENS].items)}"
        yield f"Index out of array bounds for toktypes ({counts})"
    yield from _wrong_types(contents, LAST)


def _wrong_types(contents: Contents, types: Mapping[str, ValueType]) -> Iterator[str]:
    for key, type_ in types.items():
        value = contents.keys.get(key)
        if value and value.type is not type_:
            yield f"key {key} has wrong type {type_name(value.type)} but expected type {type_name(type_)}"


def _wrong_array(contents: Contents, key: str) -> Iterator[str]:
    value = contents.keys.get(key)
    if value and value.element not in ARRAYS[key]:
        yield f"invalid gguf type for {key}"


def short_text(value: Value | None) -> str | None:
    """A text, empty when it is not there; None for one so long that it is left in the file, and for what is no text."""
    if value is None:
        return ""
    return value.value if isinstance(value.value, str) else None
