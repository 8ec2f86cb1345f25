"""`nextn demo`: the main job on the bundled tiny checkpoint, in a few seconds and without a download."""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nextn.cli.report import Report, report_options
from nextn.gguf_schema.errors import size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from nextn.demo.run import Demonstration

EXAMPLE = """
\b
Example:
  nextn demo -o out
"""
PROMPT_END = "»"


@click.command(epilog=EXAMPLE)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Keep the files in this folder.")
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@report_options
def command(output: Path | None, overwrite: bool, as_json: bool, quiet: bool, debug: bool) -> None:
    """Convert a tiny bundled model, draft with it in llama.cpp, and show that drafting leaves the output as it is."""
    from nextn.demo.run import demonstrate

    report = Report(as_json, quiet)
    with nullcontext(str(output)) if output else tempfile.TemporaryDirectory(prefix="nextn-demo-") as folder:
        shown = demonstrate(Path(folder), overwrite=overwrite, note=report.note)
    if as_json:
        report.result("", shown.as_json() | {"kept": output is not None})
    else:
        _render(shown, kept=output is not None)
    if not shown.ok:
        sys.exit(1)


def _render(shown: Demonstration, *, kept: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print("\n[bold]1. One checkpoint becomes four GGUF files[/]")
    console.print(
        f"A tiny trained model in the format of Step-3.7-Flash, converted in {shown.conversion.seconds:.1f} s."
    )
    console.print(_files(shown))
    console.print("combined is the whole model; trunk has no head; mtp is the head, to draft for a trunk;")
    console.print("mtp-shared is the head without the embeddings and the output matrix.")
    console.print(f"They are in {shown.folder}." if kept else "They were temporary; -o DIR keeps them.", markup=False)

    console.print("\n[bold]2. The model continues prompts, and the head drafts for it[/]")
    build = shown.llama_cpp_version.rsplit(".")[-1]
    longest = max(run.n_max for run in shown.runs)
    console.print(f"Real llama.cpp b{build} and the reference runtime, greedy; up to {longest} tokens in a draft;")
    console.print(f"{PROMPT_END} ends the prompt.")
    _print_texts(console, shown)
    console.print(_runs(shown))
    for run in shown.runs:
        if not run.outcome.ok:
            console.print(f"{run.files}: {run.outcome.status}: {run.outcome.message}", markup=False, style="red")

    console.print("\n[bold]3. What llama.cpp does not load[/]")
    console.print(
        "trunk with mtp-shared as draft:", shown.refusal.message.partition("; ")[0] or "it loads", markup=False
    )
    console.print(
        "It wants token_embd.weight in every file, and the shared sidecar leaves that to the trunk: it is for"
    )
    console.print(
        "runtimes that take the embeddings from there, as the reference runtime does. With llama.cpp, use the mtp file."
    )
    console.print()
    for name, holds in shown.checks.items():
        console.print(f"[green]ok[/]      {name}" if holds else f"[bold red]FAILED[/]  {name}")


def _files(shown: Demonstration) -> Table:
    table = _table("role", "tensors", "size", "file", right=("tensors", "size"))
    for output in shown.conversion.outputs:
        path = output.path.relative_to(shown.folder)
        table.add_row(output.role, str(output.tensors), size(output.bytes), str(path))
    return table


def _print_texts(console: Console, shown: Demonstration) -> None:
    """Each prompt with the continuation of the first run, which the others should repeat."""
    from rich.text import Text

    for prompt, text in zip(shown.prompts, shown.runs[0].texts, strict=False):
        parts = ((prompt.text, "bold"), (PROMPT_END, "dim"), (text, "cyan"))
        indented = ((part.replace("\n", "\n    "), style) for part, style in parts)
        console.print(Text.assemble("\n    ", *indented))
    console.print()


def _runs(shown: Demonstration) -> Table:
    numbers = ("tokens", "drafted", "accepted")
    table = _table("engine", "files", "drafting", *numbers, "same tokens", right=numbers)
    for run in shown.runs:
        tokens = sum(len(each.tokens) for each in run.outcome.continuations)
        rate = f" ({run.accepted / run.drafted:.0%})" if run.drafted else ""
        counts = (str(run.drafted), f"{run.accepted}{rate}") if run.n_max else ("", "")
        same = "reference" if run is shown.runs[0] else "yes" if run.identical else "[bold red]NO[/]"
        table.add_row(run.engine, run.files, "yes" if run.n_max else "no", str(tokens), *counts, same)
    return table


def _table(*columns: str, right: tuple[str, ...]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table
