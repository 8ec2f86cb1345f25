"""Faults of a qwen4exp file: eight trunk blocks, 3 and 7 with full attention, head 8.

Source: spec/qwen4exp-upstream.md 3 and 4, spec/qwen4exp.md 7.1.
"""

from __future__ import annotations

from faults import (
    CRASH,
    HANGING,
    NO_HEAD,
    OK,
    SILENT,
    Expect,
    Table,
    aborts,
    bad_key,
    count,
    entry,
    every,
    first,
    last,
    length,
    no_key,
    no_vocabulary,
    not_found,
    refuses,
    scalar,
    shape,
)

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Value, array, f32, i32, string, u32
from nextn.gguf_schema.types import ValueType

COMBINED, TRUNK, MTP, SHARED = Role
QWEN4EXP = Table("qwen4exp")
add, sample = QWEN4EXP.add, QWEN4EXP.sample

RATIOS = "attention.compress_ratios"
NO_BUFFER = aborts("GGML_ASSERT(buffer) failed")
NO_BLOCK = aborts("MTP block missing, load the model with MTP enabled")
I32, U64 = ValueType.INT32, ValueType.UINT64
NGRAM_KEYS = {
    "ple.layers": array(I32, [1]),
    "ple.ngram_size": u32(3),
    "ple.heads_per_ngram": u32(2),
    "ple.conv_kernel": u32(4),
    "ple.eos_token_id": u32(503),
    "embedding_length_per_layer_input": u32(32),
    "ple.layer_multipliers": array(U64, [3, 5, 7]),
    "ple.head_offsets": array(U64, [0, 1009, 2022, 3041]),
    "ple.head_vocab_sizes": array(U64, [1009, 1013, 1019, 1021]),
}


def ratios(*values: int) -> dict[str, object]:
    return {RATIOS: array(I32, values)}


add(COMBINED, "as converted", OK)
sample()
add(TRUNK, "as converted", OK, NO_HEAD)
sample()
add(MTP, "as converted", CRASH, OK)
sample()
add(SHARED, "as converted", not_found("token_embd.weight"))
sample()

# Tensors of a combined file
add(COMBINED, "no eh_proj", OK, NO_BLOCK, drop=r"blk\.8\.nextn.eh_proj.weight")
sample()
for name in ("enorm", "hnorm", "hc_head_norm", "hc_head_down", "hc_head_up"):
    add(COMBINED, f"no {name}", not_found(f"blk.8.nextn.{name}.weight"), drop=rf"blk\.8\.nextn.{name}.weight")
sample()
for name in ("hc_attn_norm", "attn_output", "indexer.q_proj", "ffn_gate_inp", "ffn_gate_inp_shexp"):
    add(COMBINED, f"no {name} in the head", not_found(f"blk.8.{name}.weight"), drop=rf"blk\.8\.{name}.weight")
add(COMBINED, "no attn_k in the head", OK, not_found("blk.8.attn_k.weight"), drop=r"blk\.8\.attn_k.weight",
    note="the specification has a refusal as a model too; q, k and v of a skipped block are not missed")  # fmt: skip
add(COMBINED, "no ffn_up_exps in the head", OK, not_found("blk.8.ffn_up_exps.weight"),
    drop=r"blk\.8\.ffn_up_exps.weight")  # fmt: skip
add(COMBINED, "no head, keys kept", OK, NO_BLOCK, drop=r"blk\.8\..*")
add(COMBINED, "no output", SILENT, drop="output.weight")
add(COMBINED, "no token_embd", not_found("token_embd.weight"), drop="token_embd.weight")
add(COMBINED, "no output_hc_norm", not_found("output_hc_norm.weight"), drop="output_hc_norm.weight")
add(COMBINED, "no first hc_attn_norm", CRASH, OK, drop=r"blk\.0\.hc_attn_norm.weight")
sample()
add(COMBINED, "no attn_k", not_found("blk.3.attn_k.weight"), drop=r"blk\.3\.attn_k.weight")
add(COMBINED, "no n-gram table", not_found("per_layer_token_embd.weight"), drop="per_layer_token_embd.weight")
add(COMBINED, "no n-grams at all", SILENT, OK, drop=r"per_layer_token_embd.weight|.*\.ple_.*",
    remove_keys=r"ple\..*|embedding_length_per_layer_input")  # fmt: skip
add(COMBINED, "hnorm of two dimensions", OK, reshape={r"blk\.8\.nextn.hnorm.weight": (128, 4)})
add(COMBINED, "hnorm of one stream", shape("blk.8.nextn.hnorm.weight", (128, 4), (128, 1, 1, 1)),
    reshape={r"blk\.8\.nextn.hnorm.weight": (128,)})  # fmt: skip
