"""Products of packed weights with 1 to 64 rows on the CPU, beside torch's own and the speed of reading memory.

The best of the rounds counts, which are taken in turn; GB/s are of weights as they lie in memory. The peers are
`torch.mv(weight, x)` for one row and `torch.mm(x, weight.T)` for more, in float32 and bfloat16, with as many threads.
Memory is read by `torch.sum` of as many bytes as float32. Matrices that fit into the processor's caches are read from
there: neither their figures nor that of memory are of memory then.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import asked
import numba
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from nextn.gguf_schema.errors import counted
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


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What is asked; ends with an error where rows of a matrix are not whole blocks."""
    cores = numba.config.NUMBA_NUM_THREADS
    types = asked.several(asked.one_of(FORMS))
    help_ = f"types of weights, of {', '.join(FORMS)} [all]"
    parser.add_argument("--types", type=types, default=list(FORMS), metavar="TYPE,...", help=help_)
    help_ = "numbers of rows that are multiplied together [%(default)s]"
    rows = asked.several(asked.whole(1))
    parser.add_argument("--rows", type=rows, default="1,2,4,16,64", metavar="N,...", help=help_)
    parser.add_argument("--out", type=asked.whole(1), default=8192, metavar="N", help="rows of a matrix [%(default)s]")
    help_ = "columns of a matrix, whole blocks of each type [%(default)s]; small matrices lie in caches"
    parser.add_argument("--in", type=asked.whole(1), default=4096, dest="width", metavar="N", help=help_)
    help_ = "at most the cores [%(default)s]"
    parser.add_argument("--threads", type=asked.whole(1, cores), default=cores, metavar="N", help=help_)
    help_ = "of which the best counts, behind one that compiles [%(default)s]"
    parser.add_argument("--rounds", type=asked.whole(1), default=7, metavar="N", help=help_)
    options = parser.parse_args()
    for name in options.types:
        form = FORMS[name]
        if not form.is_plain and options.width % form.weights:
            parser.error(
                f"argument --in: {options.width} is no multiple of {form.weights}, the columns of a {name} block"
            )
    return options


def main() -> None:
    options = options_of(asked.parser(__doc__))
    torch.set_num_threads(options.threads)
    numba.set_num_threads(options.threads)

    work = contenders(options)
    best = dict.fromkeys(work, float("inf"))
    for run, _ in work.values():
        run()  # compiles
    for _ in range(options.rounds):
        for key, (run, _) in work.items():
            start = time.perf_counter()
            run()
            best[key] = min(best[key], time.perf_counter() - start)

    table = Table(title=f"{options.out} × {options.width}, {counted(options.threads, 'thread')}: ms (GB/s of weights)")
    table.add_column("weights")
    for rows in options.rows:
        table.add_column(counted(rows, "row"), justify="right")
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
