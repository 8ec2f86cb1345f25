"""How Triton kernels are declared, launched, and listed for being compiled ahead of time.

One binary for all widths: Triton specializes a kernel on arguments that are 1 or divisible by 16, and on addresses that
are; what is compiled for one row could then sum in another order than what is compiled for two, and a row of a matrix
in another order than the matrix. `kernel` turns that off, and what a kernel may be specialized on is a constant: it
follows from shapes of weights. Multiplications and additions are not fused, unless a kernel says `tl.fma`: whether the
compiler fuses may depend on what stands around.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

# Whether kernels run on the CPU, one program after the other: TRITON_INTERPRET=1 was set when Triton was imported.
INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
WARPS = 4
# What kernels are compiled with. With one stage loads are not copied through shared memory: each value is read by the
# thread that needs it, and a turn of a loop has enough of them on their way.
OPTIONS = {"enable_fp_fusion": False, "num_stages": 1}
# The most matrices that a product takes at once, and its arguments for them.
MATRICES = 4
MATRIX_TYPES = {
    name + (f"_{i}" if i else ""): type_ for name, type_ in (("w", "*u8"), ("outputs", "i32")) for i in range(MATRICES)
}
# What kernels take rows in, by the names that Triton has for pointers to them.
ROW_TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}


def kernel(function: Callable[..., None]) -> Any:
    """A Triton kernel that is compiled for its constants alone, never for values or addresses of its arguments."""
    names = [name for name, parameter in inspect.signature(function).parameters.items() if not _is_constant(parameter)]
    return triton.jit(do_not_specialize=names, do_not_specialize_on_alignment=names)(function)


def launch(compiled: Any, grid: Sequence[int], *arguments: object, warps: int = WARPS, **constants: object) -> None:
    """Run a kernel on a grid of programs; nothing when there are none."""
    if 0 not in grid:
        compiled[tuple(grid)](*arguments, num_warps=warps, **OPTIONS, **constants)


def filled(matrices: Sequence[torch.Tensor], outputs: Sequence[int]) -> tuple[torch.Tensor | int, ...]:
    """Matrices and how many outputs each has, as many as MATRICES: those of a product's arguments."""
    absent = MATRICES - len(matrices)
    return *matrices, *[matrices[0]] * absent, *outputs, *[0] * absent


@lru_cache(maxsize=256)
def numbers(values: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Integers on a device, int64: those that layers ask for again in one step are copied there once."""
    return torch.tensor(values, dtype=torch.int64, device=device)


@dataclass(frozen=True)
class Build:
    """One way in which a kernel is compiled: types of its arguments in their order, and its constants.

    A kernel that is `hot` runs for each token and must not spill registers. Those of one `group` sum in one order: they
    differ in the number of rows that a program takes.
    """

    name: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, object] = field(default_factory=dict)
    warps: int = WARPS
    hot: bool = True
    group: str = ""

    @property
    def signature(self) -> dict[str, str]:
        """The type of each argument as Triton names it."""
        return {name: self.types.get(name, "constexpr") for name in self.kernel.arg_names}


def _is_constant(parameter: inspect.Parameter) -> bool:
    return parameter.annotation in (tl.constexpr, "tl.constexpr")