sample()
for name in ("embed_tokens", "shared_head_head"):
    add(COMBINED, f"with {name}", count(247, 246), add={f"blk.8.nextn.{name}.weight": (128, 512)})
add(COMBINED, "with eh_proj.scale", count(247, 246), OK, add={"blk.8.nextn.eh_proj.scale": (1,)})

# Tensors and keys of a head's file
add(MTP, "with the trunk's mixer", CRASH, OK,
    add={"output_hc_norm.weight": (512,), "output_hc_down.weight": (512, 16),
         "output_hc_up.weight": (16, 512)})  # fmt: skip
add(MTP, "no output", CRASH, SILENT, drop="output.weight")
add(MTP, "with n-gram keys", not_found("per_layer_token_embd.weight"), keys=NGRAM_KEYS)
sample()
add(MTP, "no ssm keys", no_key("qwen4exp.ssm.conv_kernel"), remove_keys=r"ssm\..*")
add(MTP, "no indexer keys", no_key("qwen4exp.attention.indexer.head_count"), remove_keys=r"attention\.indexer\..*")
add(MTP, "no hyper_connection keys", no_key("qwen4exp.hyper_connection.count"), remove_keys=r"hyper_connection\..*")
add(MTP, "no recurrent_layers", CRASH, OK, remove_keys="attention.recurrent_layers")
add(MTP, "no tokenizer", no_vocabulary("key not found in model: tokenizer.ggml.model"), remove_keys=r"tokenizer\..*")
add(MTP, "eh_proj transposed", shape("blk.8.nextn.eh_proj.weight", (256, 128), (128, 256, 1, 1)),
    reshape={r"blk\.8\.nextn.eh_proj.weight": (128, 256)})  # fmt: skip
add(MTP, "ratio of the head only", CRASH, OK, keys=ratios(0, 0, 0, 0, 0, 0, 0, 0, 4),
    note="as a model it crashes on the missing trunk before the ratios matter")  # fmt: skip
add(MTP, "no ratios", CRASH, SILENT, keys={RATIOS: every(0)})
add(MTP, "ratios of the trunk only", CRASH, NO_BUFFER, keys={RATIOS: entry(-1, 0)})
sample()
add(MTP, "mixer under the trunk's names", not_found("blk.8.nextn.hc_head_norm.weight"),
    rename={r"blk\.8\.nextn\.hc_head_": "output_hc_"})  # fmt: skip
add(MTP, "projections apart", count(35, 33), drop=r".*eh_proj.weight",
    add={"blk.8.nextn.fc_embd.weight": (128, 128), "blk.8.nextn.fc_hidden.weight": (128, 128)})  # fmt: skip
add(MTP, "renumbered", not_found("output_hc_norm.weight"), rename={r"blk\.8\.": "blk.0."},
    keys={"block_count": u32(1), RATIOS: last(1), "attention.recurrent_layers": last(1)})  # fmt: skip

# Keys of a combined file
add(COMBINED, "last ratio 0", OK, NO_BUFFER, keys={RATIOS: entry(-1, 0)})
add(COMBINED, "ratio of the head only", NO_BUFFER, OK, keys=ratios(0, 0, 0, 0, 0, 0, 0, 0, 4))
add(COMBINED, "no ratios", SILENT, remove_keys=RATIOS)
add(COMBINED, "a ratio everywhere", OK, keys={RATIOS: every(4)})
add(COMBINED, "ratios of the trunk's length", length("qwen4exp.attention.compress_ratios", 9, 8),
    keys={RATIOS: first(8)})  # fmt: skip
add(COMBINED, "recurrent_layers of the trunk's length", length("qwen4exp.attention.recurrent_layers", 9, 8),
    keys={"attention.recurrent_layers": first(8)})  # fmt: skip
add(COMBINED, "head_count_kv of the trunk's length", length("qwen4exp.attention.head_count_kv", 9, 8),
    keys={"attention.head_count_kv": array(I32, [2] * 8)})  # fmt: skip
add(COMBINED, "head_count_kv by block", OK, keys={"attention.head_count_kv": array(I32, [2] * 9)})
add(COMBINED, "head_count_kv 0 on linear blocks", shape("blk.3.attn_k.weight", (128, 0), (128, 128, 1, 1)),
    keys={"attention.head_count_kv": array(I32, [0, 0, 0, 2, 0, 0, 0, 2, 2])})  # fmt: skip
