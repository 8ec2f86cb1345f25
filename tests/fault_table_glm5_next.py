"""Faults of a glm5-next file: six trunk blocks, 3 and 5 with latent attention, head 6. Source: spec/glm5-next.md 7."""

from __future__ import annotations

from faults import (
    CRASH,
    HANGS,
    NO_HEAD,
    OK,
    REFUSES,
    SILENT,
    Expect,
    Table,
    aborts,
    bad_key,
    count,
    entry,
    first,
    length,
    no_key,
    no_vocabulary,
    not_found,
    refuses,
    shape,
)

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Value, array, boolean, f32, i32, string, u32
from nextn.gguf_schema.types import ValueType

COMBINED, TRUNK, MTP, SHARED = Role
GLM5_NEXT = Table("glm5-next")
add, sample = GLM5_NEXT.add, GLM5_NEXT.sample

HEADS_KV, TYPES = "attention.head_count_kv", "attention.indexer.types"
NO_BLOCK = aborts("GLM5-Next MTP block is missing")
I32, U32 = ValueType.INT32, ValueType.UINT32
POOLS = aborts("GGML_ASSERT(hparams.indexer_kpool > 1 && hparams.indexer_top_k % hparams.indexer_kpool == 0) failed")

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
add(MTP, "no output", not_found("output.weight"), drop="output.weight")
add(MTP, "no output_norm", not_found("output_norm.weight"), drop="output_norm.weight")
add(COMBINED, "no first attn_norm", SILENT, OK, drop=r"blk\.0\.attn_norm.weight")
sample()
NEEDED = (
    *("1.attn_norm.weight", "2.hc_attn_fn.weight", "3.attn_k_b.weight", "0.ssm_a", "4.ssm_dt.bias"),
    *("5.indexer.k_norm.bias", "1.exp_probs_b.bias", "2.ffn_up_exps.weight", "1.ssm_conv1d_k.weight"),
)
for name in NEEDED:
    add(COMBINED, f"no blk.{name}", not_found(f"blk.{name}"), drop=rf"blk\.{name}")
sample()
add(COMBINED, "no eh_proj", OK, NO_BLOCK, drop=r"blk\.6\.nextn.eh_proj.weight")
sample()
for name in ("nextn.enorm", "nextn.hnorm", "attn_q_b", "indexer.proj", "ffn_down_shexp"):
    add(COMBINED, f"no {name} in the head", not_found(f"blk.6.{name}.weight"), drop=rf"blk\.6\.{name}.weight")
add(COMBINED, "no shared_head_norm", OK, SILENT, drop=r".*shared_head_norm.weight")
add(COMBINED, "no head, keys kept", OK, NO_BLOCK, drop=r"blk\.6\..*")
add(COMBINED, "a tensor too many", count(214, 213), add={"blk.0.extra.weight": (32,)})
sample()
add(COMBINED, "hyper-connections in the head", count(214, 213), add={"blk.6.hc_attn_fn.weight": (512, 24)})
add(COMBINED, "convolutions of three dimensions", OK, reshape={r".*ssm_conv1d_..weight": (4, 1, 128)})
add(COMBINED, "a convolution by channel", shape("blk.0.ssm_conv1d_q.weight", (4, 1, 128, 1), (128, 4, 1, 1)),
    reshape={r"blk\.0\.ssm_conv1d_q.weight": (128, 4)})  # fmt: skip
add(COMBINED, "k_b not transposed", shape("blk.3.attn_k_b.weight", (24, 64, 4), (64, 24, 4, 1)),
    reshape={r"blk\.3\.attn_k_b.weight": (64, 24, 4)})  # fmt: skip
add(COMBINED, "decay positive", SILENT, OK, data={r".*ssm_a": abs})
add(COMBINED, "enorm in F16", OK, aborts("binary_op: unsupported types"),
    retype={r"blk\.6\.nextn\.enorm.weight": "F16"})  # fmt: skip

# Keys
add(COMBINED, "no nextn_predict_layers", length("glm5-next.attention.indexer.types", 7, 6),
    remove_keys="nextn_predict_layers")  # fmt: skip
