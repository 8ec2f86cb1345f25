"""Bytes of output types against the quantizers of the gguf package and of ggml, on values that expose rounding."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

import gguf
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from gguf import quants

from nextn.convert.quantize import NotFiniteError, encode
from nextn.gguf_schema.types import BF16, F16, F32, Q8_0, TENSOR_TYPES, TensorType

Rows = npt.NDArray[np.float32]

BLOCKED = [TENSOR_TYPES[name] for name in ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")]
EACH_TYPE = pytest.mark.parametrize("type_", [F32, F16, BF16, *BLOCKED], ids=lambda type_: type_.name)
EACH_BLOCKED = pytest.mark.parametrize("type_", BLOCKED, ids=lambda type_: type_.name)

RANDOM = np.random.default_rng(7)
# The largest float32 below one half: adding a half to it gives 1 when that is rounded.
BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))
ROWS: dict[str, Rows] = {
    name: np.asarray(rows, "<f4").reshape(-1, 32)
    for name, rows in {
        "normal": RANDOM.standard_normal((64, 32)),
        "scales": np.concatenate([RANDOM.standard_normal((2, 32)) * scale for scale in 10.0 ** np.arange(-9, 4)]),
        "zero": np.zeros((2, 32)),
        "zero beside others": np.concatenate([np.zeros((1, 32)), np.ones((1, 32)), np.zeros((1, 32))]),
        "ties": np.arange(-32, 32) / 2,
        "half steps": np.concatenate([[127], np.arange(31) - 15.5]),
        "just below half steps": np.concatenate(
            [[127], np.nextafter(np.arange(31, dtype="<f4") - 15.5, np.float32(0))]
        ),
        "just below a half": [127, *[BELOW_HALF] * 15, *[-BELOW_HALF] * 16],
        "four-bit ties": np.concatenate([[-8], np.arange(-15, 16) / 2]),
        "five-bit ties": np.concatenate([[-16], np.arange(-15, 16) / 2]),
        "steps from a minimum": np.concatenate([[0, 15], np.arange(30) / 2]),
        "fine steps from a minimum": np.concatenate([[-31, 31], np.arange(30) - 15]),
        "extrema": np.tile([1.0, -1.0, 0.5, -0.5], 8),
        "extrema, negative first": np.tile([-1.0, 1.0, 0.5, -0.5], 8),
        "negative extremum": np.concatenate([[-3], np.linspace(-1, 1, 31)]),
        "equal values": np.concatenate([np.full((1, 32), 3.7), np.full((1, 32), -3.7)]),
        "denormals": RANDOM.standard_normal((4, 32)) * 1e-40,
        "smallest": np.eye(32)[:2] * 1e-45,
        "denormal halves": RANDOM.standard_normal((4, 32)) * 2.0**-24,
        "one value": np.concatenate([np.eye(32)[:1], -np.eye(32)[:1]]),
        "f16 ties": 1 + np.arange(32) * 2.0**-11,
        "bf16 ties": 1 + np.arange(32) * 2.0**-8,
        "largest": np.full((1, 32), 65504.0),
    }.items()
}
EACH_ROW = pytest.mark.parametrize("name", ROWS)


@EACH_TYPE
@EACH_ROW
def test_bytes_are_those_of_the_gguf_package(name: str, type_: TensorType) -> None:
    rows = ROWS[name].reshape(len(ROWS[name]), -1)
    with np.errstate(all="ignore"):
        expected = quants.quantize(rows, gguf.GGMLQuantizationType[type_.name])
    assert encode(rows, type_).tobytes() == expected.tobytes()


Quantizer = Callable[[Rows, TensorType], bytes]


@pytest.fixture(scope="module")
def ggml() -> Quantizer:
    """`ggml_quantize_chunk` of the llama.cpp in xllamacpp, which llama-quantize calls."""
    library = pytest.importorskip("xllamacpp.xllamacpp").__file__
    function = ctypes.CDLL(library).ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]

    def quantize(rows: Rows, type_: TensorType) -> bytes:
        rows = np.ascontiguousarray(rows, "<f4")
        out = np.zeros(len(rows) * type_.row_bytes(rows.shape[1]), np.uint8)
        written = function(type_.id, rows.ctypes.data, out.ctypes.data, 0, len(rows), rows.shape[1], None)
        assert written == out.size
        return out.tobytes()

    return quantize


@pytest.mark.parametrize("type_", [F16, BF16, *BLOCKED], ids=lambda type_: type_.name)
@EACH_ROW
def test_bytes_are_those_of_ggml(name: str, type_: TensorType, ggml: Quantizer) -> None:
    assert encode(ROWS[name], type_).tobytes() == ggml(ROWS[name], type_)


@EACH_BLOCKED
def test_many_bytes_are_those_of_ggml(type_: TensorType, ggml: Quantizer) -> None:
    """Values on a coarse grid, so that ties are frequent, over many scales."""
    random = np.random.default_rng(1)
    rows = random.integers(-127, 128, (4096, 128)).astype("<f4") * np.float32(2.0) ** random.integers(-30, 8, (4096, 1))
    rows = (rows * random.choice([0.5, 1, 1 / 3], rows.shape)).astype("<f4")
    assert encode(rows, type_).tobytes() == ggml(rows, type_)


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


def test_a_value_just_below_a_half_is_zero_in_q8_0() -> None:
    block = encode(ROWS["just below a half"], Q8_0).ravel()
    assert block[2:].view("i1").tolist() == [127, *[0] * 31]


# What makes the scale (or the minimum) of a block just fit F16, whose largest number is 65504: up to 65520, halfway to
# the next one, it is rounded down. Scales are max/127, max/-8, max/-16, (max - min)/15, (max - min)/31.
LIMIT = 65520.0
STEPS = {"F16": 1, "Q8_0": 127, "Q4_0": 8, "Q5_0": 16, "Q4_1": 15, "Q5_1": 31}


def fields(encoded: npt.NDArray[np.uint8], type_: TensorType) -> npt.NDArray[np.float16]:
    """The F16 numbers of the second of three rows."""
    block = encoded.reshape(3, -1)[1]
    count = {"F16": 32, "Q4_1": 2, "Q5_1": 2}.get(type_.name, 1)
    return block[: 2 * count].view("<f2")


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_scale_that_becomes_infinite_is_refused(name: str, sign: int) -> None:
    type_ = TENSOR_TYPES[name]
    rows = np.zeros((3, 32), "<f4")
    limit = np.float32(LIMIT * STEPS[name])
    if sign < 0 and name.endswith("_1"):
        limit = np.float32(LIMIT)  # it is the minimum that becomes infinite
    # A division may round up to the limit: a few steps below it do not.
    rows[1, 3] = sign * limit * np.float32(1 - 2.0**-22)
    assert np.isfinite(fields(encode(rows, type_), type_)).all()
    assert np.abs(fields(encode(rows, type_), type_)).max() == 65504
    rows[1, 3] = sign * limit
    with pytest.raises(OverflowError, match=re.escape(f"{limit:g} become infinite in {name}")):
        encode(rows, type_)


@pytest.mark.parametrize("name", ["Q4_1", "Q5_1"])
def test_large_values_around_a_small_minimum_fit(name: str) -> None:
    """Values beyond F16 are no fault as long as step and minimum fit: (1e5 - 0) / 15 = 6666.7, / 31 = 3225.8."""
    rows = np.zeros((1, 32), "<f4")
    rows[0, :2] = [1e5, 5e4]
    step, minimum = encode(rows, TENSOR_TYPES[name]).ravel()[:4].view("<f2").tolist()
    assert (step, minimum) == ({"Q4_1": 6668, "Q5_1": 3226}[name], 0)


@EACH_BLOCKED
def test_a_difference_beyond_float32_is_refused(type_: TensorType) -> None:
    rows = np.zeros((1, 32), "<f4")
    rows[0, :2] = [3e38, -3e38]
    with pytest.raises(OverflowError):
        encode(rows, type_)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_what_is_infinite_in_the_source_stays_so(value: float) -> None:
    rows = np.zeros((1, 32), "<f4")
    rows[0, 0] = value
    assert encode(rows, F16).view("<f2")[0, 0] == value
    assert encode(rows, BF16).view("<u2")[0, 0] == (0x7F80 if value > 0 else 0xFF80)


def test_wide_types_hold_any_float() -> None:
    rows = np.full((1, 32), 3e38, "<f4")
    assert encode(rows, F32).view("<f4").tolist() == rows.tolist()
    assert encode(rows, BF16).view("<u2").tolist() == [[0x7F62] * 32]


@EACH_BLOCKED
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 17, 31])
def test_a_value_that_is_no_number_does_not_ruin_a_block(type_: TensorType, value: float, place: int) -> None:
    """One NaN in a row of a weight made all 32 values of its block NaN, and nobody was told."""
    rows = RANDOM.standard_normal((4, 64)).astype("<f4")
    rows[2, 32 + place] = value
    with pytest.raises(NotFiniteError, match=f"1 NaN or infinite values would ruin their blocks in {type_.name}"):
        encode(rows, type_)


@pytest.mark.parametrize("type_", [F32, F16, BF16], ids=lambda type_: type_.name)
def test_a_nan_stays_by_itself_where_there_are_no_blocks(type_: TensorType) -> None:
    rows = np.ones((1, 32), "<f4")
    rows[0, 3] = np.nan
    dtype = {"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}[type_.name]
    assert np.flatnonzero(np.isnan(encode(rows, type_).view(dtype).astype("<f4"))).tolist() == [3]
