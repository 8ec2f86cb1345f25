"""How values of ggml's types lie in their blocks, for kernels: one function a type.

A row is read in words: a thread takes one at a time, as wide as the block's layout lets it be aligned, with the values
that are in it. A function gets the address of each word's block, the word's number in the block, and whether it is
there; it gives the values, and the columns in the block that they are of: a pair of tuples. Of words that are not there
all values are zeros.

Source of the layouts: ggml-common.h and ggml-quants.c of llama.cpp b11549, which the gguf package's `quants` follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

# Small integers become floats as the last bits of 2^23, one operation less busy than a conversion.
MAGIC = tl.constexpr(0x4B000000)
MAGIC_FLOAT = tl.constexpr(8388608.0)
# What four bits stand for: `kvalues_iq4nl`, and twice the values of MXFP4, `kvalues_mxfp4`.
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@triton.jit
def _byte(blocks: tl.tensor, offset: tl.tensor, there: tl.tensor) -> tl.tensor:
    return tl.load(blocks + offset, mask=there, other=0).to(tl.int32)


@triton.jit
def _two(blocks: tl.tensor, offset: tl.tensor, there: tl.tensor) -> tl.tensor:
    return tl.load((blocks + offset).to(tl.pointer_type(tl.uint16)), mask=there, other=0).to(tl.int32)


@triton.jit
def _four(blocks: tl.tensor, offset: tl.tensor, there: tl.tensor) -> tl.tensor:
    return tl.load((blocks + offset).to(tl.pointer_type(tl.int32)), mask=there, other=0)


@triton.jit
def _eight(blocks: tl.tensor, there: tl.tensor) -> tl.tensor:
    return tl.load(blocks.to(tl.pointer_type(tl.int64)), mask=there, other=0)


@triton.jit
def _half(blocks: tl.tensor, offset: tl.tensor, there: tl.tensor) -> tl.tensor:
    return tl.load((blocks + offset).to(tl.pointer_type(tl.float16)), mask=there, other=0.0).to(tl.float32)


@triton.jit
def _float(small: tl.tensor, less: tl.constexpr = 0) -> tl.tensor:
    """A small integer, and some number less than it."""
    return (small | MAGIC).to(tl.float32, bitcast=True) - (MAGIC_FLOAT + less)


@triton.jit
def f32(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """One value."""
    return (_four(blocks, 0, there).to(tl.float32, bitcast=True),), (word,)


@triton.jit
def f16(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """Four values a word."""
    four = _eight(blocks, there)
    values = ()
    for p in tl.static_range(4):
        values = values + ((four >> 16 * p).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32),)
    return values, (word, word + 1, word + 2, word + 3)


@triton.jit
def bf16(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """Four values a word: the first halves of float32."""
    four = _eight(blocks, there)
    values = ()
    for p in tl.static_range(4):
        values = values + (((four >> 16 * p).to(tl.int32) << 16).to(tl.float32, bitcast=True),)
    return values, (word, word + 1, word + 2, word + 3)


@triton.jit
def q8_0(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """d; 32 signed bytes, eight a word."""
    d = _half(blocks, 0, there)
    values = ()
    columns = ()
    for pair in tl.static_range(4):
        # Signed bytes are unsigned ones less 128 when their first bit is turned.
        q = _two(blocks, 2 + 8 * word + 2 * pair, there) ^ 0x8080
        values = values + (d * _float(q & 0xFF, 128), d * _float(q >> 8, 128))
        columns = columns + (8 * word + 2 * pair, 8 * word + 2 * pair + 1)
    return values, columns


@triton.jit
def q4_0(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """d; 16 bytes of a low and a high half, which are 16 columns apart: four a word."""
    d = _half(blocks, 0, there)
    values = ()
    columns = ()
    for pair in tl.static_range(2):
        q = _two(blocks, 2 + 4 * word + 2 * pair, there)
        for p in tl.static_range(4):
            values = values + (d * _float((q >> 4 * p) & 0xF, 8),)
            columns = columns + (4 * word + 2 * pair + p // 2 + p % 2 * 16,)
    return values, columns


@triton.jit
def q4_1(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """d, m; 16 bytes as in Q4_0: four a word."""
    d, m = _half(blocks, 0, there), _half(blocks, 2, there)
    q = _four(blocks, 4 + 4 * word, there)
    values = ()
    columns = ()
    for p in tl.static_range(8):
        values = values + (tl.fma(_float((q >> 4 * p) & 0xF), d, m),)
        columns = columns + (4 * word + p // 2 + p % 2 * 16,)
    return values, columns


@triton.jit
def q5_0(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """d; the fifth bits of 32 columns; 16 bytes as in Q4_0: two a word."""
    d = _half(blocks, 0, there)
    fifth = _two(blocks, 2, there) | _two(blocks, 4, there) << 16
    q = _two(blocks, 6 + 2 * word, there)
    values = ()
    columns = ()
    for p in tl.static_range(4):
        column = 2 * word + p // 2 + p % 2 * 16
        values = values + (d * _float((q >> 4 * p) & 0xF | (fifth >> column & 1) << 4, 16),)
        columns = columns + (column,)
    return values, columns


@triton.jit
def q5_1(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """d, m; the fifth bits of 32 columns; 16 bytes as in Q4_0: four a word."""
    d, m = _half(blocks, 0, there), _half(blocks, 2, there)
    fifth = _four(blocks, 4, there)
    q = _four(blocks, 8 + 4 * word, there)
    values = ()
    columns = ()
    for p in tl.static_range(8):
        column = 4 * word + p // 2 + p % 2 * 16
        values = values + (tl.fma(_float((q >> 4 * p) & 0xF | (fifth >> column & 1) << 4), d, m),)
        columns = columns + (column,)
    return values, columns


@triton.jit
def iq4_nl(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """d; 16 bytes as in Q4_0, of places in a table: two a word."""
    d = _half(blocks, 0, there)
    q = _two(blocks, 2 + 2 * word, there)
    values = ()
    columns = ()
    for p in tl.static_range(4):
        values = values + (d * tl.load(table + ((q >> 4 * p) & 0xF)),)
        columns = columns + (2 * word + p // 2 + p % 2 * 16,)
    return values, columns


@triton.jit
def mxfp4(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """An exponent; 16 bytes as in Q4_0, of places in a table: one a word."""
    e = _byte(blocks, 0, there)
    # 2^(e - 128), for the values are doubled; the two smallest are subnormal.
    d = tl.where(e < 2, 0x00200000 << e, (e - 1) << 23).to(tl.float32, bitcast=True)
    q = _byte(blocks, 1 + word, there)
    values = ()
    columns = ()
    for p in tl.static_range(2):
        values = values + (d * tl.load(table + ((q >> 4 * p) & 0xF)),)
        columns = columns + (word + 16 * p,)
    return values, columns


@triton.jit
def q2_k(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """16 scales with minima, of 16 columns each; 64 bytes of four columns that are 32 apart: four a word; d, dmin."""
    d, dmin = _half(blocks, 80, there), _half(blocks, 82, there)
    q = _four(blocks, 16 + 4 * word, there)
    # Of each 128 columns 32 bytes, each half of which has scales of its own.
    first = word // 8 * 128 + word % 8 * 4
    values = ()
    columns = ()
    for quarter in tl.static_range(4):
        scale = _byte(blocks, first // 16 + 2 * quarter, there)
        dl, ml = d * _float(scale & 0xF), -dmin * _float(scale >> 4)
        for byte in tl.static_range(4):
            values = values + (tl.fma(_float((q >> 8 * byte + 2 * quarter) & 3), dl, ml),)
            columns = columns + (first + 32 * quarter + byte,)
    return values, columns


@triton.jit
def q3_k(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """The third bits of 256 columns; 64 bytes as in Q2_K: two a word; 16 scales of six bits, of 16 columns each; d."""
    d = _half(blocks, 108, there)
    q = _two(blocks, 32 + 2 * word, there)
    # A byte of third bits has those of the columns that are 32 apart.
    third = _two(blocks, word % 16 * 2, there) >> word // 16 * 4
    first = word // 16 * 128 + word % 16 * 2
    values = ()
    columns = ()
    for quarter in tl.static_range(4):
        group = first // 16 + 2 * quarter
        low = _byte(blocks, 96 + group % 8, there) >> group // 8 * 4
        high = _byte(blocks, 104 + group % 4, there) >> group // 4 * 2
        dl = d * _float(low & 0xF | (high & 3) << 4, 32)
        for byte in tl.static_range(2):
            two, one = q >> 8 * byte + 2 * quarter, third >> 8 * byte + quarter
            values = values + (dl * _float(two & 3 | (one & 1) << 2, 4),)
            columns = columns + (first + 32 * quarter + byte,)
    return values, columns


@triton.jit
def _scales(blocks: tl.tensor, pair: tl.tensor, there: tl.tensor) -> tl.tuple:
    """Scales and minima of the two groups of 32 columns in one of a block's four pairs: d and dmin are in them."""
    d, dmin = _half(blocks, 0, there), _half(blocks, 2, there)
    # Six bits each. Those of the last two pairs are in four bits of the last bytes, and in the first two of the others.
    place = pair % 2 * 16
    scales, minima = _four(blocks, 4, there) >> place, _four(blocks, 8, there) >> place
    last, late = _four(blocks, 12, there) >> place, pair >= 2
    scales = tl.where(late, last & 0x0F0F | (scales & 0xC0C0) >> 2, scales & 0x3F3F)
    minima = tl.where(late, (last & 0xF0F0) >> 4 | (minima & 0xC0C0) >> 2, minima & 0x3F3F)
    return (
        (d * _float(scales & 0xFF), d * _float(scales >> 8)),
        (-dmin * _float(minima & 0xFF), -dmin * _float(minima >> 8)),
    )


