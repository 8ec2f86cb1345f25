"""What commands print: results on stdout (text or one JSON object), everything else on stderr."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from nextn.gguf_schema.errors import NextnError

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED = 130


def report_options(function: F) -> F:
    """The options that every command has: --json, --quiet, --debug."""
    for option in (
        click.option("--debug", is_flag=True, help="Show a traceback when something fails."),
        click.option("--quiet", is_flag=True, help="Print only results and errors."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout."),
    ):
        function = option(function)
    return function


class Report:
    """Where a command prints to."""

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self.as_json = as_json
        self.quiet = quiet

    def note(self, text: str) -> None:
        """A line about the work, on stderr."""
        if not self.quiet:
            click.echo(text, err=True)

    def result(self, text: str, data: dict[str, Any]) -> None:
        """The result: as text, or with --json as one object."""
        click.echo(json.dumps(data, ensure_ascii=False, indent=1) if self.as_json else text)

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """A way to report bytes done: a bar on a terminal, a line for every tenth elsewhere."""
        if self.quiet:
            yield lambda _: None
        elif sys.stderr.isatty():
            with _bar(what, total) as advance:
                yield advance
        else:
            yield _lines(what, total)


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.advance(task, done)


def _lines(what: str, total: int) -> Callable[[int], None]:
    done, shown = 0, 0

    def advance(count: int) -> None:
        nonlocal done, shown
        done += count
        tenths = done * 10 // max(total, 1)
        if tenths > shown:
            shown = tenths
            click.echo(f"{what}: {tenths * 10} %", err=True)

    return advance


def size(count: int) -> str:
    """A number of bytes for people: `3.71 GB`."""
    number = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}" if unit != "B" else f"{count} B"
        number /= 1000
    return f"{number:.3g} TB"


def exit_status_of(error: BaseException, arguments: list[str]) -> int:
    """Print an error and give its exit status; with --json the error is also one object on stdout."""
    if "--debug" in arguments:
        traceback.print_exception(error)
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, (KeyboardInterrupt, click.exceptions.Abort)):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    shown = _as_nextn_error(error)
    where = f"{shown.subject}: " if shown.subject else ""
    click.echo(f"error: {where}{shown.message}", err=True)
    if shown.remedy:
        click.echo(f"  {shown.remedy}", err=True)
    if "--json" in arguments:
        fields = {"code": shown.code, "message": shown.message, "subject": shown.subject, "remedy": shown.remedy}
        click.echo(json.dumps({"error": fields}, ensure_ascii=False))
    return shown.exit_status


def _as_nextn_error(error: BaseException) -> NextnError:
    if isinstance(error, NextnError):
        return error
    if isinstance(error, click.ClickException):
        usage = NextnError("usage", error.format_message(), remedy="--help shows the options")
        usage.exit_status = error.exit_code
        return usage
    if isinstance(error, BrokenPipeError):
        return NextnError("broken-pipe", "the reader of the output went away")
    return NextnError("internal", f"{type(error).__name__}: {error}", remedy="run again with --debug and report it")
