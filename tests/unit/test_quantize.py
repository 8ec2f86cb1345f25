"""Bytes of output types against the quantizers of the gguf package, on values that expose rounding."""

from __future__ import annotations

import re

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import quants

from nextn.convert.quantize import encode
from nextn.gguf_schema.types import BF16, F16, F32, Q8_0, TensorType

TYPES = {
    F32: gguf.GGMLQuantizationType.F32,
    F16: gguf.GGMLQuantizationType.F16,
    BF16: gguf.GGMLQuantizationType.BF16,
    Q8_0: gguf.GGMLQuantizationType.Q8_0,
}
EACH_TYPE = pytest.mark.parametrize("type_", TYPES, ids=lambda type_: type_.name)

RANDOM = np.random.default_rng(7)
ROWS: dict[str, npt.NDArray[np.float32]] = {
    "normal": RANDOM.standard_normal((16, 64)).astype("<f4"),
    "scales": np.concatenate([RANDOM.standard_normal((1, 64)) * scale for scale in 10.0 ** np.arange(-8, 4)]),
    "zero": np.zeros((2, 32)),
    "ties": np.arange(-32, 32, dtype="<f4").reshape(2, 32) / 2,
    "half steps": np.concatenate([[127], np.arange(31) - 15.5]).reshape(1, 32),
    "extrema": np.tile([1.0, -1.0, 0.5, -0.5], 8).reshape(1, 32),
    "negative extremum": np.concatenate([[-3], np.linspace(-1, 1, 31)]).reshape(1, 32),
    "denormals": (RANDOM.standard_normal((4, 32)) * 1e-40),
    "denormal halves": (RANDOM.standard_normal((4, 32)) * 2.0**-24),
    "one value": np.eye(32)[:1],
    "f16 ties": (1 + np.arange(32) * 2.0**-11).reshape(1, 32),
    "bf16 ties": (1 + np.arange(32) * 2.0**-8).reshape(1, 32),
    "largest": np.full((1, 32), 65504.0),
}


@EACH_TYPE
@pytest.mark.parametrize("name", ROWS)
def test_bytes_are_those_of_the_gguf_package(name: str, type_: TensorType) -> None:
    rows = ROWS[name].astype("<f4")
    with np.errstate(all="ignore"):
        expected = quants.quantize(rows, TYPES[type_])
    assert encode(rows, type_).tobytes() == expected.tobytes()


def test_halves_round_to_even_in_f16_and_bf16() -> None:
    """Just between two neighbours the one with an even last bit is taken."""
    f16 = encode(np.float32([[1 + 2.0**-11, 1 + 3 * 2.0**-11]]), F16).view("<u2")
    assert f16.ravel().tolist() == [0x3C00, 0x3C02]
    bf16 = encode(np.float32([[1 + 2.0**-8, 1 + 3 * 2.0**-8]]), BF16).view("<u2")
    assert bf16.ravel().tolist() == [0x3F80, 0x3F82]


def test_halves_round_away_from_zero_in_q8_0() -> None:
    """A largest value of 127 makes the step 1, and 1.0 is 0x3C00 in F16."""
    rows = np.zeros((1, 32), "<f4")
    rows[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -2.5]
    block = encode(rows, Q8_0).ravel()
    assert block[:2].view("<u2")[0] == 0x3C00
    assert block[2:8].view("i1").tolist() == [127, 1, 2, 3, -1, -3]


def test_q8_0_divides_by_the_step_before_it_is_rounded() -> None:
    """The step 1/127 is 0.00787401… exactly and 0.00787353… in F16; with that one 0.5 · 127.007 would round to 64 too,
    but 1/127 · 126.5 would become 127."""
    rows = np.zeros((1, 32), "<f4")
    rows[0, :2] = [1, 126.499 / 127]
    block = encode(rows, Q8_0).ravel()
    step = float(block[:2].view("<f2")[0])
    assert round(126.499 / 127 / step) == 127
    assert block[2:4].view("i1").tolist() == [127, 126]


@pytest.mark.parametrize(
    ("type_", "fits", "overflows"), [(F16, 65519.0, 65520.0), (Q8_0, 65519.0 * 127, 65520.0 * 127)]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_that_becomes_infinite_is_refused(type_: TensorType, fits: float, overflows: float, sign: int) -> None:
    rows = np.zeros((3, 32), "<f4")
    rows[1, 3] = sign * fits
    halves = encode(rows, type_).view("<f2") if type_ is F16 else encode(rows, type_).reshape(3, 34)[:, :2].view("<f2")
    assert np.isfinite(halves).all()
    rows[1, 3] = sign * overflows
    with pytest.raises(OverflowError, match=re.escape(f"{overflows:g} become infinite in {type_.name}")):
        encode(rows, type_)


def test_wide_types_hold_any_float() -> None:
    rows = np.full((1, 32), 3e38, "<f4")
    assert encode(rows, F32).view("<f4").tolist() == rows.tolist()
    assert encode(rows, BF16).view("<u2").tolist() == [[0x7F62] * 32]
