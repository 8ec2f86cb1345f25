"""Functions of values for kernels, in float32, and how rows are handed to kernels."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from nextn.kernels.triton.launch import INTERPRETED, ROW_TYPES

# The interpreter knows no assembler.
COMPILED = tl.constexpr(not INTERPRETED)
# The most columns that a program takes at a time.
MOST_COLUMNS = 2048


@triton.jit
def permuted_bytes(low: tl.tensor, high: tl.tensor, selector: tl.tensor) -> tl.tensor:
    """Bytes of two words, 0 to 3 of `low` and 4 to 7 of `high`: byte i is number `selector >> 4 i & 15`, below 8."""
    if COMPILED:
        asm: tl.constexpr = "prmt.b32 $0, $1, $2, $3;"
        return tl.inline_asm_elementwise(asm, "=r,r,r,r", [low, high, selector], tl.int32, is_pure=True, pack=1)
    result = selector & 0
    for i in tl.static_range(4):
        number = selector >> 4 * i & 7
        result |= (tl.where(number < 4, low, high) >> 8 * (number & 3) & 0xFF) << 8 * i
    return result


@triton.jit
def halves_less(words: tl.tensor, less: tl.tensor) -> tl.tensor:
    """The two float16 of each word less those of another."""
    if COMPILED:
        asm: tl.constexpr = "sub.rn.f16x2 $0, $1, $2;"
        return tl.inline_asm_elementwise(asm, "=r,r,r", [words, less], tl.int32, is_pure=True, pack=1)
    result = words & 0
    for place in tl.static_range(0, 32, 16):
        ours = (words >> place).to(tl.int16).to(tl.float16, bitcast=True)
        theirs = ((words & 0) + less >> place).to(tl.int16).to(tl.float16, bitcast=True)
        result |= ((ours - theirs).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF) << place
    return result


@triton.jit
def place_of(ids: tl.tensor, rows: tl.tensor, ROWS: tl.constexpr, CHOSEN: tl.constexpr) -> tl.tuple:
    """Of a program of a product that takes so many rows: the part, the first of its rows, the part's matrix.

    That is number `ids[part]` if matrices are CHOSEN, or else the part itself.
    """
    programs = tl.cdiv(rows, ROWS)
    part = tl.program_id(0) // programs
    number = tl.load(ids + part) if CHOSEN else part
    return part, tl.program_id(0) % programs * ROWS, number.to(tl.int64)


@triton.jit
def matrix_of(matrices: tl.tuple, outputs: tl.tuple, OUTPUTS: tl.constexpr) -> tl.tuple:
    """Of a program of a product: its matrix, how many outputs that has, how many are before, the program's first.

    Programs take OUTPUTS of one matrix each, and go on to the next matrix. Those behind the last have no programs.
    """
    program, before, matrix, count = tl.program_id(1), 0, matrices[0], outputs[0]
    for i in tl.static_range(1, len(matrices)):
        programs = tl.cdiv(count, OUTPUTS)
        beyond = program >= programs
        before += tl.where(beyond, count, 0)
        program -= tl.where(beyond, programs, 0)
        matrix, count = tl.where(beyond, matrices[i], matrix), tl.where(beyond, outputs[i], count)
    return matrix, count, before, program * OUTPUTS


@triton.jit
def as_it_is(x: tl.tensor) -> tl.tensor:
    """x."""
    return x


@triton.jit
def exp(x: tl.tensor) -> tl.tensor:
    """e to the power of x."""
    return tl.exp(x)


@triton.jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def silu(x: tl.tensor) -> tl.tensor:
    """x * sigmoid(x)."""
    return x / (1 + tl.exp(-x))


@triton.jit
def softplus(x: tl.tensor) -> tl.tensor:
    """ln(1 + e^x): x if that is positive, and the logarithm of 1 + e^-|x|."""
    e = tl.exp(-tl.abs(x))
    # What 1 + e loses by rounding is made up for by e over what is left of it.
    above = 1 + e
    left = tl.where(above == 1, 1, above - 1)
    return tl.where(x > 0, x, 0) + tl.where(above == 1, e, tl.log(above) * (e / left))


@triton.jit
def at_least(x: tl.tensor, limit: tl.tensor) -> tl.tensor:
    """x or the limit, whichever is larger; what is no number stays none, unlike with tl.maximum."""
    return tl.where(x < limit, limit, x)


@triton.jit
def at_most(x: tl.tensor, limit: tl.tensor) -> tl.tensor:
    """x or the limit, whichever is smaller; what is no number stays none."""
    return tl.where(x > limit, limit, x)


@triton.jit
def read(x: tl.tensor, offset: tl.tensor, there: tl.tensor) -> tl.tensor:
    """Values as float32; zeros where there are none."""
    return tl.load(x + offset, mask=there, other=0.0).to(tl.float32)


@triton.jit
def write(out: tl.tensor, offset: tl.tensor, value: tl.tensor, there: tl.tensor) -> None:
    """Values in the type of what they are written to."""
    tl.store(out + offset, value.to(out.dtype.element_ty), mask=there)


def rows_of(x: Tensor) -> Tensor:
    """x without gaps. ValueError for a type that kernels do not take."""
    if x.dtype not in ROW_TYPES:
        raise ValueError(f"rows are {x.dtype}: kernels take float32 and bfloat16")
    return x.contiguous()


def whole_rows_of(x: Tensor) -> Tensor:
    """x as it is if its last dimension has no gaps. ValueError as `rows_of` raises it."""
    return x if x.stride(-1) == 1 and x.dtype in ROW_TYPES else rows_of(x)


def step_of(columns: int) -> int:
    """How many of a row's columns a program takes at a time: a power of two, all of them if they are few."""
    return int(min(MOST_COLUMNS, triton.next_power_of_2(columns)))
