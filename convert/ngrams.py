"""The n-gram embedding of Qwen3.8-Flash-Next: its hyper-parameters, and its integer constants by the model's rule.

Source: transformers 5.24, models/qwen4_exp. Only the first n-gram layer of a model is covered: runtimes take one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import accumulate
from math import isqrt
from typing import Any

from nextn.convert.family import Facts
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.qwen4exp import Qwen4Exp

TABLE = "layers.{i}.ple.ple_embedding."
FIELDS = [
    field.name for field in fields(Qwen4Exp) if field.name.startswith("ple_") or field.name.endswith("_per_layer_input")
]
Constants = Mapping[str, tuple[int, ...]]


def ngram_hyperparameters(facts: Facts, linear: Sequence[bool]) -> dict[str, Any]:
    """The n-gram fields of Qwen4Exp, all None without n-grams and in files without the trunk.

    `linear` says which blocks are gated delta nets; only those have n-grams. The integer constants come from the
    checkpoint and stay integers.
    """
    ids = facts.sequence("ple_layer_ids", default=())
    if not ids or not facts.trunk_wanted:
        return dict.fromkeys(FIELDS) | {"ple_table_rows": 0}
    layer = ids[0] - 1 if type(ids[0]) is int else -1  # The configuration counts layers from 1.
    on_linear = 0 <= layer < facts.trunk_blocks and linear[layer]
    facts.require(on_linear, "ple_layer_ids", f"{ids[0]!r} is not the number, from 1 on, of a linear layer")
    table = TABLE.format(i=layer)
    size = facts.integer("ngram_size", default=3)
    per_ngram = facts.integer("heads_per_ngram", default=8)
    heads = (size - 1) * per_ngram
    width = facts.integer("ple_embed_dim", default=facts.integer("hidden_size"))
    facts.require(heads > 0 and width % heads == 0, "ple_embed_dim", f"is {width}, not a multiple of {heads} heads")
    stored = {
        "ple_layer_multipliers": facts.integers(table + "layer_multipliers"),
        "ple_head_offsets": facts.integers(table + "ngram_heads_offsets"),
        "ple_head_vocab_sizes": facts.integers(table + "ngram_heads_vocab_sizes"),
    }
    _check_constants(facts, table, stored, size, heads)
    return {
        **stored,
        "ple_layers": (layer,),
        "ple_ngram_size": size,
        "ple_heads_per_ngram": per_ngram,
        "ple_conv_kernel": facts.integer("ple_conv_kernel_size", default=4),
        "ple_eos_token_id": _ngram_eos(facts),
        "ple_image_token_id": facts.integer("image_token_id", default=None),
        "embedding_length_per_layer_input": width // heads,
        "ple_table_rows": _table_rows(facts, table + "ngram_embedding.", sum(stored["ple_head_vocab_sizes"])),
    }


def _check_constants(facts: Facts, table: str, stored: Constants, ngram_size: int, heads: int) -> None:
    """The stored constants are used as they are; a warning tells when the model's own rules give others."""
    for name, want in (
        ("ple_layer_multipliers", ngram_size),
        ("ple_head_offsets", heads),
        ("ple_head_vocab_sizes", heads),
    ):
        have = len(stored[name])
        facts.require(have == want, table, f"{name} has {have} values; ngram_size and heads_per_ngram want {want}")
    vocab_sizes = ngram_vocab_sizes(facts.integer("ngram_vocab_size_base", default=20_000_000), heads)
    vocab_size, seed = facts.integer("vocab_size", least=1), facts.integer("seed", default=1234)
    computed = {
        "ple_layer_multipliers": ngram_multipliers(vocab_size, seed, ngram_size),
        "ple_head_offsets": tuple(accumulate(vocab_sizes[:-1], initial=0)),
        "ple_head_vocab_sizes": vocab_sizes,
    }
    for name in stored:
        if stored[name] != computed[name]:
            facts.findings.warn(
                "ngram-constants", table, f"{name} are not those of the model's rule; the stored ones are used"
            )


def _table_rows(facts: Facts, table: str, needed: int) -> int:
    """Rows of the table's shards, at least those that the heads look up."""
    names = {name for name in (*facts.names, *facts.tensors) if name.startswith(table)}
    shapes = [shape for name in names if (shape := facts.shape(name))]
    rows = sum(shape[0] for shape in shapes)
    if len(shapes) == len(names) and rows < needed:
        raise InputError(
            "short-table",
            f"has {rows} rows in {len(shapes)} shards, but the vocabularies of its heads take {needed}",
            subject=table.removesuffix("."),
            remedy="shards of the table are not there: download the missing files",
        )
    return rows


def _ngram_eos(facts: Facts) -> int:
    """The token that cuts n-grams: the text configuration's end token, the first one of a list."""
    eos = facts.get("eos_token_id")
    if isinstance(eos, list):
        whole = bool(eos) and type(eos[0]) is int
        facts.require(whole, "eos_token_id", f"is {eos}; the n-gram embedding needs an end token")
        facts.findings.warn("ngram-eos", "eos_token_id", f"is a list; n-grams are cut at its first entry, {eos[0]}")
        return int(eos[0])
    return int(facts.integer("eos_token_id"))


WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def ngram_vocab_sizes(base: int, heads: int) -> tuple[int, ...]:
    """Rows of each head's part of the table: the first `heads` primes from `base` on."""
    sizes: list[int] = []
    candidate = base
    while len(sizes) < heads:
        if _is_prime(candidate):
            sizes.append(candidate)
        candidate += 1
    return tuple(sizes)


def ngram_multipliers(vocab_size: int, seed: int, ngram_size: int) -> tuple[int, ...]:
    """Odd hash multipliers, one a position of the n-gram; a product with a token id stays below 2**63."""
    half = max(1, ((1 << 63) - 1) // vocab_size // 2)
    return tuple(2 * (_splitmix(seed + GOLDEN * (i + 1)) % half) + 1 for i in range(ngram_size))


def _splitmix(state: int) -> int:
    """The output function of SplitMix64."""
    z = (state + GOLDEN) & WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & WORD
    return z ^ (z >> 31)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))
