"""`nextn identity`: prove that drafting does not change the text, and say why when it does."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nextn.cli.computing import MOST_CONTEXT, computing_options, lengths, runtime_needed_by
from nextn.cli.options import SomePath
from nextn.cli.report import Report, report_options
from nextn.cli.verdict import printable, table
from nextn.gguf_schema.errors import InputError, UsageError

if TYPE_CHECKING:
    from nextn.runtime.identity.certificate import Certificate, RunRecord
    from nextn.runtime.identity.checking import Wanted

EXAMPLE = """
\b
Examples:
  nextn identity -m Step-3.7-Flash-Q8_0.gguf -o certificate
  nextn identity -m trunk.gguf -d mtp.gguf --engine llama-cpp --n-max 1,2,3
  nextn identity -m trunk.gguf -d mtp.gguf --engine "llama-server=/opt/llama-server -ngl 99"
  nextn identity -m model.gguf --engine http://127.0.0.1:8080,http://127.0.0.1:8081 --n-max 3
  nextn identity --matrix matrix.toml -o results
"""
FAILED = 1
CERTIFICATE = "certificate.json"
WRITTEN = (CERTIFICATE, "report.html")


def finite(_: click.Context, __: click.Parameter, value: float) -> float:
    """A number that is one: neither "nan" nor "inf" bounds anything."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no bound")
    return value


@click.command(epilog=EXAMPLE)
@click.option("-m", "--model", type=SomePath(), metavar="FILE", help="The model: combined, or a trunk.")
@click.option("-d", "--draft", type=SomePath(), metavar="FILE", help="The head that drafts for it.")
@click.option("--n-max", callback=lengths, default="1,2,3,5", show_default=True, help="Draft lengths to try.")
@click.option(
    "--prompts",
    type=SomePath(),
    metavar="FILE",
    help='Prompts instead of the built-in ones: {"name", "text" | "tokens"}.',
)
@click.option("-n", "--count", type=click.IntRange(2), default=64, show_default=True, help="Tokens behind each prompt.")
@click.option(
    "--engine",
    "engines",
    multiple=True,
    default=("reference",),
    show_default=True,
    metavar="ENGINE",
    help="reference, llama-cpp, llama-server=PATH, URL, or PLAIN_URL,DRAFT_URL; may be repeated.",
)
@click.option(
    "--context",
    type=click.IntRange(64, MOST_CONTEXT),
    default=1024,
    show_default=True,
    help="Tokens of each sequence; the long prompt fills it.",
)
@click.option(
    "--bound",
    type=click.FloatRange(0, min_open=True),
    callback=finite,
    default=0.01,
    show_default=True,
    help="Two tokens closer than so many logits are a near tie.",
)
@click.option(
    "--no-reference",
    is_flag=True,
    help="Do not load the model here: partings are judged by the engine's own log-probabilities.",
)
@click.option("-o", "--output", type=SomePath(), metavar="DIR", help="Write certificate.json and report.html there.")
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option("--baseline", type=SomePath(), metavar="FILE", help="An earlier certificate.json: what became worse?")
@click.option(
    "--matrix", type=SomePath(), metavar="FILE", help="Check every cell of a TOML file; goes on where it was."
)
@click.option(
    "--executor", type=click.Choice(("process", "ray")), default="process", help="Where the cells of a matrix run."
)
@click.option("--jobs", type=click.IntRange(1), help="Cells of a matrix at a time.  [default: one per processor]")
@computing_options
@report_options
def command(**asked: Any) -> int:
    """Compare greedy text with and without drafts, and name the cause of a difference.

    Exit status 1 unless every text is identical, and nothing is worse than in the baseline.
    """
    report = Report(asked["as_json"], asked["quiet"])
    if asked["matrix"] is not None:
        return _matrix(report, asked)
    if asked["model"] is None:
        raise UsageError("no-model", "give -m FILE, or --matrix FILE", subject="identity")
    return _identity(report, asked)


def _matrix(report: Report, asked: dict[str, Any]) -> int:
    if asked["output"] is None:
        raise UsageError("no-output", "needs -o DIR for the certificates of its cells", subject="--matrix")
    if asked["model"] is not None or asked["baseline"] is not None:
        raise UsageError("matrix", "names models itself, and compares with no baseline", subject="--matrix")
    with runtime_needed_by("nextn identity"):
        from nextn.runtime.identity.matrix import COLUMNS, run_matrix
    result = run_matrix(asked["matrix"], asked["output"], asked["executor"], asked["jobs"], report.note)
    rows = [tuple(map(printable, row)) for row in result.rows()]
    report.result("\n".join(table(COLUMNS, rows)), result.as_json())
    return 0 if result.ok else FAILED


