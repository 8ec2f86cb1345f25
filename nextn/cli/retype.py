"""`nextn retype`: tensors in other types."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from nextn.cli.options import SomePath, split_of, splitting_options, surgery_options
from nextn.cli.planned import carry_out, nearest_folder
from nextn.cli.report import report_options
from nextn.gguf_schema.errors import UsageError
from nextn.gguf_schema.types import OUTPUT_TYPES, TENSOR_TYPES

EXAMPLE = """
\b
Example:
  nextn retype mtp-Step-3.7-Flash-BF16.gguf -o mtp-small.gguf --tensor-type '^(token_embd|output)\\.=q4_0'
"""


@click.command(epilog=EXAMPLE)
@click.argument("file", type=SomePath())
@click.option("-o", "--output", type=SomePath(), required=True, metavar="FILE", help="The file to write.")
@click.option(
    "--outtype",
    type=click.Choice(OUTPUT_TYPES, case_sensitive=False),
    help="Type of all matrices; floors are those of convert.",
)
@click.option(
    "--tensor-type",
    multiple=True,
    metavar="REGEX=TYPE",
    help="Type of the tensors whose name the pattern is found in; the first match counts. May be repeated.",
)
@splitting_options
@surgery_options
@report_options
def command(file: Path, output: Path, **asked: Any) -> None:
    """Store tensors of FILE, or of its set of shards, in other types. All others are copied."""
    from nextn.convert.surgery.operations import plan_retype
    from nextn.convert.tensor_types import parse_rule

    start = time.monotonic()
    if not asked["outtype"] and not asked["tensor_type"]:
        raise UsageError("no-type", "give --outtype, --tensor-type or both", subject="retype")
    nearest = nearest_folder(output.parent)
    outtype = TENSOR_TYPES[asked["outtype"].upper()] if asked["outtype"] else None
    rules = tuple(parse_rule(rule) for rule in asked["tensor_type"])
    planned = plan_retype(file, output, outtype, rules, split_of(asked), provenance=asked["provenance"])
    carry_out(planned.plan, output.parent, nearest, asked, start, planned.changes)
