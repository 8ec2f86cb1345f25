"""Values from source bytes, and the bytes of output types from values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nextn.convert.source_tensor import SourceTensor
from nextn.convert.transforms import Floats
from nextn.gguf_schema.dequantize import dequantized, is_decodable
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.types import BF16, F16, F32, Q8_0, TENSOR_TYPES, TensorType
from nextn.validators.scan import FLOATS

Bytes = npt.NDArray[np.uint8]


def decode(source: SourceTensor, start: int, count: int) -> Floats:
    """`count` values of a source from element `start`, row-major, as float32; whole rows of a scaled weight.

    Raises InputError when it cannot be read, or when its scales would ruin its values.
    """
    data = source.read(start, count)
    if source.scale is not None:
        return _scaled(source, np.take(FP8_VALUES[source.dtype], np.frombuffer(data, np.uint8), mode="clip"), start)
    if source.dtype not in DECODERS:
        return dequantized(TENSOR_TYPES[source.dtype], np.frombuffer(data, np.uint8)[None]).reshape(-1)
    return np.frombuffer(data, DECODERS[source.dtype]).astype(np.float32, copy=False)


# The float dtypes a weight may have; integers are constants and never pass through floats.
DECODERS: dict[str, npt.DTypeLike] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}
# The values of the 256 bytes of an FP8 type: looking them up is faster than computing them.
FP8_VALUES: dict[str, Floats] = {
    name: np.arange(256, dtype=np.uint8).view(DECODERS[name]).astype(np.float32) for name in ("F8_E4M3", "F8_E5M2")
}


def can_decode(type_: TensorType) -> bool:
    """Whether values of a ggml type can be had: of floats here, of the types in blocks by the library."""
    return type_.name in DECODERS or is_decodable(type_)


def _scaled(source: SourceTensor, values: Floats, start: int) -> Floats:
    """Multiply whole rows of an FP8 weight by the scales of their blocks; only the scales needed are read."""
    *_, height, width = source.shape
    block_rows, block_columns = source.block
    matrix, row = np.divmod(start // width + np.arange(values.size // width), height)
    scale_rows = matrix * -(-height // block_rows) + row // block_rows
    scales = _scales(source, scale_rows[0], scale_rows[-1] + 1)
    of_rows = scales[scale_rows - scale_rows[0]]
    if not scales.all():
        _refuse_erased(source, values.reshape(len(row), width), of_rows)
    if width % block_columns == 0:
        values.reshape(len(row), -1, block_columns)[...] *= of_rows[:, :, None]
    else:
        values.reshape(len(row), width)[...] *= np.repeat(of_rows, block_columns, axis=1)[:, :width]
    return values


def _refuse_erased(source: SourceTensor, rows: Floats, of_rows: Floats) -> None:
    """Raise InputError when a scale of zero belongs to values that are not; a block of zeros may have one."""
    column = np.arange(rows.shape[1]) // source.block[1]
    if rows[of_rows[:, column] == 0].any():
        raise _bad_scale(source, "zero for a block whose values are not")


def _bad_scale(source: SourceTensor, what: str) -> InputError:
    return InputError(
        "bad-scale",
        f"is {what} (a scale of {source.name})",
        subject=source.scale.name if source.scale else source.name,
        remedy="the shard is damaged, or was quantized wrongly: download it again",
    )


def _scales(source: SourceTensor, first: int, end: int) -> Floats:
    """Rows `first` to `end` of a weight's scales, over all its matrices; InputError when one is no finite number."""
    if source.scale is None:
        raise ValueError(f"{source.name} has no scales")
    columns = source.scale.shape[-1]
    scales = decode(source.scale, first * columns, (end - first) * columns).reshape(-1, columns)
    if not np.isfinite(scales).all():
        raise _bad_scale(source, "NaN or infinite")
    return scales


def _f32(rows: Floats) -> Bytes:
    return np.ascontiguousarray(rows, "<f4").view(np.uint8)


def _f16(rows: Floats) -> Bytes:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(rows).astype("<f2").view(np.uint8)


def _bf16(rows: Floats) -> Bytes:
    return np.ascontiguousarray(rows).astype(ml_dtypes.bfloat16).view(np.uint8)


# Half would round 0.49999997 up: the sum is not exact. The float below it rounds every value as `roundf` does.
BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))
Q8_0_BLOCK = np.dtype([("scale", "<f2"), ("values", "i1", (32,))])


def _q8_0(rows: Floats) -> Bytes:
    """Blocks of 32: scale = max|x| / 127; x / scale by the unrounded scale, rounded half away from zero.

    Own code because the library takes twice the time for the type that most files have. Source: quantize_row_q8_0_ref
    in ggml-quants.c.
    """
    blocks = rows.reshape(-1, 32)
    scratch = np.abs(blocks)
    scale = _row_maximum(scratch) / np.float32(127)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
        np.multiply(blocks, inverse[:, None], out=scratch)
        scratch += np.copysign(BELOW_HALF, scratch)
        encoded = np.empty(len(blocks), Q8_0_BLOCK)
        encoded["scale"] = scale
        # The cast cuts towards zero.
        encoded["values"] = scratch.astype(np.int8)
    return encoded.view(np.uint8).reshape(len(rows), -1)


def _row_maximum(rows: Floats) -> Floats:
    """The maximum of each row of 32, by halving: numpy's reduction along short rows is slower."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = np.maximum(rows[:, :half], rows[:, half:])
    return rows[:, 0]


def _by_library(rows: Floats, name: str) -> Bytes:
    """The library's quantizers give the bytes of ggml's reference quantizers for the types named in ENCODERS.

    Only the sign of a zero scale may differ, in a block of negative zeros.
    """
    from gguf import GGMLQuantizationType, quants

    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        quantized: Bytes = quants.quantize(rows, GGMLQuantizationType[name])
    return quantized


ENCODERS: dict[TensorType, Callable[[Floats], Bytes]] = {
    F32: _f32,
    F16: _f16,
    BF16: _bf16,
    Q8_0: _q8_0,
    **{TENSOR_TYPES[name]: partial(_by_library, name=name) for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1")},
}


class NotFiniteError(ArithmeticError):
    """A value that is no finite number, for a type in which it would ruin its whole block."""


def encode(rows: Floats, type_: TensorType) -> Bytes:
    """The bytes of rows of float32 values in an output type; the row length must be divisible by the type's block.

    As llama-quantize does, raises OverflowError when a finite value, or the scale of finite values, becomes infinite,
    and NotFiniteError for NaN and infinite values in blocks. Types that store each value by itself hold these.
    """
    encoded = ENCODERS[type_](rows)
    if type_ != F32:
        flat = encoded.reshape(-1)
        broken = np.zeros(flat.size // type_.size, bool)
        for place in FLOATS[type_.name]:
            broken |= place.magnitudes(flat, type_.size) >= place.infinity
        if broken.any():
            blocks = rows.reshape(len(broken), -1)[broken]
            is_finite = np.isfinite(blocks)
            if type_.block > 1 and not is_finite.all():
                wrong = np.count_nonzero(~is_finite)
                raise NotFiniteError(f"{wrong} NaN or infinite values would ruin their blocks in {type_.name}")
            finite = blocks[is_finite.all(axis=1)]
            if finite.size:
                raise OverflowError(f"values up to {np.abs(finite).max():g} become infinite in {type_.name}")
    return encoded
