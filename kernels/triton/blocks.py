"""How values of ggml's types lie in their blocks, for the matrix units: one function a type.

Four threads read a row together. A block has its columns in runs of 16: thread t has columns 4 t .. 4 t + 3 of each,
the low or high bits of four bytes that lie together in most types. It gives them as small integers, two a word of 32
bits: (4 t, 4 t + 2), (4 t + 1, 4 t + 3). As float16 a half of up to 11 bits stands for itself by 2^-24, with no
conversion. Integers of fewer bits than a byte are held further left, with a smaller scale: all such halves have the
smallest exponent, and units that align products by exponents may cut what is far below it.

A function gets the addresses of blocks and the number t; it gives the groups of a block in the order of their columns,
each with its words, a scale and, if the type has such, an offset: values are scale * integer + offset. A group has one
or two runs.

Source of the layouts: ggml-common.h and ggml-quants.c of llama.cpp b11549, which the gguf package's `quants` follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from nextn.kernels.triton.functions import halves_less, permuted_bytes

RUN = 16
# A byte becomes a float as the last bits of 2^23.
MAGIC = tl.constexpr(0x4B000000)
MAGIC_FLOAT = tl.constexpr(8388608.0)
# And as the last bits of 2^10, in each half of a word, a float16; this times 9/8 has 128 more.
HALF_MAGIC = tl.constexpr(0x64646464)
HALF_MAGIC_SIGNED = tl.constexpr(0x64806480)
# What a float16 that is a whole number is to one that stands for itself by 2^-24.
WHOLE = tl.constexpr(2.0**-24)
# The first bit of each byte, of each half.
SIGNS = tl.constexpr(0x80808080 - (1 << 32))
HALF_SIGNS = tl.constexpr(0x80008000 - (1 << 32))
# What four bits stand for in IQ4_NL and IQ4_XS, `kvalues_iq4nl`, and 128 more, which no sign is needed for.
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
IQ4_0, IQ4_1, IQ4_2, IQ4_3 = (
    tl.constexpr(int.from_bytes(bytes(value + 128 for value in IQ4_VALUES[i : i + 4]), "little", signed=True))
    for i in range(0, 16, 4)
)


@triton.jit
def _two(blocks: tl.tensor, offset: tl.tensor) -> tl.tensor:
    return tl.load((blocks + offset).to(tl.pointer_type(tl.uint16))).to(tl.int32)


@triton.jit
def _four(blocks: tl.tensor, offset: tl.tensor) -> tl.tensor:
    return tl.load((blocks + offset).to(tl.pointer_type(tl.int32)))


@triton.jit
def _twos(blocks: tl.tensor, offset: tl.tensor) -> tl.tensor:
    """Four bytes that begin at an even address."""
    return _two(blocks, offset) | _two(blocks, offset + 2) << 16


@triton.jit
def _bytes(blocks: tl.tensor, offset: tl.tensor) -> tl.tensor:
    """Four bytes that begin anywhere, from the two words that have them: bytes alone would be a load each."""
    address = (blocks + offset).to(tl.int64)
    behind = (address & 3).to(tl.int32)
    first = (address - behind).to(tl.pointer_type(tl.int32))
    # A word without a byte of the four, which may be nobody's, is not read.
    return permuted_bytes(tl.load(first), tl.load(first + (behind + 3) // 4), 0x3210 + 0x1111 * behind)


@triton.jit
def _eight(blocks: tl.tensor, offset: tl.tensor) -> tl.tuple:
    """Eight bytes as two words."""
    word = tl.load((blocks + offset).to(tl.pointer_type(tl.int64)))
    return word.to(tl.int32), (word >> 32).to(tl.int32)


@triton.jit
def _half(word: tl.tensor) -> tl.tensor:
    """The first two bytes of a word, a float16."""
    return word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _d(blocks: tl.tensor, offset: tl.tensor) -> tl.tensor:
    return tl.load((blocks + offset).to(tl.pointer_type(tl.float16))).to(tl.float32)


@triton.jit
def _times(d: tl.tensor, bytes_: tl.tensor, place: tl.constexpr) -> tl.tensor:
    """d, of 11 bits, times one of four bytes: exact, and an operation less than a conversion and a product."""
    return tl.fma(permuted_bytes(bytes_, MAGIC, 0x7650 + place).to(tl.float32, bitcast=True), d, -MAGIC_FLOAT * d)


@triton.jit
def _moved(word: tl.tensor, by: tl.constexpr) -> tl.tensor:
    """Bits further left, or right if `by` is negative."""
    return word << by if by >= 0 else word >> -by


@triton.jit
def _words(bytes_: tl.tensor, bits: tl.constexpr, left: tl.constexpr = 0) -> tl.tuple:
    """Those bits of each of four bytes that `bits` has in both halves, behind a move to the left."""
    return _moved(bytes_, left) & bits, _moved(bytes_, left - 8) & bits


@triton.jit
def _four_bits(bytes_: tl.tensor, high: tl.constexpr) -> tl.tuple:
    """The low or the high half of each of four bytes, 16 times as large."""
    return _words(bytes_, 0x00F000F0, 0 if high else 4)


@triton.jit
def _whole(bytes_: tl.tensor) -> tl.tuple:
    """Each of four bytes."""
    return bytes_ & 0x00FF00FF, permuted_bytes(bytes_, 0, 0x4341)


@triton.jit
def q8_0(blocks: tl.tensor, t: tl.tensor) -> tl.tuple:
    """d; 32 signed bytes.

    With the first bit turned, as the last bits of float16, they are 1024 + 128 more than what they are. An offset of
    128 d would be far larger than a result.
    """
    ours = blocks + 4 * t
    words = ()
    for run in tl.static_range(2):
        q = _twos(ours, 2 + 16 * run) ^ SIGNS
        for c in tl.static_range(2):
            words = words + (halves_less(permuted_bytes(q, HALF_MAGIC, 0x4240 + 0x101 * c), HALF_MAGIC_SIGNED),)
    return ((words, _d(blocks, 0) * WHOLE),)


@triton.jit
def q4_0(blocks: tl.tensor, t: tl.tensor) -> tl.tuple:
    """d; 16 bytes of a low and a high half, which are 16 columns apart."""
    ours = blocks + 4 * t
    d = _d(blocks, 0)
    q = _twos(ours, 2)
    return ((_four_bits(q, False) + _four_bits(q, True), 0.0625 * d, -8 * d),)


@triton.jit
def q4_1(blocks: tl.tensor, t: tl.tensor) -> tl.tuple:
    """d, m; 16 bytes as in Q4_0."""
    ours = blocks + 4 * t
    dm = _four(blocks, 0)
    q = _four(ours, 4)
    return ((_four_bits(q, False) + _four_bits(q, True), 0.0625 * _half(dm), _half(dm >> 16)),)


@triton.jit
def _five_bits(q: tl.tensor, fifth: tl.tensor, t: tl.tensor) -> tl.tuple:
    """Bytes as in Q4_0, and the fifth bits of 32 columns; 16 times as large."""
    words = ()
    for run in tl.static_range(2):
        four = _four_bits(q, run == 1)
        for c in tl.static_range(2):
            bits = fifth >> 4 * t >> 16 * run + c
            words = words + (four[c] | bits << 8 & 0x100 | bits << 22 & 0x1000000,)
    return words


@triton.jit
def q5_0(blocks: tl.tensor, t: tl.tensor) -> tl.tuple:
    """d; the fifth bits of 32 columns; 16 bytes as in Q4_0."""
    ours = blocks + 4 * t
    d = _d(blocks, 0)
    words = _five_bits(_twos(ours, 6), _twos(blocks, 2), t)
    return ((words, 0.0625 * d, -16 * d),)


@triton.jit
def q5_1(blocks: tl.tensor, t: tl.tensor) -> tl.tuple:
    """d, m; the fifth bits of 32 columns; 16 bytes as in Q4_0."""
    ours = blocks + 4 * t
    dm = _four(blocks, 0)
    words = _five_bits(_four(ours, 8), _four(blocks, 4), t)
    return ((words, 0.0625 * _half(dm), _half(dm >> 16)),)


@triton.jit
def _iq4(q: tl.tensor) -> tl.tuple:
    """Bytes as in Q4_0, of places in the table."""
    # Bytes 0, 2, 1, 3: what the halves choose lies as `_words` has it.
    q = permuted_bytes(q, q, 0x3120)
    # Three bits choose a byte of each half of the table, and the fourth one of those two.
    place, half = q & 0x77777777, q >> 1 & 0x44444444 | 0x32103210
    low, high = (), ()
    for c in tl.static_range(2):
        first = permuted_bytes(IQ4_0, IQ4_1, place >> 16 * c)
        chosen = permuted_bytes(first, permuted_bytes(IQ4_2, IQ4_3, place >> 16 * c), half >> 16 * c)
        both = _whole(chosen)
        low, high = low + (both[0],), high + (both[1],)
    return low + high


@triton.jit
def iq4_nl(blocks: tl.tensor, t: tl.tensor) -> tl.tuple:
    """d; 16 bytes as in Q4_0, of places in a table."""
    ours = blocks + 4 * t
    d = _d(blocks, 0)
    return ((_iq4(_twos(ours, 2)), d, -128 * d),)


@triton.jit
def mxfp4(blocks: tl.tensor, t: tl.tensor) -> tl.tuple:
    """An exponent; 16 bytes as in Q4_0, of floats of four bits."""
    ours = blocks + 4 * t
    e = tl.load(blocks).to(tl.int32)
    # 2^(e - 127), and 2^-10 for what follows; the smallest are subnormal.
    d = tl.where(e > 10, e - 10 << 23, 1 << tl.minimum(e, 10) + 12).to(tl.float32, bitcast=True)
    q = _bytes(ours, 1)
    words = ()
    for run in tl.static_range(2):
        for c in tl.static_range(2):
            # Sign, two bits of exponent and one behind the point: as float16 they stand for 2^-14 of what they are.
            bits = _moved(q, 9 - 4 * run - 8 * c)
            words = words + (bits & 0x0E000E00 | bits << 3 & HALF_SIGNS,)
    return ((words, d),)


@triton.jit
def _two_bits(bytes_: tl.tensor, quarter: tl.constexpr) -> tl.tuple:
    """A quarter of each of four bytes, 64 times as large, or 256 times if the quarter is odd."""
    return _words(bytes_, 0x00C000C0 << quarter % 2 * 2, 6 - quarter // 2 * 4)


@triton.jit
def q2_k(blocks: tl.tensor, t: tl.tensor) -> tl.tuple:
    """16 scales with minima, of 16 columns each; 64 bytes of four columns that are 32 apart; d, dmin."""
    ours = blocks + 4 * t
    both = _four(blocks, 80)
    d, less = _half(both), -_half(both >> 16)
    groups = ()
    for half in tl.static_range(2):
        for quarter in tl.static_range(4):
            scales = _four(blocks, 8 * half + quarter // 2 * 4)
            for run in tl.static_range(2):
                # Of each 128 columns 32 bytes.
                words = _two_bits(_four(ours, 16 + 32 * half + 16 * run), quarter)
                scale = _times(0.25 ** (3 + quarter % 2) * d, scales & 0x0F0F0F0F, quarter % 2 * 2 + run)
                minimum = _times(less, scales >> 4 & 0x0F0F0F0F, quarter % 2 * 2 + run)
                groups = groups + ((words, scale, minimum),)
    return groups


@triton.jit
def q3_k(blocks: tl.tensor, t: tl.tensor) -> tl.tuple:
    """The third bits of 256 columns; 64 bytes as in Q2_K; 16 scales of six bits, of 16 columns each; d."""
    ours = blocks + 4 * t
    d = _d(blocks, 108)
    third, q, low, scales = (), (), (), ()
    for word in tl.static_range(2):
        third, low = third + (_twos(ours, 16 * word),), low + (_twos(blocks, 96 + 4 * word),)
    for word in tl.static_range(4):
        q = q + (_twos(ours, 32 + 16 * word),)
        high = _twos(blocks, 104) >> 2 * word & 0x03030303
        scales = scales + (low[word % 2] >> word // 2 * 4 & 0x0F0F0F0F | high << 4,)
    groups = ()
    for half in tl.static_range(2):
        for quarter in tl.static_range(4):
            for run in tl.static_range(2):
                two = _two_bits(q[2 * half + run], quarter)
                words = ()
                for c in tl.static_range(2):
                    # A byte of third bits has those of the columns that are 32 apart.
                    left = 8 + quarter % 2 * 2 - quarter - 4 * half
                    one = _moved(third[run], left - 8 * c) & 0x01000100 << quarter % 2 * 2
                    words = words + (two[c] | one,)
                scale = _times(d, scales[2 * half + quarter // 2], quarter % 2 * 2 + run) - 32 * d
                groups = groups + ((words, 0.25 ** (3 + quarter % 2) * scale, -4 * scale),)
    return groups


@triton.jit
def _eight_groups(blocks: tl.tensor, t: tl.tensor, FIFTH: tl.constexpr) -> tl.tuple:
    """d, dmin; eight scales and minima of six bits; 32 bytes of FIFTH bits if any; 128 bytes of columns 32 apart."""
    ours = blocks + 4 * t
    both, scales = _eight(blocks, 0)
    minima, last = _eight(blocks, 8)
    d, less = _half(both), -_half(both >> 16)
    # Those of the last four groups are in four bits of the last bytes, and in the first two of the others.
    all_scales = scales & 0x3F3F3F3F, last & 0x0F0F0F0F | scales >> 2 & 0x30303030
    all_minima = minima & 0x3F3F3F3F, last >> 4 & 0x0F0F0F0F | minima >> 2 & 0x30303030
    groups = ()
    for i in tl.static_range(8):
        words = ()
        for run in tl.static_range(2):
            # Every other group is the high half.
            four = _four_bits(_four(ours, (48 if FIFTH else 16) + i // 2 * 32 + 16 * run), i % 2 == 1)
            if FIFTH:
                # A byte of fifth bits has those of the columns that are 32 apart.
                fifth = _four(ours, 16 + 16 * run)
                for c in tl.static_range(2):
                    words = words + (four[c] | _moved(fifth, 8 - i - 8 * c) & 0x01000100,)
            else:
                words = words + four
        scale = _times(0.0625 * d, all_scales[i // 4], i % 4)
        groups = groups + ((words, scale, _times(less, all_minima[i // 4], i % 4)),)
    return groups


@triton.jit
def q4_k(blocks: tl.tensor, t: tl.tensor) -> tl.tuple:
    """Eight groups of 32 columns."""
    return _eight_groups(blocks, t, False)


@triton.jit
def q5_k(blocks: tl.tensor, t: tl.tensor) -> tl.tuple:
    """As Q4_K, with fifth bits."""
    return _eight_groups(blocks, t, True)


@triton.jit
def q6_k(blocks: tl.tensor, t: tl.tensor) -> tl.tuple:
    """128 bytes of two columns that are 64 apart; 64 bytes of two more bits; 16 scales of 16 columns; d."""
    ours = blocks + 4 * t
    d = _d(blocks, 208)
    groups = ()
    for half in tl.static_range(2):
        for quarter in tl.static_range(4):
            for run in tl.static_range(2):
                q = _twos(ours, 64 * half + quarter % 2 * 32 + 16 * run)
                # A byte of the two higher bits has those of four columns that are 32 apart.
                two = _twos(ours, 128 + 32 * half + 16 * run)
                four = _four_bits(q, quarter >= 2)
                words = ()
                for c in tl.static_range(2):
                    words = words + (four[c] | _moved(two, 8 - 2 * quarter - 8 * c) & 0x03000300,)
                signed = _twos(blocks, 192 + 8 * half + quarter // 2 * 4) ^ SIGNS
                scale = _times(d, signed, quarter % 2 * 2 + run) - 128 * d
                groups = groups + ((words, 0.0625 * scale, -32 * scale),)
    return groups


@triton.jit
def iq4_xs(blocks: tl.tensor, t: tl.tensor) -> tl.tuple:
    """d; eight scales of six bits; for each 32 columns 16 bytes as in Q4_0, of places in a table."""
    ours = blocks + 4 * t
    first, low = _eight(blocks, 0)
    d = _half(first)
    scales = ()
    for odd in tl.static_range(2):
        # Two bits of every other group, behind each other, become those of four bytes.
        high = first >> 16 + 2 * odd & 0x3333
        high = (high | high << 8) & 0x00330033
        high = (high << 4 | high << 8) & 0x30303030
        scales = scales + (low >> 4 * odd & 0x0F0F0F0F | high,)
    groups = ()
    for i in tl.static_range(8):
        scale = _times(d, scales[i % 2], i // 2) - 32 * d
        groups = groups + ((_iq4(_four(ours, 8 + 16 * i)), scale, -128 * scale),)
    return groups


@dataclass(frozen=True)
class Format:
    """A type's block: its columns and bytes, in groups of so many runs; it begins at a multiple of `alignment`.

    `at_once` is how many columns a warp takes at once, if they divide a row; or else a block. Without `offset` values
    are scale * integer.
    """

    decode: Any
    columns: int
    bytes: int
    alignment: int
    runs: int = 2
    at_once: int = 128
    offset: bool = True

    @property
    def groups(self) -> int:
        """How many groups of columns with one scale a block has."""
        return self.columns // (RUN * self.runs)


FORMATS: dict[str, Format] = {
    "Q8_0": Format(q8_0, 32, 34, 2, offset=False),
    "Q4_0": Format(q4_0, 32, 18, 2),
    "Q4_1": Format(q4_1, 32, 20, 4),
    "Q5_0": Format(q5_0, 32, 22, 2),
    "Q5_1": Format(q5_1, 32, 24, 4),
    # With more columns at once the table leaves too few registers.
    "IQ4_NL": Format(iq4_nl, 32, 18, 2, at_once=64),
    "MXFP4": Format(mxfp4, 32, 17, 1, offset=False),
    "Q2_K": Format(q2_k, 256, 84, 4, runs=1),
    "Q3_K": Format(q3_k, 256, 110, 2, runs=1),
    "Q4_K": Format(q4_k, 256, 144, 8),
    "Q5_K": Format(q5_k, 256, 176, 8),
    "Q6_K": Format(q6_k, 256, 210, 2, runs=1),
    "IQ4_XS": Format(iq4_xs, 256, 136, 8),
}
