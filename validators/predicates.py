"""What the rules about runtimes look for in a loaded file: each says what it found, or None.

They look at the blocks that are computed: the trunk's when the file is a model, the heads' when it is a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nextn.gguf_schema.architecture import Without
from nextn.gguf_schema.glm5_next import Glm5Next
from nextn.gguf_schema.nextn_generic import EH_PROJ, EMBEDDING, OUTPUT, block_indices, head_blocks, is_tied
from nextn.gguf_schema.qwen4exp import Qwen4Exp
from nextn.gguf_schema.step35 import Step35
from nextn.gguf_schema.types import F32
from nextn.validators.limits import Limit
from nextn.validators.loader import Loaded, missing

Predicate = Callable[[Loaded, bool], str | None]
OUTPUT_NORM, ROPE_FACTORS = "output_norm.weight", "rope_freqs.weight"


def blocks(loaded: Loaded, head: bool) -> range:
    """The blocks that a graph computes."""
    return loaded.heads if head else loaded.trunk


def _first(found: Iterator[str]) -> str | None:
    return next(found, None)


def any_file(_: Loaded, __: bool) -> str | None:
    """Any file."""
    return "it"


def no_head_declared(loaded: Loaded, _: bool) -> str | None:
    """No head, by the keys."""
    return None if loaded.nextn else "nextn_predict_layers"


def several_heads(loaded: Loaded, _: bool) -> str | None:
    """More than one head, by the keys."""
    return str(loaded.nextn) if loaded.nextn > 1 else None


def no_eh_proj(loaded: Loaded, _: bool) -> str | None:
    """The projection into a head's block."""
    return _first(f"blk.{i}.{EH_PROJ}" for i in loaded.heads if not loaded.has(i, EH_PROJ))


def no_sliding_block(loaded: Loaded, _: bool) -> str | None:
    """A step35 file in which no block has a window."""
    return None if any(loaded.values["attention.sliding_window_pattern"]) else "attention.sliding_window_pattern"


def no_output_for_head(loaded: Loaded, _: bool) -> str | None:
    """An output matrix for a head: its own or the trunk's."""
    if OUTPUT in loaded.tensors:
        return None
    own = "nextn.shared_head_head.weight"
    return _first(f"blk.{i}.{own}" for i in loaded.heads if not loaded.has(i, own))


def no_trunk_tensor(loaded: Loaded, _: bool) -> str | None:
    """Any tensor of the trunk, in a file that counts as one without."""
    if not loaded.mtp_only:
        return None
    return _first(name for name, spec in missing(loaded, loaded.trunk) if spec.without is Without.REFUSES)


def no_trunk_weight(loaded: Loaded, _: bool) -> str | None:
    """A matrix of the trunk, in a file that counts as one without; norms are skipped where they are missing."""
    if not loaded.mtp_only:
        return None
    names = (name for name, spec in missing(loaded, loaded.trunk, outside=True) if spec.without is Without.REFUSES)
    return _first(name for name in names if not name.endswith("_norm.weight"))


def lacks(name: str, *, beside: str) -> Predicate:
    """A predicate: a weight of a block that is missing beside another one that is there."""

    def found(loaded: Loaded, head: bool) -> str | None:
        lacking, there = f"{name}.weight", f"{beside}.weight"
        computed = blocks(loaded, head)
        return _first(f"blk.{i}.{lacking}" for i in computed if loaded.has(i, there) and not loaded.has(i, lacking))

    return found


def factors_not_f32(loaded: Loaded, _: bool) -> str | None:
    """Rotary factors in another type."""
    factors = loaded.contents.tensors.get(ROPE_FACTORS)
    return factors.type.name if factors and factors.type != F32 else None


def norm_not_f32(loaded: Loaded, head: bool) -> str | None:
    """The type of a norm or a bias that is not F32, in llama.cpp's spelling."""
    computed = blocks(loaded, head)
    outside = (OUTPUT_NORM, "output_hc_norm.weight") if not head else ()
    for name in loaded.tensors:
        info = loaded.contents.tensors[name]
        if info.type != F32 and (name in outside or _is_addend(name, computed)):
            return info.type.name.lower()
    return None


def _is_addend(name: str, computed: range) -> bool:
    parts = name.split(".", 2)
    in_block = len(parts) == 3 and parts[0] == "blk" and parts[1].isdigit() and int(parts[1]) in computed
    return in_block and name.endswith(("norm.weight", ".bias"))


def pools_unused(loaded: Loaded, head: bool) -> str | None:
    """A compress ratio somewhere in a qwen4exp file, but in no attention block that is computed."""
    ratios, kinds = loaded.values["attention.compress_ratios"], loaded.values["attention.recurrent_layers"]
    used = any(ratios[i] and not kinds[i] for i in blocks(loaded, head))
    return "attention.compress_ratios" if any(ratios) and not used else None


def latent_of_other_width(loaded: Loaded, _: bool) -> str | None:
    """A key of a glm5-next cache that, when no key says how wide it is, is not as wide as the latent."""
    if loaded.contents.get("attention.key_length") is not None:
        return None
    wide = loaded.h.attention_kv_lora_rank + loaded.values["rope.dimension_count"]
    return "attention.key_length" if loaded.values["attention.key_length"] != wide else None


def trunk_taken_for_absent(loaded: Loaded, _: bool) -> str | None:
    """The tensor that the loader probes, in a file that has a trunk nevertheless."""
    if not loaded.mtp_only or not loaded.loader or not any(i in loaded.trunk for i in block_indices(loaded.contents)):
        return None
    return f"blk.0.{loaded.loader.probe}"


