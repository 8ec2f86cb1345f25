"""`nextn relayout`: the same model under the names and keys of another layout."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from nextn.cli.options import SomePath, surgery_options
from nextn.cli.planned import carry_out, nearest_folder
from nextn.cli.report import Report, report_options
from nextn.gguf_schema.layouts import NAMINGS

LAYOUTS = ", ".join(f"{naming.id} ({naming.letter})" if naming.letter else naming.id for naming in NAMINGS)
EXAMPLE = """
\b
Example:
  nextn relayout mtp-Qwen3.8-Flash-Next-Q8_0.gguf -o upstream/mtp-Qwen3.8-Flash-Next-Q8_0.gguf --to upstream
"""


@click.command(epilog=EXAMPLE)
@click.argument("file", type=SomePath())
@click.option("-o", "--output", type=SomePath(), required=True, metavar="FILE", help="The file to write.")
@click.option("--to", "layout", required=True, metavar="LAYOUT", help=f"The layout to write: upstream, {LAYOUTS}.")
@surgery_options
@report_options
def command(file: Path, output: Path, layout: str, **asked: Any) -> None:
    """Rename the tensors and keys of FILE, or of its set of shards, as LAYOUT has them.

    The layout of FILE is recognised, and printed. Data is copied; a matrix that LAYOUT has in two is divided, or the
    two joined. Shards in which nothing changes are linked where the file system allows.
    """
    from nextn.convert.surgery.operations import plan_relayout

    start = time.monotonic()
    nearest = nearest_folder(output.parent)
    planned = plan_relayout(file, output, layout, provenance=asked["provenance"])
    if not planned.changes:
        Report(asked["as_json"], asked["quiet"]).note(f"{file}: says the same in layout {layout}, and is copied")
    carry_out(planned.plan, output.parent, nearest, asked, start, planned.changes)
