"""Linear maps, gated networks and experts, with matrices as they lie in a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.kernels.routing import PLAIN, Gate, Routing
from nextn.kernels.triton import packed_products, plain_products
from nextn.kernels.triton.blocks import FORMATS
from nextn.kernels.triton.launch import INTERPRETED, ROW_TYPES, WARPS, Build, kernel, launch
from nextn.kernels.weight import Weight

# Columns of a program that combines the results of experts.
COMBINED = 4 * 32 * WARPS
# A matrix's bytes, its type, and what multiplies by it.
Kept = tuple[Tensor, str, Callable[..., None]]


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
        return _product(x[:, None], weight)[:, 0]

    def linear_by_head(self, x: Tensor, weight: Weight) -> Tensor:
        """As defined."""
        return _product(x, weight)

    def experts(
        self, x: Tensor, chosen: Tensor, shares: Tensor, matrices: tuple[Weight, Weight, Weight], form: Gate = PLAIN
    ) -> Tensor:
        """As defined."""
        gate, up, down = matrices
        inner = self.gated(expert_linear(x, gate, chosen), expert_linear(x, up, chosen), form)
        return _combined(expert_linear(inner, down, chosen), shares, x.dtype)


def expert_linear(x: Tensor, weight: Weight, ids: Tensor) -> Tensor:
    """Rows times the transposes of matrices `ids` [rows, used] of weight [experts, out, in].

    x is [rows, in], for all of a row's matrices, or [rows * used, in]; the result is float32 [rows * used, out].
    """
    x, (packed, type_name, product) = _rows(x, weight), _kept(weight)
    out = x.new_empty(ids.numel(), weight.shape[-2], dtype=torch.float32)
    product(x[:, None], packed, type_name, out, (0, out.shape[1]), ids.contiguous())
    return out


def _product(x: Tensor, weight: Weight) -> Tensor:
    """x [rows, parts, in] times the transposes of weight [parts, out, in], or [out, in]: [rows, parts, out]."""
    x, (packed, type_name, product) = _rows(x, weight), _kept(weight)
    out = x.new_empty(*x.shape[:2], weight.shape[-2])
    product(x.transpose(0, 1), packed.view(-1, *packed.shape[-2:]), type_name, out, out.stride()[:2])
    return out


def _rows(x: Tensor, weight: Weight) -> Tensor:
    """Rows without gaps, which kernels take."""
    if x.dtype not in ROW_TYPES:
        raise ValueError(f"rows are {x.dtype}: kernels take float32 and bfloat16")
    if x.shape[-1] != weight.shape[-1]:
        raise ValueError(f"rows of {x.shape[-1]} values, want {weight.shape[-1]}")
    return x.contiguous()


def _kept(weight: Weight) -> Kept:
    """What a product takes of a matrix; what no kernel reads is decoded once."""
    if weight.kept is None:
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
