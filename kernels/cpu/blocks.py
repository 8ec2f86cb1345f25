"""How blocks of each ggml type become vectors of sixteen float32 values, as LLVM code.

A block lies in the file as ggml stores it: scales, and the weights in few bits. Each function below writes the code
that decodes one block at a pointer, and yields its vectors in the order of the weights. Values are those of gguf-py's
`dequantize`, to the last bit. Source: ggml-common.h and ggml-quants.c of llama.cpp b11549.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from llvmlite import binding, ir
from numba.core import cgutils

from nextn.kernels.cpu.lanes import LANES

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT, HALF = ir.FloatType(), ir.HalfType()
FLOATS, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(I32, LANES)

# A value in LLVM's code; llvmlite declares no types.
Value: TypeAlias = Any
Vectors = Iterator[Value]

FEATURES = binding.get_host_cpu_features()
# An instruction that looks sixteen values up in sixteen others.
HAS_PERMUTATION = bool(FEATURES.get("avx512f"))
# Instructions that widen halves. Processors that are not x86 have them; without, LLVM would call a library.
HAS_HALVES = bool(FEATURES.get("f16c", True))

# What four bits stand for.
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


class Block:
    """Code that reads one block: its bytes at offsets, as vectors or single values."""

    def __init__(self, builder: ir.IRBuilder, pointer: Value) -> None:
        self.builder = builder
        self.pointer = pointer  # i8*

    def load(self, kind: ir.Type, offset: int) -> Value:
        """What lies at an offset in bytes, wherever that is."""
        place = self.builder.gep(self.pointer, [ir.Constant(I64, offset)])
        return self.builder.load(self.builder.bitcast(place, kind.as_pointer()), align=1)

    def bytes(self, offset: int) -> Value:
        """Sixteen unsigned bytes as integers."""
        return self.builder.zext(self.load(ir.VectorType(I8, LANES), offset), INTS)

    def byte(self, offset: int) -> Value:
        """One unsigned byte as an integer."""
        return self.builder.zext(self.load(I8, offset), I32)

    def half(self, offset: int) -> Value:
        """One F16 as a float, in all lanes."""
        # LLVM would load one half alone into what another register holds beside it, and wait for that.
        return self._widened(self.splat(self.load(I16, offset)))

    def halves(self, offset: int) -> Value:
        """Sixteen F16 as floats."""
        return self._widened(self.load(ir.VectorType(I16, LANES), offset))

    def _widened(self, halves: Value) -> Value:
        """The bits of sixteen F16 as floats."""
        if HAS_HALVES:
            return self.builder.fpext(self.builder.bitcast(halves, ir.VectorType(HALF, LANES)), FLOATS)
        bits = self.builder.zext(halves, INTS)
        # Exponents of float are 112 larger; the product is exact, also where an F16 is subnormal.
        magnitude = self.builder.shl(self.bits(bits, 0, 15), constant(INTS, 13))
        grown = self.builder.fmul(self.builder.bitcast(magnitude, FLOATS), constant(FLOATS, 2.0**112))
        # Infinities and what is no number have the largest exponent of either.
        special = self.builder.or_(magnitude, constant(INTS, 0x7F800000))
        is_special = self.builder.icmp_unsigned(">=", magnitude, constant(INTS, 0x7C00 << 13))
        magnitude = self.builder.select(is_special, special, self.builder.bitcast(grown, INTS))
        return self.builder.bitcast(self.joined(magnitude, self.bits(bits, 15, 1), 31), FLOATS)

    def bits(self, value: Value, shift: int, count: int) -> Value:
        """So many bits of an integer, or of each of several, from bit `shift` on."""
        kind = value.type
        shifted = self.builder.lshr(value, constant(kind, shift)) if shift else value
        return self.builder.and_(shifted, constant(kind, (1 << count) - 1))

    def joined(self, low: Value, high: Value, shift: int) -> Value:
        """Low bits, and high bits moved up by `shift`."""
        return self.builder.or_(low, self.builder.shl(high, constant(high.type, shift)))

    def less(self, value: Value, number: int) -> Value:
        """An integer less a number."""
        return self.builder.sub(value, constant(value.type, number))

    def number(self, value: Value) -> Value:
        """A signed integer, or several, as float."""
        return self.builder.sitofp(value, FLOATS if value.type == INTS else FLOAT)

    def times(self, a: Value, b: Value) -> Value:
        """The product of two floats, in all lanes."""
        return self.builder.fmul(self.splat(a), self.splat(b))

    def scaled(self, values: Value, scale: Value, less: Value | None = None, more: Value | None = None) -> Value:
        """Integers times one scale, less or more one float."""
        result = self.builder.fmul(self.number(values), self.splat(scale))
        if less is not None:
            result = self.builder.fsub(result, self.splat(less))
        return result if more is None else self.builder.fadd(result, self.splat(more))

    def splat(self, value: Value) -> Value:
        """One value in all lanes, unless it is there already."""
        if isinstance(value.type, ir.VectorType):
            return value
        kind = ir.VectorType(value.type, LANES)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
        zeros = ir.Constant(INTS, [0] * LANES)
        return self.builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)

    def chosen(
        self,
        values: Value,
        shift: int,
        table: Sequence[int],
        scale: Value,
        less: Value | None = None,
        more: Value | None = None,
    ) -> Value:
        """`scaled` entries of a table of four or sixteen, by the bits of sixteen integers from bit `shift` on."""
        bits = len(table).bit_length() - 1
        if not HAS_PERMUTATION:
            return self.scaled(self._looked_up(self.bits(values, shift, bits), table), scale, less, more)
        # What entries come to is computed once for all that choose them. Choices are made by four bits.
        entries = ir.Constant(INTS, [*table] * (LANES // len(table)))
        kind, name = ir.FunctionType(FLOATS, [FLOATS, INTS]), "llvm.x86.avx512.permvar.sf.512"
        permuted = cgutils.get_or_insert_function(self.builder.module, kind, name)
        indices = self.builder.lshr(values, constant(INTS, shift)) if shift else values
        return self.builder.call(permuted, [self.scaled(entries, scale, less, more), indices])

    def _looked_up(self, indices: Value, table: Sequence[int]) -> Value:
        """The entries of a table of small integers."""
        if isinstance(table, range):
            return self.less(indices, -table.start)
        # A tree of choices by the bits of an index.
        found = [constant(INTS, entry) for entry in table]
        for bit in range(4):
            is_set = self.builder.icmp_unsigned("!=", self.bits(indices, bit, 1), constant(INTS, 0))
            pairs = zip(found[::2], found[1::2], strict=True)
            found = [self.builder.select(is_set, odd, even) for even, odd in pairs]
        return found[0]


def constant(kind: ir.Type, value: float) -> ir.Constant:
    """A number of a type, in all lanes of a vector."""
    return ir.Constant(kind, [value] * LANES) if isinstance(kind, ir.VectorType) else ir.Constant(kind, value)


def f32(block: Block) -> Vectors:
    """32 floats."""
    for half in range(2):
        yield block.load(FLOATS, 64 * half)


def f16(block: Block) -> Vectors:
    """32 halves."""
    for half in range(2):
        yield block.halves(32 * half)


def bf16(block: Block) -> Vectors:
    """32 upper halves of floats."""
    for half in range(2):
        upper = block.builder.zext(block.load(ir.VectorType(I16, LANES), 32 * half), INTS)
        yield block.builder.bitcast(block.builder.shl(upper, constant(INTS, 16)), FLOATS)


def q8_0(block: Block) -> Vectors:
    """A scale, and 32 signed bytes."""
    scale = block.half(0)
    for half in range(2):
        weights = block.builder.sext(block.load(ir.VectorType(I8, LANES), 2 + 16 * half), INTS)
        yield block.scaled(weights, scale)


def q4_0(block: Block) -> Vectors:
    """A scale, and 32 times four bits: the low ones of sixteen bytes first."""
    scale, pairs = block.half(0), block.bytes(2)
    for shift in (0, 4):
        yield block.chosen(pairs, shift, range(-8, 8), scale)


def q4_1(block: Block) -> Vectors:
    """As q4_0, with a minimum."""
    scale, minimum, pairs = block.half(0), block.half(2), block.bytes(4)
    for shift in (0, 4):
        yield block.chosen(pairs, shift, range(16), scale, more=minimum)


def _five_bits(block: Block, high: int, low: int) -> Vectors:
    """32 times five bits: the fifth of each is in four bytes at `high`, the others are at `low`."""
    fifth, pairs = block.splat(block.load(I32, high)), block.bytes(low)
    for half in range(2):
        places = ir.Constant(INTS, [16 * half + lane for lane in range(LANES)])
        bit = block.bits(block.builder.lshr(fifth, places), 0, 1)
        yield block.joined(block.bits(pairs, 4 * half, 4), bit, 4)


def q5_0(block: Block) -> Vectors:
    """A scale, and 32 times five bits."""
    scale = block.half(0)
    for weights in _five_bits(block, 2, 6):
        yield block.scaled(block.less(weights, 16), scale)


def q5_1(block: Block) -> Vectors:
    """As q5_0, with a minimum."""
    scale, minimum = block.half(0), block.half(2)
    for weights in _five_bits(block, 4, 8):
        yield block.scaled(weights, scale, more=minimum)


def iq4_nl(block: Block) -> Vectors:
    """A scale, and 32 indices into a table."""
    scale, pairs = block.half(0), block.bytes(2)
    for shift in (0, 4):
        yield block.chosen(pairs, shift, IQ4, scale)


def mxfp4(block: Block) -> Vectors:
    """An exponent, and 32 indices into a table of twice the values of E2M1."""
    exponent, pairs = block.byte(0), block.bytes(1)
    # 2^(exponent - 128): below 2 it has no exponent of its own as a float.
    normal = block.builder.shl(block.less(exponent, 1), ir.Constant(I32, 23))
    small = block.builder.shl(ir.Constant(I32, 0x00200000), exponent)
    is_small = block.builder.icmp_unsigned("<", exponent, ir.Constant(I32, 2))
    scale = block.builder.bitcast(block.builder.select(is_small, small, normal), FLOAT)
    for shift in (0, 4):
        yield block.chosen(pairs, shift, FP4, scale)


def q2_k(block: Block) -> Vectors:
    """16 times a scale and a minimum of four bits, and 16 weights of two bits."""
    scale, minimum = block.half(80), block.half(82)
    for part in range(16):
        half, shift = part // 8, part % 8 // 2 * 2
        both = block.byte(part)
        step, least = block.bits(both, 0, 4), block.bits(both, 4, 4)
        step, least = block.times(scale, block.number(step)), block.times(minimum, block.number(least))
        yield block.chosen(block.bytes(16 + 32 * half + 16 * (part % 2)), shift, range(4), step, less=least)


def q3_k(block: Block) -> Vectors:
    """16 times a scale of six bits, and 16 weights of three: the third bits come first, and are 0 for -4."""
    scale = block.half(108)
    for part in range(16):
        half, shift = part // 8, part % 8 // 2 * 2
        nibble = block.bits(block.byte(96 + part % 8), 4 * half, 4)
        two = block.bits(block.byte(104 + part % 4), part // 4 * 2, 2)
        step = block.times(scale, block.number(block.less(block.joined(nibble, two, 4), 32)))
        low = block.bits(block.bytes(32 + 32 * half + 16 * (part % 2)), shift, 2)
        third = block.bits(block.bytes(16 * (part % 2)), 4 * half + shift // 2, 1)
        yield block.scaled(block.less(block.joined(low, third, 2), 4), step)


def _scale_and_minimum(block: Block, part: int) -> tuple[Value, Value]:
    """The six bits each of one of eight parts of a Q4_K or Q5_K block, whose twelve bytes of them begin at 4."""
    if part < 4:
        return tuple(block.bits(block.byte(4 + place), 0, 6) for place in (part, part + 4))
    both = block.byte(8 + part)
    low = (block.bits(both, 0, 4), block.bits(both, 4, 4))
    high = (block.bits(block.byte(part), 6, 2), block.bits(block.byte(4 + part), 6, 2))
    scale, minimum = (block.joined(a, b, 4) for a, b in zip(low, high, strict=True))
    return scale, minimum


def _k_parts(block: Block) -> Iterator[tuple[Value, Value]]:
    """Scales and minima of the eight parts of a Q4_K or Q5_K block."""
    scale, minimum = block.half(0), block.half(2)
    for part in range(8):
        step, least = _scale_and_minimum(block, part)
        yield block.times(scale, block.number(step)), block.times(minimum, block.number(least))


def q4_k(block: Block) -> Vectors:
    """Eight times a scale, a minimum and 32 weights of four bits."""
    for part, (step, least) in enumerate(_k_parts(block)):
        for half in range(2):
            pairs = block.bytes(16 + part // 2 * 32 + 16 * half)
            yield block.chosen(pairs, part % 2 * 4, range(16), step, less=least)


def q5_k(block: Block) -> Vectors:
    """As q4_k, with a fifth bit: those of part p are bit p of 32 bytes."""
    for part, (step, least) in enumerate(_k_parts(block)):
        for half in range(2):
            low = block.bits(block.bytes(48 + part // 2 * 32 + 16 * half), part % 2 * 4, 4)
            fifth = block.bits(block.bytes(16 + 16 * half), part, 1)
            yield block.scaled(block.joined(low, fifth, 4), step, less=least)


def q6_k(block: Block) -> Vectors:
    """16 times a signed scale and 16 weights of six bits: four of them lie apart from the other two."""
    scale = block.half(208)
    for part in range(16):
        half, quarter, side = part // 8, part % 8 // 2, part % 2
        low = block.bits(block.bytes(64 * half + 32 * (quarter % 2) + 16 * side), quarter // 2 * 4, 4)
        high = block.bits(block.bytes(128 + 32 * half + 16 * side), 2 * quarter, 2)
        step = block.times(scale, block.number(block.builder.sext(block.load(I8, 192 + part), I32)))
        yield block.scaled(block.less(block.joined(low, high, 4), 32), step)


def iq4_xs(block: Block) -> Vectors:
    """Eight times a scale of six bits and 32 indices into a table."""
    scale, high = block.half(0), block.builder.zext(block.load(I16, 2), I32)
    for part in range(8):
        bits = block.joined(block.bits(block.byte(4 + part // 2), part % 2 * 4, 4), block.bits(high, 2 * part, 2), 4)
        step = block.times(scale, block.number(block.less(bits, 32)))
        pairs = block.bytes(8 + 16 * part)
        for shift in (0, 4):
            yield block.chosen(pairs, shift, IQ4, step)


@dataclass(frozen=True)
class Form:
    """How a type is stored: weights and bytes of a block, and the code that decodes it."""

    weights: int
    bytes: int
    decode: Callable[[Block], Vectors]

    @property
    def is_plain(self) -> bool:
        """Whether weights stand by themselves, so that a row may end within a block."""
        return self.decode in (f32, f16, bf16)


FORMS = {
    "F32": Form(32, 128, f32),
    "F16": Form(32, 64, f16),
    "BF16": Form(32, 64, bf16),
    "Q8_0": Form(32, 34, q8_0),
    "Q4_0": Form(32, 18, q4_0),
    "Q4_1": Form(32, 20, q4_1),
    "Q5_0": Form(32, 22, q5_0),
    "Q5_1": Form(32, 24, q5_1),
    "IQ4_NL": Form(32, 18, iq4_nl),
    "MXFP4": Form(32, 17, mxfp4),
    "Q2_K": Form(256, 84, q2_k),
    "Q3_K": Form(256, 110, q3_k),
    "Q4_K": Form(256, 144, q4_k),
    "Q5_K": Form(256, 176, q5_k),
    "Q6_K": Form(256, 210, q6_k),
    "IQ4_XS": Form(256, 136, iq4_xs),
}
