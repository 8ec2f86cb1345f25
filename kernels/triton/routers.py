"""Routers: the best experts of each row and their weights, found without leaving the GPU."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.kernels.routing import SMALLEST_SUM, Router, Routing
from nextn.kernels.triton.functions import at_least, read, rows_of, sigmoid, write
from nextn.kernels.triton.launch import ROW_TYPES, Build, kernel, launch

# Behind the last of all indices.
NONE = tl.constexpr(1 << 30)


@triton.jit
def _best(scores: tl.tensor, index: tl.tensor, left: tl.tensor) -> tl.tensor:
    """The index of the largest score of those that are left; the lowest of equal ones."""
    offered = tl.where(left, scores, float("-inf"))
    largest = tl.max(tl.ravel(offered), axis=0)
    return tl.min(tl.ravel(tl.where(left & (offered == largest), index, NONE)), axis=0)


@triton.jit
def _ordered(scores: tl.tensor) -> tl.tensor:
    """Scores in whose order experts are chosen: what is no number comes first, as torch sorts it."""
    return tl.where(scores != scores, float("inf"), scores)


@kernel
def route_kernel(
    logits: tl.tensor,
    bias: tl.tensor,
    chosen: tl.tensor,
    shares: tl.tensor,
    experts: tl.tensor,
    used: tl.tensor,
    groups: tl.tensor,
    groups_used: tl.tensor,
    scale: tl.tensor,
    smallest: tl.tensor,
    SIGMOID: tl.constexpr,
    NORMALIZED: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    USED: tl.constexpr,
) -> None:
    """The `used` best of a row's experts, ascending, and their scores, NORMALIZED to their sum and scaled.

    Scores are SIGMOID of the logits, to which a bias is added for the choice, or softmax.
    """
    row = tl.program_id(0).to(tl.int64)
    size = experts // groups
    group, place = tl.arange(0, GROUPS)[:, None], tl.arange(0, SIZE)[None, :]
    index = group * size + place
    there = (group < groups) & (place < size)
    logit = tl.load(logits + row * experts + index, mask=there, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        order = _ordered(sigmoid(logit) + read(bias, index, there))
    else:
        top = tl.max(tl.ravel(logit), axis=0)
        total = tl.sum(tl.ravel(tl.where(there, tl.exp(logit - top), 0)), axis=0)
        order = _ordered(tl.exp(logit - top) / total)
    if GROUPS > 1:
        offered = tl.where(there, order, float("-inf"))
        first = tl.max(offered, axis=1)
        at = tl.min(tl.where(there & (offered == first[:, None]), place, NONE), axis=1)
        second = tl.max(tl.where(place == at[:, None], float("-inf"), offered), axis=1)
        both = tl.where(size > 1, first + second, first)
        number = tl.arange(0, GROUPS)
        left = number < groups
        for _ in range(groups_used):
            left = left & (number != _best(both, number, left))
        order = tl.where(left[:, None], float("-inf"), order)
    left = there
    slot = tl.arange(0, USED)
    picked = tl.full((USED,), NONE, tl.int32)
    for turn in range(used):
        best = _best(order, index, left)
        picked = tl.where(slot == turn, best, picked)
        left = left & (index != best)
    rank = tl.sum((picked[None, :] < picked[:, None]).to(tl.int32), axis=1)
    is_used = slot < used
    score = tl.load(logits + row * experts + picked, mask=is_used, other=float("-inf")).to(tl.float32)
    score = sigmoid(score) if SIGMOID else tl.exp(score - top) / total
    if NORMALIZED:
        score = score / at_least(tl.sum(tl.where(is_used, score, 0), axis=0), smallest)
    tl.store(chosen + row * used + rank, picked.to(tl.int64), mask=is_used)
    write(shares, row * used + rank, score * scale, is_used)


class Routers(Routing):
    """Experts chosen by sigmoid or softmax scores."""

    def sigmoid_router(self, logits: Tensor, bias: Tensor, router: Router) -> tuple[Tensor, Tensor]:
        """As defined."""
        return _routed(logits, bias.contiguous(), router, SMALLEST_SUM)

    def softmax_router(self, logits: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """As defined."""
        return _routed(logits, None, Router(used), 0.0)


def _routed(logits: Tensor, bias: Tensor | None, router: Router, smallest: float) -> tuple[Tensor, Tensor]:
    """Chosen experts and shares. ValueError for more than there are."""
    logits = rows_of(logits)
    rows, experts = logits.shape
    if experts % router.groups or router.used > experts or router.groups_used > router.groups:
        raise ValueError(f"{experts} experts cannot be routed by {router}")
    chosen = logits.new_empty(rows, router.used, dtype=torch.int64)
    shares = logits.new_empty(rows, router.used)
    numbers = experts, router.used, router.groups, router.groups_used, float(router.scale), smallest
    arguments = logits, logits if bias is None else bias, chosen, shares, *numbers
    launch(route_kernel, (rows,), *arguments, **route_constants(experts, router, sigmoid=bias is not None))
    return chosen, shares


def route_constants(experts: int, router: Router, *, sigmoid: bool) -> dict[str, Any]:
    """What the kernel is compiled for."""
    sizes = {"GROUPS": router.groups, "SIZE": experts // router.groups, "USED": router.used}
    flags = {"SIGMOID": sigmoid, "NORMALIZED": router.normalizes}
    return flags | {name: triton.next_power_of_2(size) for name, size in sizes.items()}


def _build(name: str, x: str, experts: int, router: Router, *, sigmoid: bool) -> Build:
    pointers = {"logits": x, "bias": x, "chosen": "*i64", "shares": x}
    sizes = dict.fromkeys(("experts", "used", "groups", "groups_used"), "i32")
    types = pointers | sizes | {"scale": "fp32", "smallest": "fp32"}
    return Build(f"{name} {x}", route_kernel, types, route_constants(experts, router, sigmoid=sigmoid))


BUILDS = tuple(
    build
    for x in ROW_TYPES.values()
    for build in (
        _build("sigmoid router", x, 288, Router(8), sigmoid=True),
        _build("sigmoid router of groups", x, 256, Router(8, groups=8, groups_used=4), sigmoid=True),
        _build("softmax router", x, 512, Router(10), sigmoid=False),
    )
)
