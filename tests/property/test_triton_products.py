"""Triton products with packed weights, interpreted: the right values, and the same bits whatever is beside a row.

Memory that results are written to is full of NaN before.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from packed import TYPES
from torch import Tensor
from triton_cases import poisoned as poisoned
from triton_device import DEVICE, DeviceWeight, error, noise

from nextn.kernels.operations import REFERENCE, operations
from nextn.kernels.routing import Gate
from nextn.kernels.triton.blocks import FORMATS
from nextn.kernels.triton.plain_products import COLUMNS_INTERPRETED

WIDTHS = (*range(1, 10), 16, 36)
MOST = max(WIDTHS)
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
# The interpreter takes a second for a few dozen programs.
QUICK = frozenset({"BF16", "Q8_0", "Q4_K"})

ops = operations("triton")
each_type = pytest.mark.parametrize("type_name", TYPES)
some_types = pytest.mark.parametrize(
    "type_name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in TYPES]
)


def columns_of(type_name: str) -> int:
    return FORMATS[type_name].columns if type_name in FORMATS else 148


def weight_of(type_name: str, *shape: int, blocks: int = 1, seed: int = 0) -> DeviceWeight:
    """A weight [*shape, in] of so many blocks a row; of plain values 148 each, which no step divides."""
    return DeviceWeight(type_name, *shape, blocks * columns_of(type_name), seed=seed)


def definition(x: Tensor, weight: DeviceWeight) -> Tensor:
    """The product with what gguf-py decodes, in float64."""
    return x.double().cpu() @ weight.decoded().double().T


@some_types
def test_values_of_a_block_are_those_of_gguf_py(type_name: str) -> None:
    """Rows of the unit matrix pick out the columns."""
    weight = weight_of(type_name, 20, seed=1)
    found = ops.linear(torch.eye(weight.shape[1], device=DEVICE), weight).cpu().T
    # Products with a scale and sums with an offset are rounded once.
    torch.testing.assert_close(found, weight.decoded(), rtol=1e-6, atol=1e-6)


def test_every_exponent_of_mxfp4() -> None:
    # From 253 on the largest value is infinite, and its product with 0 no number.
    packed = torch.full((253, 17), 0x72, dtype=torch.uint8)
    packed[:, 0] = torch.arange(253)
    weight = DeviceWeight.of("MXFP4", packed.to(DEVICE), (253, 32))
    picked = torch.eye(32, device=DEVICE)[[0, 31]]
    assert torch.equal(ops.linear(picked, weight).cpu(), weight.decoded()[:, [0, 31]].T)


@pytest.mark.parametrize("dtype", TOLERANCES)
@each_type
def test_a_product_is_that_of_the_decoded_weights(type_name: str, dtype: torch.dtype) -> None:
    # More words than a program takes in one step.
    weight = weight_of(type_name, 5, blocks=10 if columns_of(type_name) < 256 else 3, seed=2)
    x = noise(3, 3, weight.shape[1], dtype=dtype)
    result = ops.linear(x, weight)
    assert result.dtype == dtype
    assert error(result, definition(x, weight)) < TOLERANCES[dtype]


@some_types
def test_a_row_of_a_product_does_not_depend_on_the_others(type_name: str) -> None:
    weight = weight_of(type_name, 5, blocks=2, seed=4)
    rows = noise(5, MOST, weight.shape[1])
    together = ops.linear(rows, weight)
    for width in WIDTHS:
        for first in (0, 17) if width == 1 else ((MOST - width) // 2,):
            part = slice(first, first + width)
            assert torch.equal(ops.linear(rows[part], weight), together[part]), (width, first)
    gaps = torch.cat((rows, rows), dim=1)[:, 1 : rows.shape[1] + 1]
    assert torch.equal(ops.linear(gaps[:2], weight), ops.linear(gaps[:2].clone(), weight))


@pytest.mark.parametrize("type_name", ["BF16", "Q8_0"])
def test_columns_beyond_those_of_one_program(type_name: str) -> None:
    weight = weight_of(type_name, COLUMNS_INTERPRETED + 5, seed=17)
    x = noise(18, 1, weight.shape[1])
    assert error(ops.linear(x, weight), definition(x, weight)) < 1e-6


@pytest.mark.parametrize("type_name", [name for name, form in FORMATS.items() if form.columns < form.at_once])
def test_blocks_that_a_warp_takes_together(type_name: str) -> None:
    # Three times as many columns, which is no whole number of turns for the warps of a program.
    weight = weight_of(type_name, 5, blocks=3 * FORMATS[type_name].at_once // columns_of(type_name), seed=19)
    rows = noise(20, 6, weight.shape[1])
    together = ops.linear(rows, weight)
    assert error(together, definition(rows, weight)) < 1e-5
    assert torch.equal(ops.linear(rows[5:], weight), together[5:])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_several_matrices_are_multiplied_as_each_alone(rows: int, dtype: torch.dtype) -> None:
    """More of one type than a launch takes, of very different heights; and types between each other."""
    shapes = [("Q8_0", 3), ("F32", 7), ("Q8_0", 40), ("Q4_0", 17), ("Q8_0", 1), ("Q8_0", 16), ("F32", 1), ("Q8_0", 33)]
    weights = [DeviceWeight(name, out, 64, seed=i) for i, (name, out) in enumerate(shapes)]
    x = noise(25, rows, 64, dtype=dtype)
    found = ops.linears(x, weights)
    assert [tuple(y.shape) for y in found] == [(rows, out) for _, out in shapes]
    assert all(torch.equal(y, ops.linear(x, weight)) for y, weight in zip(found, weights, strict=True))
    if rows:
        assert all(error(y, definition(x, w)) < TOLERANCES[dtype] for y, w in zip(found, weights, strict=True))


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0", "Q6_K"])
def test_rows_that_are_not_zero_on_average(type_name: str) -> None:
    """What is added to integers, so that they have no sign, must not count by much more than they do."""
    weight = DeviceWeight(type_name, 3, 4096, seed=26)
    x = 1 + noise(27, 2, 4096) / 10
    assert error(ops.linear(x, weight), definition(x, weight)) < 1e-5


@pytest.mark.parametrize("power", [-100, -20, 20, 100])
def test_a_row_may_be_large_or_small(power: int) -> None:
    weight = weight_of("Q4_1", 3, seed=21)
    rows = noise(22, 2, weight.shape[1])
    scaled = torch.stack((rows[0] * 2.0**power, rows[1]))
    found, expected = ops.linear(scaled, weight), ops.linear(rows, weight)
    assert torch.equal(found, torch.stack((expected[0] * 2.0**power, expected[1])))


def test_rows_of_zeros_and_of_one_large_value() -> None:
    weight = weight_of("Q4_K", 3, seed=23)
    rows = torch.zeros(2, weight.shape[1], device=DEVICE)
    rows[1] = noise(24, weight.shape[1])
    rows[1, 7] = 1e6
    found = ops.linear(rows, weight)
    assert not found[0].any()
    assert error(found[1], definition(rows, weight)[1]) < 1e-6


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("type_name", ["BF16", "Q8_0", pytest.param("Q5_1", marks=pytest.mark.long)])
def test_experts_are_those_of_the_definition_and_of_each_row_alone(type_name: str, dtype: torch.dtype) -> None:
    rows, used, count = 3, 2, 4
    gate, up = (weight_of(type_name, count, columns_of(type_name), seed=seed) for seed in (6, 7))
    down = DeviceWeight(type_name, count, gate.shape[-1], gate.shape[-2], seed=8)
    x, matrices, form = noise(9, rows, gate.shape[-1], dtype=dtype) / 8, (gate, up, down), Gate(7.0)
    chosen, shares = torch.tensor([[0, 3], [1, 2], [0, 1]], device=DEVICE), noise(10, rows, used, dtype=dtype)
    together = ops.experts(x, chosen, shares, matrices, form)
    alone = [ops.experts(x[i : i + 1], chosen[i : i + 1], shares[i : i + 1], matrices, form) for i in range(rows)]
    assert torch.equal(together, torch.cat(alone))
    values = x.double().cpu(), chosen.cpu(), shares.double().cpu()
    expected = REFERENCE.experts(*values, tuple(map(Doubled, matrices)), form)
    assert error(together, expected) < TOLERANCES[dtype]


class Doubled:
    """A weight whose decoded values are float64."""

    def __init__(self, weight: DeviceWeight) -> None:
        self.weight, self.shape = weight, weight.shape

    def blocks(self) -> Iterator[Tensor]:
        yield self.weight.decoded().double()

    def __getitem__(self, index: int) -> Doubled:
        return Doubled(self.weight[index])


@pytest.mark.parametrize("rows", [1, 4])
def test_products_by_head(rows: int) -> None:
    weight = weight_of("Q4_0", 3, 6, seed=11)
    x = noise(12, rows, 3, weight.shape[-1])
    by_head = torch.stack([ops.linear(x[:, head], weight[head]) for head in range(3)], dim=1)
    assert torch.equal(ops.linear_by_head(x, weight), by_head)


@pytest.mark.parametrize("width", [35, 36])
def test_a_matrix_that_no_kernel_reads_is_decoded(width: int) -> None:
    # Four values are read at a time; and Q8_K there is no kernel for.
    weight = DeviceWeight("BF16", 3, width, seed=13)
    if width % 4 == 0:
        weight.type_name = "Q8_K"
    x, values = noise(14, 2, width), noise(13, 3, width)
    weight.decoded = lambda: values  # type: ignore[method-assign]
    assert error(ops.linear(x, weight), x.double().cpu() @ values.double().cpu().T) < 1e-6


def test_a_nan_in_a_row_is_seen_and_stays_there() -> None:
    weight = weight_of("Q8_0", 3, seed=15)
    x = noise(16, 3, weight.shape[1])
    x[1, 5] = torch.nan
    assert ops.linear(x, weight).isnan().all(dim=1).tolist() == [False, True, False]


def test_no_rows() -> None:
    weight = weight_of("Q8_0", 3)
    assert ops.linear(torch.empty(0, weight.shape[1], device=DEVICE), weight).shape == (0, 3)


def test_rows_that_no_kernel_takes_are_refused() -> None:
    weight = DeviceWeight("Q8_0", 3, 32)
    with pytest.raises(ValueError, match="rows of 31 values, want 32"):
        ops.linear(noise(0, 1, 31), weight)
    with pytest.raises(ValueError, match="float64"):
        ops.linear(noise(0, 1, 32).double(), weight)
