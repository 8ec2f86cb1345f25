"""`nextn repair`: keys that contradict the tensors are set right."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from nextn.cli.options import SomePath, surgery_options
from nextn.cli.planned import carry_out, nearest_folder
from nextn.cli.report import Report, report_options
from nextn.gguf_schema.errors import VerdictError, counted

EXAMPLE = """
\b
Example:
  nextn repair fine-tune-Q8_0.gguf -o fine-tune-repaired-Q8_0.gguf
"""


@click.command(epilog=EXAMPLE)
@click.argument("file", type=SomePath())
@click.option("-o", "--output", type=SomePath(), required=True, metavar="FILE", help="The file to write.")
@surgery_options
@report_options
def command(file: Path, output: Path, **asked: Any) -> None:
    """Set right what the tensors of FILE prove wrong: block counts, arrays over blocks, prefixes, split keys.

    Each change is printed with its reason. Where two repairs are possible, or where no key repairs what is wrong,
    nothing is done, with exit status 1; for a healthy file no other is written.
    """
    from nextn.convert.pipeline import Conversion
    from nextn.convert.surgery.operations import plan_repair

    start = time.monotonic()
    nearest = nearest_folder(output.parent)
    planned = plan_repair(file, output, provenance=asked["provenance"])
    if not planned.changes and planned.beyond_repair:
        first, *more = planned.beyond_repair
        message = f"no key repairs it: {first.subject} {first.message}"
        message += f" (and {counted(len(more), 'more error')})" if more else ""
        raise VerdictError("beyond-repair", message, subject=str(file), remedy=f"nextn validate {file}")
    if not planned.changes:
        report = Report(asked["as_json"], asked["quiet"])
        for finding in planned.plan.findings:
            report.note(str(finding))
        nothing = Conversion((), planned.plan, time.monotonic() - start, 0).as_json() | {"changes": []}
        report.result(f"{file}: nothing to repair, nothing written", nothing)
        return
    carry_out(planned.plan, output.parent, nearest, asked, start, planned.changes)
