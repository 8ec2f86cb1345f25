"""Faults of a step35 file: five trunk blocks, three heads (5, 6, 7). Source: spec/step35.md 7.1 to 7.5."""

from __future__ import annotations

from faults import (
    CRASH,
    NO_HEAD,
    OK,
    SILENT,
    Table,
    aborts,
    bad_key,
    count,
    entry,
    every,
    first,
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
STEP35 = Table("step35")
add, sample = STEP35.add, STEP35.sample

NO_EH_PROJ = aborts('GGML_ASSERT(layer.nextn.eh_proj && "MTP block missing nextn.eh_proj") failed')
NO_OUTPUT = aborts(
    'GGML_ASSERT(head_w && "STEP35 MTP: missing LM head (nextn.shared_head_head or model.output)") failed'
)
UNSUPPORTED = aborts("binary_op: unsupported types: dst: f32, src0: f32, src1: f16")
OTHER_SHAPE = aborts("GGML_ASSERT(ggml_are_same_shape(a, b)) failed")
NO_REPEAT = aborts("GGML_ASSERT(ggml_can_repeat(b, a)) failed")
OPTIONAL = "as the library does it; the specification does not say which"

add(COMBINED, "as converted", OK)
sample()
add(TRUNK, "as converted", OK, NO_HEAD)
sample()
add(MTP, "as converted", CRASH, OK)
sample()
add(SHARED, "as converted", not_found("token_embd.weight"))
sample()

# Tensors
add(COMBINED, "no token_embd", not_found("token_embd.weight"), drop="token_embd.weight")
add(COMBINED, "no output_norm", not_found("output_norm.weight"), drop="output_norm.weight")
add(COMBINED, "no output", not_found("output.weight"), drop="output.weight")
add(MTP, "no output", CRASH, OK, drop="output.weight")
add(MTP, "no output of any kind", CRASH, NO_OUTPUT, drop=r"output.weight|.*shared_head_head.weight")
add(MTP, "no output_norm", not_found("output_norm.weight"), drop="output_norm.weight")
add(COMBINED, "no first attn_norm", SILENT, OK, drop=r"blk\.0\.attn_norm.weight")
sample()
add(COMBINED, "no attn_norm", not_found("blk.1.attn_norm.weight"), drop=r"blk\.1\.attn_norm.weight")
add(COMBINED, "no attn_q", not_found("blk.2.attn_q.weight"), drop=r"blk\.2\.attn_q.weight")
add(COMBINED, "no attn_output", not_found("blk.3.attn_output.weight"), drop=r"blk\.3\.attn_output.weight")
add(TRUNK, "no ffn_norm", not_found("blk.4.ffn_norm.weight"), drop=r"blk\.4\.ffn_norm.weight")
add(COMBINED, "two tensors gone", not_found("blk.1.attn_v.weight"), drop=r"blk\.(1\.attn_v|3\.attn_k).weight")
add(COMBINED, "no attn_gate", SILENT, OK, drop=r"blk\.2\.attn_gate.weight")
add(COMBINED, "no q and k norms", SILENT, OK, drop=r"blk\.2\.attn_[qk]_norm.weight")
add(COMBINED, "no router bias", SILENT, OK, drop=r".*exp_probs_b.bias")
add(COMBINED, "no shared expert", SILENT, OK, drop=r".*_shexp.weight")
add(COMBINED, "no rope_freqs", SILENT, OK, drop="rope_freqs.weight")
for name in ("0.ffn_gate", "3.ffn_gate_inp", "3.ffn_gate_exps", "3.ffn_gate_shexp", "3.ffn_down_shexp"):
    add(COMBINED, f"no blk.{name}", SILENT, OK, drop=rf"blk\.{name}.weight", note=OPTIONAL)
for name in ("3.ffn_up_exps", "3.ffn_down_exps"):
    add(COMBINED, f"no blk.{name}", CRASH, OK, drop=rf"blk\.{name}.weight", note=OPTIONAL)
add(COMBINED, "no blk.0.ffn_up", OTHER_SHAPE, OK, drop=r"blk\.0\.ffn_up.weight", note=OPTIONAL)
for name in ("0.ffn_down", "3.ffn_up_shexp"):
    add(COMBINED, f"no blk.{name}", NO_REPEAT, OK, drop=rf"blk\.{name}.weight", note=OPTIONAL)
add(COMBINED, "no ffn_gate in a head", OK, SILENT, drop=r"blk\.5\.ffn_gate.weight", note=OPTIONAL)
add(COMBINED, "no ffn_up in a head", OK, OTHER_SHAPE, drop=r"blk\.5\.ffn_up.weight", note=OPTIONAL)
add(COMBINED, "no ffn_down in a head", OK, NO_REPEAT, drop=r"blk\.5\.ffn_down.weight", note=OPTIONAL)
add(COMBINED, "no eh_proj in the first head", OK, NO_EH_PROJ, drop=r"blk\.5\.nextn.eh_proj.weight")
sample()
add(COMBINED, "no eh_proj in the second head", not_found("blk.6.nextn.eh_proj.weight"),
    drop=r"blk\.6\.nextn.eh_proj.weight")  # fmt: skip
add(COMBINED, "no hnorm", not_found("blk.5.nextn.hnorm.weight"), drop=r"blk\.5\.nextn.hnorm.weight")
sample()
add(MTP, "no enorm in the last head", not_found("blk.7.nextn.enorm.weight"), drop=r"blk\.7\.nextn.enorm.weight")
add(COMBINED, "no attn_q in a head", OK, not_found("blk.5.attn_q.weight"), drop=r"blk\.5\.attn_q.weight")
add(COMBINED, "no shared_head_norm", OK, SILENT, drop=r".*shared_head_norm.weight")
add(COMBINED, "no shared_head_head", OK, SILENT, drop=r".*shared_head_head.weight")
sample()
add(COMBINED, "no head, keys kept", OK, NO_EH_PROJ, drop=r"blk\.[567]\..*")
add(COMBINED, "a tensor too many", count(131, 130), add={"blk.0.extra.weight": (32,)})
sample()
add(COMBINED, "fused experts beside the others", count(131, 130), add={"blk.2.ffn_gate_up_exps.weight": (128, 128, 8)})
add(COMBINED, "attn_norm in F16", UNSUPPORTED, OK, retype={r"blk\.1\.attn_norm.weight": "F16"})
add(COMBINED, "router bias in F16", UNSUPPORTED, OK, retype={".*exp_probs_b.bias": "F16"})
add(COMBINED, "router in F16", OK, retype={".*ffn_gate_inp.weight": "F16"})
add(MTP, "output_norm in F16", CRASH, OK, retype={"output_norm.weight": "F16"},
    note="a head with a norm of its own does not use this one")  # fmt: skip
add(COMBINED, "rope_freqs in F16", aborts("GGML_ASSERT(c->type == GGML_TYPE_F32) failed"),
    retype={"rope_freqs.weight": "F16"})  # fmt: skip
add(COMBINED, "rope_freqs too long", shape("rope_freqs.weight", (16,), (32, 1, 1, 1)),
    reshape={"rope_freqs.weight": (32,)})  # fmt: skip
add(COMBINED, "eh_proj transposed", shape("blk.5.nextn.eh_proj.weight", (256, 128), (128, 256, 1, 1)),
    reshape={r"blk\.5\.nextn.eh_proj.weight": (128, 256)})  # fmt: skip

# Keys
add(COMBINED, "no nextn_predict_layers", count(130, 115), remove_keys="nextn_predict_layers")
add(COMBINED, "one head declared of three", count(130, 120), keys={"nextn_predict_layers": u32(1)})
add(COMBINED, "four heads declared of three", SILENT, NO_EH_PROJ, keys={"nextn_predict_layers": u32(4)})
sample()
add(COMBINED, "more heads than blocks", aborts("GGML_ASSERT(hparams.n_layer_nextn <= hparams.n_layer_all) failed"),
    keys={"nextn_predict_layers": u32(9)})  # fmt: skip
add(COMBINED, "no blocks", aborts("GGML_ASSERT(hparams.n_layer_all > 0"), keys={"block_count": u32(0)})
add(COMBINED, "head_count of the trunk only", length("step35.attention.head_count", 8, 5),
    keys={"attention.head_count": first(5)})  # fmt: skip
sample()
add(COMBINED, "head_count_kv of the trunk only", length("step35.attention.head_count_kv", 8, 5),
    keys={"attention.head_count_kv": first(5)})  # fmt: skip
add(MTP, "clamps of the trunk only", length("step35.swiglu_clamp_exp", 8, 5), keys={"swiglu_clamp_exp": first(5)})
add(COMBINED, "window pattern of the trunk only", OK, SILENT, keys={"attention.sliding_window_pattern": first(5)})
add(COMBINED, "window pattern too short", SILENT, keys={"attention.sliding_window_pattern": first(3)})
add(COMBINED, "window pattern is one flag",
    bad_key("array key not found in model: step35.attention.sliding_window_pattern"),
    keys={"attention.sliding_window_pattern": scalar(1)})  # fmt: skip
add(COMBINED, "no window pattern", bad_key("array key not found in model: step35.attention.sliding_window_pattern"),
    remove_keys="attention.sliding_window_pattern")  # fmt: skip
add(COMBINED, "no sliding block", shape("rope_freqs.weight", (8,), (16, 1, 1, 1)),
    keys={"attention.sliding_window_pattern": every(False)},
    note="the specification has an assertion; the factors, made for sliding blocks, are refused first")  # fmt: skip
add(COMBINED, "no sliding block, no rope_freqs", aborts("GGML_ASSERT(hparams.is_swa_any()) failed"),
    keys={"attention.sliding_window_pattern": every(False)}, drop="rope_freqs.weight")  # fmt: skip
add(COMBINED, "no expert_feed_forward_length", no_key("step35.expert_feed_forward_length"),
    remove_keys="expert_feed_forward_length")  # fmt: skip
add(COMBINED, "no context_length", no_key("step35.context_length"), remove_keys="context_length")
add(COMBINED, "no feed_forward_length", shape("blk.0.ffn_gate.weight", (128, 0), (128, 192, 1, 1)),
    remove_keys="feed_forward_length")  # fmt: skip
add(COMBINED, "no expert_shared_feed_forward_length", shape("blk.2.ffn_gate_shexp.weight", (128, 0), (128, 64, 1, 1)),
    remove_keys="expert_shared_feed_forward_length")  # fmt: skip
add(COMBINED, "heads padded as full attention", shape("blk.5.attn_q.weight", (128, 128), (128, 192, 1, 1)),
    keys={"attention.head_count": array(ValueType.INT32, [4, 6, 6, 6, 4, 4, 4, 4])})  # fmt: skip
sample()
add(COMBINED, "no experts used", aborts("GGML_ASSERT(n_expert_used_max > 0) failed"),
    keys={"expert_used_count": u32(0)})  # fmt: skip
add(COMBINED, "no expert_weights_norm", SILENT, OK, remove_keys="expert_weights_norm")
add(COMBINED, "no rope.freq_base", SILENT, OK, remove_keys="rope.freq_base")
add(COMBINED, "clamp forgotten", SILENT, OK, remove_keys="swiglu_clamp_exp")
add(COMBINED, "context_length is a text", bad_key("key step35.context_length has wrong type str but expected type u32"),
    keys={"context_length": string("4096")})  # fmt: skip
add(COMBINED, "a token too few", shape("token_embd.weight", (128, 511), (128, 512, 1, 1)),
    keys={"tokenizer.ggml.tokens": first(511)})  # fmt: skip
add(COMBINED, "no tokenizer", no_vocabulary("key not found in model: tokenizer.ggml.model"),
    remove_keys=r"tokenizer\..*")  # fmt: skip
add(COMBINED, "no merges", no_vocabulary("cannot find tokenizer merges in model file"),
    remove_keys="tokenizer.ggml.merges")  # fmt: skip
add(COMBINED, "no tokens", no_vocabulary("cannot find tokenizer vocab in model file"),
    remove_keys="tokenizer.ggml.tokens")  # fmt: skip
add(COMBINED, "unknown pre-tokenizer", no_vocabulary("unknown pre-tokenizer type: 'nope'"),
    keys={"tokenizer.ggml.pre": string("nope")})  # fmt: skip
add(COMBINED, "architecture misspelt", refuses("unknown model architecture: 'step3p5'"),
    keys={"general.architecture": string("step3p5")})  # fmt: skip
add(
    COMBINED, "another kind of window in a head", OK, SILENT, keys={"attention.sliding_window_pattern": entry(5, False)}
)

# Numbers that nothing can be computed with
NAN, INF = float("nan"), float("inf")
EPS, NO_CONTEXT = (
    aborts("GGML_ASSERT(eps >= 0.0f) failed"),
    aborts("GGML_ASSERT(n_ctx > 0 && n_prompt_tokens > 0) failed"),
)
RMS = "attention.layer_norm_rms_epsilon"
for value, expected in ((NAN, EPS), (-1e-6, EPS), (0.0, SILENT), (INF, SILENT)):
    add(COMBINED, f"rms epsilon {value}", expected, keys={RMS: f32(value)})
sample()
add(COMBINED, "no context", NO_CONTEXT, OK, keys={"context_length": u32(0)})
add(COMBINED, "a context of 2^31", NO_CONTEXT, OK, keys={"context_length": u32(2**31)})
for value in (NAN, 0.0, -5e6, INF):
    add(COMBINED, f"rope.freq_base {value}", SILENT, OK, keys={"rope.freq_base": f32(value)})
    add(COMBINED, f"rope.freq_base_swa {value}", SILENT, keys={"rope.freq_base_swa": f32(value)})
for value in (NAN, INF, -3.0):
    add(COMBINED, f"expert_weights_scale {value}", SILENT, OK, keys={"expert_weights_scale": f32(value)})
for number in (5, 2**31):
    add(COMBINED, f"gating function {number}", aborts("fatal error"), OK, keys={"expert_gating_func": u32(number)})
add(COMBINED, "softmax gating", SILENT, OK, keys={"expert_gating_func": u32(1)})
for number in (0, 2**31):
    add(COMBINED, f"a window of {number}", SILENT, keys={"attention.sliding_window": u32(number)})
add(COMBINED, "value_length 64", shape("blk.0.attn_v.weight", (128, 128), (128, 64, 1, 1)),
    keys={"attention.value_length": u32(64)})  # fmt: skip
add(COMBINED, "value_length 64, values as wide", shape("blk.0.attn_output.weight", (256, 128), (128, 128, 1, 1)),
    keys={"attention.value_length": u32(64)}, reshape={r".*attn_v\.weight": (128, 128)})  # fmt: skip
add(COMBINED, "no value_length", OK, remove_keys="attention.value_length")
add(COMBINED, "1025 experts", aborts("GGML_ASSERT(hparams.n_expert <= LLAMA_MAX_EXPERTS) failed"),
    keys={"expert_count": u32(1025)})  # fmt: skip
add(COMBINED, "two groups of experts, none used", aborts("GGML_ASSERT(hparams.n_group_used > 0) failed"),
    keys={"expert_group_count": u32(2)})  # fmt: skip
add(COMBINED, "a window pattern of 600",
    bad_key("array length 600 for key step35.attention.sliding_window_pattern exceeds max 512"),
    keys={"attention.sliding_window_pattern": array(ValueType.BOOL, [True] * 600)})  # fmt: skip
for key in ("leading_dense_block_count", "moe_every_n_layers"):
    add(COMBINED, f"{key} is an i32", OK, keys={key: i32(1)}, note="no loader looks at it")

# Keys of other types
add(COMBINED, "file type is a text", refuses("key general.file_type has wrong type str but expected type u32"),
    keys={"general.file_type": string("x")})  # fmt: skip
add(COMBINED, "name is a number", bad_key("key general.name has wrong type u32 but expected type str"),
    keys={"general.name": u32(3)})  # fmt: skip
for key, value in (
    *(("bos_token_id", i32(1)), ("eos_token_id", Value(ValueType.UINT64, 2)), ("fim_pre_token_id", i32(1))),
    *(("seperator_token_id", i32(1)), ("add_bos_token", u32(1)), ("add_space_prefix", u32(1))),
    *(("token_type_count", i32(3)), ("pre", u32(1)), ("model", u32(1))),
):
    types = {ValueType.INT32: "i32", ValueType.UINT64: "u64", ValueType.UINT32: "u32"}
    wanted = "bool" if key.startswith("add_") else "str" if key in ("pre", "model") else "u32"
    text = f"key tokenizer.ggml.{key} has wrong type {types[value.type]} but expected type {wanted}"
    add(COMBINED, f"{key} is of type {types[value.type]}", no_vocabulary(text), keys={f"tokenizer.ggml.{key}": value})
sample()
add(COMBINED, "an id that is not looked at", OK, keys={"tokenizer.ggml.separator_token_id": i32(1)})
for key, value in (
    *(("merges", array(ValueType.INT32, range(20))), ("tokens", array(ValueType.INT32, range(512)))),
    *(("token_type", array(ValueType.INT64, [1] * 512)), ("scores", array(ValueType.INT64, [1] * 512))),
    *(("merges", string("a b")), ("tokens", string("a")), ("token_type", array(ValueType.UINT32, [1] * 512))),
):
    add(COMBINED, f"{key} of type {value.type_name}", no_vocabulary(f"invalid gguf type for tokenizer.ggml.{key}"),
        keys={f"tokenizer.ggml.{key}": value})  # fmt: skip
for key, value in (
    *(("pre", string("")), ("merges", array(ValueType.STRING, []))),
    *(("merges", array(ValueType.STRING, ["nospace"] * 9)), ("model", string("llama")), ("model", string("bert"))),
):
    add(
        COMBINED,
        f"{key} {value.value!r:.20}",
        OK,
        keys={f"tokenizer.ggml.{key}": value},
        note="texts are cut otherwise",
    )
add(COMBINED, "no pre-tokenizer", OK, remove_keys="tokenizer.ggml.pre", note="texts are cut otherwise")

# Types that nothing is computed in
for type_ in ("I8", "I16", "I32", "I64", "F64", "Q8_1"):
    add(COMBINED, f"attn_output in {type_}", CRASH, OK, retype={r"blk\.3\.attn_output\.weight": type_})
    add(COMBINED, f"experts in {type_}", CRASH, OK, retype={r"blk\.3\.ffn_up_exps\.weight": type_})
    add(COMBINED, f"eh_proj in {type_}", OK, CRASH, retype={r"blk\.5\.nextn\.eh_proj\.weight": type_})
    add(COMBINED, f"output in {type_}", CRASH, OK, retype={r"output\.weight": type_})
sample()
for type_ in ("I8", "I16", "I64", "F64"):
    add(COMBINED, f"token_embd in {type_}", aborts("fatal error"), retype={"token_embd.weight": type_})
add(COMBINED, "token_embd in I32", aborts("GGML_ASSERT("), retype={"token_embd.weight": "I32"})
add(COMBINED, "token_embd in Q8_1", CRASH, retype={"token_embd.weight": "Q8_1"})
for type_ in ("NVFP4", "MXFP4", "Q2_0", "IQ4_NL"):
    add(COMBINED, f"attn_output in {type_}", OK, retype={r"blk\.3\.attn_output\.weight": type_})
add(COMBINED, "a norm in I32", aborts("binary_op: unsupported types: dst: f32, src0: f32, src1: i32"), OK,
    retype={r"blk\.1\.attn_norm\.weight": "I32"})  # fmt: skip
