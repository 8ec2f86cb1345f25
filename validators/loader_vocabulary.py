"""What llama.cpp b11549 wants of a vocabulary. Source: src/llama-vocab.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nextn.gguf_schema.nextn_generic import TOKENS
from nextn.validators.loader_keys import refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nextn.gguf_schema.contents import Contents
    from nextn.validators.loader_keys import Stop

MODEL, PRE = "tokenizer.ggml.model", "tokenizer.ggml.pre"
MERGES, TYPES = "tokenizer.ggml.merges", "tokenizer.ggml.token_type"

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
    model = keys[MODEL].value
    if model in WITHOUT_TOKENS:
        return
    pre = keys[PRE].value if PRE in keys else ""
    if model in BYTE_PAIRS:
        if MERGES not in keys and pre != "kimi-k2":
            yield "cannot find tokenizer merges in model file"
        if pre and pre not in PRE_TOKENIZERS:
            yield f"unknown pre-tokenizer type: '{pre}'"
    elif model not in OTHER_MODELS:
        yield f"unknown tokenizer: '{model}'"
    if TOKENS not in keys:
        yield "cannot find tokenizer vocab in model file"
    elif TYPES in keys and len(keys[TYPES].items) < len(keys[TOKENS].items):
        counts = f"{len(keys[TYPES].items)} < {len(keys[TOKENS].items)}"
        yield f"Index out of array bounds for toktypes ({counts})"
