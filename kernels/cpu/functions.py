"""exp and what follows from it, in float32 without branches: loops over them become vector code.

exp(x) is 2^k exp(r) with x = k ln 2 + r, |r| ≤ ln 2 / 2, by the series of exp up to r^7, whose rest is below 6e-9; k
ln 2 is taken off in two parts, the first of which times k is exact (Cody and Waite). ln(1 + t) for t in [0, 1] is
2 artanh(t / (2 + t)) by its series up to the 15th power, whose rest is below 1e-9.
"""

from __future__ import annotations

import numpy as np

from nextn.kernels.cpu.memory import bits_of, compiled, float32, float_of, int32

ONE, TWO, HALF = float32(1), float32(2), float32(0.5)
INVERSE_LN2 = float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = float32(355 / 512), float32(0.6931471805599453 - 355 / 512)
# The sum of this and a number below 2^22 ends with that number's nearest integer.
ROUNDING = float32(1.5 * 2**23)
ROUNDING_BITS = int32(int(np.float32(1.5 * 2**23).view(np.int32)))
# Beyond these exp is infinite, and zero.
HIGHEST, LOWEST = float32(89), float32(-105)
EXPONENT_BIAS, MANTISSA_BITS = int32(127), int32(23)
E2, E3, E4, E5, E6, E7 = (float32(1 / n) for n in (2, 6, 24, 120, 720, 5040))
A3, A5, A7, A9, A11, A13, A15 = (float32(1 / n) for n in range(3, 16, 2))


@compiled
def exp(x: float) -> float:
    """e^x to about one unit in the last place, also where that is subnormal, infinite or no number."""
    x = HIGHEST if x > HIGHEST else x
    x = LOWEST if x < LOWEST else x
    shifted = x * INVERSE_LN2 + ROUNDING
    k = int32(bits_of(shifted) - ROUNDING_BITS)
    whole = shifted - ROUNDING
    r = (x - whole * LN2_HIGH) - whole * LN2_LOW
    series = ((((E7 * r + E6) * r + E5) * r + E4) * r + E3) * r + E2
    value = ONE + (r + (r * r) * series)
    # In two steps: 2^k itself may be no float32 when the result is one.
    half = int32(k >> int32(1))
    rest = int32(k - half)
    low = float_of(int32((half + EXPONENT_BIAS) << MANTISSA_BITS))
    high = float_of(int32((rest + EXPONENT_BIAS) << MANTISSA_BITS))
    return value * low * high


@compiled
def sigmoid(x: float) -> float:
    """1 / (1 + e^-x); of large negative values too, where e^-x is infinite."""
    t = exp(-abs(x))
    return (ONE if x >= 0 else t) / (ONE + t)


@compiled
def silu(x: float) -> float:
    """x / (1 + e^-x)."""
    return x * sigmoid(x)


@compiled
def softplus(x: float) -> float:
    """ln(1 + e^x)."""
    t = exp(-abs(x))
    s = t / (TWO + t)
    q = s * s
    series = ((((((A15 * q + A13) * q + A11) * q + A9) * q + A7) * q + A5) * q + A3) * q
    return (x if x > 0 else float32(0)) + TWO * (s + s * series)
