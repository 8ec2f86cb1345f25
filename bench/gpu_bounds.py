"""What a GPU's instructions allow products to reach, by what is compiled for it: for a machine without a GPU.

Counts the instructions in the loop of each product, compiled for compute capability 9.0, and says how many weights a
second an H200 could do if nothing but the busiest of its units were waited for: issue, integers, floats, loads, matrix
units. Memory, latency and what is outside the loop are not in it. Rates are those of the CUDA programming guide.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise, product
from pathlib import Path
from typing import Any

# Before triton is imported: what is interpreted cannot be compiled.
os.environ["TRITON_INTERPRET"] = "0"
sys.path.append(str(Path(__file__).parents[1] / "tests"))

import asked
from ahead_of_time import binary, told
from rich.console import Console
from rich.table import Table

from nextn.gguf_schema.types import TENSOR_TYPES
from nextn.kernels.triton import packed_products, plain_products
from nextn.kernels.triton.blocks import FORMATS, RUN
from nextn.kernels.triton.launch import WARPS, Build

TYPES = (*plain_products.PLAIN, *FORMATS)
# Rows that a program may take.
PLAIN_TILES = plain_products.ROW_TILES
PACKED_TILES = tuple(packed_products.ROWS.value * tiles for tiles in packed_products.TILES)
BUILDS = {build.name: build for build in (*plain_products.BUILDS, *packed_products.BUILDS)}
# Of an H200: processors, and clock in Hz.
PROCESSORS, CLOCK = 132, 1.98e9
# Instructions of a warp that a processor does in one clock, of all kinds and by kind.
ISSUE = 4.0
UNITS = {
    "integers": (2.0, ("LOP3", "SHF", "PRMT", "IADD3", "ISETP", "LEA", "VIADD", "VIMNMX", "SGXT", "SEL", "PLOP3")),
    "floats": (4.0, ("FFMA", "FMUL", "FADD", "HADD2", "IMAD")),
    "loads": (1.0, ("LDG", "LDS", "STS")),
    "matrices": (0.5, ("HMMA",)),
}


def loop(build: Build) -> Counter[str]:
    """The instructions of the longest loop, by their names without what is behind the first dot."""
    places: dict[str, int] = {}
    names: list[str] = []
    longest: list[str] = []
    for line in told(binary(build, 90), "nvdisasm", "-c").splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            places[label[1]] = len(names)
        elif found := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_]*)(.*)", line):
            names.append(found[1])
            target = re.search(r"(\.L_\w+)", found[2]) if found[1] == "BRA" else None
            if target and len(names) - places.get(target[1], len(names)) > len(longest):
                longest = names[places[target[1]] :]
    return Counter(longest)


def weights_of(build: Build) -> float:
    """Weights that a thread does in one turn of the loop."""
    c: Mapping[str, Any] = build.constants
    if "VALUES" in c:
        return float(c["VALUES"] * c["OUTPUTS"] * c["STEP"] / (32 * WARPS))
    return float(packed_products.OUTPUTS.value * RUN * c["RUNS"] * c["GROUPS"] * c["AT_ONCE"] / 32)


def span(type_name: str, rows: int) -> tuple[int, int]:
    """The fewest and the most rows of the program that is used for so many."""
    tiles = PLAIN_TILES if type_name in plain_products.PLAIN else PACKED_TILES
    spans = [(smaller + 1, largest) for smaller, largest in pairwise((0, *tiles))]
    return next((found for found in spans if rows <= found[1]), spans[-1])


def main() -> None:
    parser = asked.parser(__doc__)
    help_ = "rows that are multiplied together [%(default)s]; more than a program takes are done by several like it"
    parser.add_argument("--rows", type=asked.several(asked.whole(1)), default="1,4", metavar="N,...", help=help_)
    help_ = f"types of weights, of {', '.join(TYPES)} [all]"
    types = asked.several(asked.one_of(TYPES))
    parser.add_argument("--types", type=types, default=list(TYPES), metavar="TYPE,...", help=help_)
    options = parser.parse_args()
    table = Table(title="products in float32, compute capability 9.0: what instructions alone allow an H200")
    for column in ("type", "rows", "instructions a weight", *UNITS, "TB/s", "busiest"):
        table.add_column(column, justify="right")
    # Numbers of rows that one program is used for give one line.
    spans = dict.fromkeys((name, span(name, rows)) for name, rows in product(options.types, options.rows))
    for type_name, (fewest, most) in spans:
        build = BUILDS[f"product {type_name} *fp32 {most}"]
        counted, weights = loop(build), weights_of(build)
        by_unit = {unit: sum(counted[name] for name in names) for unit, (_, names) in UNITS.items()}
        clocks = {unit: by_unit[unit] / rate for unit, (rate, _) in UNITS.items()} | {"issue": counted.total() / ISSUE}
        busiest = max(clocks, key=lambda unit: clocks[unit])
        type_ = TENSOR_TYPES[type_name]
        speed = 32 * weights / clocks[busiest] * PROCESSORS * CLOCK * type_.row_bytes(256) / 256
        each = [f"{count / weights:.2f}" for count in (counted.total(), *by_unit.values())]
        table.add_row(
            type_name,
            str(most) if fewest == most else f"{fewest} to {most}",
            *each,
            f"{speed / 1e12:.1f}",
            busiest,
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
