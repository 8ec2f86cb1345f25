"""Products with packed weights on the CPU: the right values, and the same bits whatever stands beside a row."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import binding
from packed import PLAIN, TYPES, PackedWeight
from torch import Tensor

from nextn.kernels.cpu import blocks, microkernels
from nextn.kernels.cpu.blocks import FORMS
from nextn.kernels.cpu.memory import WORTH_THREADS
from nextn.kernels.cpu.products import Products
from nextn.kernels.operations import REFERENCE, operations
from nextn.kernels.routing import Gate

WIDTHS = (*range(1, 10), 16, 36)
MOST = max(WIDTHS)

types_ = st.sampled_from(TYPES)
seeds = st.integers(0, 2**31)
few = settings(max_examples=25, deadline=None)


def width_of(type_name: str, blocks: int, rest: int) -> int:
    """Weights of a row: whole blocks, and of plain floats also less than one more."""
    return blocks * FORMS[type_name].weights + (rest if type_name in PLAIN else 0)


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.fixture
def threads() -> Iterator[None]:
    before = numba.get_num_threads()
    yield
    numba.set_num_threads(before)


def decoded(weight: PackedWeight) -> Tensor:
    """What the microkernel of the type makes of a matrix."""
    form, (out, n) = FORMS[weight.type_name], weight.shape
    values = torch.full((out, n), torch.nan)
    decode = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(microkernels.microkernels(weight.type_name).decode)
    for row, line in zip(weight.packed, values, strict=True):
        decode(row.data_ptr(), n // form.weights, n % form.weights, line.data_ptr())
    return values


each_type = pytest.mark.parametrize("type_name", TYPES)


@each_type
def test_blocks_are_decoded_as_by_gguf_py(type_name: str) -> None:
    weight = PackedWeight(type_name, 5, width_of(type_name, 3, 7), seed=1)
    assert torch.equal(decoded(weight), weight.decoded())


def test_every_exponent_of_mxfp4() -> None:
    packed = np.full((255, 17), 0x72, np.uint8)
    packed[:, 0] = np.arange(255)
    weight = PackedWeight.of("MXFP4", torch.from_numpy(packed), (255, 32))
    assert torch.equal(decoded(weight), weight.decoded())


@pytest.fixture
def older_processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One whose instructions neither look sixteen values up nor widen halves; LLVM may use none that do."""
    features = {name: False for name in binding.get_host_cpu_features() if name.startswith(("avx512", "f16c"))}
    masked = type(binding.get_host_cpu_features())(binding.get_host_cpu_features() | features)
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: masked)
    monkeypatch.setattr(blocks, "HAS_PERMUTATION", False)
    monkeypatch.setattr(blocks, "HAS_HALVES", False)
    microkernels.microkernels.cache_clear()
    yield
    microkernels.microkernels.cache_clear()


@each_type
def test_blocks_on_an_older_processor(type_name: str, older_processor: None) -> None:
    weight = PackedWeight(type_name, 4, width_of(type_name, 2, 3), seed=2)
    assert torch.equal(decoded(weight), weight.decoded())


def test_every_half_on_an_older_processor(older_processor: None) -> None:
    weight = PackedWeight.of("F16", torch.arange(1 << 16).to(torch.uint16).view(1, -1).view(torch.uint8), (1, 1 << 16))
    found, expected = decoded(weight), weight.decoded()
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert torch.equal(found.signbit(), expected.signbit())


@few
@given(type_name=types_, seed=seeds, count=st.integers(1, 3), rest=st.integers(0, 31), out=st.integers(1, 40))
def test_a_product_is_that_of_the_decoded_weights(type_name: str, seed: int, count: int, rest: int, out: int) -> None:
    weight = PackedWeight(type_name, out, width_of(type_name, count, rest), seed=seed)
    x = noise(seed, MOST, weight.shape[1])
    assert error(Products().linear(x, weight), x.double() @ weight.decoded().double().T) < 1e-6