add(COMBINED, "expert_feed_forward_length by block", OK, keys={"expert_feed_forward_length": array(I32, [32] * 9)})
add(COMBINED, "two ratios", bad_key("QSA layers must share one compress ratio, got 4 and 2"),
    keys={RATIOS: entry(-1, 2)})  # fmt: skip
add(COMBINED, "ratio 1", bad_key("QSA needs a compress ratio above 1 that divides the budget, got 1 and 32"),
    keys=ratios(0, 0, 0, 1, 0, 0, 0, 1, 1))  # fmt: skip
add(COMBINED, "budget that the ratio does not divide",
    bad_key("QSA needs a compress ratio above 1 that divides the budget, got 4 and 9"),
    keys={"attention.indexer.top_k": u32(9)})  # fmt: skip
add(COMBINED, "no recurrent_layers", OK, remove_keys="attention.recurrent_layers")
add(COMBINED, "a head without attention", not_found("blk.8.attn_qkv.weight"),
    keys={"attention.recurrent_layers": entry(-1, True)})  # fmt: skip
add(COMBINED, "no nextn_predict_layers", count(246, 240), remove_keys="nextn_predict_layers")
sample()
add(COMBINED, "two heads declared", SILENT, aborts("qwen4exp MTP has a single block"),
    keys={"nextn_predict_layers": u32(2)},
    note="the specification has an abort as a model: its trunk lost its only attention block, ours not")  # fmt: skip
add(COMBINED, "more heads than blocks", aborts("GGML_ASSERT(hparams.n_layer_nextn <= hparams.n_layer_all) failed"),
    keys={"nextn_predict_layers": u32(10)})  # fmt: skip
add(COMBINED, "n-grams in the head", bad_key("PLE layer 8 is not a linear attention layer"),
    keys={"ple.layers": array(I32, [8])})  # fmt: skip
add(COMBINED, "keys of a trunk", count(246, 214), remove_keys="nextn_predict_layers",
    keys={"block_count": u32(8), RATIOS: first(8), "attention.recurrent_layers": first(8)})  # fmt: skip
add(TRUNK, "a head declared", SILENT, NO_BLOCK, keys={"nextn_predict_layers": u32(1)},
    note="the specification has an abort as a model, as for two heads declared")  # fmt: skip
add(COMBINED, "architecture misspelt", refuses("unknown model architecture: 'qwen4_exp'"),
    keys={"general.architecture": string("qwen4_exp")})  # fmt: skip

# Numbers that nothing can be computed with
NAN, INF = float("nan"), float("inf")
EPS, NO_CONTEXT = (
    aborts("GGML_ASSERT(eps >= 0.0f) failed"),
    aborts("GGML_ASSERT(n_ctx > 0 && n_prompt_tokens > 0) failed"),
)
for value, expected in ((NAN, EPS), (-1e-6, EPS), (0.0, SILENT), (INF, SILENT)):
    add(COMBINED, f"rms epsilon {value}", expected, keys={"attention.layer_norm_rms_epsilon": f32(value)})
add(COMBINED, "no context", NO_CONTEXT, OK, keys={"context_length": u32(0)})
for value in (NAN, 0.0, -1e7, INF):
    add(COMBINED, f"rope.freq_base {value}", SILENT, keys={"rope.freq_base": f32(value)})
TOO_MANY, ODD = aborts("GGML_ASSERT(n_dims <= ne0) failed"), aborts("GGML_ASSERT(n_dims % 2 == 0) failed")
for number, expected in ((15, ODD), (17, ODD), (64, TOO_MANY), (65, TOO_MANY), (32, SILENT), (2**31, SILENT)):
    add(COMBINED, f"{number} dimensions are rotated", expected, keys={"rope.dimension_count": u32(number)})
sample()
add(COMBINED, "no dimension is rotated", HANGING, keys={"rope.dimension_count": u32(0)})
add(COMBINED, "no rope.dimension_count", TOO_MANY, remove_keys="rope.dimension_count")
add(COMBINED, "value_length 128", shape("blk.3.attn_v.weight", (128, 256), (128, 128, 1, 1)),
    keys={"attention.value_length": u32(128)})  # fmt: skip
add(COMBINED, "no value_length", shape("blk.3.attn_v.weight", (128, 64), (128, 128, 1, 1)),
    remove_keys="attention.value_length")  # fmt: skip
add(COMBINED, "values wider than keys",
    aborts("GGML_ASSERT(hparams.n_embd_head_v() == hparams.n_embd_head_k()) failed"),
    aborts("GGML_ASSERT(n_embd_head == hparams.n_embd_head_k()) failed"),
    keys={"attention.value_length": u32(128)},
    reshape={r".*attn_v\.weight": (128, 256)})  # fmt: skip
