"""Products of packed weights with 1 to 64 rows on the CPU, beside torch's own and the speed of reading memory.

usage: python bench/cpu_kernels.py [--types BF16,Q8_0,Q4_0,…] [--rows 1,2,4,16,64] [--out 8192] [--in 4096]
                                   [--threads 2] [--rounds 7]

The best of the rounds counts, which are taken in turn; GB/s are of weights as they lie in memory. The peers are
`torch.mv(weight, x)` for one row and `torch.mm(x, weight.T)` for more, in float32 and bfloat16, with as many threads.
Memory is read by `torch.sum` of as many bytes as float32.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from nextn.kernels.cpu.blocks import FORMS
from nextn.kernels.cpu.products import Products

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Weight:
    """Noise of a type, as it would lie in a file."""

    def __init__(self, type_name: str, out: int, width: int) -> None:
        self.type_name, self.shape = type_name, (out, width)
        self.kept: Any = None
        if type_name in PLAIN:
            self.packed = torch.randn(out, width).to(PLAIN[type_name]).view(torch.uint8)
        else:
            form = FORMS[type_name]
            # Bytes below 100 make scales that are neither infinite nor too small for fast arithmetic.
            noise = np.random.default_rng(0).integers(30, 100, (out, width // form.weights * form.bytes))
            self.packed = torch.from_numpy(noise.astype(np.uint8))


def torch_product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.mv(weight, x[0])[None] if len(x) == 1 else torch.mm(x, weight.T)


def contenders(options: argparse.Namespace) -> dict[tuple[str, int], tuple[Callable[[], object], int]]:
    """What is measured, with the bytes of weights that it reads."""
    ops, found = Products(), {}
    dense = torch.randn(options.out, options.width)
    for rows in options.rows:
        x = torch.randn(rows, options.width)
        for name in options.types:
            weight = Weight(name, options.out, options.width)
            found[name, rows] = partial(ops.linear, x, weight), weight.packed.numel()
        for dtype in (torch.float32, torch.bfloat16):
            matrix = dense.to(dtype)
            name = f"torch {str(dtype).removeprefix('torch.')}"
            found[name, rows] = partial(torch_product, x.to(dtype), matrix), matrix.nbytes
    found["memory", 0] = dense.sum, dense.nbytes
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", type=lambda s: s.split(","), default=list(FORMS))
    parser.add_argument("--rows", type=lambda s: [int(n) for n in s.split(",")], default=[1, 2, 4, 16, 64])
    parser.add_argument("--out", type=int, default=8192)
    parser.add_argument("--in", type=int, default=4096, dest="width")
    parser.add_argument("--threads", type=int, default=numba.config.NUMBA_NUM_THREADS)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    numba.set_num_threads(options.threads)

    work = contenders(options)
    best = dict.fromkeys(work, float("inf"))
    for _ in range(options.rounds + 1):  # The first round compiles.
        for key, (run, _) in work.items():
            start = time.perf_counter()
            run()
            best[key] = min(best[key], time.perf_counter() - start)

    table = Table(title=f"{options.out} × {options.width}, {options.threads} threads: ms (GB/s of weights)")
    table.add_column("weights")
    for rows in options.rows:
        table.add_column(f"{rows} rows" if rows > 1 else "1 row", justify="right")
    for name in dict.fromkeys(name for name, rows in work if rows):
        cells = []
        for rows in options.rows:
            seconds = best[name, rows]
            cells.append(f"{seconds * 1e3:.2f} ({work[name, rows][1] / seconds / 1e9:.1f})")
        table.add_row(name, *cells)
    console = Console(width=120)
    console.print(table)
    console.print(f"memory is read at {work['memory', 0][1] / best['memory', 0] / 1e9:.1f} GB/s (torch.sum)")


if __name__ == "__main__":
    main()
