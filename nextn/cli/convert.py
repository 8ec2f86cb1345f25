"""`nextn convert`: a Hugging Face checkpoint becomes GGUF files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nextn.cli.options import Place, SomePath, roles, split_of, splitting_options, writing_options
from nextn.cli.planned import carry_out, nearest_folder
from nextn.cli.report import report_options
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import UsageError
from nextn.gguf_schema.types import OUTPUT_TYPES

if TYPE_CHECKING:
    from nextn.convert.hub.locations import Location
    from nextn.convert.planner import Options

EXAMPLE = """
\b
Examples:
  nextn convert Step-3.7-Flash -o out --emit combined,trunk,mtp --outtype bf16
  nextn convert stepfun-ai/Step-3.7-Flash@main -o out --emit mtp
"""


def not_empty(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """The text as it is; a blank one would give files without a name."""
    if value is not None and not value.strip():
        raise click.BadParameter("is empty")
    return value


@click.command(epilog=EXAMPLE)
@click.argument("source", type=Place())
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
    type=click.Choice(("auto", *OUTPUT_TYPES), case_sensitive=False),
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
@splitting_options
@click.option("--require-mtp", is_flag=True, help="Fail when the checkpoint has no head.")
@click.option("--model-name", callback=not_empty, metavar="NAME", help="The general.name of the files.")
@click.option("--metadata", type=SomePath(), metavar="FILE", help="JSON object of general.* keys to set.")
@click.option("--pre", metavar="TYPE", help="Pre-tokenizer type, for a tokenizer.json that is not recognised.")
@click.option("--tie", is_flag=True, help="Take the embeddings as output matrix when the checkpoint has none.")
@writing_options
@report_options
def command(source: Path | Location, **asked: Any) -> None:
    """Convert the checkpoint SOURCE, a folder or org/name[@revision] on the hub, to GGUF files.

    One file is written per role, all from one read of the checkpoint's bytes. Roles: combined (trunk and head), trunk,
    mtp (the head with embeddings and output matrix, a draft model of its own), mtp-shared (the head alone).
    Of a repository on the hub only the bytes are fetched that the asked files are made of, each once, and they are kept
    in the hub's cache.
    A run that was interrupted continues when the same command is given again. With other options or changed sources it
    starts over, and says so.
    """
    from nextn.convert.pipeline import plan

    start = time.monotonic()
    folder, outfile = _place(asked["output"], asked["outfile"])
    nearest = nearest_folder(folder if outfile is None else Path(outfile).parent)
    carry_out(plan(source, _options(asked, outfile)), folder, nearest, asked, start)


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
    from nextn.convert.tensor_types import parse_rule

    emits = [*filter(None, (asked["emit"], asked["mtp"] and (Role.MTP,), asked["no_mtp"] and (Role.TRUNK,)))]
    if len(emits) > 1:
        raise UsageError("emit-twice", "say it with --emit alone", subject="--mtp, --no-mtp and --emit")
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
        split=split_of(asked),
        outfile=outfile,
    )