@few
@given(type_name=types_, seed=seeds, count=st.integers(1, 3), rest=st.integers(0, 31), out=st.integers(1, 40))
def test_a_row_of_a_product_does_not_depend_on_the_others(
    type_name: str, seed: int, count: int, rest: int, out: int
) -> None:
    weight = PackedWeight(type_name, out, width_of(type_name, count, rest), seed=seed)
    rows = noise(seed, MOST, weight.shape[1])
    alone = torch.cat([Products().linear(row[None].clone(), weight) for row in rows])
    for width in WIDTHS:
        first = seed % (MOST - width + 1)
        together = Products().linear(rows[first : first + width], weight)
        assert torch.equal(together, alone[first : first + width]), width
    strided = torch.cat((rows, rows), dim=1)[:, : rows.shape[1]]
    assert torch.equal(Products().linear(strided, weight), alone)


@pytest.mark.parametrize("type_name", ["BF16", "Q8_0", "Q4_K"])
@pytest.mark.usefixtures("threads")
def test_threads_change_no_bit(type_name: str) -> None:
    weight = PackedWeight(type_name, 150, width_of(type_name, 2048 // FORMS[type_name].weights, 0), seed=3)
    x = noise(3, 9, weight.shape[1])
    assert x.numel() * weight.shape[0] > WORTH_THREADS
    numba.set_num_threads(1)
    alone = Products().linear(x, weight)
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    assert torch.equal(Products().linear(x, weight), alone)


@few
@given(type_name=types_, seed=seeds, rows=st.integers(1, 12), used=st.integers(1, 4))
def test_experts_are_those_of_the_definition_and_of_each_row_alone(
    type_name: str, seed: int, rows: int, used: int
) -> None:
    width, inner = width_of(type_name, 1, 5), width_of(type_name, 1, 0)
    gate, up = (PackedWeight(type_name, 5, inner, width, seed=seed + i) for i in (0, 1))
    down = PackedWeight(type_name, 5, width, inner, seed=seed + 2)
    x, matrices, form = noise(seed, rows, width) / 8, (gate, up, down), Gate(7.0)
    chosen = torch.stack(
        [torch.randperm(5, generator=torch.Generator().manual_seed(seed + r))[:used] for r in range(rows)]
    )
    chosen, shares = chosen.sort(dim=1).values, noise(seed + 9, rows, used)
    ops = operations("cpu")
    together = ops.experts(x, chosen, shares, matrices, form)
    alone = [ops.experts(x[i : i + 1], chosen[i : i + 1], shares[i : i + 1], matrices, form) for i in range(rows)]
    assert torch.equal(together, torch.cat(alone))
    expected = REFERENCE.experts(x, chosen, shares, matrices, form)
    assert error(together, expected.double()) < 1e-5


@few
@given(type_name=types_, seed=seeds, rows=st.integers(1, 9), heads=st.integers(1, 4))
def test_products_by_head(type_name: str, seed: int, rows: int, heads: int) -> None:
    weight = PackedWeight(type_name, heads, 6, width_of(type_name, 1, 3), seed=seed)
    x = noise(seed, rows, heads, weight.shape[-1])
    found = Products().linear_by_head(x, weight)
    assert torch.equal(found, torch.stack([Products().linear(x[:, h], weight[h]) for h in range(heads)], dim=1))


def test_a_type_without_a_microkernel_is_decoded() -> None:
    weight = PackedWeight("Q8_0", 3, 64)
    other = PackedWeight.of("Q8_K", weight.packed, weight.shape)
    other.decoded = weight.decoded  # type: ignore[method-assign]
    x = noise(0, 2, 64)
    assert error(Products().linear(x, other), x.double() @ weight.decoded().double().T) < 1e-6


def test_a_weight_may_serve_several_forms() -> None:
    weight, x = PackedWeight("Q8_0", 3, 64), noise(0, 2, 64)
    weight.kept = ("what another form keeps",)
    assert torch.equal(Products().linear(x, weight), Products().linear(x, PackedWeight("Q8_0", 3, 64)))


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of 31 values, want 32"):
        Products().linear(noise(0, 1, 31), PackedWeight("Q8_0", 3, 32))
