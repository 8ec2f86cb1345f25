"""Linear maps, gated networks and experts, with matrices as they lie in a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.kernels.routing import PLAIN, Gate, Routing
from nextn.kernels.triton import packed_products, plain_products
from nextn.kernels.triton.blocks import FORMATS
from nextn.kernels.triton.functions import whole_rows_of
from nextn.kernels.triton.launch import INTERPRETED, MATRICES, ROW_TYPES, WARPS, Build, kernel, launch
from nextn.kernels.weight import Weight

# Columns of a program that combines the results of experts.
COMBINED = 4 * 32 * WARPS
# What multiplies by matrices of a type.
Product = Callable[[Tensor, Sequence[Tensor], str, Tensor, Tensor | None], None]
# A matrix's bytes, its type, and what multiplies by it.
Kept = tuple[Tensor, str, Product]


@kernel
def combine_kernel(
    results: tl.tensor,
    shares: tl.tensor,
    out: tl.tensor,
    used: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """The results [rows, used, width] of a row's experts by its shares [rows, used], summed: out [rows, width]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < width
    total = tl.zeros((BLOCK,), tl.float32)
    for place in range(used):
        share = tl.load(shares + row * used + place).to(tl.float32)
        value = tl.load(results + (row * used + place) * width + column, mask=there, other=0.0)
        total = tl.fma(share, value.to(tl.float32), total)
    tl.store(out + row * width + column, total.to(out.dtype.element_ty), mask=there)


class Products(Routing):
    """Linear maps, gated networks and experts. Sums are float32, rows float32 or bfloat16."""

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        """As defined."""
        return self.linears(x, (weight,))[0]

    def linears(self, x: Tensor, weights: Sequence[Weight]) -> tuple[Tensor, ...]:
        """As defined."""
        return tuple(y[:, 0] for y in _products(x[None], weights, x.dtype))

    def linear_by_head(self, x: Tensor, weight: Weight) -> Tensor:
        """As defined."""
        return _products(x.transpose(0, 1), (weight,), x.dtype)[0]

    def experts(
        self, x: Tensor, chosen: Tensor, shares: Tensor, matrices: tuple[Weight, Weight, Weight], form: Gate = PLAIN
    ) -> Tensor:
        """As defined."""
        *first, down = matrices
        gate, up = expert_linears(x, first, chosen)
        (results,) = expert_linears(self.gated(gate, up, form), (down,), chosen)
        return _combined(results, shares, x.dtype)


def expert_linears(x: Tensor, weights: Sequence[Weight], ids: Tensor) -> list[Tensor]:
    """Rows times the transposes of matrices `ids` [rows, used] of each of the weights [experts, out, in].

    x is [rows, in], for all of a row's matrices, or [rows * used, in]; results are float32 [rows * used, out].
    """
    return [y[0] for y in _products(x[:, None], weights, torch.float32, ids.contiguous())]


def _products(x: Tensor, weights: Sequence[Weight], dtype: torch.dtype, ids: Tensor | None = None) -> list[Tensor]:
    """x [parts, rows, in] times the transposes of weights [parts, out, in], or those by `ids`: [rows, parts, out] each.

    Matrices of one type are multiplied together, so that rows are prepared, and a GPU's processors filled, once.
    """
    kept = [_kept(weight) for weight in weights]
    together: dict[tuple[str, Product], list[int]] = {}
    found: dict[int, Tensor] = {}
    for i, (_, type_name, product) in enumerate(kept):
        together.setdefault((type_name, product), []).append(i)
    x, (rows, parts) = _rows(x, weights), (x.shape[1], x.shape[0] if ids is None else ids.numel())
    for (type_name, product), all_places in together.items():
        for start in range(0, len(all_places), MATRICES):
            places = all_places[start : start + MATRICES]
            shapes = [(rows, parts, weights[i].shape[-2]) for i in places]
            sizes = list(map(math.prod, shapes))
            out = x.new_empty(sum(sizes), dtype=dtype)
            product(x, [kept[i][0] for i in places], type_name, out, ids)
            found |= {i: y.view(shape) for i, y, shape in zip(places, torch.split(out, sizes), shapes, strict=True)}
    return [found[i] for i in range(len(weights))]


def _rows(x: Tensor, weights: Sequence[Weight]) -> Tensor:
    """Rows without gaps, which kernels take; ValueError unless each of the weights has as many columns."""
    for weight in weights:
        if x.shape[-1] != weight.shape[-1]:
            raise ValueError(f"rows of {x.shape[-1]} values, want {weight.shape[-1]}")
    return whole_rows_of(x)


def _kept(weight: Weight) -> Kept:
    """What a product takes of a matrix; what no kernel reads is decoded once."""
    if not isinstance(weight.kept, tuple):
        name, width = weight.type_name, weight.shape[-1]
        if name in FORMATS and width % FORMATS[name].columns == 0:
            weight.kept = _aligned(weight.packed, FORMATS[name].alignment), name, packed_products.product
        elif name in plain_products.PLAIN and width % plain_products.PLAIN[name].values == 0:
            weight.kept = _aligned(weight.packed, plain_products.PLAIN[name].bytes), name, plain_products.product
        else:
            weight.kept = weight.decoded().contiguous().view(torch.uint8), "F32", plain_products.product
    return cast(Kept, weight.kept)


def _aligned(data: Tensor, alignment: int) -> Tensor:
    """Bytes without gaps, from a multiple of `alignment` on, which is where tensors of most files begin."""
    data = data.contiguous()
    return data if data.data_ptr() % alignment == 0 else data.clone()


def _combined(results: Tensor, shares: Tensor, dtype: torch.dtype) -> Tensor:
    """Results [rows * used, width] by shares [rows, used], summed: [rows, width]."""
    (rows, used), width = shares.shape, results.shape[-1]
    out = results.new_empty(rows, width, dtype=dtype)
    block = triton.next_power_of_2(width) if INTERPRETED else COMBINED
    grid = rows, triton.cdiv(width, block)
    launch(combine_kernel, grid, results, shares.contiguous(), out, used, width, BLOCK=block)
    return out


def _combining(x: str) -> Build:
    types = {"results": "*fp32", "shares": x, "out": x, "used": "i32", "width": "i32"}
    return Build(f"combine {x}", combine_kernel, types, {"BLOCK": COMBINED})


BUILDS = (
    *plain_products.BUILDS,
    *packed_products.BUILDS,
    *map(_combining, ROW_TYPES.values()),
)
