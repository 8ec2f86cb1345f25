"""Converting, measured: all four files by nextn, one and three files by the upstream converter, and a plain copy.

Every side runs in the same session, in turn, and the least time of each counts; OUT should be on the disk to measure.
Make a checkpoint with bench/checkpoints.py. Without --peer only nextn and the copy are measured.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import asked
from measured import Measured, emptied, run

from nextn.gguf_schema.types import OUTPUT_TYPES


def measure(arguments: argparse.Namespace) -> dict[str, Measured]:
    """One round: every side once."""
    source, out, outtype = str(arguments.checkpoint), arguments.out, arguments.outtype
    result = {}
    ours = emptied(out / "nextn")
    emit = "combined,trunk,mtp,mtp-shared"
    command = [sys.executable, "-m", "nextn", "convert", source, "-o", str(ours), "--emit", emit, "--outtype", outtype]
    result["nextn, four files"] = run(command)
    files = [str(path) for path in ours.rglob("*.gguf")]
    copies = emptied(out / "copy")
    result["cp + sync of the same bytes"] = run(["sh", "-c", 'cp "$@" && sync', "sh", *files, str(copies)])
    shutil.rmtree(copies)
    shutil.rmtree(ours)
    if arguments.peer:
        theirs = emptied(out / "upstream")
        peer = [arguments.peer, str(Path(__file__).with_name("upstream.py")), source, "--outtype", outtype, "--outfile"]
        times = []
        for name, flags in (("combined", []), ("trunk", ["--no-mtp"]), ("mtp", ["--mtp"])):
            command = [*peer, str(theirs / f"{name}.gguf"), *flags]
            times.append(run(command, UPSTREAM=arguments.upstream, UPSTREAM_PRE=arguments.pre))
            print("  ", " ".join(command), file=sys.stderr)
        peak = max(measured.peak_bytes for measured in times)
        result["upstream, one file"] = times[0]
        result["upstream, three files"] = Measured(sum(measured.seconds for measured in times), peak)
        shutil.rmtree(theirs)
    return result


def main() -> None:
    parser = asked.parser(__doc__)
    parser.add_argument("checkpoint", type=asked.folder, metavar="CHECKPOINT", help="in hub format")
    parser.add_argument("out", type=Path, metavar="OUT", help="a folder on the disk to measure")
    parser.add_argument(
        "--outtype", choices=("auto", *OUTPUT_TYPES), default="bf16", help="type of matrices [%(default)s]"
    )
    help_ = "an interpreter with what upstream's converter needs: measure that, too"
    parser.add_argument("--peer", type=asked.program, metavar="PYTHON", help=help_)
    parser.add_argument("--upstream", metavar="TREE", help="a source tree of llama.cpp, for --peer")
    help_ = "the pre-tokenizer that upstream is told [%(default)s]"
    parser.add_argument("--pre", default="deepseek-v3", metavar="NAME", help=help_)
    parser.add_argument("--rounds", type=asked.whole(1), default=3, help="of which the least counts [%(default)s]")
    arguments = parser.parse_args()
    if arguments.peer and not arguments.upstream:
        parser.error("--peer wants --upstream, too")
    rounds = [measure(arguments) for _ in range(arguments.rounds)]
    best = {side: min((r[side] for r in rounds), key=lambda m: m.seconds) for side in rounds[0]}
    ours = best["nextn, four files"]
    print(f"{arguments.checkpoint}, {arguments.outtype}, least of {arguments.rounds}")
    for side, measured in best.items():
        ratio = measured.seconds / ours.seconds
        print(f"  {side:<28} {measured.seconds:7.2f} s  {measured.peak_bytes / 1e6:7.0f} MB RSS  {ratio:5.2f} x nextn")


if __name__ == "__main__":
    main()
