"""Values that a loader takes, or refuses for reasons of one family alone: the traps of the three families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nextn.gguf_schema.architecture import Hyperparameters, Role
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.nextn_generic import block_indices
from nextn.validators.findings import Findings
from nextn.validators.kinds import HYPER_CONNECTIONS, KINDS, entries_of, kinds_wrong, ngram_layers, pools_fit
from nextn.validators.layout import TO_UPSTREAM
from nextn.validators.role import RoleReport
from nextn.validators.wording import in_words, loader_of

STEP35, QWEN4EXP, GLM5_NEXT = (loader_of(name) for name in ("step35", "qwen4exp", "glm5-next"))
AGAIN = "convert it again"
RAW_CONFIG = "convert it again from the raw config.json: nextn convert"

# Keys whose absence the rules here judge, since it is right for some models.
JUDGED_BY_TRAPS: dict[str, tuple[str, ...]] = {
    "qwen4exp": (
        "attention.compress_ratios",
        "ple.layers",
        "ple.ngram_size",
        "ple.heads_per_ngram",
        "ple.conv_kernel",
        "ple.eos_token_id",
        "ple.layer_multipliers",
        "ple.head_offsets",
        "ple.head_vocab_sizes",
        "embedding_length_per_layer_input",
    ),
}
NGRAM_TABLE = "per_layer_token_embd.weight"
NGRAM_KEYS = JUDGED_BY_TRAPS["qwen4exp"][1:]
ROPE_FACTORS = "rope_freqs.weight"
MAX_ROW = 2**31 - 1

Rule = Callable[[Contents, Any, RoleReport, Findings], None]


def examine_traps(contents: Contents, h: Hyperparameters, report: RoleReport, findings: Findings) -> None:
    """Add what the rules of the file's family find in the values of its keys."""
    for rule in RULES.get(contents.architecture, ()):
        rule(contents, h, report, findings)


def _key(contents: Contents, name: str) -> str:
    return f"{contents.architecture}.{name}"


def step_rope(contents: Contents, h: Any, report: RoleReport, findings: Findings) -> None:
    """Rotary dimensions follow from the head size, which a key that upstream does not write overrides."""
    if report.role and report.role.has_trunk and ROPE_FACTORS not in contents.tensors:
        message = "is missing: right only for a model whose full layers do not scale their frequencies (llama3)"
        findings.warn("tensor-missing", ROPE_FACTORS, message, AGAIN, STEP35)
    value, length = contents.get("rope.dimension_count"), h.attention_key_length
    if value and length and value.value != length:
        message = (
            f"is {value.value}, want {length} (attention.key_length) or no key: rotates other dimensions, silently"
        )
        key = _key(contents, "rope.dimension_count")
        findings.error("rope-dimension-count", key, message, f"remove {key}", STEP35)


def step_windows(contents: Contents, h: Any, report: RoleReport, findings: Findings) -> None:
    """Without any sliding layer the loader has no cache to make; a head slides as the layers with as many heads do."""
    pattern = h.attention_sliding_window_pattern
    if pattern and not any(pattern):
        message = "has no sliding layer: llama.cpp b11549 aborts (hparams.is_swa_any())"
        findings.error("window-pattern", _key(contents, "attention.sliding_window_pattern"), message, AGAIN, STEP35)
        return
    heads = h.attention_head_count
    if not pattern or not heads:
        return
    # Where full and sliding layers of the trunk differ in heads, those of a nextn block show which it is.
    trunk = range(min(report.first_head, len(pattern), len(heads)))
    kinds = {sliding: {heads[i] for i in trunk if bool(pattern[i]) is sliding} for sliding in (True, False)}
    if kinds[True] & kinds[False]:
        return
    values = [contents.get(name) for name in ("attention.head_count", "attention.sliding_window_pattern")]
    last = min((len(value.items) for value in values if value and value.element is not None), default=0)
    gates = {i: contents.tensors.get(f"blk.{i}.attn_gate.weight") for i in range(len(trunk), last)}
    # A count that the tensors contradict is the fault of its own key.
    agree = [i for i, gate in gates.items() if gate and gate.ne[1:] == (heads[i],)]
    wrong = [i for i in agree if heads[i] in kinds[not pattern[i]]]
    if wrong:
        message = f"says of {in_words(wrong)} another kind of attention than attention.head_count: drafts are wrong"
        key = _key(contents, "attention.sliding_window_pattern")
        findings.error("window-pattern", key, message, AGAIN, STEP35)


def layer_kinds(contents: Contents, h: Any, report: RoleReport, findings: Findings) -> None:
    """The key that tells linear from full attention says of each block what its tensors show."""
    kinds = KINDS[contents.architecture]
    wrong = [i for i, _ in kinds_wrong(contents, h)]
    entries = entries_of(contents, h, kinds)
    if not wrong and entries and report.nextn_blocks:
        wrong = [i for i in range(report.first_head, len(entries)) if kinds.is_linear(entries[i])]
    if wrong:
        message = f"says of {in_words(wrong)} the kind of attention that their tensors do not have"
        if any(i >= report.first_head for i in wrong):
            message += "; a head has full attention"
        remedy = f"{kinds.linear_entry} for blocks with linear attention, {kinds.full_entry} for the others and heads"
        findings.error("layer-kinds", _key(contents, kinds.key), message, remedy, loader_of(contents.architecture))


