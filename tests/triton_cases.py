"""The tables of operations for Triton: inputs where its kernels run, and memory that is of NaN until it is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from kernel_cases import CASES, SEQUENCES, Case, Draw, Sequence
from torch import Tensor
from triton_device import DEVICE

from nextn.gguf_schema.types import TENSOR_TYPES
from nextn.runtime.weights import Matrix

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
# Those are in test_triton_products.py, with all types of weights.
OF_PACKED_WEIGHTS = frozenset({"linear", "linear_by_head", "experts"})
ROWS = tuple(name for name in CASES if name not in OF_PACKED_WEIGHTS)


@dataclass
class Rounded(Draw):
    """Draws values that a narrow type has, in a type that may be wider."""

    narrow: torch.dtype = torch.float32
    device: str = DEVICE

    def _given(self, values: Tensor) -> Tensor:
        return values.to(self.narrow).to(self.device, self.dtype)

    def __call__(self, *shape: int, times: float = 1.0) -> Tensor:
        return self._given(super().__call__(*shape, times=times))

    def positive(self, *shape: int, least: float = 0.0) -> Tensor:
        return self._given(super().positive(*shape, least=least))

    def share(self, *shape: int) -> Tensor:
        return self._given(super().share(*shape))

    def whole(self, below: int, *shape: int) -> Tensor:
        return super().whole(below, *shape).to(self.device)

    def matrix(self, *shape: int) -> Matrix:
        packed = super().matrix(*shape).packed.to(self.device)
        return Matrix("drawn", shape, TENSOR_TYPES["F32"], packed, self.dtype)


def case_of(name: str, n: int, dtype: torch.dtype = torch.float32) -> Case:
    """Inputs of a type for the kernels."""
    return CASES[name](Rounded(n, dtype, narrow=dtype), n)


def exact_case_of(name: str, n: int, dtype: torch.dtype) -> Case:
    """The same values in float64, for the definition."""
    return CASES[name](Rounded(n, torch.float64, narrow=dtype, device="cpu"), n)


def sequence_of(name: str, n: int, dtype: torch.dtype = torch.float32) -> Sequence:
    return SEQUENCES[name](Rounded(n, dtype, narrow=dtype), n)


def exact_sequence_of(name: str, n: int, dtype: torch.dtype) -> Sequence:
    return SEQUENCES[name](Rounded(n, torch.float64, narrow=dtype, device="cpu"), n)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal, with numbers that are none in the same places."""
    return a.dtype == b.dtype and torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def close(actual: Tensor, expected: Tensor, tolerance: float) -> bool:
    """As near to the definition in float64 as it should be; indices are equal."""
    actual = actual.cpu()
    if not actual.is_floating_point():
        return torch.equal(actual, expected)
    return actual.shape == expected.shape and bool((actual.double() - expected).norm() <= tolerance * expected.norm())


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """New tensors are of NaN until something is written to them."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)