add(COMBINED, "inner size 191", aborts("GGML_ASSERT(head_v_dim * num_v_heads == d_inner) failed"), OK,
    keys={"ssm.inner_size": u32(191)})  # fmt: skip
add(COMBINED, "time step rank 5", shape("blk.0.attn_qkv.weight", (128, 288), (128, 320, 1, 1)),
    keys={"ssm.time_step_rank": u32(5)})  # fmt: skip
for key in ("ple.conv_kernel", "embedding_length_per_layer_input"):
    add(COMBINED, f"{key} 0", bad_key(f"qwen4exp.{key} must be greater than zero, got 0"), keys={key: u32(0)})
for number in (0, 1, 9, 2**31):
    add(COMBINED, f"n-grams of {number}", bad_key(f"PLE n-gram size {number} is out of range"),
        keys={"ple.ngram_size": u32(number)})  # fmt: skip
for number, heads in ((0, 0), (33, 66), (2**31, 0)):
    add(COMBINED, f"{number} hashes of each n-gram", bad_key(f"PLE head count {heads} is out of range"),
        keys={"ple.heads_per_ngram": u32(number)})  # fmt: skip
NARROW = aborts("GGML_ASSERT(ggml_can_mul_mat(a, b)) failed")
add(COMBINED, "one hash of each n-gram", NARROW, OK, keys={"ple.heads_per_ngram": u32(1)})
add(COMBINED, "n-grams of two alone", NARROW, OK, keys={"ple.ngram_size": u32(2)})


def too_few(name: str, have: int, want: int) -> Expect:
    return bad_key(f"qwen4exp.ple.{name} has {have} entries, but at least {want} are required")


add(COMBINED, "n-grams of four", too_few("layer_multipliers", 3, 4), keys={"ple.ngram_size": u32(4)})
add(COMBINED, "three hashes of each n-gram", too_few("head_offsets", 4, 6), keys={"ple.heads_per_ngram": u32(3)})
for name, want in (("layer_multipliers", 3), ("head_offsets", 4), ("head_vocab_sizes", 4)):
    add(COMBINED, f"two {name}", too_few(name, 2, want), keys={f"ple.{name}": first(2)})
    add(COMBINED, f"no {name}", too_few(name, 0, want), keys={f"ple.{name}": first(0)})
sample()
NO_RANGE = bad_key("PLE head 0 range does not fit the int32 row index")
add(COMBINED, "an empty range of rows", NO_RANGE, keys={"ple.head_vocab_sizes": entry(0, 0)})
add(COMBINED, "rows from 2^40 on", NO_RANGE, keys={"ple.head_offsets": entry(0, 2**40)})
for layer, said in ((-100, 2**32 - 100), (-1, 2**32 - 1), (100, 100)):
    add(COMBINED, f"n-grams in block {layer}", bad_key(f"PLE layer {said} is out of range"),
        keys={"ple.layers": array(I32, [layer])})  # fmt: skip

# Keys of other types
add(COMBINED, "image_token_id is an i32",
    bad_key("key qwen4exp.ple.image_token_id has wrong type i32 but expected type u32"),
    keys={"ple.image_token_id": i32(3)})  # fmt: skip
add(COMBINED, "one ratio for all, an i32", bad_key(f"key qwen4exp.{RATIOS} has wrong type i32 but expected type u32"),
    keys={RATIOS: i32(4)})  # fmt: skip
add(COMBINED, "one ratio for all", OK, keys={RATIOS: u32(4)})
add(COMBINED, "one section for all", OK, keys={"rope.dimension_sections": scalar(0)})
INTERVAL = "full_attention_interval"
for value in (i32(4), Value(U64, 4)):
    add(COMBINED, f"interval of type {value.type_name} beside recurrent_layers", OK, keys={INTERVAL: value})
add(COMBINED, "interval is an i32", bad_key(f"key qwen4exp.{INTERVAL} has wrong type i32 but expected type u32"),
    keys={INTERVAL: i32(4)}, remove_keys="attention.recurrent_layers")  # fmt: skip

# Types that nothing is computed in
for type_ in ("I8", "F64"):
    add(COMBINED, f"n-gram table in {type_}", aborts("fatal error"), OK, retype={"per_layer_token_embd.weight": type_})
    add(COMBINED, f"convolutions in {type_}", aborts("GGML_ASSERT(src1->nb[0] == sizeof(float)) failed"), OK,
        retype={r".*ssm_conv1d\.weight": type_})  # fmt: skip
    add(COMBINED, f"an injection in {type_}", CRASH, OK, retype={r"blk\.1\.hc_attn_inject\.weight": type_})
