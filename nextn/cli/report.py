"""What commands print: results on stdout (text or one JSON object), everything else on stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

import click

from nextn.gguf_schema.errors import InputError, NextnError, UsageError

F = TypeVar("F", bound=Callable[..., Any])
# What a shell reports for programs ended by SIGINT and SIGPIPE.
INTERRUPTED = 130
READER_GONE = 141
STDERR = 2  # the last of the standard streams' numbers
# Progress lines are at least this far apart, so that quick work prints none.
SECONDS_BETWEEN_LINES = 1.0


class ReaderGone(Exception):  # noqa: N818 - an end that the user chose, as with `| head`, and no error
    """Nobody reads stdout or stderr any more."""


def echo(text: str, *, err: bool = False) -> None:
    """Print a line; ReaderGone when the other end is closed, InputError when nothing can be written there."""
    try:
        click.echo(text, err=err)
    except OSError as error:
        # What is still buffered must go somewhere, or the interpreter complains about it when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from error
        message = f"cannot be written: {error.strerror}"
        raise InputError("output", message, subject="stderr" if err else "stdout") from error


def print_anything() -> None:
    """Let stdout and stderr escape characters that their encoding lacks, instead of failing when the work is done.

    Streams that were closed lead nowhere: else the next file that is opened would get their numbers.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


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
        # What is told below the commands, such as long waits for the hub, goes to stderr as notes do.
        logging.getLogger("nextn").setLevel(logging.ERROR if quiet else logging.WARNING)

    def note(self, text: str) -> None:
        """A line about the work, on stderr."""
        if not self.quiet:
            echo(text, err=True)

    def result(self, text: str, data: dict[str, Any]) -> None:
        """The result: as text, or with --json as one object."""
        # Escaped, so that it is valid whatever the encoding of stdout, and for file names that are not UTF-8.
        echo(json.dumps(data, indent=1) if self.as_json else text)

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """A way to report bytes done: a bar on a terminal, elsewhere a line for every tenth of long work."""
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
    done, shown, last = 0, 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, shown, last
        done += count
        tenths = done * 10 // max(total, 1)
        if tenths > shown and time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            shown, last = tenths, time.monotonic()
            echo(f"{what}: {tenths * 10} %", err=True)

    return advance


def exit_status_of(error: BaseException, arguments: list[str]) -> int:
    """Print an error and give its exit status; with --json the error is also one object on stdout."""
    if isinstance(error, ReaderGone):
        return READER_GONE
    # Where errors cannot be printed, the status says it alone.
    with suppress(ReaderGone, InputError):
        if "--debug" in arguments:
            echo("".join(traceback.format_exception(error)).rstrip(), err=True)
        if isinstance(error, (KeyboardInterrupt, click.exceptions.Abort)):
            echo("; ".join(("interrupted", *_notes(error))), err=True)
        elif isinstance(error, click.exceptions.NoArgsIsHelpError):
            echo(error.format_message(), err=True)
        else:
            _print_error(_as_nextn_error(error), _notes(error), "--json" in arguments)
    if isinstance(error, (KeyboardInterrupt, click.exceptions.Abort)):
        return INTERRUPTED
    return _as_nextn_error(error).exit_status


def _notes(error: BaseException | None) -> list[str]:
    """What was noted of an error on its way; click raises its own in place of an interrupt."""
    return [*getattr(error, "__notes__", []), *_notes(error.__cause__)] if error else []


def _print_error(error: NextnError, notes: list[str], as_json: bool) -> None:
    where = f"{error.subject}: " if error.subject else ""
    echo(f"error: {where}{error.message}", err=True)
    remedy = "; ".join(filter(None, (error.remedy, *notes))) or None
    if remedy:
        echo(f"  {remedy}", err=True)
    if as_json:
        fields = {"code": error.code, "message": error.message, "subject": error.subject, "remedy": remedy}
        echo(json.dumps({"error": fields}))


def _as_nextn_error(error: BaseException) -> NextnError:
    if isinstance(error, NextnError):
        return error
    if isinstance(error, click.ClickException):
        message = error.format_message()
        return UsageError("usage", message[:1].lower() + message[1:].rstrip("."), remedy=_help_of(error))
    if isinstance(error, OSError) and error.strerror:
        return InputError("system", error.strerror, subject=str(error.filename) if error.filename else None)
    if isinstance(error, MemoryError):
        return InputError("no-memory", "there is not enough memory")
    return NextnError("internal", f"{type(error).__name__}: {error}", remedy="run again with --debug and report it")


def _help_of(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{context.command_path if context else 'nextn'} --help shows what is possible"
