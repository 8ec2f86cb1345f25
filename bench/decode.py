"""Tokens a second of the reference runtime on the fixtures, with and without drafts, beside llama.cpp and transformers.

Every side continues the same prompts by the same number of tokens, with one thread, in float32, in the same session;
the best of the rounds counts, and prompts are read outside the measured time. --peer is a Python with transformers 5.24
and torch. --profile also prints the fifteen operations in which a drafted run spends most of its own time.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import asked
from families import FAMILIES

from nextn.convert.pipeline import convert
from nextn.gguf_schema.architecture import Role
from nextn.runtime.drafting import Options
from nextn.runtime.engines import llama_cpp
from nextn.runtime.load import Pair, load_pair, use_threads
from nextn.runtime.speculative import Speculator

PEER = Path(__file__).with_name("transformers_peer.py")
# Forms of the operations that compute on a CPU.
KERNELS = ("cpu", "reference")
TOP = 15
Prompts = list[list[int]]
# Tokens behind each prompt, and how many of them came in a second.
Measured = tuple[list[list[int]], float]


def ours(pair: Pair, prompts: Prompts, count: int, n_max: int) -> Measured:
    """The reference runtime, one prompt at a time; the first token comes with the prompt."""
    speculator = Speculator(pair.trunk, pair.heads, Options(n_max=n_max, strict=True))
    runs = [speculator.generate([prompt], count)[0] for prompt in prompts]
    tokens = sum(len(run.tokens) - 1 for run in runs)
    return [run.tokens for run in runs], tokens / sum(run.seconds_decode for run in runs)


def theirs(model: Path, prompts: Prompts, count: int, n_max: int) -> Measured:
    """Real llama.cpp, as the server times it."""
    outcome = llama_cpp.run(model, prompts, n_max=n_max, n_predict=count)
    if not outcome.ok:
        raise SystemExit(f"llama.cpp: {outcome.message}")
    tokens = sum(len(each.tokens) - 1 for each in outcome.continuations)
    seconds = sum(each.seconds_decode for each in outcome.continuations)
    return [list(each.tokens) for each in outcome.continuations], tokens / seconds


def transformers(python: str, checkpoint: Path, prompts: Prompts, count: int) -> Measured:
    command = [python, str(PEER), str(checkpoint), str(count)]
    done = subprocess.run(command, input=json.dumps(prompts), check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    told = json.loads(done.stdout.splitlines()[-1])
    return told["tokens"], len(prompts) * (count - 1) / told["seconds"]


def agree(ours: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> bool:
    """Whether one is the beginning of the other: llama.cpp ends at end tokens."""
    return all(list(a[: len(b)]) == list(b[: len(a)]) for a, b in zip(ours, others, strict=True))


def profile(pair: Pair, prompt: list[int], count: int, n_max: int) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(Speculator(pair.trunk, pair.heads, Options(n_max=n_max)).generate, [prompt], count)
    figures = pstats.Stats(profiler)
    rows = sorted(figures.stats.items(), key=lambda row: -row[1][2])[:TOP]  # type: ignore[attr-defined]
    total = sum(row[2] for row in figures.stats.values())  # type: ignore[attr-defined]
    print(f"  {'own s':>7} {'part':>6} {'calls':>9}  operation")
    for (file, line, name), (_, calls, own, _, _) in rows:
        where = f"{Path(file).name}:{line} " if line else ""
        print(f"  {own:7.2f} {own / total:6.1%} {calls:9}  {where}{name}")


def measure(family: str, arguments: argparse.Namespace, folder: Path) -> bool:
    """Every side once a round; whether all say the same."""
    checkpoint = FAMILIES[family].checkpoint
    model = convert(checkpoint, folder, (Role.COMBINED,), "f32").outputs[0].path
    pairs = {kernels: load_pair(model, kernels=kernels) for kernels in arguments.kernels}
    count, n_max = arguments.count, arguments.n_max
    for pair in pairs.values():
        ours(pair, [[1]], 4, n_max)  # compiles
    # Of middle length, and not those that end soon.
    known = sorted(FAMILIES[family].read("llama_cpp.json")["prompts"], key=lambda told: -len(told["tokens"]))
    names = [told["name"] for told in known[: arguments.prompts]]
    prompts = [prompt["ids"] for prompt in FAMILIES[family].prompts if prompt["name"] in names]
    best: dict[str, Measured] = {}
    for _ in range(arguments.rounds):
        sides: dict[str, Measured] = {}
        for kernels, pair in pairs.items():
            sides[f"nextn {kernels}, plain"] = ours(pair, prompts, count, 0)
            sides[f"nextn {kernels}, n_max {n_max}"] = ours(pair, prompts, count, n_max)
        sides["llama.cpp, plain"] = theirs(model, prompts, count, 0)
        sides[f"llama.cpp, n_max {n_max}"] = theirs(model, prompts, count, n_max)
        if arguments.peer:
            sides["transformers, plain"] = transformers(arguments.peer, checkpoint, prompts, count)
        for name, measured in sides.items():
            if name not in best or measured[1] > best[name][1]:
                best[name] = measured
    said = next(iter(best.values()))[0]
    print(f"{family}: {len(prompts)} prompts of {sum(map(len, prompts))} rows, {count} tokens each")
    for name, (tokens, speed) in best.items():
        print(f"  {name:26} {speed:8.1f} tokens/s{'' if agree(said, tokens) else '   OTHER TOKENS'}", flush=True)
    if arguments.profile:
        for pair in pairs.values():
            profile(pair, prompts[0], count, n_max)
    return all(agree(said, tokens) for tokens, _ in best.values())


def main() -> int:
    parser = asked.parser(__doc__)
    for name, known, help_ in (
        ("--families", FAMILIES, "whose fixtures are continued"),
        ("--kernels", KERNELS, "forms of the operations"),
    ):
        read = asked.several(asked.one_of(known))
        parser.add_argument(name, type=read, default=",".join(known), metavar="NAME,...", help=f"{help_} [%(default)s]")
    parser.add_argument("--prompts", type=asked.whole(1), default=3, help="of each family, at most [%(default)s]")
    # Speed is that of the tokens behind the first, which comes with the prompt.
    parser.add_argument("-n", "--count", type=asked.whole(2), default=48, help="tokens behind a prompt [%(default)s]")
    parser.add_argument("--n-max", type=asked.whole(1), default=3, help="tokens of a draft, at most [%(default)s]")
    parser.add_argument("--rounds", type=asked.whole(1), default=2, help="of which the best counts [%(default)s]")
    parser.add_argument("--peer", type=asked.program, metavar="PYTHON", help="measure transformers in this one, too")
    parser.add_argument("--profile", action="store_true", help="tell where drafted runs spend their time, too")
    arguments = parser.parse_args()
    use_threads(1)
    fine = True
    for family in arguments.families:
        with TemporaryDirectory() as folder:
            fine &= measure(family, arguments, Path(folder))
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