def _identity(report: Report, asked: dict[str, Any]) -> int:
    """One check. What can be wrong with the question is found before anything is loaded."""
    from nextn.runtime.engines.choice import opener_of
    from nextn.runtime.identity.certificate import load_certificate
    from nextn.runtime.identity.regression import compare

    specifications = asked["engines"]
    if len(set(specifications)) < len(specifications):
        raise UsageError("engine", "is given twice", subject="--engine")
    for each in specifications:
        opener_of(each)
    folder = asked["output"]
    _check_output(folder, asked["overwrite"])
    baseline = load_certificate(asked["baseline"]) if asked["baseline"] else None
    with ExitStack() as stack:
        certificate = _checked(_wanted(asked), stack, report.note)
    data = certificate.as_json()
    regressions = compare(certificate, baseline) if baseline else None
    if regressions:
        data["baseline"] = regressions.as_json()
    if folder is not None:
        _write(certificate, folder, report)
    told = [*_runs(certificate), *_sums(certificate), *(str(finding) for finding in certificate.findings)]
    told += [str(finding) for finding in regressions.findings] if regressions else []
    report.result("\n".join(map(printable, [*told, _verdict(certificate)])), data)
    return 0 if certificate.identical and not (regressions and regressions.found) else FAILED


def _wanted(asked: dict[str, Any]) -> Wanted:
    with runtime_needed_by("nextn identity"):
        from nextn.runtime.identity.checking import Wanted
    return Wanted(
        model=asked["model"],
        draft=asked["draft"],
        engines=asked["engines"],
        n_max=tuple(sorted(asked["n_max"])),
        n_predict=asked["count"],
        bound=asked["bound"],
        context=asked["context"],
        prompts=asked["prompts"],
        device=asked["device"],
        kernels=asked["kernels"],
        rescored=not asked["no_reference"],
    )


def _checked(wanted: Wanted, stack: ExitStack, note: Callable[[str], None]) -> Certificate:
    from nextn.runtime.identity.checking import check_files

    return replace(check_files(wanted, stack, note), command=("nextn", *sys.argv[1:]))


def _check_output(folder: Path | None, overwrite: bool) -> None:
    """Find out before an hour of work whether its result can be kept."""
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise UsageError("not-a-folder", "is a file; -o names a folder", subject=str(folder))
    for path in (folder / name for name in WRITTEN):
        if path.exists() and not overwrite:
            raise UsageError("exists", "exists", subject=str(path), remedy="give --overwrite to replace it")
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError("write-error", f"cannot be made: no files can be written in {there}", subject=str(folder))


def _write(certificate: Certificate, folder: Path, report: Report) -> None:
    """The certificate, and the report if its packages are there: a check of an hour is not lost for want of a plot."""
    from nextn.runtime.identity.report.write import write_report

    certificate.save(folder / CERTIFICATE)
    try:
        written = [folder / CERTIFICATE, *write_report(certificate, folder)]
    except InputError as error:
        if error.code != "report-missing":
            raise
        written = [folder / CERTIFICATE]
        report.note(f"no report.html: {error.message}; {error.remedy}")
    report.note("written: " + ", ".join(str(path) for path in written))


def _runs(certificate: Certificate) -> Iterator[str]:
    """The first run of each prompt in each configuration, in the form that draft benchmarks print."""
    width = max(len(prompt.name) for prompt in certificate.prompts)
    for run in certificate.runs:
        if run.order not in ("A1", "B1"):
            continue
        beside = f" x{run.together}" if run.together > 1 else ""
        head = f"{run.engine} n_max={run.n_max}{beside}  {run.prompt:<{width}}"
        yield f"{head}  {_figures(run)}" + (
            "" if run.identical in (True, None) else f"  PARTS at {run.first_divergence}"
        )


def _figures(run: RunRecord) -> str:
    if run.status != "ok":
        return f"{run.status}: {run.message}"
    rate = f"{run.n_accepted / run.n_drafted:.3f}" if run.n_drafted else "    -"
    # The first token comes with the prompt.
    speed = f"{(len(run.tokens) - 1) / run.seconds_decode:.1f}" if run.seconds_decode > 0 else "-"
    return f"pred={len(run.tokens):4d} draft={run.n_drafted:4d} acc={run.n_accepted:4d} rate={rate} tok/s={speed}"


def _sums(certificate: Certificate) -> Iterator[str]:
    for each in certificate.aggregate:
        rate = "-" if each.aggregate_accept_rate is None else f"{each.aggregate_accept_rate:.3f}"
        yield (
            f"{each.engine} n_max={each.n_max}: n_requests={each.n_requests} total_predicted={each.total_predicted} "
            f"total_draft={each.total_draft} total_draft_accepted={each.total_draft_accepted} "
            f"aggregate_accept_rate={rate} wall_s_total={each.wall_s_total:.2f}"
        )


def _verdict(certificate: Certificate) -> str:
    told = certificate.verdict + (f", cause: {certificate.cause}" if certificate.cause else "")
    others = {f"{each.name}: {each.verdict}" for each in certificate.engines if each.verdict != certificate.verdict}
    return told + (f" ({', '.join(sorted(others))})" if others else "")
