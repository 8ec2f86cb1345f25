"""`nextn validate`: is a file, or a pair of files, what it should be, and what will runtimes do with it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from nextn.cli.options import Place, opened
from nextn.cli.report import Report, report_options
from nextn.gguf_schema.architecture import Role

if TYPE_CHECKING:
    from pathlib import Path

    from nextn.convert.hub.locations import Location

EXAMPLE = """
\b
Examples:
  nextn validate Step-3.7-Flash-Q8_0.gguf --strict
  nextn validate hf://org/Step-3.7-Flash-GGUF/mtp-Step-3.7-Flash-Q8_0.gguf
  nextn validate Step-3.7-Flash-trunk-Q8_0.gguf --draft mtp-Step-3.7-Flash-Q8_0.gguf --for llama.cpp@b11549
"""


@click.command(epilog=EXAMPLE)
@click.argument("file", type=Place())
@click.option("--draft", type=Place(), metavar="FILE", help="The head that is to draft for FILE.")
@click.option("--role", type=click.Choice([str(role) for role in Role]), help="The role that FILE must have.")
@click.option("--for", "runtime", metavar="BUILD", help="Runtime that must load it, for example llama.cpp@b11549.")
@click.option("--deep", is_flag=True, help="Read all data too: NaN, zeros, constant rows, equal tensors.")
@click.option("--strict", is_flag=True, help="Let warnings make the verdict negative.")
@report_options
def command(
    file: Path | Location,
    draft: Path | Location | None,
    role: str | None,
    runtime: str | None,
    deep: bool,
    strict: bool,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Judge FILE, a GGUF file or any shard of a set: its container, keys, tensors and role; with --draft, the pair.

    FILE may be on the hub, hf://org/name/file.gguf; of org/name[@revision] every GGUF file is judged. Only headers are
    read, unless --deep is given. Exit status 1 when something is wrong.
    """
    from nextn.cli.verdict import verdict_text
    from nextn.convert.hub.locations import Location
    from nextn.validators.examine import examine

    wanted = Role(role) if role else None
    if isinstance(file, Location) and file.path is None:
        _repository(file, draft, wanted, deep, Report(as_json, quiet), runtime=runtime, strict=strict)
        return
    head = opened(draft) if draft else None
    found = examine(opened(file), head, role=wanted, runtime=runtime, deep=deep, strict=strict)
    text = "" if as_json else verdict_text(found, memory=False)
    Report(as_json, quiet).result(text, found.as_json())
    if not found.ok:
        sys.exit(1)


def _repository(
    place: Location,
    draft: object,
    role: Role | None,
    deep: bool,
    report: Report,
    *,
    runtime: str | None,
    strict: bool,
) -> None:
    """Judge every GGUF file of a repository, and with a tag those of that tag."""
    from nextn.cli.repository import print_reports
    from nextn.convert.hub.repository import open_repository
    from nextn.convert.hub.survey import examine_all
    from nextn.gguf_schema.errors import UsageError

    for option, given in (("--draft", draft), ("--role", role), ("--deep", deep)):
        if given:
            remedy = f"give the file: hf://{place.repo}/FILE.gguf"
            raise UsageError("one-file", "goes with one file, not with a repository", subject=option, remedy=remedy)
    repository = open_repository(place)
    print_reports(repository, examine_all(repository, runtime=runtime, strict=strict), report)
