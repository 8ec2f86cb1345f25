"""Speed and memory of the CPU kernels at real widths, beside real llama.cpp on the same files.

CHECKPOINT is in hub format, of any family, and large: of step35 for the figures in docs/performance.md. Its trunk is
converted to each type. Both sides read the same prompt and continue it greedily, in turn, and the best of the
rounds counts; llama.cpp runs in process with F32 caches and as many threads. "verify 4" is the time of one forward of
four rows over that of one. Memory is that of a process of its own that reads the prompt and continues it by 8 tokens.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import asked
import numba
from rich.console import Console
from rich.table import Table

from nextn.convert.pipeline import convert
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.types import OUTPUT_TYPES
from nextn.runtime.drafting import Options
from nextn.runtime.engines.engine import Asked
from nextn.runtime.engines.llama_cpp import LlamaCpp
from nextn.runtime.load import Pair, load_pair, use_threads
from nextn.runtime.model import Chunk
from nextn.runtime.speculative import Speculator

MEMORY = """
import re, sys
from pathlib import Path
from nextn.runtime.load import load_pair, use_threads
from nextn.runtime.speculative import Speculator
use_threads(int(sys.argv[2]))
pair = load_pair(Path(sys.argv[1]), drafting=False)
Speculator(pair.trunk).generate([[int(token) for token in sys.argv[3].split(",")]], 8)
# Not ru_maxrss, which a process inherits from the one that started it.
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
"""
VERIFIED = 4


class Speeds(NamedTuple):
    """Tokens a second."""

    prefill: float
    decode: float


def ours(pair: Pair, prompt: list[int], count: int) -> Speeds:
    run = Speculator(pair.trunk, None, Options(n_max=0)).generate([prompt], count)[0]
    return Speeds(len(prompt) / run.seconds_prefill, (len(run.tokens) - 1) / run.seconds_decode)


def theirs(engine: LlamaCpp, prompt: list[int], count: int) -> Speeds:
    outcome = engine.run([prompt], Asked(0, count))
    if not outcome.ok:
        raise SystemExit(f"llama.cpp: {outcome.message}")
    said = outcome.continuations[0]
    return Speeds(len(prompt) / said.seconds_prefill, (len(said.tokens) - 1) / said.seconds_decode)


def verified(pair: Pair, prompt: list[int], rounds: int) -> float:
    """Seconds of a forward of four rows with their logits, over those of one row."""
    state = pair.trunk.new_state()
    pair.trunk.forward([Chunk(state, prompt)])
    best = {1: float("inf"), VERIFIED: float("inf")}
    for _ in range(8 * rounds):
        for rows in best:
            start = time.perf_counter()
            pair.trunk.logits(pair.trunk.forward([Chunk(state, prompt[:rows])]))
            best[rows] = min(best[rows], time.perf_counter() - start)
            state.truncate(len(prompt))
    return best[VERIFIED] / best[1]


def peak(model: Path, prompt: list[int], threads: int) -> int:
    """Bytes of resident memory, mapped pages of the file included."""
    command = [sys.executable, "-c", MEMORY, str(model), str(threads), ",".join(map(str, prompt))]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measured(model: Path, options: argparse.Namespace) -> list[str]:
    pair = load_pair(model, drafting=False)
    vocabulary = pair.trunk.vocab_size
    prompt = [7 * place % vocabulary for place in range(options.prompt)]
    engine = LlamaCpp(model, None, options.prompt + options.count + 64, vocabulary, threads=options.threads)
    ours(pair, prompt[:8], 2)  # compiles
    best = [Speeds(0, 0), Speeds(0, 0)]
    for _ in range(options.rounds):
        sides = (ours(pair, prompt, options.count), theirs(engine, prompt, options.count))
        best = [Speeds(*map(max, zip(*both, strict=True))) for both in zip(best, sides, strict=True)]
    mine, peer = best
    size, memory = model.stat().st_size, peak(model, prompt, options.threads)
    return [
        f"{mine.decode:.1f} / {peer.decode:.1f} = {mine.decode / peer.decode:.2f}",
        f"{mine.prefill:.0f} / {peer.prefill:.0f} = {mine.prefill / peer.prefill:.2f}",
        f"{verified(pair, prompt, options.rounds):.2f}",
        f"{memory / 1e9:.2f} GB = {memory / size:.2f} x file",
    ]


def main() -> None:
    parser = asked.parser(__doc__)
    cores = numba.config.NUMBA_NUM_THREADS
    types = asked.several(asked.one_of(OUTPUT_TYPES))
    parser.add_argument("checkpoint", type=asked.folder, metavar="CHECKPOINT", help="in hub format")
    help_ = f"types of matrices, of {', '.join(OUTPUT_TYPES)} [%(default)s]"
    parser.add_argument("--types", type=types, default="bf16,q8_0,q4_0", metavar="TYPE,...", help=help_)
    help_ = "of both sides, at most the cores [%(default)s]"
    parser.add_argument("--threads", type=asked.whole(1, cores), default=min(2, cores), help=help_)
    # Speed is that of the tokens behind the first, which comes with the prompt.
    parser.add_argument(
        "-n", type=asked.whole(2), default=48, dest="count", help="tokens behind the prompt [%(default)s]"
    )
    parser.add_argument("--prompt", type=asked.whole(VERIFIED), default=256, help="tokens of the prompt [%(default)s]")
    parser.add_argument("--rounds", type=asked.whole(1), default=3, help="of which the best counts [%(default)s]")
    options = parser.parse_args()
    use_threads(options.threads)
    table = Table(title=f"nextn / llama.cpp, {options.threads} threads, behind {options.prompt} tokens")
    for name in ("type", "decode, tokens/s", "prefill, tokens/s", f"verify {VERIFIED}", "peak memory"):
        table.add_column(name)
    for type_ in options.types:
        with TemporaryDirectory() as folder:
            result = convert(options.checkpoint, Path(folder), (Role.TRUNK,), type_)
            table.add_row(type_, *measured(result.outputs[0].path, options))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
