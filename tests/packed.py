"""Packed weights with random blocks, and what gguf-py makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from torch import Tensor

# Where the scales lie in a block, as F16.
SCALES = {
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "IQ4_NL": (0,), "MXFP4": (),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,),
}  # fmt: skip
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
TYPES = (*PLAIN, *SCALES)


class PackedWeight:
    """A weight [..., out, in] of a type, of random bytes but for scales of a sane size."""

    def __init__(self, type_name: str, *shape: int, seed: int = 0) -> None:
        self.type_name, self.shape = type_name, shape
        self.kept: Any = None
        rng = np.random.default_rng(seed)
        if type_name in PLAIN:
            values = torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(PLAIN[type_name])
            self.packed = values.contiguous().view(torch.uint8)
        else:
            self.packed = torch.from_numpy(_blocks(rng, type_name, shape))

    @classmethod
    def of(cls, type_name: str, packed: Tensor, shape: tuple[int, ...]) -> PackedWeight:
        weight = cls.__new__(cls)
        weight.type_name, weight.packed, weight.shape, weight.kept = type_name, packed, shape, None
        return weight

    def decoded(self) -> Tensor:
        """By gguf-py, or by torch for plain floats."""
        if self.type_name in PLAIN:
            return self.packed.view(PLAIN[self.type_name]).float()
        values = quants.dequantize(self.packed.numpy(), GGMLQuantizationType[self.type_name])
        return torch.from_numpy(values.astype(np.float32).reshape(self.shape))

    def blocks(self) -> Iterator[Tensor]:
        yield self.decoded()

    def __getitem__(self, index: int) -> PackedWeight:
        return PackedWeight.of(self.type_name, self.packed[index], self.shape[1:])


def _blocks(rng: np.random.Generator, type_name: str, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    weights, size = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // weights, size)).astype(np.uint8)
    for offset in SCALES[type_name]:
        scales = (0.1 * rng.standard_normal(len(blocks))).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    if type_name == "MXFP4":
        blocks[:, 0] = rng.integers(120, 136, len(blocks))  # exponents around 0
    return blocks.reshape(*shape[:-1], shape[-1] // weights * size)