sample()
add(COMBINED, "two heads declared", length("glm5-next.attention.indexer.types", 5, 6),
    keys={"nextn_predict_layers": u32(2)})  # fmt: skip
add(COMBINED, "head_count_kv of the trunk only", length("glm5-next.attention.head_count_kv", 7, 6),
    keys={HEADS_KV: first(6)})  # fmt: skip
sample()
add(COMBINED, "clamps of the trunk only", length("glm5-next.swiglu_clamp_exp", 7, 6),
    keys={"swiglu_clamp_exp": first(6)})  # fmt: skip
add(COMBINED, "indexer types of every block", length("glm5-next.attention.indexer.types", 6, 7),
    keys={TYPES: array(ValueType.BOOL, [True] * 7)})  # fmt: skip
add(COMBINED, "no indexer types", OK, remove_keys=TYPES)
add(COMBINED, "indexer types as numbers", OK, keys={TYPES: array(U32, [1] * 6)})
add(COMBINED, "a shared indexer", SILENT, OK, keys={TYPES: entry(5, False)})
add(COMBINED, "nothing to share for the first indexer",
    aborts("shared indexer layer must follow a full indexer layer"), OK,
    keys={TYPES: entry(3, False)})  # fmt: skip
add(COMBINED, "a head without attention", not_found("blk.6.ssm_conv1d_q.weight"), keys={HEADS_KV: entry(-1, 0)})
add(COMBINED, "head_count_kv is one number", not_found("blk.0.attn_q_a_norm.weight"), keys={HEADS_KV: u32(1)})
add(COMBINED, "no leading_dense_block_count", not_found("blk.0.ffn_gate_inp.weight"),
    remove_keys="leading_dense_block_count")  # fmt: skip
for key in ("attention.indexer.kpool", "kda.head_dim", "hyper_connection.epsilon", "attention.key_length_mla"):
    add(COMBINED, f"no {key}", no_key(f"glm5-next.{key}"), remove_keys=key)
add(COMBINED, "no rope.dimension_count", shape("blk.3.attn_kv_a_mqa.weight", (128, 128), (128, 64, 1, 1)),
    remove_keys="rope.dimension_count")  # fmt: skip
sample()
add(COMBINED, "rope.dimension_count 8", shape("blk.3.attn_kv_a_mqa.weight", (128, 72), (128, 64, 1, 1)),
    keys={"rope.dimension_count": u32(8)})  # fmt: skip
add(COMBINED, "no key_length", aborts("GGML_ASSERT("), remove_keys="attention.key_length")
add(COMBINED, "no value_length", OK, remove_keys="attention.value_length")
add(COMBINED, "one pool of one", POOLS, keys={"attention.indexer.kpool": u32(1)})
add(COMBINED, "pools that do not fill the budget", POOLS, keys={"attention.indexer.top_k": u32(33)})
add(COMBINED, "three streams", aborts("mHC with hc_mult != 4 is not supported"),
    keys={"hyper_connection.count": u32(3)})  # fmt: skip
add(COMBINED, "no layer_norm_epsilon", SILENT, remove_keys="attention.layer_norm_epsilon")
add(COMBINED, "no gate_lower_bound", SILENT, OK, remove_keys="kda.gate_lower_bound")
add(COMBINED, "no clamps", SILENT, remove_keys="swiglu_clamp_.*")
add(COMBINED, "one clamp for all", OK, keys={"swiglu_clamp_exp": f32(2.0), "swiglu_clamp_shexp": f32(2.0)})
add(COMBINED, "no expert_weights_norm", SILENT, remove_keys="expert_weights_norm")
add(COMBINED, "no expert_weights_scale", SILENT, remove_keys="expert_weights_scale")
add(COMBINED, "with index_share_mtp", OK, keys={"attention.indexer.index_share_mtp": boolean(True)})
add(COMBINED, "block_count is an i32", bad_key("key glm5-next.block_count has wrong type i32 but expected type u32"),
    keys={"block_count": i32(7)})  # fmt: skip
