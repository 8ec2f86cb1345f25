"""Checkpoints that contradict themselves or cannot be expressed: one clear error each, and nothing is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from checkpoints import INDEX, Stored, model, refusal, stored
from families import FAMILIES

from nextn.convert.pipeline import plan
from nextn.convert.planner import Options
from nextn.gguf_schema.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "model.language_model."
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)


# --- what it is


@pytest.mark.parametrize("architectures", [["LlamaForCausalLM"], [], None, "Step3p5ForCausalLM", [1]])
def test_an_unknown_architecture(architectures: object, tmp_path: Path) -> None:
    copy = model("step35")
    copy.config["architectures"] = architectures
    copy.text["architectures"] = architectures
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("unknown-architecture", "config.json")
    assert ("LlamaForCausalLM" if architectures == ["LlamaForCausalLM"] else "(none given)") in error.message
    assert "Step3p7ForConditionalGeneration" in str(error.remedy)


@pytest.mark.parametrize(("name", "message"), [("nothing", "does not exist"), ("file.gguf", "is not a folder")])
def test_no_folder(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file.gguf").write_bytes(b"")
    with pytest.raises(InputError) as caught:
        plan(tmp_path / name, Options())
    assert (caught.value.code, caught.value.subject) == ("no-checkpoint", str(tmp_path / name))
    assert message in caught.value.message


@EACH_FAMILY
@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_broken_tokenizer_stops_before_any_data(family: str, content: str | None, tmp_path: Path) -> None:
    """Case C27."""
    folder = model(family).write(tmp_path)
    (folder / "tokenizer.json").unlink()
    if content:
        (folder / "tokenizer.json").write_text(content)
    error = refusal(folder)
    assert error.code == ("bad-json" if content else "no-tokenizer")
    assert error.subject == str(folder / "tokenizer.json")


# --- tensors


def of_type(tensor: Stored, dtype: str, size: int) -> Stored:
    elements = int(np.prod(tensor.shape))
    return tensor._replace(dtype=dtype, data=bytes(elements * size))


@pytest.mark.parametrize(("dtype", "size"), [("U8", 1), ("I8", 1), ("BOOL", 1), ("I64", 8), ("I32", 4)])
def test_a_type_that_is_no_weights(dtype: str, size: int, tmp_path: Path) -> None:
    """Case V18: packed or quantized weights are never read as if they were numbers."""
    copy = model("step35")
    (name,) = copy.named(r"layers\.5\.eh_proj")
    copy.tensors[name] = of_type(copy.tensors[name], dtype, size)
    error = refusal(copy.write(tmp_path))
    assert error.code in ("unsupported-dtype", "unsupported-quantization")
    assert name in f"{error.subject} {error.message}"
    assert dtype in error.message
    assert error.remedy


@pytest.mark.parametrize(
    ("family", "name", "shape", "target"),
    [
        ("step35", r"layers\.5\.eh_proj", (128, 128), "blk.5.nextn.eh_proj.weight [256, 128]"),
        ("step35", r"layers\.0\.mlp\.up_proj", (191, 128), "blk.0.ffn_up.weight [128, 192]"),
        ("step35", r"layers\.2\.moe\.up_proj", (7, 64, 128), "blk.2.ffn_up_exps.weight [128, 64, 8]"),
        ("step35", r"model\.norm", (1, 128), "output_norm.weight [128]"),
        ("qwen4exp", r"layers\.3\.self_attn\.indexer\.index_qk", (100, 128), "blk.3.indexer.q_proj.weight [128, 128]"),
        (
            "qwen4exp",
            r"model.layers\.0\.mlp\.experts\.gate_up",
            (8, 50, 128),
            "blk.0.ffn_gate_exps.weight [128, 32, 8]",
        ),
        ("qwen4exp", r"layers\.0\.linear_attn\.conv1d", (320, 2, 4), "blk.0.ssm_conv1d.weight [4, 320]"),
        ("qwen4exp", r"layers\.0\.linear_attn\.in_proj_qkv", (312, 128), "blk.0.attn_qkv.weight [128, 320]"),
        ("qwen4exp", r"layers\.0\.linear_attn\.A_log", (5,), "blk.0.ssm_a [6]"),
        ("qwen4exp", r"layers\.1\.ple\.conv1d", (512, 2, 4), "blk.1.ple_conv1d.weight [4, 512]"),
        ("qwen4exp", r"mtp\.fc_hidden", (128, 64), "blk.8.nextn.eh_proj.weight [256, 128]"),
        ("qwen4exp", r"ngram_embedding\.shard_5\.", (256, 16), "per_layer_token_embd.weight"),
        ("glm5-next", r"layers\.3\.self_attn\.kv_b_proj", (200, 64), "blk.3.attn_k_b.weight [24, 64, 4]"),
        ("glm5-next", r"layers\.3\.self_attn\.kv_b_proj", (224,), "blk.3.attn_k_b.weight [24, 64, 4]"),
        ("glm5-next", r"layers\.0\.self_attn\.q_conv1d", (128, 2, 4), "blk.0.ssm_conv1d_q.weight [4, 1, 128, 1]"),
        ("glm5-next", r"layers\.0\.self_attn\.A_log", (3,), "blk.0.ssm_a [4]"),
        ("glm5-next", r"layers\.6\.mlp\.experts\.5\.up_proj", (64, 64), "blk.6.ffn_up_exps.weight [128, 64, 8]"),
    ],
)
def test_a_wrong_shape(family: str, name: str, shape: tuple[int, ...], target: str, tmp_path: Path) -> None:
    copy = model(family)
    (found,) = copy.named(name)
    copy.reshape(name, *shape)
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("wrong-shape", found)
    assert error.message.startswith(str(list(shape)))
    assert f"cannot become {target}" in error.message


@pytest.mark.parametrize(
    ("family", "lost", "subject"),
    [
        ("glm5-next", r"layers\.3\.mlp\.experts\.4\.gate_proj", f"{TEXT}layers.3.mlp.experts.4.gate_proj.weight"),
        ("glm5-next", r"layers\.3\.mlp\.experts\.0\.gate_proj", f"{TEXT}layers.3.mlp.experts.0.gate_proj.weight"),
        ("qwen4exp", r"^mtp\.fc_embedding", "layers.8.fc_embedding.weight"),
        ("qwen4exp", r"^mtp\.fc_hidden", "layers.8.fc_hidden.weight"),
    ],
)  # fmt: skip
def test_a_missing_part_of_a_tensor(family: str, lost: str, subject: str, tmp_path: Path) -> None:
    copy = model(family)
    copy.drop(lost)
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("missing-part", subject)
    assert "is made from it" in error.message


def test_the_last_expert_is_missing(tmp_path: Path) -> None:
    copy = model("glm5-next")
    copy.drop(r"layers\.3\.mlp\.experts\.7\.")
    error = refusal(copy.write(tmp_path))
    assert error.code == "wrong-shape"
    assert "[128, 64] beside 6 of [128, 64] cannot become blk.3.ffn_down_exps.weight [64, 128, 8]" in error.message


def test_the_last_shards_of_the_table_are_missing(tmp_path: Path) -> None:
    """A shorter table would load and look up beyond its end."""
    copy = model("qwen4exp")
    copy.drop(r"ngram_embedding\.shard_1[45]\.")
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("short-table", "layers.1.ple.ple_embedding.ngram_embedding")
    assert "14 shards" in error.message


@pytest.mark.parametrize(
    ("family", "name", "twin"),
    [
        ("step35", "model.layers.5.transformer.shared_head.norm.weight", "model.layers.5.shared_head.norm.weight"),
        ("step35", "model.layers.0.input_layernorm.weight", "model.language_model.layers.0.input_layernorm.weight"),
        ("qwen4exp", "mtp.fc_hidden.weight", "model.mtp.fc_hidden.weight"),
        ("glm5-next", "model.language_model.layers.6.enorm.weight", "mtp.layers.0.enorm.weight"),
    ],
)
def test_two_spellings_of_one_tensor(family: str, name: str, twin: str, tmp_path: Path) -> None:
    copy = model(family)
    copy.tensors[twin] = copy.tensors[name]
    error = refusal(copy.write(tmp_path))
    assert error.code == "same-target"
    assert name in error.message
    assert twin in error.message


def test_two_spellings_of_an_integer_constant(tmp_path: Path) -> None:
    """Constants become keys, not tensors: the table alone would not see the second one."""
    copy = model("qwen4exp")
    (name,) = copy.named("layer_multipliers")
    twin = name.replace("model.language_model.", "model.")
    copy.tensors[twin] = copy.tensors[name]
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("same-target", "layers.1.ple.ple_embedding.layer_multipliers")
    assert f"{name} and {twin}" in error.message


def test_an_index_with_a_second_spelling(tmp_path: Path) -> None:
    """Not a missing tensor: no download would bring it."""
    folder = model("step35").write(tmp_path)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["norm.weight"] = "model-00001-of-00003.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    error = refusal(folder)
    assert (error.code, error.subject) == ("same-target", "norm.weight")
    assert "model.norm.weight and norm.weight, the latter only in the index" in error.message
    assert "download" not in str(error.remedy)


@pytest.mark.parametrize("number", ["03", "1" * 5000, "٣"])
def test_a_number_that_is_no_layer(number: str, tmp_path: Path) -> None:
    copy = model("step35")
    copy.rename(r"layers\.3\.input_layernorm", f"layers.{number}.input_layernorm")
    assert refusal(copy.write(tmp_path)).code == "unknown-tensors"


def test_some_experts_fused_and_others_one_by_one(tmp_path: Path) -> None:
    copy = model("qwen4exp")
    (name,) = copy.named(r"model.layers\.0\.mlp\.experts\.gate_up_proj")
    base, part = name.removesuffix("gate_up_proj"), copy.tensors[name].part
    for e in range(1, 8):
        for half in ("gate_proj", "up_proj"):
            copy.tensors[f"{base}{e}.{half}.weight"] = stored(np.zeros((32, 128), "<f4"), part)
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("same-target", "blk.0.ffn_gate_exps.weight")
    assert f"{name} and {base}1.gate_proj.weight" in error.message


def test_decays_in_fp8(tmp_path: Path) -> None:
    copy = model("glm5-next")
    (name,) = copy.named(r"layers\.0\.self_attn\.A_log")
    part = copy.tensors[name].part
    copy.tensors[name] = Stored("F8_E4M3", (1, 8), bytes(8), part)
    copy.tensors[name + "_scale_inv"] = stored(np.ones((1, 1), "<f4"), part)
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("unsupported-dtype", name)


def test_experts_both_fused_and_one_by_one(tmp_path: Path) -> None:
    copy = model("qwen4exp")
    (name,) = copy.named(r"model.layers\.0\.mlp\.experts\.down_proj")
    copy.tensors[name.replace("down_proj", "0.down_proj.weight")] = stored(
        np.zeros((128, 32), "<f4"), "model-00001-of-00003.safetensors"
    )
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("same-target", "blk.0.ffn_down_exps.weight")
