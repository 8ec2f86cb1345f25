"""`nextn convert`: a Hugging Face checkpoint becomes GGUF files."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nextn.cli.report import Report, report_options, size
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import UsageError
from nextn.gguf_schema.types import OUTPUT_TYPES

if TYPE_CHECKING:
    from nextn.convert.pipeline import Conversion
    from nextn.convert.plan import Plan, PlannedFile
    from nextn.convert.planner import Options

EXAMPLE = """
\b
Example:
  nextn convert Step-3.7-Flash -o out --emit combined,trunk,mtp --outtype bf16
"""


def roles(_: click.Context, __: click.Parameter, value: str | None) -> tuple[Role, ...]:
    """The roles named in a list with commas; none when the option is not given."""
    if value is None:
        return ()
    try:
        return tuple(Role(part.strip()) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} names something other than {', '.join(Role)}") from error


def not_empty(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """The text as it is; a blank one would give files without a name."""
    if value is not None and not value.strip():
        raise click.BadParameter("is empty")
    return value


class SomePath(click.Path):
    """A path; an empty one, as from an unset variable, would mean the working folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path of a text; fails when it is empty."""
        if value == "":
            self.fail("is empty", param, ctx)
        return super().convert(value, param, ctx)


@click.command(epilog=EXAMPLE)
@click.argument("source", type=SomePath())
@click.option("-o", "--output", type=SomePath(), help="Folder for the files; made when missing.")
@click.option(
    "--outfile",
    callback=not_empty,
    metavar="TEMPLATE",
    help="Template of the files' paths, in place of -o; may hold {name}, {role}, {outtype} and {OUTTYPE}.",
)
@click.option(
    "--emit", callback=roles, metavar="ROLE,...", help=f"Which files to write: {', '.join(Role)}.  [default: combined]"
)
@click.option("--mtp", is_flag=True, help="The same as --emit mtp.")
@click.option("--no-mtp", is_flag=True, help="The same as --emit trunk.")
@click.option(
    "--outtype",
    type=click.Choice(("auto", *OUTPUT_TYPES)),
    default="auto",
    show_default=True,
    help="Type of matrices; auto keeps F16 and makes all else BF16. Norms and other small tensors are always F32, and "
    "some matrices stay at q8_0 or above.",
)
@click.option(
    "--tensor-type",
    multiple=True,
    metavar="REGEX=TYPE",
    help="Type of the tensors whose GGUF name the pattern is found in; the first match counts. May be repeated.",
)
@click.option("--fp8-as-q8", is_flag=True, help="Store the matrices that are FP8 in the checkpoint as q8_0.")
@click.option(
    "--split-max-size",
    metavar="SIZE",
    default="0",
    help="Most bytes of tensor data in a shard, for example 48G; K, M and G are powers of 1000.",
)
@click.option("--split-max-tensors", type=click.IntRange(0), default=0, help="Most tensors in a shard.")
@click.option("--no-tensor-first-split", is_flag=True, help="Put the metadata alone into the first of the shards.")
@click.option("--require-mtp", is_flag=True, help="Fail when the checkpoint has no head.")
@click.option("--model-name", callback=not_empty, metavar="NAME", help="The general.name of the files.")
@click.option("--metadata", type=SomePath(), metavar="FILE", help="JSON object of general.* keys to set.")
@click.option("--pre", metavar="TYPE", help="Pre-tokenizer type, for a tokenizer.json that is not recognised.")
@click.option("--tie", is_flag=True, help="Take the embeddings as output matrix when the checkpoint has none.")
@click.option("--jobs", type=click.IntRange(1), help="Threads that read and encode.  [default: one per processor]")
@click.option(
    "--manifest",
    type=SomePath(),
    metavar="FILE",
    help="Write there what each tensor was made of, and the files' hashes.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be written, and write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@report_options
def command(source: Path, **asked: Any) -> None:
    """Convert the checkpoint in folder SOURCE to GGUF files.

    One file is written per role, all from one read of the checkpoint's bytes. Roles: combined (trunk and head), trunk,
    mtp (the head with embeddings and output matrix, a draft model of its own), mtp-shared (the head alone).
    A run that was interrupted continues when the same command is given again. With other options or changed sources it
    starts over, and says so.
    """
    from nextn.convert.pipeline import execute, plan
    from nextn.convert.preflight import check_names

    report = Report(asked["as_json"], asked["quiet"])
    start = time.monotonic()
    folder, outfile = _place(asked["output"], asked["outfile"])
    nearest = nearest_folder(folder if outfile is None else Path(outfile).parent)
    planned = plan(source, _options(asked, outfile))
    for finding in planned.findings:
        report.note(str(finding))
    if asked["dry_run"]:
        check_names(planned, folder, [asked["manifest"]] if asked["manifest"] else [])
        free = shutil.disk_usage(nearest).free
        report.result(_plan_text(planned, folder, free), plan_as_json(planned, folder, free, start))
        return
    with report.progress("writing", sum(file.data_bytes for file in planned.files)) as progress:
        done = execute(
            planned,
            folder,
            start,
            overwrite=asked["overwrite"],
            jobs=asked["jobs"],
            manifest_file=asked["manifest"],
            progress=progress,
            notice=report.note,
        )
    report.result(_text(done), done.as_json())


def _place(output: Path | None, outfile: str | None) -> tuple[Path, str | None]:
    """The folder for the files and the template of their names; a template that is a folder counts as the folder."""
    if (output is None) == (outfile is None):
        raise UsageError("no-output", "give either -o FOLDER or --outfile TEMPLATE", subject="-o")
    if outfile is not None and (outfile.endswith(os.sep) or Path(outfile).is_dir()):
        return Path(outfile), None
    return output or Path(), outfile


def _options(asked: dict[str, Any], outfile: str | None) -> Options:
    """What was asked for, in the words of the planner."""
    from nextn.convert.planner import Options
    from nextn.convert.splitting import Split, parse_size
    from nextn.convert.tensor_types import parse_rule

    emits = [*filter(None, (asked["emit"], asked["mtp"] and (Role.MTP,), asked["no_mtp"] and (Role.TRUNK,)))]
    if len(emits) > 1:
        raise UsageError("emit-twice", "say it with --emit alone", subject="--mtp, --no-mtp and --emit")
    split = Split(parse_size(asked["split_max_size"]), asked["split_max_tensors"], asked["no_tensor_first_split"])
    if split.metadata_first and not split:
        raise UsageError(
            "no-split", "goes with --split-max-size or --split-max-tensors", subject="--no-tensor-first-split"
        )
    return Options(
        roles=emits[0] if emits else (Role.COMBINED,),
        outtype=asked["outtype"],
        require_mtp=asked["require_mtp"],
        model_name=asked["model_name"],
        metadata_file=asked["metadata"],
        pre=asked["pre"],
        tie=asked["tie"],
        type_rules=tuple(parse_rule(rule) for rule in asked["tensor_type"]),
        fp8_as_q8=asked["fp8_as_q8"],
        split=split,
        outfile=outfile,
    )


def nearest_folder(folder: Path) -> Path:
    """The folder, or the closest one above it that exists; UsageError when a file is in the way."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise UsageError("output-not-folder", "is a file; -o takes a folder", subject=str(nearest))
    return nearest