add(
    COMBINED,
    "no tokenizer",
    no_vocabulary("key not found in model: tokenizer.ggml.model"),
    remove_keys=r"tokenizer\..*",
)
add(COMBINED, "the old spelling", refuses("unknown model architecture: 'glm5next'"),
    keys={"general.architecture": string("glm5next")})  # fmt: skip

# Numbers that nothing can be computed with
NAN, INF = float("nan"), float("inf")
EPS, NO_CONTEXT = (
    aborts("GGML_ASSERT(eps >= 0.0f) failed"),
    aborts("GGML_ASSERT(n_ctx > 0 && n_prompt_tokens > 0) failed"),
)
OTHER_WIDTH, NO_MIXING = aborts("GGML_ASSERT(a->ne[0] == b->ne[0]) failed"), aborts("GGML_ASSERT(n_iter > 0) failed")
for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
    for value, expected in ((NAN, EPS), (-1e-6, EPS), (0.0, SILENT), (INF, SILENT)):
        add(COMBINED, f"{key} {value}", expected, keys={key: f32(value)})
sample()
add(COMBINED, "no context", NO_CONTEXT, OK, keys={"context_length": u32(0)})
for value in (NAN, INF, -2.5):
    add(COMBINED, f"expert_weights_scale {value}", SILENT, keys={"expert_weights_scale": f32(value)})
for number in (5, 2**31):
    add(COMBINED, f"gating function {number}", aborts("fatal error"), keys={"expert_gating_func": u32(number)})
add(COMBINED, "softmax gating", SILENT, keys={"expert_gating_func": u32(1)})
add(COMBINED, "two heads of a latent", OTHER_WIDTH, OK, keys={HEADS_KV: entry(3, 2)})
add(COMBINED, "two heads of a latent in the head", OK, OTHER_WIDTH, keys={HEADS_KV: entry(-1, 2)})
add(COMBINED, "nothing is selected", SILENT, keys={"attention.indexer.top_k": u32(0)})
add(COMBINED, "the tail is left out", SILENT, keys={"attention.indexer.kpool_select_tail": boolean(False)})
for value in (NAN, 0.0, 5.0, INF):
    add(COMBINED, f"gate_lower_bound {value}", SILENT, OK, keys={"kda.gate_lower_bound": f32(value)})
for number in (0, 2**31):
    add(COMBINED, f"{number} steps of mixing", NO_MIXING, OK,
        keys={"hyper_connection.sinkhorn_iterations": u32(number)})  # fmt: skip
add(COMBINED, "2147483647 steps of mixing", Expect(HANGS), OK,
    keys={"hyper_connection.sinkhorn_iterations": u32(2**31 - 1)})  # fmt: skip
add(COMBINED, "fewer than no heads of a latent", Expect(REFUSES, "failed to allocate buffer"), OK,
    keys={HEADS_KV: entry(3, -1)})  # fmt: skip
for value in (NAN, INF):
    add(COMBINED, f"epsilon of mixing {value}", SILENT, OK, keys={"hyper_connection.epsilon": f32(value)})
add(COMBINED, "key_length 65", OTHER_WIDTH, keys={"attention.key_length": u32(65)})
add(COMBINED, "key_length 0", Expect(REFUSES, "failed to allocate buffer for kv cache"),
    keys={"attention.key_length": u32(0)})  # fmt: skip
add(COMBINED, "three groups of eight experts",
    aborts("GGML_ASSERT(hparams.n_expert % hparams.n_expert_groups == 0) failed"),
    keys={"expert_group_count": u32(3)})  # fmt: skip
add(COMBINED, "three of two groups used", aborts("GGML_ASSERT(hparams.n_group_used < hparams.n_expert_groups) failed"),
    keys={"expert_group_count": u32(2), "expert_group_used_count": u32(3)})  # fmt: skip
for value in (i32(512), Value(ValueType.UINT64, 512)):
    add(COMBINED, f"vocab_size is of type {value.type_name}", OK, keys={"vocab_size": value})
