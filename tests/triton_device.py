"""Where Triton's kernels run: interpreted on the CPU, as in the test suite, or on a GPU, as bench/gpu.py has it."""

from __future__ import annotations

import torch
from packed import PackedWeight
from torch import Tensor

from nextn.kernels.triton.launch import INTERPRETED

DEVICE = "cpu" if INTERPRETED else "cuda"


class DeviceWeight(PackedWeight):
    """A packed weight there, which is decoded on the CPU."""

    def __init__(self, type_name: str, *shape: int, seed: int = 0) -> None:
        super().__init__(type_name, *shape, seed=seed)
        self.packed = self.packed.to(DEVICE)

    def decoded(self) -> Tensor:
        return PackedWeight.of(self.type_name, self.packed.cpu(), self.shape).decoded()

    def __getitem__(self, index: int) -> PackedWeight:
        return DeviceWeight.of(self.type_name, self.packed[index], self.shape[1:])


def noise(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def error(actual: Tensor, expected: Tensor) -> float:
    """How far a result is from the definition's in float64, as a part of it."""
    return float((actual.double().cpu() - expected).norm() / expected.norm())
