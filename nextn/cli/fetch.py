"""`nextn fetch`: GGUF files of a repository on the hub, whole sets with their heads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nextn.cli.options import SomePath
from nextn.cli.report import Report, report_options
from nextn.gguf_schema.errors import size

if TYPE_CHECKING:
    from nextn.convert.hub.fetch import Fetched
    from nextn.convert.hub.locations import Location

EXAMPLE = """
\b
Examples:
  nextn fetch org/Step-3.7-Flash-GGUF:Q8_0 -o models
  nextn fetch org/Step-3.7-Flash-GGUF --emit mtp -o models
"""


def on_the_hub(_: click.Context, __: click.Parameter, value: str) -> Location:
    """The place on the hub that a text names, whatever there is locally."""
    from nextn.convert.hub.locations import SCHEME, location_of

    location = location_of(SCHEME + value.removeprefix(SCHEME))
    if location is None:
        raise click.BadParameter(f"{value!r} names no repository")
    return location


@click.command(epilog=EXAMPLE)
@click.argument("repository", callback=on_the_hub, metavar="REPO_ID")
@click.option(
    "--emit",
    type=click.Choice(("mtp", "trunk", "all")),
    default="all",
    show_default=True,
    help="Heads, the models that they are for, or both.",
)
@click.option("-o", "--output", type=SomePath(), required=True, help="Folder for the files; made when missing.")
@click.option("--overwrite", is_flag=True, help="Replace files that exist and are others than on the hub.")
@report_options
def command(
    repository: Location, emit: str, output: Path, overwrite: bool, as_json: bool, quiet: bool, debug: bool
) -> None:
    """Fetch the GGUF files of REPO_ID: org/name[@revision], with :TAG those of one quantization and what goes with it.

    All shards of a set are fetched, or none: a set that is not complete is refused before the first byte. Each file is
    compared with the hash that the hub states before it gets its name. A run that was interrupted goes on when the same
    command is given again.
    """
    from nextn.cli.planned import nearest_folder
    from nextn.convert.hub.fetch import Emit, fetch, wanted_files
    from nextn.convert.hub.repository import open_repository

    report = Report(as_json, quiet)
    nearest_folder(output)
    opened = open_repository(repository)
    paths = wanted_files(opened, Emit(emit))
    bytes_ = sum(opened.files[path].size for path in paths)
    report.note(f"{opened.name} at {opened.commit[:12]}: {len(paths)} of its files, {size(bytes_)}")
    with report.progress("fetching", bytes_) as progress:
        done = fetch(opened, paths, output, overwrite=overwrite, progress=progress)
    report.result(_text(done), done.as_json())


def _text(done: Fetched) -> str:
    rows = [f"{file.outcome:<8}{size(file.bytes):>9}  {file.path}" for file in done.files]
    return "\n".join([*rows, f"fetched {size(done.bytes_fetched)} in {done.seconds:.1f} s"])
