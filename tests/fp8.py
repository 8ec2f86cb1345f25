"""Block-scaled FP8 checkpoints made from the fixtures; and goldens of what the upstream converter makes of them.

usage: python tests/fp8.py checkpoint FAMILY FOLDER
       python tests/fp8.py golden FAMILY NAME=FILE.gguf...
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from checkpoints import Model, Stored, model
from families import FIXTURES

Matrix = np.ndarray[Any, np.dtype[Any]]

DTYPES: dict[str, Any] = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
LARGEST = {"F8_E4M3": 448.0, "F8_E5M2": 57344.0}
# What published FP8 checkpoints quantize: experts, dense projections, attention; not heads, norms, routers, embeddings.
TRUNK = {
    "glm5-next": r"layers\.[0-5]\.(mlp\.(experts|shared_experts|gate_proj|up_proj|down_proj)"
    r"|self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|o_proj))",
    "step35": r"layers\.[0-4]\.(moe\.\w+_proj|mlp|share_expert|self_attn\.[qkvo]_proj)",
}
# Sizes that divide few dimensions of the fixtures.
BLOCKS = {"glm5-next": (32, 48), "step35": (24, 40)}


def quantize(weights: Matrix, block: tuple[int, int], dtype: str = "F8_E4M3") -> tuple[Matrix, Matrix]:
    """FP8 values and float32 scales, block by block: scale = largest / largest FP8 number."""
    *lead, rows, columns = weights.shape
    scales = np.zeros((*lead, -(-rows // block[0]), -(-columns // block[1])), np.float32)
    values = np.zeros(weights.shape, DTYPES[dtype])
    for i in range(scales.shape[-2]):
        for j in range(scales.shape[-1]):
            place = (..., slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
            part = weights[place].astype(np.float32)
            scale = np.maximum(np.abs(part).max((-2, -1), keepdims=True) / LARGEST[dtype], 1e-12).astype(np.float32)
            scales[..., i, j] = scale[..., 0, 0]
            values[place] = (part / scale).astype(DTYPES[dtype])
    return values, scales


def dequantize(values: Matrix, scales: Matrix, block: tuple[int, int]) -> Matrix:
    """Each value times the scale of its block, in float32, one block at a time."""
    result = values.astype(np.float32)
    for i in range(scales.shape[-2]):
        for j in range(scales.shape[-1]):
            place = (..., slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
            result[place] = result[place] * scales[..., i, j, None, None].astype(np.float32)
    return result


def array_of(tensor: Stored) -> Matrix:
    dtypes = {"BF16": ml_dtypes.bfloat16, "F32": np.dtype("<f4"), "F8_E8M0": ml_dtypes.float8_e8m0fnu, **DTYPES}
    return np.frombuffer(tensor.data, dtypes[tensor.dtype]).reshape(tensor.shape)


def fp8_model(family: str, block: tuple[int, int] | None = None, dtype: str = "F8_E4M3") -> Model:
    """A fixture whose trunk is FP8; the head and whatever FP8 checkpoints leave alone stay BF16."""
    block = block or BLOCKS[family]
    copy = model(family)
    for name in [name for name in copy.named(TRUNK[family]) if name.endswith(".weight")]:
        tensor = copy.tensors[name]
        values, scales = quantize(array_of(tensor), block, dtype)
        copy.tensors[name] = tensor._replace(dtype=dtype, data=values.tobytes())
        copy.tensors[name + "_scale_inv"] = Stored("F32", scales.shape, scales.tobytes(), tensor.part)
    copy.config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(block)}
    return copy


def golden_path(family: str) -> Path:
    return FIXTURES / f"{family}-fp8" / "golden.json"


def _describe(path: str) -> dict[str, list[Any]]:
    from gguf import GGUFReader

    return {
        tensor.name: [tensor.tensor_type.name, hashlib.sha256(tensor.data.tobytes()).hexdigest()]
        for tensor in GGUFReader(path).tensors
    }


if __name__ == "__main__":
    action, family, *rest = sys.argv[1:]
    if action == "checkpoint":
        sys.stdout.write(f"{fp8_model(family).write(Path(rest[0]))}\n")
    else:
        golden = {name: _describe(path) for name, path in (item.split("=") for item in rest)}
        golden_path(family).parent.mkdir(exist_ok=True)
        golden_path(family).write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