def plan_as_json(plan: Plan, folder: Path, free: int, start: float) -> dict[str, Any]:
    """What `--dry-run --json` prints: the keys of a conversion, and each file's tensors with types and sources."""
    from nextn.convert.pipeline import peak_rss_bytes

    return {
        "dry_run": True,
        "outputs": [_planned_output(plan, file, folder / file.path) for file in plan.files],
        **plan.as_json(),
        "seconds": round(time.monotonic() - start, 3),
        "bytes_read": 0,
        "bytes_to_read": plan.source_bytes,
        "bytes_to_write": plan.total_bytes,
        "bytes_free": free,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def _planned_output(plan: Plan, file: PlannedFile, path: Path) -> dict[str, Any]:
    from nextn.convert.manifest import tensors

    return {
        "path": str(path),
        "role": file.role,
        "tensors": len(file.tensors),
        "bytes": file.total_bytes,
        "sha256": None,
        "exists": path.exists(),
        "plan": tensors(file, plan.recipes),
    }


def _plan_text(plan: Plan, folder: Path, free: int) -> str:
    lines = []
    for file in plan.files:
        types: dict[str, int] = {}
        for tensor in file.tensors:
            types[tensor.type.name] = types.get(tensor.type.name, 0) + 1
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(types.items()))
        count = f"{len(file.tensors):>5} tensors ({kinds})"
        path = folder / file.path
        there = "  (exists)" if path.exists() else ""
        lines.append(f"{file.role:<10}  {count}  {size(file.total_bytes):>8}  {path}{there}")
    lines += _dropped_text(plan)
    lines.append(f"to read {size(plan.source_bytes)}, to write {size(plan.total_bytes)}, free {size(free)}")
    return "\n".join(lines)


def _dropped_text(plan: Plan) -> list[str]:
    """Dropped tensors by reason, a line each."""
    reasons: dict[str, list[str]] = {}
    for dropped in plan.dropped:
        reasons.setdefault(dropped.reason, []).append(dropped.name)
    return [
        f"left out: {len(names)} {'tensor' if len(names) == 1 else 'tensors'}, {reason}"
        f" ({names[0]}{', …' if len(names) > 1 else ''})"
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
