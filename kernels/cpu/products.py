"""Products with packed weights on the CPU: as they lie in the file, decoded in registers, summed in one fixed order."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from nextn.kernels.cpu.blocks import FORMS
from nextn.kernels.cpu.grouping import combined, gathered, grouped
from nextn.kernels.cpu.loops import products
from nextn.kernels.cpu.memory import address_of, fresh, numbers, whole
from nextn.kernels.cpu.microkernels import microkernels
from nextn.kernels.routing import PLAIN, Gate, Routing
from nextn.kernels.weight import Weight


@dataclass(frozen=True)
class Packed:
    """A matrix [out, in], or several, whose bytes the microkernels read where they lie."""

    address: int
    out: int
    width: int
    kernels: int
    shape: int
    # What the addresses belong to.
    held: tuple[object, ...]


@cache
def _kernels(type_name: str) -> array[int]:
    found = microkernels(type_name)
    return numbers((*found.products, *found.wide, found.decode))


@lru_cache(maxsize=1024)
def _one_group(rows: int) -> array[int]:
    return numbers((0, 0, rows))


def packed(weight: Weight) -> Packed:
    """A weight as the loops take it; one of a type without a microkernel is decoded, for good."""
    if not isinstance(weight.kept, Packed):
        weight.kept = _packed(weight)
    return weight.kept


def _packed(weight: Weight) -> Packed:
    type_name, data = weight.type_name, weight.packed
    if type_name not in FORMS:
        type_name, data = "F32", weight.decoded().view(torch.uint8)
    form, plain = FORMS[type_name], FORMS["F32"]
    out, n = weight.shape[-2:]
    row_bytes = data.shape[-1]
    blocks = [n // form.weights, n % form.weights, row_bytes, n // plain.weights, n % plain.weights]
    kernels, shape = _kernels(type_name), numbers((out, n, *blocks, out * row_bytes))
    return Packed(data.data_ptr(), out, n, address_of(kernels), address_of(shape), (data, kernels, shape))


class Products(Routing):
    """Matrix products, dense, by head and by expert."""

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        """As defined."""
        return _product(x, packed(weight), address_of(_one_group(x.shape[0])), 1)

    def linear_by_head(self, x: Tensor, weight: Weight) -> Tensor:
        """As defined."""
        rows, heads = x.shape[:2]
        groups = numbers(*((head, head * rows, rows) for head in range(heads)))
        y = _product(x.transpose(0, 1).reshape(heads * rows, -1), packed(weight), address_of(groups), heads)
        return y.reshape(heads, rows, -1).transpose(0, 1)

    def experts(
        self, x: Tensor, chosen: Tensor, shares: Tensor, matrices: tuple[Weight, Weight, Weight], form: Gate = PLAIN
    ) -> Tensor:
        """As defined."""
        gate, up, down = (packed(matrix) for matrix in matrices)
        order, groups, count = grouped(chosen, matrices[0].shape[0])
        mine = gathered(x, order, chosen.shape[1])
        first, second = (_product(mine, matrix, groups.data_ptr(), count) for matrix in (gate, up))
        y = _product(self.gated(first, second, form), down, groups.data_ptr(), count)
        return combined(y, order, shares)


def _product(x: Tensor, weight: Packed, groups: int, count: int) -> Tensor:
    """Rows x [rows, in] of groups (matrix, first row, rows) times the transposes of their matrices: [rows, out]."""
    rows, width = x.shape
    if width != weight.width:
        raise ValueError(f"rows of {width} values, want {weight.width}")
    x = whole(x)
    y = fresh(rows, weight.out)
    tables = (weight.kernels, address_of(_kernels("F32")), weight.shape, groups)
    products(rows * weight.out * width, *tables, count, weight.address, x.data_ptr(), y.data_ptr())
    return y
