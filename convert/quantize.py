"""Values from source bytes, and the bytes of output types from values."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nextn.convert.transforms import Floats
from nextn.gguf_schema.types import BF16, F16, F32, Q8_0, TensorType

Bytes = npt.NDArray[np.uint8]


def decode(data: bytes, dtype: str) -> Floats:
    """The values of little-endian `data` of a safetensors dtype, as a flat float32 array."""
    return np.frombuffer(data, DECODERS[dtype]).astype(np.float32, copy=False)


# The float dtypes a weight may have; integers are constants and never pass through floats.
DECODERS: dict[str, npt.DTypeLike] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": ml_dtypes.bfloat16,
}


def _f32(rows: Floats) -> Bytes:
    return np.ascontiguousarray(rows, "<f4").view(np.uint8)


def _f16(rows: Floats) -> Bytes:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(rows).astype("<f2").view(np.uint8)


def _bf16(rows: Floats) -> Bytes:
    return np.ascontiguousarray(rows).astype(ml_dtypes.bfloat16).view(np.uint8)


def _blocks(rows: Floats, name: str) -> Bytes:
    """The library's quantizers give the bytes of ggml's reference quantizers for the types named in ENCODERS."""
    from gguf import GGMLQuantizationType, quants

    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        quantized: Bytes = quants.quantize(rows, GGMLQuantizationType[name])
    return quantized


ENCODERS: dict[TensorType, Callable[[Floats], Bytes]] = {
    F32: _f32,
    F16: _f16,
    BF16: _bf16,
    Q8_0: lambda rows: _blocks(rows, "Q8_0"),
}

# The largest value a type can hold without an infinity among its bytes: F16 itself, or a scale of absmax/127 in F16.
# A value rounds to infinity from half a unit above the largest finite F16 on.
_F16_OVERFLOW = 65520.0
OVERFLOW: dict[TensorType, float] = {F16: _F16_OVERFLOW, Q8_0: _F16_OVERFLOW * 127}


def encode(rows: Floats, type_: TensorType) -> Bytes:
    """The bytes of rows of float32 values in an output type; the row length must be divisible by the type's block.

    Raises OverflowError when a finite value becomes infinite, as llama-quantize refuses it.
    """
    limit = OVERFLOW.get(type_)
    if limit is not None and rows.size:
        largest = max(float(rows.max()), -float(rows.min()))
        if limit <= largest < np.inf:
            raise OverflowError(f"the value {largest:g} becomes infinite in {type_.name}")
    return ENCODERS[type_](rows)