def glm_rope(contents: Contents, h: Any, _: RoleReport, findings: Findings) -> None:
    """There are no rotary dimensions, which must be written."""
    if h.rope_dimension_count:
        message = f"is {h.rope_dimension_count}, want 0: llama.cpp b11549 refuses the shape of attn_kv_a_mqa"
        findings.error("rope-dimension-count", _key(contents, "rope.dimension_count"), message, AGAIN, GLM5_NEXT)


def glm_pools(contents: Contents, h: Any, _: RoleReport, findings: Findings) -> None:
    """Pools of more than one key, which divide what the indexer selects; four residual streams."""
    kpool, top_k, streams = h.attention_indexer_kpool, h.attention_indexer_top_k, h.hyper_connection_count
    if kpool is None and contents.get("attention.indexer.block_size") is not None:
        key = _key(contents, "attention.indexer.block_size")
        message = "is what old files call attention.indexer.kpool, which llama.cpp b11549 wants"
        findings.note("key-alias", key, message, TO_UPSTREAM, GLM5_NEXT)
    if kpool is not None and kpool <= 1:
        message = f"is {kpool}, want more than 1: llama.cpp b11549 aborts"
        findings.error("indexer-pool", _key(contents, "attention.indexer.kpool"), message, AGAIN, GLM5_NEXT)
    elif not pools_fit(h):
        message = f"is {top_k}, want a multiple of the {kpool} keys of a pool: llama.cpp b11549 aborts"
        findings.error("indexer-pool", _key(contents, "attention.indexer.top_k"), message, AGAIN, GLM5_NEXT)
    if streams is not None and streams != HYPER_CONNECTIONS:
        message = f"is {streams}, want {HYPER_CONNECTIONS}: llama.cpp b11549 aborts"
        findings.error("hyper-connections", _key(contents, "hyper_connection.count"), message, AGAIN, GLM5_NEXT)


def glm_indexers(contents: Contents, h: Any, _: RoleReport, findings: Findings) -> None:
    """A block that is said to share another's selection has no indexer of its own."""
    types, kv = h.attention_indexer_types, h.attention_head_count_kv
    if not types or not kv:
        return
    owns = {i for i in block_indices(contents) if f"blk.{i}.indexer.attn_k.weight" in contents.tensors}
    wrong = [i for i in owns if i < min(len(types), len(kv)) and kv[i] and not types[i]]
    if wrong:
        message = f"says that {in_words(wrong)} share a selection, but they have an indexer of their own, left unused"
        findings.error("indexer-types", _key(contents, "attention.indexer.types"), message, AGAIN, GLM5_NEXT)


def qwen_ratios(contents: Contents, h: Any, report: RoleReport, findings: Findings) -> None:
    """One ratio for all attention layers that a graph runs, or none."""
    key, ratios = _key(contents, "attention.compress_ratios"), h.attention_compress_ratios or ()
    top_k, reason = h.attention_indexer_top_k, QWEN4EXP
    used = sorted({ratio for ratio in ratios if ratio})
    first, blocks = report.first_head, block_indices(contents)
    attention = {i for i in blocks if f"blk.{i}.indexer.k_proj.weight" in contents.tensors and i < len(ratios)}
    if len(used) > 1:
        message = f"has {' and '.join(map(str, used))}: llama.cpp b11549 wants one ratio for all layers"
        findings.error("compress-ratios", key, message, RAW_CONFIG, reason)
    elif used and (used[0] == 1 or (top_k and top_k % used[0])):
        message = f"has {used[0]}, want a ratio above 1 that divides attention.indexer.top_k ({top_k})"
        findings.error("compress-ratios", key, message, RAW_CONFIG, reason)
    elif not used and any("indexer." in name for name in contents.tensors):
        state = "is missing" if contents.get("attention.compress_ratios") is None else "has only zeros"
        message = f"{state}, but there are indexers: attention is dense everywhere, silently, and long contexts differ"
        findings.error("compress-ratios", key, message, RAW_CONFIG, QWEN4EXP)
    elif used:
        trunk, head = {i for i in attention if i < first}, {i for i in attention if i >= first}
        for part, what in ((trunk, "the trunk"), (head, "a head")):
            dense = [i for i in part if not ratios[i]]
            if part and len(dense) == len(part):
                remedy = f"set the entries of {in_words(dense)} to {used[0]}: {TO_UPSTREAM}"
                message = (
                    f"has 0 for {in_words(dense)} and {used[0]} elsewhere: llama.cpp b11549 aborts when it runs {what}"
                )
                findings.error("compress-ratios", key, message, remedy, reason)
            elif dense:
                message = f"has 0 for {in_words(dense)}, which have indexers: their attention is dense, silently"
                findings.error("compress-ratios", key, message, RAW_CONFIG, reason)