def trunk_block_taken_for_head(loaded: Loaded, _: bool) -> str | None:
    """A block without a head's tensors where the keys declare a head, in a file that counts as one without heads."""
    present, heads = block_indices(loaded.contents), head_blocks(loaded.contents)
    if not loaded.trunk_only:
        return None
    return _first(f"blk.{i}" for i in loaded.heads if i in present and i not in heads)


def tensor_missed(loaded: Loaded, head: bool) -> str | None:
    """A tensor that the loader can do without, and the result cannot."""
    for name, spec in missing(loaded, blocks(loaded, head)):
        if spec.without is not Without.TOLERATES:
            return name
    return None


# Keys whose default is another value, and the blocks whose result depends on it.
SILENT_KEYS: tuple[tuple[type[Any], str, Callable[[Any, int], bool]], ...] = (
    (Step35, "expert_weights_norm", Step35.is_moe),
    (Step35, "expert_weights_scale", Step35.is_moe),
    (Step35, "swiglu_clamp_exp", Step35.is_moe),
    (Step35, "swiglu_clamp_shexp", Step35.is_moe),
    (Step35, "rope.freq_base", lambda h, i: not h.attention_sliding_window_pattern[i]),
    (Qwen4Exp, "rope.freq_base", Qwen4Exp.is_attention),
    (Glm5Next, "attention.layer_norm_epsilon", Glm5Next.has_indexer),
    (Glm5Next, "kda.gate_lower_bound", Glm5Next.is_kda),
    (Glm5Next, "expert_weights_norm", Glm5Next.is_moe),
    (Glm5Next, "expert_weights_scale", Glm5Next.is_moe),
    (Glm5Next, "swiglu_clamp_exp", Glm5Next.is_moe),
)


def key_missed(loaded: Loaded, head: bool) -> str | None:
    """A key that the loader can do without, and the result cannot."""
    for family, key, concerns in SILENT_KEYS:
        absent = isinstance(loaded.h, family) and loaded.contents.get(key) is None
        if absent and any(concerns(loaded.h, i) for i in blocks(loaded, head)):
            return f"{loaded.contents.architecture}.{key}"
    return None


def no_rope_factors(loaded: Loaded, _: bool) -> str | None:
    """The factors of a step35 file."""
    return None if ROPE_FACTORS in loaded.tensors else ROPE_FACTORS


def windows_too_few(loaded: Loaded, head: bool) -> str | None:
    """An array of windows that does not reach the last block computed."""
    value = loaded.contents.get("attention.sliding_window_pattern")
    length = len(value.items) if value else 0
    return f"attention.sliding_window_pattern has {length} entries" if length < blocks(loaded, head).stop else None


def window_of_other_kind(loaded: Loaded, _: bool) -> str | None:
    """A head whose number of query heads is that of the trunk's blocks of the other kind, and of no block of its own.

    In this family all blocks of full attention have one number of heads, and all sliding ones another.
    """
    counts, windows = loaded.values["attention.head_count"], loaded.values["attention.sliding_window_pattern"]
    kinds: dict[bool, set[int]] = {False: set(), True: set()}
    for i in loaded.trunk:
        kinds[bool(windows[i])].add(counts[i])
    for i in loaded.heads:
        kind = bool(windows[i])
        if counts[i] in kinds[not kind] and counts[i] not in kinds[kind] and kinds[kind]:
            return f"blk.{i}"
    return None


def output_tied(loaded: Loaded, _: bool) -> str | None:
    """The output matrix of a qwen4exp file that does not say that it does without."""
    return None if OUTPUT in loaded.tensors or is_tied(loaded.contents) else OUTPUT


def no_embedding(loaded: Loaded, _: bool) -> str | None:
    """The embedding."""
    return None if EMBEDDING in loaded.tensors else EMBEDDING


def no_ngrams(loaded: Loaded, _: bool) -> str | None:
    """The n-gram embeddings of a qwen4exp file."""
    return None if loaded.values["ple.layers"] else "qwen4exp.ple.layers"


def attention_dense(loaded: Loaded, head: bool) -> str | None:
    """An attention block of a qwen4exp file with an indexer and without a ratio."""
    ratios, kinds = loaded.values["attention.compress_ratios"], loaded.values["attention.recurrent_layers"]
    computed = (i for i in blocks(loaded, head) if not kinds[i] and not ratios[i])
    return _first(f"blk.{i}" for i in computed if loaded.has(i, "indexer.q_proj.weight"))


def limited(limit: Limit) -> Predicate:
    """A predicate: a value that a key must not have, where a graph goes by it."""

    def found(loaded: Loaded, head: bool) -> str | None:
        if not limit.applies(loaded.contents.architecture):
            return None
        value = limit.found(loaded.contents, loaded.h, blocks(loaded, head))
        return None if value is None else str(value)

    return found


def no_selection_to_share(loaded: Loaded, _: bool) -> str | None:
    """A first latent block of a glm5-next file that is to share the selection of one before it."""
    first = next((i for i in loaded.trunk if loaded.h.is_mla(i)), None)
    return None if first is None or loaded.values["attention.indexer.types"][first] else f"blk.{first}"


def no_rotation(loaded: Loaded, head: bool) -> str | None:
    """No number of dimensions to rotate for a qwen4exp file: all of a key are then taken, more than an indexer has."""
    if loaded.contents.get("rope.dimension_count") is not None:
        return None
    narrow = loaded.values["attention.indexer.key_length"] < loaded.values["attention.key_length"]
    return "rope.dimension_count" if narrow and any(map(loaded.h.is_attention, blocks(loaded, head))) else None


def indexer_unused(loaded: Loaded, _: bool) -> str | None:
    """A block of a glm5-next file whose indexer is there and not used."""
    types = loaded.values["attention.indexer.types"]
    unused = (i for i in loaded.trunk if not types[i])
    return _first(f"blk.{i}" for i in unused if loaded.has(i, "indexer.attn_k.weight"))
