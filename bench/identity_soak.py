"""Greedy streams with drafts against plain greedy decoding, by the ten thousand tokens: not one may differ.

The fixtures are converted to each type, and computed with each form of the operations. Beginnings of their prompts are
continued by `greedy`, one token at a time, and by the speculative loop: drafts of 1 to 8 tokens, by the real heads, and
by heads that are always right, wrong, or right by chance; prompts cut into parts of 1 to 64 rows; one sequence or
three at once; sometimes with a least probability. Ends when TOKENS tokens have been compared; the exit status is 1 when
one of them differs.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import asked
from families import FAMILIES
from stub_heads import StubHeads, follows

from nextn.convert.pipeline import convert
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.types import OUTPUT_TYPES
from nextn.kernels.operations import FORMS
from nextn.runtime.drafting import Options
from nextn.runtime.greedy import greedy
from nextn.runtime.load import Pair, load_pair, use_threads
from nextn.runtime.model import Heads
from nextn.runtime.speculative import Speculator

HEADS = ("real", "right", "wrong", "by chance")
SHOWN = 10


def heads_of(kind: str, pair: Pair, prompts: list[list[int]], said: list[list[int]], random: Random) -> Heads:
    """Heads of a kind, for prompts of which the continuation is known."""
    if kind == "real":
        assert pair.heads is not None
        return pair.heads
    right_steps = {"right": lambda: 8, "wrong": lambda: 0, "by chance": lambda: random.randint(0, 8)}[kind]
    return StubHeads(
        lambda asked: follows(said, prompts, right_steps())(asked),
        random.choice((1, 3)),
        pair.trunk.hidden_width,
        pair.trunk.vocab_size,
    )


def options_of(random: Random) -> Options:
    return Options(
        n_max=random.randint(1, 8),
        n_min=random.choice((0, 0, 0, 2)),
        p_min=random.choice((0.0, 0.0, 0.5)),
        reuse_last_head=True,
        strict=True,
        ubatch=random.choice((1, 3, 8, 64)),
    )


def soak(pair: Pair, known: list[list[int]], random: Random, compared: Counter[str], wrong: Counter[str]) -> None:
    """One to three prompts, continued plainly, then with each kind of heads."""
    prompts = [ids[: random.randint(1, len(ids))] for ids in random.sample(known, random.choice((1, 1, 3)))]
    count = random.choice((16, 32, 64))
    said = [greedy(pair.trunk, prompt, count) for prompt in prompts]
    for kind in HEADS:
        options = options_of(random)
        heads = heads_of(kind, pair, prompts, said, random)
        runs = Speculator(pair.trunk, heads, options).generate(prompts, count)
        for run, tokens, prompt in zip(runs, said, prompts, strict=True):
            compared[kind] += len(tokens)
            differing = sum(a != b for a, b in zip(run.tokens, tokens, strict=False)) + abs(
                len(run.tokens) - len(tokens)
            )
            wrong[kind] += differing
            if differing and wrong[kind] <= SHOWN:
                first = next(
                    (i for i, (a, b) in enumerate(zip(run.tokens, tokens, strict=False)) if a != b), len(tokens)
                )
                print(f"  {kind}: token {first} behind {len(prompt)} rows differs, with {options}", flush=True)


def main() -> int:
    parser = asked.parser(__doc__)
    parser.add_argument("tokens", type=asked.whole(1), metavar="TOKENS", help="to compare, at least")
    for name, known, default, help_ in (
        ("--families", FAMILIES, ",".join(FAMILIES), "whose fixtures are taken"),
        ("--outtypes", OUTPUT_TYPES, "f32,q8_0,q4_0", "types that they are converted to"),
        ("--kernels", ("reference", *FORMS), "cpu,reference", "forms of the operations"),
    ):
        read = asked.several(asked.one_of(known))
        parser.add_argument(name, type=read, default=default, metavar="NAME,...", help=f"{help_} [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of chance [%(default)s]")
    arguments = parser.parse_args()
    use_threads(1)
    configurations = list(product(arguments.families, arguments.outtypes, arguments.kernels))
    begin, total, mismatches = time.monotonic(), 0, 0
    for family, outtype, kernels in configurations:
        compared, wrong = Counter[str](), Counter[str]()
        with TemporaryDirectory() as folder:
            output = convert(FAMILIES[family].checkpoint, Path(folder), (Role.COMBINED,), outtype).outputs[0]
            pair = load_pair(output.path, kernels=kernels)
            known = [prompt["ids"] for prompt in FAMILIES[family].prompts]
            # Each configuration has its own seed, so that one can be run again without the others.
            random = Random(f"{arguments.seed} {family} {outtype} {kernels}")  # noqa: S311  # to repeat, not to keep secret
            while compared.total() < arguments.tokens / len(configurations):
                soak(pair, known, random, compared, wrong)
        by_kind = ", ".join(f"{kind} {compared[kind]}" for kind in HEADS)
        print(
            f"{family} {outtype} {kernels}: {compared.total()} tokens ({by_kind}), {wrong.total()} differ", flush=True
        )
        total, mismatches = total + compared.total(), mismatches + wrong.total()
    seconds = time.monotonic() - begin
    print(f"{total} tokens with seed {arguments.seed} in {seconds:.0f} s: {mismatches} differ")
    return int(mismatches > 0)


if __name__ == "__main__":
    sys.exit(main())
