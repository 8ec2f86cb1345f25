"""`nextn join`: a trunk and a head become one file, or a shared sidecar a draft model of its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from nextn.cli.options import SomePath, split_of, splitting_options, surgery_options
from nextn.cli.planned import carry_out, nearest_folder
from nextn.cli.report import report_options
from nextn.gguf_schema.architecture import Role

EXAMPLE = """
\b
Examples:
  nextn join Fine-Tune-Q8_0.gguf mtp-Step-3.7-Flash-Q8_0.gguf -o Fine-Tune-with-head-Q8_0.gguf
  nextn join Step-3.7-Flash-Q8_0.gguf mtp-Step-3.7-Flash-shared-Q8_0.gguf --emit mtp -o mtp-Step-3.7-Flash-Q8_0.gguf
"""


@click.command(epilog=EXAMPLE)
@click.argument("trunk", type=SomePath())
@click.argument("head", type=SomePath())
@click.option("-o", "--output", type=SomePath(), required=True, metavar="FILE", help="The file to write.")
@click.option(
    "--emit",
    type=click.Choice((str(Role.COMBINED), str(Role.MTP))),
    default=str(Role.COMBINED),
    show_default=True,
    help="combined: trunk and head in one file; mtp: a shared sidecar with TRUNK's embeddings and output matrix.",
)
@click.option("--replace-head", is_flag=True, help="TRUNK has a head: put HEAD in its place.")
@splitting_options
@surgery_options
@report_options
def command(trunk: Path, head: Path, output: Path, **asked: Any) -> None:
    """Join TRUNK and HEAD, files or any shard of a set. The pair is judged first; all reasons against it are printed.

    Keys and the tensors outside blocks are TRUNK's. HEAD may be of other types, and may be a combined file.
    """
    from nextn.convert.surgery.operations import plan_join

    start = time.monotonic()
    nearest = nearest_folder(output.parent)
    planned = plan_join(
        trunk,
        head,
        output,
        Role(asked["emit"]),
        split_of(asked),
        replace_head=asked["replace_head"],
        provenance=asked["provenance"],
    )
    carry_out(planned.plan, output.parent, nearest, asked, start, planned.changes)
