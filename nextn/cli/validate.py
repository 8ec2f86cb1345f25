"""`nextn validate`: is a file, or a pair of files, what it should be, and what will runtimes do with it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nextn.cli.report import Report, report_options
from nextn.gguf_schema.architecture import Role

# Who may not read a file is told so by who opens it: that is no wrong usage.
FILE = click.Path(path_type=Path, readable=False)
EXAMPLE = """
\b
Examples:
  nextn validate Step-3.7-Flash-Q8_0.gguf --strict
  nextn validate Step-3.7-Flash-trunk-Q8_0.gguf --draft mtp-Step-3.7-Flash-Q8_0.gguf --for llama.cpp@b11549
"""


@click.command(epilog=EXAMPLE)
@click.argument("file", type=FILE)
@click.option("--draft", type=FILE, metavar="FILE", help="The head that is to draft for FILE.")
@click.option("--role", type=click.Choice([str(role) for role in Role]), help="The role that FILE must have.")
@click.option("--for", "runtime", metavar="BUILD", help="Runtime that must load it, for example llama.cpp@b11549.")
@click.option("--deep", is_flag=True, help="Read all data too: NaN, zeros, constant rows, equal tensors.")
@click.option("--strict", is_flag=True, help="Let warnings make the verdict negative.")
@report_options
def command(
    file: Path,
    draft: Path | None,
    role: str | None,
    runtime: str | None,
    deep: bool,
    strict: bool,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Judge FILE, a GGUF file or any shard of a set: its container, keys, tensors and role; with --draft, the pair.

    Only headers are read, unless --deep is given. Exit status 1 when something is wrong.
    """
    from nextn.cli.verdict import verdict_text
    from nextn.validators.examine import examine

    found = examine(file, draft, role=Role(role) if role else None, runtime=runtime, deep=deep, strict=strict)
    text = "" if as_json else verdict_text(found, memory=False)
    Report(as_json, quiet).result(text, found.as_json())
    if not found.ok:
        sys.exit(1)