@triton.jit
def q4_k(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """d, dmin; eight scales and minima; 128 bytes of two columns that are 32 apart: eight a word."""
    scales, minima = _scales(blocks, word // 4, there)
    eight = _eight(blocks + 16 + 8 * word, there)
    first = word // 4 * 64 + word % 4 * 8
    values = ()
    columns = ()
    for half in tl.static_range(2):
        q = (eight >> 32 * half).to(tl.int32)
        for p in tl.static_range(8):
            values = values + (tl.fma(_float((q >> 4 * p) & 0xF), scales[p % 2], minima[p % 2]),)
            columns = columns + (first + half * 4 + p // 2 + p % 2 * 32,)
    return values, columns


@triton.jit
def q5_k(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """d, dmin; eight scales and minima; 32 bytes of fifth bits; 128 bytes as in Q4_K: four a word."""
    pair = word // 8
    scales, minima = _scales(blocks, pair, there)
    # A byte of fifth bits has those of the columns that are 32 apart.
    fifth = _four(blocks, 16 + word % 8 * 4, there) >> 2 * pair
    q = _four(blocks, 48 + 4 * word, there)
    first = pair * 64 + word % 8 * 4
    values = ()
    columns = ()
    for p in tl.static_range(8):
        five = (q >> 4 * p) & 0xF | (fifth >> p // 2 * 8 + p % 2 & 1) << 4
        values = values + (tl.fma(_float(five), scales[p % 2], minima[p % 2]),)
        columns = columns + (first + p // 2 + p % 2 * 32,)
    return values, columns


@triton.jit
def q6_k(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """128 bytes of two columns that are 64 apart: two a word; 64 bytes of two more bits; 16 scales of 16 columns; d."""
    d = _half(blocks, 208, there)
    q = _two(blocks, 2 * word, there)
    # A byte of the two higher bits has those of four columns that are 32 apart.
    first = word // 32 * 128 + word % 32 * 2
    high = _two(blocks, 128 + word // 32 * 32 + word % 16 * 2, there) >> word % 32 // 16 * 2
    values = ()
    columns = ()
    for half in tl.static_range(2):
        scale = _byte(blocks, 192 + first // 16 + 4 * half, there) ^ 0x80
        dl = d * _float(scale, 128)
        for byte in tl.static_range(2):
            six = (q >> 8 * byte + 4 * half) & 0xF | ((high >> 8 * byte + 4 * half) & 3) << 4
            values = values + (dl * _float(six, 32),)
            columns = columns + (first + 64 * half + byte,)
    return values, columns


@triton.jit
def iq4_xs(blocks: tl.tensor, word: tl.tensor, there: tl.tensor, table: tl.tensor) -> tl.tuple:
    """d; eight scales of six bits; for each 32 columns 16 bytes as in Q4_0, of places in a table: eight a word."""
    d = _half(blocks, 0, there)
    group = word // 2
    high = _two(blocks, 2, there) >> 2 * group
    low = _byte(blocks, 4 + group // 2, there) >> group % 2 * 4
    dl = d * _float(low & 0xF | (high & 3) << 4, 32)
    eight = _eight(blocks + 8 + 8 * word, there)
    values = ()
    columns = ()
    for half in tl.static_range(2):
        q = (eight >> 32 * half).to(tl.int32)
        for p in tl.static_range(8):
            values = values + (dl * tl.load(table + ((q >> 4 * p) & 0xF)),)
            columns = columns + (group * 32 + word % 2 * 8 + half * 4 + p // 2 + p % 2 * 16,)
    return values, columns


@dataclass(frozen=True)
class Format:
    """A type's block: its columns and bytes, in so many words; it begins at a multiple of `alignment` bytes.

    `table` has what four bits stand for, if that is no number.
    """

    decode: Any
    columns: int
    bytes: int
    words: int
    alignment: int
    table: tuple[int, ...] = ()


FORMATS: dict[str, Format] = {
    "F32": Format(f32, 1, 4, 1, 4),
    "F16": Format(f16, 4, 8, 1, 8),
    "BF16": Format(bf16, 4, 8, 1, 8),
    "Q8_0": Format(q8_0, 32, 34, 4, 2),
    "Q4_0": Format(q4_0, 32, 18, 4, 2),
    "Q4_1": Format(q4_1, 32, 20, 4, 4),
    "Q5_0": Format(q5_0, 32, 22, 8, 2),
    "Q5_1": Format(q5_1, 32, 24, 4, 4),
    "IQ4_NL": Format(iq4_nl, 32, 18, 8, 2, table=IQ4_VALUES),
    "MXFP4": Format(mxfp4, 32, 17, 16, 1, table=MXFP4_VALUES),
    "Q2_K": Format(q2_k, 256, 84, 16, 4),
    "Q3_K": Format(q3_k, 256, 110, 32, 2),
    "Q4_K": Format(q4_k, 256, 144, 16, 8),
    "Q5_K": Format(q5_k, 256, 176, 32, 4),
    "Q6_K": Format(q6_k, 256, 210, 64, 2),
    "IQ4_XS": Format(iq4_xs, 256, 136, 16, 8, table=IQ4_VALUES),
}


@lru_cache(maxsize=64)
def table_of(type_name: str, device: torch.device) -> torch.Tensor:
    """A type's table, float32 [16], or an empty one."""
    return torch.tensor(FORMATS[type_name].table, dtype=torch.float32, device=device)
