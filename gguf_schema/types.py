"""Types of GGUF values and tensors: names, ids, sizes.

Source: the GGUF format description and the type table of llama.cpp b11549 (ggml.h, ggml-common.h).
"""

from __future__ import annotations

from enum import IntEnum
from math import prod
from typing import NamedTuple


class ValueType(IntEnum):
    """Type of a metadata value, by its id in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# `struct` codes of the fixed-size value types (little-endian, one value).
SCALAR_FORMATS: dict[ValueType, str] = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}


class TensorType(NamedTuple):
    """A ggml tensor type: `block` elements of a row take `size` bytes. Size 0 marks a type unknown to this table."""

    id: int
    name: str
    block: int
    size: int

    @property
    def known(self) -> bool:
        """Whether the size of a block is known; an unknown type is copied as opaque bytes."""
        return self.size > 0

    @property
    def bits(self) -> float:
        """Bits an element."""
        return 8 * self.size / self.block

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of `elements` values, which `block` must divide."""
        return elements // self.block * self.size

    def tensor_bytes(self, ne: tuple[int, ...]) -> int:
        """Bytes of a tensor with dimensions `ne` (fastest first)."""
        return self.row_bytes(ne[0]) * prod(ne[1:])


TENSOR_TYPES: dict[str, TensorType] = {
    name: TensorType(id_, name, block, size)
    for id_, name, block, size in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 36),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
        (42, "Q2_0", 64, 18),
    )
}
_BY_ID = {t.id: t for t in TENSOR_TYPES.values()}

F32 = TENSOR_TYPES["F32"]
F16 = TENSOR_TYPES["F16"]
BF16 = TENSOR_TYPES["BF16"]
Q8_0 = TENSOR_TYPES["Q8_0"]


def tensor_type(id_: int) -> TensorType:
    """The type with this id; ids this table does not know give an opaque type of size 0."""
    return _BY_ID.get(id_) or TensorType(id_, f"type {id_}", 1, 0)


# Types that converting can write, as the command line spells them.
OUTPUT_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")

# `general.file_type` per output type (llama.h, LLAMA_FTYPE_*).
FILE_TYPES: dict[str, int] = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "BF16": 32,
}  # fmt: skip
