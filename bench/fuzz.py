"""Damaged headers by the hundred thousand: no crash, no hang, no memory blow-up.

Headers of the three families' small files are changed by chance (tests/mutations.py) and examined like `nextn validate`
does, one in eight as a set of two files, one in four with forecast and estimate. An input that ends in anything but a
verdict or an error for the user is saved, and so is one that takes more than a second; the exit status is then 1.
"""

from __future__ import annotations

import resource
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random

import asked

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from mutations import HeaderFile, headers, judged, mutated

SLOW = 1.0  # seconds of processor time
BLOW_UP = 64 << 20  # bytes above what the first inputs took


def peak() -> int:
    """Bytes of resident memory at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def save(files: list[HeaderFile], name: str) -> None:
    for index, file in enumerate(files):
        path = Path(f"{name}-{index}.gguf")
        path.write_bytes(file.raw)
        print(f"saved {path}, of {file.size} bytes", flush=True)


def main() -> int:
    parser = asked.parser(__doc__)
    parser.add_argument("n", type=asked.whole(1), metavar="N", help="inputs")
    parser.add_argument("seed", type=int, nargs="?", default=0, metavar="SEED", help="of chance [%(default)s]")
    options = parser.parse_args()
    n, seed = options.n, options.seed
    whole = headers()
    outcomes: Counter[str] = Counter()
    bad, slowest, slowest_index = 0, 0.0, -1
    warm_up = min(n // 10, 2000)
    before = peak()
    begin = time.perf_counter()
    for index in range(n):
        # Each input has its own seed, so that one can be made again without those before it.
        random = Random(f"{seed} {index}")  # noqa: S311  # to repeat, not to keep secret
        files = [mutated(random, whole) for _ in range(2 if random.random() < 1 / 8 else 1)]
        start = time.process_time()
        try:
            outcomes[judged(files, foretell=random.random() < 1 / 4)] += 1
        except Exception:
            outcomes["CRASH"] += 1
            bad += 1
            if bad <= 10:
                traceback.print_exc()
                save(files, f"crash-{seed}-{index}")
        taken = time.process_time() - start
        if taken > slowest:
            slowest, slowest_index = taken, index
        if taken > SLOW:
            bad += 1
            save(files, f"slow-{seed}-{index}")
        if index == warm_up:
            before = peak()
    seconds = time.perf_counter() - begin
    grown = peak() - before
    for outcome, count in outcomes.most_common():
        print(f"{count:9} {outcome}")
    print(f"{n} inputs with seed {seed} in {seconds:.0f} s: {n / seconds:.0f} a second")
    print(f"slowest {slowest * 1000:.0f} ms (input {slowest_index})")
    print(f"peak {peak() >> 20} MiB of memory, {grown >> 20} above the start")
    return int(bad > 0 or grown > BLOW_UP)


if __name__ == "__main__":
    sys.exit(main())
