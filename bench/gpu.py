"""Check and time the Triton kernels on a GPU, and decode with random models of Step-3.7's widths.

First the tests of the kernels run on the GPU: every kernel against its definition in float64, and for equal bits at all
widths. Then times, of what is captured in a CUDA graph and replayed, or said to be otherwise; bandwidths are beside
that of a device copy, measured in the same run. Products are of a matrix of 11264 rows of 4096, of which so many copies
take turns that no cache holds them. Models have few layers of the real widths; a step is all of a verify step but the
embedding: blocks, logits and their argmax. "Needed" is the time that a step's bytes take at the copy's bandwidth: all
matrices once, of experts as many as the rows choose together.

--toy does all of it with toy shapes, interpreted on the CPU: for a machine without a GPU, and the test suite.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

# Before triton is imported, here and by the tests.
os.environ["TRITON_INTERPRET"] = "1" if "--toy" in sys.argv else "0"
sys.path.append(str(Path(__file__).parents[1] / "tests"))

import asked
import torch
from random_step import RandomWeights, matrix_of, noise, step_bytes, widths
from rich.console import Console
from rich.table import Table
from torch import Tensor
from triton_device import DEVICE

from nextn.gguf_schema.errors import counted
from nextn.gguf_schema.types import TENSOR_TYPES
from nextn.kernels.operations import operations
from nextn.kernels.routing import Router
from nextn.kernels.triton.blocks import FORMATS
from nextn.kernels.triton.launch import INTERPRETED
from nextn.kernels.triton.plain_products import PLAIN
from nextn.runtime.drafting import Options
from nextn.runtime.model import Chunk
from nextn.runtime.models.step35 import Heads, Trunk
from nextn.runtime.models.step35_block import Batch
from nextn.runtime.speculative import Speculator

ROOT = Path(__file__).parents[1]
TOY = INTERPRETED
ROWS = (1, 2) if TOY else (1, 2, 3, 4)
BY_ROWS = tuple(counted(rows, "row") for rows in ROWS)
OUTPUTS, WIDTH = (8, 256) if TOY else (11264, 4096)
# Types that models are decoded of, and that products are measured of, unless others are asked for.
DECODED = ("Q8_0", "Q4_0") if TOY else ("BF16", "Q8_0", "Q4_K", "IQ4_XS")
MULTIPLIED = DECODED if TOY else (*PLAIN, *FORMATS)
# Types that rows of all models' matrices are whole blocks of.
MODEL_WIDTH = widths(toy=TOY, layers=2).embedding_length
KNOWN = tuple(name for name in (*PLAIN, *FORMATS) if MODEL_WIDTH % TENSOR_TYPES[name].block == 0)
# How a prompt begins that drafts are measured behind, and the most tokens of a draft.
READ, DRAFTED = (2, 1) if TOY else (16, 3)
# More than any cache holds.
COPIED = 1 << 16 if TOY else 1 << 30
# A kernel for each kind of test, for the toy.
TOY_TESTS = ["-k", "by_head or no_rows or nan_in"]
Calls = Sequence[Callable[[], object]]


@dataclass
class Clock:
    """Times calls that take turns, the best of some rounds; `misses` says why something could not be captured."""

    rounds: int
    misses: dict[str, str] = field(default_factory=dict)

    def seconds(self, name: str, calls: Calls) -> float:
        """Of one call. They run once before, which compiles kernels and makes buffers large enough."""
        for call in calls:
            call()
        return min(self._rounds(name, calls)) / len(calls)

    def _rounds(self, name: str, calls: Calls) -> list[float]:
        if TOY:
            start = time.perf_counter()
            _ = [call() for call in calls]
            return [time.perf_counter() - start]
        torch.cuda.synchronize()
        run, taken = self._captured(name, calls), []
        for _ in range(self.rounds):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            taken.append(start.elapsed_time(end) / 1e3)
        return taken

    def _captured(self, name: str, calls: Calls) -> Callable[[], object]:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                _ = [call() for call in calls]
        except RuntimeError as error:
            torch.cuda.synchronize()
            # The end of a capture that failed fails as well, and says less.
            self.misses[name] = str(error.__context__ or error).splitlines()[0]
            return lambda: [call() for call in calls]
        return graph.replay


def check() -> bool:
    """Run the kernels' tests: whether none fails."""
    tests = sorted(map(str, (ROOT / "tests/property").glob("test_triton_*.py")))
    options = TOY_TESTS if TOY else ["-m", "long or not long", "-n", "8"]
    command = [sys.executable, "-m", "pytest", "-q", *options, *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def copy_bandwidth(clock: Clock) -> float:
    """Bytes a second that a copy reads and writes together."""
    source = torch.zeros(COPIED, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * COPIED / clock.seconds("copy", [lambda: target.copy_(source)])


def figure(number: float) -> str:
    """Three significant digits, or all that stand before the point."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def products(clock: Clock, bandwidth: float, types: Sequence[str], console: Console) -> None:
    ops = operations("triton")
    table = Table(title=f"products of rows and a matrix of {OUTPUTS} x {WIDTH}: GB/s, and of the copy's bandwidth")
    for column in ("type", *BY_ROWS):
        table.add_column(column, justify="right")
    for type_name in types:
        one = matrix_of(type_name, (OUTPUTS, WIDTH), DEVICE)
        copies = 1 if TOY else -(-COPIED // one.packed.numel())
        weights = [one, *(matrix_of(type_name, (OUTPUTS, WIDTH), DEVICE) for _ in range(copies - 1))]
        cells = []
        for rows in ROWS:
            x = noise(rows, WIDTH, device=DEVICE)
            calls = [partial(ops.linear, x, weight) for weight in weights]
            moved = one.packed.numel() + 4 * rows * (WIDTH + OUTPUTS)
            speed = moved / clock.seconds(f"product {type_name} {rows}", calls)
            cells.append(f"{figure(speed / 1e9)} {figure(100 * speed / bandwidth)}%")
        table.add_row(type_name, *cells)
    console.print(table)


def others(rows: int) -> list[tuple[str, Callable[[], object], int]]:
    """Other operations that a step is made of: a call for so many rows, and the bytes that it moves."""
    ops, drawn = operations("triton"), partial(noise, device=DEVICE)
    heads, kv_heads, d, seen, experts = (4, 2, 64, 40, 6) if TOY else (64, 8, 128, 8192, 288)
    x, query = drawn(rows, WIDTH), drawn(rows, heads, d)
    keys, values = (drawn(seen, kv_heads, d) for _ in range(2))
    begins, ends = [0] * rows, range(seen - rows + 1, seen + 1)
    state, by_head = drawn(heads, d, d), [drawn(rows, heads, d) / 8 for _ in range(4)]
    logits, bias, router = drawn(rows, experts), drawn(experts), Router(2 if TOY else 8)
    return [
        ("rms_norm", partial(ops.rms_norm, x, drawn(WIDTH), 1e-5), 4 * (2 * rows + 1) * WIDTH),
        ("gated", partial(ops.gated, x, x + 1), 12 * x.numel()),
        ("attend", partial(ops.attend, query, keys, values, begins, ends, d**-0.5), 8 * keys.numel()),
        ("sigmoid_router", partial(ops.sigmoid_router, logits, bias, router), 4 * logits.numel()),
        ("delta_rule", partial(ops.delta_rule, state, *by_head, drawn(rows, heads), 1), 8 * state.numel()),
    ]


def smaller(clock: Clock, bandwidth: float, console: Console) -> None:
    table = Table(title="other operations: microseconds, and of the copy's bandwidth")
    for column in ("operation", *BY_ROWS):
        table.add_column(column, justify="right")
    cells: dict[str, list[str]] = {}
    for rows in ROWS:
        for name, call, moved in others(rows):
            took = clock.seconds(f"{name} {rows}", [call] if TOY else [call] * 20)
            cells.setdefault(name, []).append(f"{1e6 * took:.1f} {figure(100 * moved / took / bandwidth)}%")
    for name, row in cells.items():
        table.add_row(name, *row)
    console.print(table)


def step(trunk: Trunk, batch: Batch, x: Tensor) -> Tensor:
    """The best token behind each of the rows x [rows, H]: what a forward does behind the embedding."""
    for block in trunk._blocks:
        x = block(x, batch)
    return trunk.logits(x).argmax(dim=-1)


def decoding(clock: Clock, bandwidth: float, options: argparse.Namespace, console: Console) -> None:
    h = widths(toy=TOY, layers=options.layers)
    table = Table(title=f"{h.trunk_blocks} layers, behind {options.context} tokens: ms a step, and times the needed")
    for column in ("type", *BY_ROWS, "tokens/s", "tokens/s, drafted", "accepted", "same"):
        table.add_column(column, justify="right")
    for type_name in options.types or DECODED:
        weights = RandomWeights(h, type_name, DEVICE, operations("triton"))
        trunk, heads = Trunk(weights), Heads(weights)
        prompt = [7 * place % h.vocab_size for place in range(options.context)]
        state = trunk.new_state()
        with torch.inference_mode():
            trunk.forward([Chunk(state, prompt)])
            cells = []
            for rows in ROWS:
                x = noise(rows, h.embedding_length, device=DEVICE)
                batch = Batch([Chunk(state, embeddings=x)], h.attention_sliding_window, DEVICE)
                took = clock.seconds(f"step {type_name} {rows}", [partial(step, trunk, batch, x)])
                needed = step_bytes(weights.contents, h, rows) / bandwidth
                cells.append(f"{1e3 * took:.2f} {took / needed:.1f}x")
            runs = []
            for n_max in (0, DRAFTED):
                speculator = Speculator(trunk, heads, Options(n_max=n_max, strict=True))
                if not TOY:
                    speculator.generate([prompt[:READ]], 4)  # compiles
                runs.append(speculator.generate([prompt[:READ]], options.count)[0])
        plain, drafted = runs
        speeds = [f"{(len(run.tokens) - 1) / run.seconds_decode:.1f}" for run in runs]
        same = "yes" if plain.tokens == drafted.tokens else "NO"
        table.add_row(type_name, *cells, *speeds, f"{drafted.n_accepted}/{drafted.n_drafted}", same)
        del weights, trunk, heads, speculator, state, x, batch
        if not TOY:
            torch.cuda.empty_cache()
    console.print(table)


def main() -> None:
    parser = asked.parser(__doc__)
    help_ = (
        f"types of weights, of products and of models, of {', '.join(KNOWN)} "
        f"[products: {'as models' if TOY else 'all'}; models: {','.join(DECODED)}]"
    )
    types = asked.several(asked.one_of(KNOWN))
    parser.add_argument("--types", type=types, metavar="TYPE,...", help=help_)
    layers, context, count = (2, 3, 3) if TOY else (5, 1024, 32)
    parser.add_argument("--layers", type=asked.whole(1), default=layers, metavar="N", help="of models [%(default)s]")
    help_ = "tokens that a model has read before its steps are measured [%(default)s]"
    parser.add_argument("--context", type=asked.whole(1), default=context, metavar="N", help=help_)
    # Speed is that of the tokens behind the first, which comes with the prompt.
    help_ = "tokens that a model generates, with drafts and without [%(default)s]"
    parser.add_argument("-n", type=asked.whole(2), default=count, dest="count", metavar="N", help=help_)
    help_ = "measurements of each call, of which the best counts [%(default)s]; with --toy always one"
    parser.add_argument("--rounds", type=asked.whole(1), default=20, metavar="N", help=help_)
    parser.add_argument("--unchecked", action="store_true", help="measure without running the kernels' tests first")
    help_ = "toy shapes, interpreted on the CPU; other defaults, and only types of small blocks"
    parser.add_argument("--toy", action="store_true", help=help_)
    options = parser.parse_args()
    if not TOY and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU; --toy runs all of it interpreted")
    start, clock, console = time.monotonic(), Clock(options.rounds), Console(width=140)
    right = options.unchecked or check()
    bandwidth = copy_bandwidth(clock)
    device = "the interpreter" if TOY else torch.cuda.get_device_name()
    console.print(f"{device}; torch {torch.__version__}; a copy moves {figure(bandwidth / 1e9)} GB/s")
    products(clock, bandwidth, options.types or MULTIPLIED, console)
    smaller(clock, bandwidth, console)
    decoding(clock, bandwidth, options, console)
    for name, reason in clock.misses.items():
        console.print(f"not captured in a graph: {name}: {reason}")
    console.print(f"{time.monotonic() - start:.0f} s")
    if not right:
        raise SystemExit("a kernel is wrong: see the tests above")


if __name__ == "__main__":
    main()
