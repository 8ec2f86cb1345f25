"""One pass over the data of one tensor: values that are no numbers, zeros, constant rows, hash; in bounded memory.

The floats of block types are looked at in their place. Source: ggml_validate_row_data (ggml-quants.c) and the block
layouts of ggml-common.h, llama.cpp b11549.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nextn.gguf_schema.dequantize import dequantized, is_decodable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nextn.gguf_schema.contents import ByteSource, TensorInfo
    from nextn.gguf_schema.types import TensorType

CHUNK = 1 << 22  # bytes read at a time

# Shorter rows are constant by chance, or because they are filters of a few taps.
_LEAST_ROW = 32

Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Float:
    """A float in a block: the integer type of its bits, and where in the block it begins, in bytes."""

    bits: str
    infinity: int  # the bits of a positive infinity; beyond it are those that are no numbers
    offset: int = 0

    def magnitudes(self, data: Bytes, block: int) -> Bits:
        """The bits without sign of this float of every block of `block` bytes."""
        shape, strides = (data.size // block,), (block,)
        view: Bits = np.ndarray(shape, self.bits, data, self.offset, strides)
        sign = 1 << (8 * view.itemsize - 1)
        return view & view.dtype.type(sign - 1)


def _half(*offsets: int) -> tuple[Float, ...]:
    return tuple(Float("<u2", 0x7C00, offset) for offset in offsets)


FLOATS: dict[str, tuple[Float, ...]] = {
    "F64": (Float("<u8", 0x7FF0_0000_0000_0000),),
    "F32": (Float("<u4", 0x7F80_0000),),
    "F16": _half(0),
    "BF16": (Float("<u2", 0x7F80),),
    "Q4_0": _half(0),
    "Q4_1": _half(0, 2),
    "Q5_0": _half(0),
    "Q5_1": _half(0, 2),
    "Q8_0": _half(0),
    "Q8_1": _half(0, 2),
    "Q2_K": _half(80, 82),
    "Q3_K": _half(108),
    "Q4_K": _half(0, 2),
    "Q5_K": _half(0, 2),
    "Q6_K": _half(208),
    "Q8_K": (Float("<u4", 0x7F80_0000),),
    "IQ2_XXS": _half(0),
    "IQ2_XS": _half(0),
    "IQ2_S": _half(0),
    "IQ3_XXS": _half(0),
    "IQ3_S": _half(0),
    "IQ1_S": _half(0),
    "IQ4_NL": _half(0),
    "IQ4_XS": _half(0),
    "TQ1_0": _half(52),
    "TQ2_0": _half(64),
    "Q1_0": _half(0),
    "Q2_0": _half(0),
}

# Where the quants of a block begin, and the byte that two, or one, of them are zero in.
ZERO_QUANTS: dict[str, tuple[int, int]] = {"Q8_0": (2, 0), "Q4_0": (2, 0x88)}


@dataclass
class Scan:
    """What is in the data of a tensor. Blocks and rows count from 0; a block of F32 and the like is one value."""

    nans: int = 0
    infinities: int = 0
    first_bad_block: int | None = None
    all_zero: bool = True
    constant_rows: int = 0
    first_constant_row: int | None = None
    sha256: str | None = None
    row_blocks: int = field(default=1, repr=False)

    @property
    def first_bad_row(self) -> int:
        """The row of the first value that is no number; 0 when there is none."""
        return (self.first_bad_block or 0) // self.row_blocks


def scan(source: ByteSource, offset: int, tensor: TensorInfo, *, hashed: bool = False) -> Scan:
    """The data of a tensor of known size, from `offset` bytes into its file on; InputError when it cannot be read."""
    result = Scan(row_blocks=max(tensor.ne[0] // tensor.type.block, 1))
    digest = hashlib.sha256() if hashed else None
    row_bytes = tensor.type.row_bytes(tensor.ne[0])
    whole_rows = row_bytes <= CHUNK
    has_rows = whole_rows and tensor.ne[0] >= _LEAST_ROW and tensor.elements > tensor.ne[0]
    step = CHUNK // row_bytes * row_bytes if whole_rows else CHUNK // tensor.type.size * tensor.type.size
    for begin, raw in _chunks(source, offset, tensor.nbytes, step):
        if digest:
            digest.update(raw)
        data = np.frombuffer(raw, np.uint8)
        _scan_values(result, tensor.type, data, begin // tensor.type.size)
        if has_rows:
            _scan_rows(result, tensor.type, data.reshape(-1, row_bytes), begin // row_bytes)
    result.sha256 = digest.hexdigest() if digest else None
    return result


def sha256(source: ByteSource, offset: int, nbytes: int) -> str:
    """The hash of `nbytes` bytes; InputError when they cannot be read."""
    digest = hashlib.sha256()
    for _, data in _chunks(source, offset, nbytes, CHUNK):
        digest.update(data)
    return digest.hexdigest()


def _chunks(source: ByteSource, offset: int, nbytes: int, step: int) -> Iterator[tuple[int, bytes]]:
    for begin in range(0, nbytes, step):
        yield begin, source.read(offset + begin, min(step, nbytes - begin))


def _magnitudes(type_: TensorType, data: Bytes) -> Iterator[tuple[Bits, int]]:
    """The bits of every float of the blocks, without sign, and those of an infinity."""
    for place in FLOATS.get(type_.name, ()):
        yield place.magnitudes(data, type_.size), place.infinity
    if type_.name == "IQ1_M":
        # The scale is in the upper four bits of four 16-bit words.
        words = data.reshape(-1, type_.size)[:, 48:].copy().view("<u2").T
        scale: Bits = (words[0] >> 12) | ((words[1] >> 8) & 0xF0) | ((words[2] >> 4) & 0xF00) | (words[3] & 0x7000)
        yield scale, 0x7C00


def _scan_values(result: Scan, type_: TensorType, data: Bytes, first_block: int) -> None:
    """Count what is no number, and see whether all is zero: blocks whose scales are."""
    highest = 0
    known = False
    for bits, infinity in _magnitudes(type_, data):
        known = True
        top = int(bits.max(initial=0))
        highest = max(highest, top)
        if top >= infinity:
            result.infinities += int(np.count_nonzero(bits == infinity))
            result.nans += int(np.count_nonzero(bits > infinity))
            block = first_block + int(np.argmax(bits >= infinity))
            if result.first_bad_block is None or block < result.first_bad_block:
                result.first_bad_block = block
    if type_.name == "MXFP4":
        # The exponent 255 of E8M0 is no number.
        exponents = data[:: type_.size]
        bad = exponents == 0xFF
        if bad.any():
            result.nans += int(np.count_nonzero(bad))
            if result.first_bad_block is None:
                result.first_bad_block = first_block + int(np.argmax(bad))
    zero = highest == 0 if known else not data.any()
    result.all_zero = result.all_zero and (zero or _quants_are_zero(type_, data))


def _quants_are_zero(type_: TensorType, data: Bytes) -> bool:
    """Whether blocks hold nothing but zeros, whatever their scales are."""
    if type_.name not in ZERO_QUANTS:
        return False
    begin, byte = ZERO_QUANTS[type_.name]
    return bool((data.reshape(-1, type_.size)[:, begin:] == byte).all())


def _scan_rows(result: Scan, type_: TensorType, rows: Bytes, first_row: int) -> None:
    """Count rows of one value: only those whose ends are equal are looked at as a whole."""
    size = type_.size
    candidates = np.flatnonzero((rows[:, :size] == rows[:, -size:]).all(axis=1))
    if not candidates.size:
        return
    blocks = rows[candidates].reshape(candidates.size, -1, size)
    equal = (blocks == blocks[:, :1]).all(axis=(1, 2))
    candidates, first = candidates[equal], np.ascontiguousarray(blocks[equal, 0])
    if candidates.size and type_.block > 1:
        candidates = candidates[_is_constant(type_, first)]
    if candidates.size:
        result.constant_rows += int(candidates.size)
        if result.first_constant_row is None:
            result.first_constant_row = first_row + int(candidates[0])


def _is_constant(type_: TensorType, blocks: Bytes) -> npt.NDArray[np.bool_]:
    """Which blocks hold one value only; none of a type that the gguf package does not decode."""
    if not is_decodable(type_):
        return np.zeros(len(blocks), bool)
    with np.errstate(all="ignore"):
        values = dequantized(type_, blocks)
    same: npt.NDArray[np.bool_] = values.min(axis=1) == values.max(axis=1)
    return same
