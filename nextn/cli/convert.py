"""`nextn convert`: a Hugging Face checkpoint becomes GGUF files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nextn.cli.report import Report, report_options, size
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.types import OUTPUT_TYPES

if TYPE_CHECKING:
    from nextn.convert.pipeline import Conversion
    from nextn.convert.plan import Plan

EXAMPLE = """
\b
Example:
  nextn convert Step-3.7-Flash -o out --emit combined,trunk,mtp --outtype bf16
"""


class RoleList(click.ParamType[tuple[Role, ...]]):
    """Roles separated by commas."""

    name = "roles"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Role, ...]:
        """The roles named in the value."""
        try:
            return tuple(Role(part.strip()) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} names something other than {', '.join(Role)}", param, ctx)


@click.command(epilog=EXAMPLE)
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder for the files.")
@click.option("--emit", type=RoleList(), default="combined", show_default=True, help=f"Which files: {', '.join(Role)}.")
@click.option(
    "--outtype", type=click.Choice(("auto", *OUTPUT_TYPES)), default="auto", show_default=True, help="Type of matrices."
)
@click.option("--require-mtp", is_flag=True, help="Fail when the checkpoint has no head.")
@click.option("--model-name", help="Replaces general.name.")
@click.option("--metadata", type=click.Path(path_type=Path), help="JSON file with general.* keys that replace others.")
@click.option("--pre", help="Pre-tokenizer type, when it is not recognised.")
@click.option("--tie", is_flag=True, help="Use the embeddings when there is no output matrix.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@report_options
def command(
    source: Path,
    output: Path,
    emit: tuple[Role, ...],
    outtype: str,
    require_mtp: bool,
    model_name: str | None,
    metadata: Path | None,
    pre: str | None,
    tie: bool,
    dry_run: bool,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Convert the checkpoint in SOURCE to GGUF files of the asked roles, with one read of its bytes."""
    from nextn.convert.pipeline import execute, plan
    from nextn.convert.planner import Options

    report = Report(as_json, quiet)
    start = time.monotonic()
    planned = plan(source, Options(emit, outtype, require_mtp, model_name, metadata, pre, tie))
    for finding in planned.findings:
        report.note(str(finding))
    if dry_run:
        report.result(_plan_text(planned, output), planned.as_json() | {"outputs": planned_outputs(planned, output)})
        return
    with report.progress("writing", planned.total_bytes) as progress:
        done = execute(planned, source, output, start, overwrite=overwrite, progress=progress)
    report.result(_text(done), done.as_json())


def planned_outputs(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """The files of a plan as `--dry-run --json` prints them, with the types and sources of their tensors."""
    recipes = {payload.info.name: payload.recipe for payload in plan.payload}
    return [
        {
            "path": str(folder / file.path),
            "role": file.role,
            "tensors": len(file.tensors),
            "bytes": file.total_bytes,
            "plan": [
                {
                    "name": tensor.name,
                    "ne": tensor.ne,
                    "type": tensor.type.name,
                    "offset": tensor.offset,
                    "bytes": tensor.nbytes,
                    "sources": [source.name for source in recipes[tensor.name].sources],
                    "transform": recipes[tensor.name].note,
                }
                for tensor in file.tensors
            ],
        }
        for file in plan.files
    ]


def _plan_text(plan: Plan, folder: Path) -> str:
    lines = []
    for file in plan.files:
        types: dict[str, int] = {}
        for tensor in file.tensors:
            types[tensor.type.name] = types.get(tensor.type.name, 0) + 1
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(types.items()))
        count = f"{len(file.tensors):>5} tensors ({kinds})"
        lines.append(f"{file.role:<10}  {count}  {size(file.total_bytes):>8}  {folder / file.path}")
    lines.append(f"to read {size(plan.source_bytes)}, to write {size(plan.total_bytes)}")
    return "\n".join([*lines, *_dropped_text(plan)])


def _dropped_text(plan: Plan) -> list[str]:
    """Dropped tensors by reason, a line each."""
    reasons: dict[str, list[str]] = {}
    for dropped in plan.dropped:
        reasons.setdefault(dropped.reason, []).append(dropped.name)
    return [
        f"left out: {len(names)} tensors, {reason} ({names[0]}{', …' if len(names) > 1 else ''})"
        for reason, names in reasons.items()
    ]


def _text(done: Conversion) -> str:
    lines = [
        f"{output.role:<10}  {output.tensors:>5} tensors  {size(output.bytes):>8}  {output.path}"
        for output in done.outputs
    ]
    lines += _dropped_text(done.plan)
    lines.append(f"read {size(done.bytes_read)} in {done.seconds:.1f} s")
    return "\n".join(lines)
