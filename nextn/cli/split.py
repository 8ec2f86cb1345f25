"""`nextn split`: a file with trunk and heads becomes a file for each role."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from nextn.cli.options import SomePath, roles, split_of, splitting_options, surgery_options
from nextn.cli.planned import carry_out, nearest_folder
from nextn.cli.report import report_options
from nextn.gguf_schema.architecture import Role

EXAMPLE = """
\b
Examples:
  nextn split Step-3.7-Flash-Q8_0.gguf -o out
  nextn split mtp-Step-3.7-Flash-Q8_0.gguf -o out --emit mtp --heads 1
"""


@click.command(epilog=EXAMPLE)
@click.argument("file", type=SomePath())
@click.option("-o", "--output", type=SomePath(), required=True, help="Folder for the files; made when missing.")
@click.option(
    "--emit", callback=roles, metavar="ROLE,...", help=f"Which files to write: {', '.join(Role)}.  [default: trunk,mtp]"
)
@click.option("--heads", type=click.IntRange(1), metavar="K", help="Keep the first K of chained heads.")
@splitting_options
@surgery_options
@report_options
def command(file: Path, output: Path, **asked: Any) -> None:
    """Cut FILE, or the set of shards it belongs to, into files for roles. Data is copied as it is.

    Without --split-max-size or --split-max-tensors a trunk keeps the shards of FILE; a head is one file.
    """
    from nextn.convert.surgery.operations import plan_split

    start = time.monotonic()
    nearest = nearest_folder(output)
    emit = asked["emit"] or (Role.TRUNK, Role.MTP)
    planned = plan_split(file, emit, asked["heads"], split_of(asked), provenance=asked["provenance"])
    carry_out(planned.plan, output, nearest, asked, start, planned.changes)
