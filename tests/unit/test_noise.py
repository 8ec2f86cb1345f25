"""Noise is told from what was trained, whatever noise it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nextn.runtime.identity.noise import CERTAIN, excess

SIZES = [(32, 32), (48, 512), (128, 64), (256, 256)]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_noise_stays_below(seed: int, shape: tuple[int, int]) -> None:
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    for values in (normal(seed, *shape), 0.02 * normal(seed, *shape) + 5, uniform):
        assert excess(values) < CERTAIN


@pytest.mark.parametrize("shape", SIZES)
def test_one_direction_more_is_seen(shape: tuple[int, int]) -> None:
    """Twice as large as the largest of the noise: far above where one shows (Baik, Ben Arous and Péché)."""
    rows, columns = shape
    left, right = normal(7, rows), normal(8, columns)
    direction = torch.outer(left / left.norm(), right / right.norm())
    length = 2 * (rows**0.5 + columns**0.5)
    assert excess(normal(9, rows, columns) + length * direction) > CERTAIN


def test_the_same_value_everywhere_is_no_training() -> None:
    assert excess(torch.ones(64, 64)) == 0


def test_the_unit_is_that_of_the_law() -> None:
    """Of normal noise mean and deviation are those of the Tracy-Widom law for real matrices, -1.21 and 1.27.

    Power iteration stops a little below the largest value.
    """
    found = torch.tensor([excess(normal(seed, 64, 64)) for seed in range(100)])
    assert float(found.mean()) == pytest.approx(-1.21, abs=0.5)
    assert float(found.std()) == pytest.approx(1.27, abs=0.35)
