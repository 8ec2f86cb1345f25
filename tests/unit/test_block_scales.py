"""Weights with block scales: values by hand, and whatever does not fit together."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import Model, Stored, finding, model, planned, refusal, written
from command import run
from fp8 import array_of, dequantize, fp8_model, quantize

from nextn.convert.checkpoint import open_checkpoint
from nextn.convert.pipeline import convert
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError

DENSE = "model.layers.0.mlp.up_proj.weight"
STACKED = "model.layers.2.moe.down_proj.weight"
DOWN = "model.language_model.layers.2.mlp.experts.{}.down_proj.weight"


def sha256(values: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()


def expected(copy: Model, name: str, block: tuple[int, int]) -> np.ndarray[Any, Any]:
    return dequantize(array_of(copy.tensors[name]), array_of(copy.tensors[name + "_scale_inv"]), block)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
@pytest.mark.parametrize("block", [(128, 128), (32, 48), (1, 128), (7, 5), (300, 300)])
def test_stacked_and_flat_matrices(block: tuple[int, int], dtype: str, tmp_path: Path) -> None:
    copy = fp8_model("step35", block, dtype)
    tensors = written(copy.write(tmp_path))
    assert tensors["blk.0.ffn_up.weight"] == ((128, 192), sha256(expected(copy, DENSE, block)))
    assert tensors["blk.2.ffn_down_exps.weight"] == ((64, 128, 8), sha256(expected(copy, STACKED, block)))


@pytest.mark.parametrize("block", [(128, 128), (32, 48), (7, 5)])
def test_experts_one_by_one(block: tuple[int, int], tmp_path: Path) -> None:
    copy = fp8_model("glm5-next", block)
    tensors = written(copy.write(tmp_path))
    experts = np.stack([expected(copy, DOWN.format(i), block) for i in range(8)])
    assert tensors["blk.2.ffn_down_exps.weight"] == ((64, 128, 8), sha256(experts))
    # Four heads of 24 key rows and 32 value rows; the keys are transposed head by head.
    kv = expected(copy, "model.language_model.layers.3.self_attn.kv_b_proj.weight", block).reshape(4, 56, 64)
    assert tensors["blk.3.attn_k_b.weight"][1] == sha256(kv[:, :24].transpose(0, 2, 1))
    assert tensors["blk.3.attn_v_b.weight"][1] == sha256(kv[:, 24:])


def test_a_block_by_hand(tmp_path: Path) -> None:
    """0x38 is 1.0 and 0xC4 is -3.0 in E4M3; a block is 96 rows by 100 columns, so that 28 columns are left over."""
    copy = model("step35")
    data = np.full((192, 128), 0x38, np.uint8)
    data[100, 120] = 0xC4
    scales = np.float32([[1, 10], [100, 0.001]])
    copy.tensors[DENSE] = copy.tensors[DENSE]._replace(dtype="F8_E4M3", data=data.tobytes())
    copy.tensors[DENSE + "_scale_inv"] = Stored("F32", (2, 2), scales.tobytes(), copy.tensors[DENSE].part)
    copy.config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [96, 100]}
    values = np.empty((192, 128), np.float32)
    values[:96, :100], values[:96, 100:], values[96:, :100] = 1, 10, 100
    values[96:, 100:] = np.float32(0.001)
    values[100, 120] = np.float32(-3) * np.float32(0.001)
    assert written(copy.write(tmp_path))["blk.0.ffn_up.weight"][1] == sha256(values)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E8M0", "F16"])
def test_scales_of_other_types(dtype: str, tmp_path: Path) -> None:
    copy = fp8_model("step35", (128, 128))
    name = DENSE + "_scale_inv"
    floats = array_of(copy.tensors[name])
    numpy_dtype = {"BF16": ml_dtypes.bfloat16, "F8_E8M0": ml_dtypes.float8_e8m0fnu, "F16": np.float16}[dtype]
    scales = floats.astype(numpy_dtype)
    copy.tensors[name] = copy.tensors[name]._replace(dtype=dtype, data=scales.tobytes())
    values = dequantize(array_of(copy.tensors[DENSE]), scales.astype(np.float32), (128, 128))
    assert written(copy.write(tmp_path))["blk.0.ffn_up.weight"][1] == sha256(values)


@pytest.mark.parametrize("where", ["root", "text", "nowhere"])
def test_where_the_block_size_stands(where: str, tmp_path: Path) -> None:
    """Blocks are 128 by 128 where nothing says otherwise."""
    block = (128, 128) if where == "nowhere" else (32, 48)
    copy = fp8_model("step35", block)
    quantization = copy.config.pop("quantization_config")
    if where == "text":
        copy.text["quantization_config"] = quantization
    elif where == "root":
        copy.config["quantization_config"] = quantization
        copy.text["quantization_config"] = None
    assert written(copy.write(tmp_path))["blk.0.ffn_up.weight"][1] == sha256(expected(copy, DENSE, block))


def test_fp8_as_q8_0(tmp_path: Path) -> None:
    """Only what was FP8 becomes Q8_0; a rule of the user is stronger."""
    from nextn.convert.tensor_types import parse_rule

    folder = fp8_model("step35").write(tmp_path)
    rule = parse_rule(r"blk\.0\.ffn_up=f16")
    plan = planned(folder, Role.COMBINED, outtype="bf16", fp8_as_q8=True, type_rules=(rule,))
    types = {tensor.name: tensor.type.name for tensor in plan.files[0].tensors}
    assert types["blk.0.ffn_up.weight"] == "F16"
    assert {types[name] for name in ("blk.0.ffn_down.weight", "blk.2.ffn_down_exps.weight")} == {"Q8_0"}
    assert {types[name] for name in ("token_embd.weight", "output.weight", "blk.5.ffn_up.weight")} == {"BF16"}
    assert types["blk.0.attn_norm.weight"] == "F32"


# --- what does not fit together


def test_a_weight_without_its_scale(tmp_path: Path) -> None:
    copy = fp8_model("step35")
    del copy.tensors[DENSE + "_scale_inv"]
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("no-scale", DENSE)
    assert f"{DENSE}_scale_inv" in error.message


def test_a_scale_without_its_weight(tmp_path: Path) -> None:
    copy = fp8_model("step35")
    del copy.tensors[DENSE]
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("no-weight", f"{DENSE}_scale_inv")
    assert DENSE in error.message.replace(f"{DENSE}_scale_inv", "")


def test_a_scale_in_a_missing_file(tmp_path: Path) -> None:
    copy = fp8_model("step35")
    name = DENSE + "_scale_inv"
    copy.tensors[name] = copy.tensors[name]._replace(part="scales.safetensors")
    copy.without = {"scales.safetensors"}
    error = refusal(copy.write(tmp_path))
    assert error.subject == DENSE
    assert name in error.message
    assert "scales.safetensors" in error.message
    assert "download" in str(error.remedy)


def test_a_scale_beside_a_weight_that_is_not_fp8(tmp_path: Path) -> None:
    copy = fp8_model("step35")
    copy.tensors[DENSE] = model("step35").tensors[DENSE]
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("scale-without-fp8", DENSE)
    assert f"{DENSE}_scale_inv" in error.message


@pytest.mark.parametrize("shape", [(), (1,), (8, 3), (8, 4, 1)])
def test_scales_of_another_shape(shape: tuple[int, ...], tmp_path: Path) -> None:
    copy = fp8_model("step35")  # blocks of 24 by 40 in 192 by 128
    name = DENSE + "_scale_inv"
    copy.reshape("^" + name, *shape)
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("scale-shape", name)
    assert "[8, 4]" in error.message
    assert str(list(shape)) in error.message
    assert "weight_block_size" in str(error.remedy)


def test_a_vector_with_a_scale(tmp_path: Path) -> None:
    copy = model("step35")
    name = "model.layers.0.input_layernorm.weight"
    tensor = copy.tensors[name]
    copy.tensors[name] = tensor._replace(dtype="F8_E4M3", data=bytes(128))
    copy.tensors[name + "_scale_inv"] = Stored("F32", (1,), bytes(4), tensor.part)
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("scale-shape", name + "_scale_inv")


@pytest.mark.parametrize("size", ["128", [128], [128, 0], [128, 128.0], [128, True]])
def test_a_block_size_that_is_none(size: object, tmp_path: Path) -> None:
    copy = fp8_model("step35")
    copy.config["quantization_config"]["weight_block_size"] = size
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("config-value", "quantization_config.weight_block_size")


# --- companions of every scheme


def test_every_companion_of_fp8_is_accounted_for(tmp_path: Path) -> None:
    """Case C23: scales of weights go into them, those of activations and caches are left out and listed."""
    copy = fp8_model("step35")
    added = []
    for suffix in ("input_scale", "activation_scale", "k_scale", "v_scale"):
        name = f"model.layers.0.self_attn.q_proj.{suffix}"
        copy.tensors[name] = Stored("F32", (), np.float32(0.5).tobytes(), copy.tensors[DENSE].part)
        added.append(name)
    folder = copy.write(tmp_path)
    plan = planned(folder)
    reasons = {dropped.name: dropped.reason for dropped in plan.dropped}
    assert {reasons[name] for name in added} == {"scale of activations: runtimes do not use it"}
    used = {source for payload in plan.payload for source in payload.recipe.sources}
    names = {source.name for source in used} | {source.scale.name for source in used if source.scale}
    assert names | reasons.keys() == set(open_checkpoint(folder).tensors)


def as_nvfp4(copy: Model) -> list[str]:
    tensor = copy.tensors[DENSE]
    copy.tensors[DENSE] = Stored("U8", (192, 64), bytes(192 * 64), tensor.part)
    added = {
        "weight_scale": Stored("F8_E4M3", (192, 8), bytes(192 * 8), tensor.part),
        "weight_scale_2": Stored("F32", (), bytes(4), tensor.part),
        "input_scale": Stored("F32", (), bytes(4), tensor.part),
    }
    copy.tensors |= {f"{DENSE.removesuffix('weight')}{name}": stored for name, stored in added.items()}
    copy.config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    return ["modelopt", f"{DENSE} (U8)", f"{DENSE}_scale (F8_E4M3)"]


def as_packed(copy: Model) -> list[str]:
    tensor = copy.tensors.pop(DENSE)
    base = DENSE.removesuffix("weight")
    copy.tensors[f"{base}weight_packed"] = Stored("I32", (192, 16), bytes(192 * 64), tensor.part)
    copy.tensors[f"{base}weight_scale"] = Stored("BF16", (192, 4), bytes(192 * 8), tensor.part)
    copy.tensors[f"{base}weight_shape"] = Stored("I64", (2,), bytes(16), tensor.part)
    copy.config["quantization_config"] = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    return ["compressed-tensors", "weight_packed (I32)"]


def as_channels(copy: Model) -> list[str]:
    tensor = copy.tensors[DENSE]
    values, _ = quantize(array_of(tensor), (192, 128))
    copy.tensors[DENSE] = tensor._replace(dtype="F8_E4M3", data=values.tobytes())
    copy.tensors[f"{DENSE}_scale"] = Stored("BF16", (192, 1), bytes(384), tensor.part)
    copy.text["quantization_config"] = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    return ["compressed-tensors", f"{DENSE}_scale (BF16)"]


def as_gptq(copy: Model) -> list[str]:
    tensor = copy.tensors.pop(DENSE)
    base = DENSE.removesuffix("weight")
    copy.tensors[f"{base}qweight"] = Stored("I32", (16, 192), bytes(192 * 64), tensor.part)
    copy.tensors[f"{base}qzeros"] = Stored("I32", (1, 24), bytes(96), tensor.part)
    copy.tensors[f"{base}scales"] = Stored("F16", (1, 192), bytes(384), tensor.part)
    return ["no quant_method given", "qweight (I32)", "qzeros (I32)"]


@pytest.mark.parametrize("scheme", [as_nvfp4, as_packed, as_channels, as_gptq])
def test_other_schemes_are_refused_with_what_was_seen(scheme: Any, tmp_path: Path) -> None:
    copy = model("step35")
    seen = scheme(copy)
    folder = copy.write(tmp_path)
    done = run("convert", folder, "-o", tmp_path / "out")
    assert (done.returncode, done.stdout) == (3, "")
    for text in seen:
        assert text in done.stderr
    assert "use the BF16 or FP8 repository" in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_was_fp8_is_told_by_nothing_but_its_types(tmp_path: Path) -> None:
    """Dequantizing is the expected thing, no reason for a warning."""
    plan = planned(fp8_model("step35").write(tmp_path), Role.COMBINED)
    assert [str(found) for found in plan.findings if "fp8" in str(found).lower()] == []
    with pytest.raises(ValueError):
        finding(plan, "fp8")


@pytest.mark.parametrize("block", [(24, 40), (32, 64)])
@pytest.mark.parametrize(
    ("scale", "said"), [(np.nan, "is NaN or infinite"), (np.inf, "is NaN or infinite"), (0, "is zero for a block")]
)
def test_a_scale_that_ruins_its_weights(scale: float, said: str, block: tuple[int, int], tmp_path: Path) -> None:
    """A NaN among the scales made a matrix NaN, a zero erased a block of it, without a word."""
    copy = fp8_model("step35", block)
    name = DENSE + "_scale_inv"
    scales = array_of(copy.tensors[name]).copy()
    scales[2, 1] = scale
    copy.tensors[name] = copy.tensors[name]._replace(data=scales.tobytes())
    with pytest.raises(InputError) as caught:
        written(copy.write(tmp_path))
    assert (caught.value.code, caught.value.subject) == ("bad-scale", name)
    assert said in caught.value.message
    assert DENSE in caught.value.message


@pytest.mark.parametrize("block", [(24, 40), (32, 64)])
def test_a_block_of_zeros_may_have_a_scale_of_zero(block: tuple[int, int], tmp_path: Path) -> None:
    copy = fp8_model("step35", block)
    values, scales = array_of(copy.tensors[DENSE]).copy(), array_of(copy.tensors[DENSE + "_scale_inv"]).copy()
    values[: block[0], : block[1]], scales[0, 0] = 0, 0
    copy.tensors[DENSE] = copy.tensors[DENSE]._replace(data=values.tobytes())
    copy.tensors[DENSE + "_scale_inv"] = copy.tensors[DENSE + "_scale_inv"]._replace(data=scales.tobytes())
    assert written(copy.write(tmp_path))["blk.0.ffn_up.weight"][1] == sha256(dequantize(values, scales, block))


def test_blocks_larger_than_any_matrix(tmp_path: Path) -> None:
    """A configuration with blocks of 10^12 columns made the reader ask for an array of that size."""
    copy = fp8_model("step35", (300, 300))
    copy.config["quantization_config"]["weight_block_size"] = [10**9, 10**30]
    assert written(copy.write(tmp_path))["blk.0.ffn_up.weight"][1] == sha256(expected(copy, DENSE, (300, 300)))


@pytest.mark.parametrize(("dtype", "size"), [("I64", 8), ("U8", 1), ("BOOL", 1), ("F64", 8), ("F8_E4M3", 1)])
def test_scales_of_a_type_that_scales_have_not(dtype: str, size: int, tmp_path: Path) -> None:
    copy = fp8_model("step35")
    name = DENSE + "_scale_inv"
    copy.tensors[name] = copy.tensors[name]._replace(dtype=dtype, data=bytes(8 * 4 * size))
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("scale-dtype", name)
    assert dtype in error.message


def test_an_empty_object_does_not_hide_the_block_size(tmp_path: Path) -> None:
    """`quantization_config: {}` in text_config hid the root's, and blocks became 128 by 128."""
    copy = fp8_model("step35", (32, 48))
    copy.text["quantization_config"] = {}
    assert written(copy.write(tmp_path))["blk.0.ffn_up.weight"][1] == sha256(expected(copy, DENSE, (32, 48)))


@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_a_product_beyond_float32_has_no_remedy_that_cannot_work(outtype: str, tmp_path: Path) -> None:
    copy = fp8_model("step35")
    name = DENSE + "_scale_inv"
    scales = np.full_like(array_of(copy.tensors[name]), 3e38)
    copy.tensors[name] = copy.tensors[name]._replace(data=scales.tobytes())
    with pytest.raises(InputError) as caught:
        convert(copy.write(tmp_path), tmp_path / "out", (Role.COMBINED,), outtype)
    assert (caught.value.code, caught.value.subject) == ("overflow", "blk.0.ffn_up.weight")
    assert "beyond float32" in caught.value.message
    assert "--tensor-type" not in str(caught.value.remedy)
