"""Whether weights are noise: training leaves directions in a matrix that are larger than any of noise of its size.

The largest singular value of a matrix of independent values is known closely (Johnstone 2001, Tracy-Widom law): one
that is well above it was trained. A matrix may be trained without showing it; so it takes all matrices of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nextn.gguf_schema.contents import TensorInfo
from nextn.gguf_schema.nextn_generic import head_blocks
from nextn.runtime.identity.corrections import whole
from nextn.runtime.weights import Weights

# Units of the Tracy-Widom law above its centre: noise is above them once in a million matrices.
CERTAIN = 6.0
# Smaller matrices tell nothing, larger ones take too long.
SMALLEST, LARGEST = 32, 1 << 25
ITERATIONS = 50


@dataclass(frozen=True)
class Spectra:
    """How many matrices of a head were looked at, and those that have more than noise would."""

    looked_at: int
    trained: tuple[str, ...]

    @property
    def is_noise(self) -> bool:
        """Whether nothing in the head shows that it was trained."""
        return self.looked_at > 0 and not self.trained


def spectra(head: Weights) -> Spectra:
    """Look at the matrices of a head's blocks, experts left out."""
    prefixes = tuple(f"blk.{block}." for block in head_blocks(head.contents))
    fit = [each for each in head.contents.tensors.values() if each.name.startswith(prefixes) and _fits(each)]
    return Spectra(len(fit), tuple(each.name for each in fit if excess(whole(head.matrix(each.name))) > CERTAIN))


def _fits(tensor: TensorInfo) -> bool:
    ne: Sequence[int] = tensor.ne
    return len(ne) == 2 and min(ne) >= SMALLEST and ne[0] * ne[1] <= LARGEST


def excess(matrix: Tensor) -> float:
    """How far the largest singular value, squared, is above that of noise: in units of the Tracy-Widom law."""
    values = matrix.double() - matrix.double().mean()
    deviation = math.sqrt(values.square().mean())
    if deviation == 0:
        return 0.0
    long, short = map(math.sqrt, values.shape)
    centre, unit = (long + short) ** 2, (long + short) * math.pow(1 / long + 1 / short, 1 / 3)
    return ((_largest_singular_value(values) / deviation) ** 2 - centre) / unit


def _largest_singular_value(matrix: Tensor) -> float:
    """By power iteration: never more than it is."""
    vector = torch.randn(matrix.shape[1], generator=torch.Generator().manual_seed(0), dtype=matrix.dtype)
    vector = vector.to(matrix.device)
    for _ in range(ITERATIONS):
        vector = matrix.T @ (matrix @ (vector / vector.norm()))
    return float((matrix @ (vector / vector.norm())).norm())