def qwen_streams(contents: Contents, h: Any, _: RoleReport, findings: Findings) -> None:
    """More than one residual stream."""
    if h.hyper_connection_count is not None and h.hyper_connection_count <= 1:
        message = f"is {h.hyper_connection_count}, want more than one: llama.cpp b11549 refuses the file"
        findings.error("hyper-connections", _key(contents, "hyper_connection.count"), message, AGAIN, QWEN4EXP)


def qwen_ngrams(contents: Contents, h: Any, report: RoleReport, findings: Findings) -> None:
    """The n-gram keys come with the table and its layer, and never in a file of heads."""
    there = [name for name in NGRAM_KEYS if contents.get(name) is not None]
    key, layers, table = _key(contents, "ple.layers"), h.ple_layers or (), contents.tensors.get(NGRAM_TABLE)
    if report.role in (Role.MTP, Role.MTP_SHARED):
        if layers:
            message = f"is there in a file of heads: llama.cpp b11549 then wants {NGRAM_TABLE}"
            remedy = f"remove the keys {_key(contents, 'ple.*')} and {_key(contents, NGRAM_KEYS[-1])}"
            findings.error("ngram-keys-in-head", key, message, remedy, QWEN4EXP)
        return
    if not layers:
        if table:
            message = f"is missing, but {NGRAM_TABLE} is there, which then no loader asks for"
            findings.error("ngram-keys-missing", key, message, AGAIN, QWEN4EXP)
        elif report.role:
            message = "is missing, as are the n-gram tensors: right only for a model without n-gram embeddings"
            findings.warn("ngram-keys-missing", key, message, AGAIN, QWEN4EXP)
        return
    for name in NGRAM_KEYS:
        if name not in there:
            message = "is missing, and wanted with ple.layers: llama.cpp b11549 refuses the file"
            findings.error("key-missing", _key(contents, name), message, AGAIN, QWEN4EXP)
    _ngram_layer(contents, h, layers, report, findings)
    if len(there) == len(NGRAM_KEYS):
        _ngram_ranges(contents, h, table.ne[1] if table and len(table.ne) > 1 else None, findings)


def _ngram_layer(contents: Contents, h: Any, layers: tuple[int, ...], report: RoleReport, findings: Findings) -> None:
    key, linear = _key(contents, "ple.layers"), h.attention_recurrent_layers or ()
    if len(layers) != 1:
        listed = contents.get("ple.layers")
        message = f"lists {len(listed.items) if listed else 0} layers: llama.cpp b11549 knows one"
        findings.error("ngram-layers", key, message, AGAIN, QWEN4EXP)
        return
    layer = layers[0]
    total = report.declared.block_count or 0
    if not 0 <= layer < total:
        message = f"is {layer}, past the {total} blocks of the file"
        findings.error("ngram-layers", key, message, AGAIN, QWEN4EXP)
    elif layer < len(linear) and not linear[layer]:
        message = f"is {layer}, which is not a linear attention layer: llama.cpp b11549 refuses the file"
        findings.error("ngram-layers", key, message, AGAIN, QWEN4EXP)
    elif (shown := ngram_layers(contents)) and shown != (layer,):
        message = f"is {layer}, but the n-gram tensors are in {in_words(shown)}"
        findings.error("ngram-layers", key, message, f"set it to {shown[0]}", QWEN4EXP)


def _ngram_ranges(contents: Contents, h: Any, rows: int | None, findings: Findings) -> None:
    """The constants have an entry for each n-gram, or each of its heads, whose ranges lie within the table."""
    if not all(isinstance(n, int) for n in (h.ple_ngram_size, h.ple_heads_per_ngram)):
        return
    heads = (h.ple_ngram_size - 1) * h.ple_heads_per_ngram
    for name, want in (("layer_multipliers", h.ple_ngram_size), ("head_offsets", heads), ("head_vocab_sizes", heads)):
        have = getattr(h, f"ple_{name}")
        if have is None:
            return
        if len(have) < want:
            message = f"has {len(have)} entries, want at least {want}"
            findings.error("array-length", _key(contents, f"ple.{name}"), message, AGAIN, QWEN4EXP)
            return
    ends = [o + n for o, n in zip(h.ple_head_offsets[:heads], h.ple_head_vocab_sizes[:heads], strict=True)]
    end = max(ends, default=0)
    if end > MAX_ROW:
        message = f"reach row {end}, past the {MAX_ROW} rows that fit an INT32"
        findings.error("ngram-ranges", _key(contents, "ple.head_offsets"), message, AGAIN, QWEN4EXP)
    elif rows is not None and rows < end:
        message = f"has {rows} rows, too few for the {end} that ple.head_offsets and ple.head_vocab_sizes reach"
        findings.error("ngram-ranges", NGRAM_TABLE, message, AGAIN, QWEN4EXP)


RULES: dict[str, tuple[Rule, ...]] = {
    "step35": (step_rope, step_windows),
    "qwen4exp": (layer_kinds, qwen_ratios, qwen_streams, qwen_ngrams),
    "glm5-next": (layer_kinds, glm_rope, glm_pools, glm_indexers),
}
