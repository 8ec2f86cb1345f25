"""Converting from the hub, in bytes: what is fetched beside what is needed and what the whole repository has.

A checkpoint of that size is made in FOLDER and served by the hub of the tests (tests/fake_hub), on loopback and over
HTTP; bytes are those that it sent, of listings, headers and redirects too. `needed` are the tensors that the asked
files are made of, as `nextn convert --dry-run` of the local folder says. The exit status is 1 above the limit.
The peer is the download that other converters begin with: `hf download org/model`, which takes the whole repository.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import asked
import checkpoints
from measured import emptied

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fake_hub.server import FakeHub, running

NEXTN = [sys.executable, "-m", "nextn"]
EMITS = ("mtp", "mtp-shared", "combined")


def convert(source: str, *options: str, environment: dict[str, str]) -> dict[str, object]:
    command = [*NEXTN, "convert", source, "--json", "--quiet", *options]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    printed: dict[str, object] = json.loads(done.stdout)
    return printed


def measure(hub: FakeHub, family: str, folder: Path, emit: str, home: Path) -> float:
    """Convert from the hub; prints a row, and gives the bytes sent for each byte needed."""
    environment = {**os.environ, **hub.environment(home)}
    out = emptied(folder.parent / "out")
    planned = convert(str(folder), "-o", str(out), "--emit", emit, "--dry-run", environment=environment)
    needed = int(str(planned["bytes_to_read"]))
    hub.forget()
    begin = time.monotonic()
    convert(f"org/{family}", "-o", str(out), "--emit", emit, environment=environment)
    seconds = time.monotonic() - begin
    whole = sum(path.stat().st_size for path in folder.iterdir())
    sent = hub.bytes_sent()
    print(
        f"{family:<10} {emit:<10} {whole / 1e6:>10.2f} {needed / 1e6:>10.2f} {sent / 1e6:>10.2f} {sent / needed:>7.4f}"
        f" {len(hub.seen):>9} {seconds:>8.1f}"
    )
    return sent / needed


def main() -> int:
    parser = asked.parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where a folder hub is made, and removed")
    parser.add_argument("--gigabytes", type=asked.amount, default=1.0, help="of each checkpoint [%(default)s]")
    help_ = "bytes fetched for each byte needed, at most [%(default)s]"
    parser.add_argument("--limit", type=asked.amount, default=1.02, help=help_)
    arguments = parser.parse_args()
    folder = emptied(arguments.folder / "hub")
    print("family     emit       repository     needed    fetched   ratio  requests  seconds     (MB)")
    worst = 0.0
    with running() as hub:
        for family in checkpoints.TINY:
            checkpoints.write(family, folder / family, arguments.gigabytes)
            hub.store.create(f"org/{family}").put_folder(folder / family)
            for emit in EMITS:
                home = emptied(folder / "home")
                worst = max(worst, measure(hub, family, folder / family, emit, home))
            shutil.rmtree(folder / family)
    shutil.rmtree(folder)
    print(f"at most {worst:.4f} bytes for each byte needed, want {arguments.limit}")
    return int(worst > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
