"""`nextn bench`: how fast drafts make an engine, how much of them it accepts, and what the head is good for."""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nextn.cli.computing import MOST_CONTEXT, computing_options, lengths, runtime_needed_by
from nextn.cli.options import SomePath
from nextn.cli.report import Report, report_options
from nextn.cli.verdict import table
from nextn.gguf_schema.errors import UsageError, counted
from nextn.validators.findings import Findings, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nextn.runtime.identity.checking import Files, Wanted
    from nextn.runtime.identity.measure import Bench
    from nextn.runtime.identity.probe import Probe
    from nextn.runtime.identity.prompts import Prompt
    from nextn.runtime.identity.regression import Change, Regressions

EXAMPLE = """
\b
Examples:
  nextn bench -m trunk.gguf -d mtp.gguf --n-max 1,2,3 --engine reference --engine llama-cpp --json > before.json
  nextn bench -m trunk.gguf -d mtp.gguf --probe
  nextn bench --compare before.json after.json
"""


@click.command(epilog=EXAMPLE)
@click.option("-m", "--model", type=SomePath(), metavar="FILE", help="The model: combined, or a trunk.")
@click.option("-d", "--draft", type=SomePath(), metavar="FILE", help="The head that drafts for it.")
@click.option("--n-max", callback=lengths, default="1,2,3", show_default=True, help="Most tokens of a draft, in turn.")
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="ENGINE",
    help="reference, llama-cpp, http://HOST:PORT or llama-server=PATH; several in turn.  [default: reference]",
)
@click.option("--probe", "probing", is_flag=True, help="Look at the head by itself: what it can do, what is wrong.")
@click.option("--compare", type=SomePath(), metavar="FILE", help="A saved result: fail when acceptance dropped since.")
@click.option(
    "--prompts", type=SomePath(), metavar="FILE", help='Prompts, one JSON a line: {"name", "text" | "tokens"}.'
)
@click.option("-n", "--count", type=click.IntRange(2), default=64, show_default=True, help="Most tokens to generate.")
@click.option(
    "--context",
    type=click.IntRange(64, MOST_CONTEXT),
    default=1024,
    show_default=True,
    help="Tokens of each sequence; the long prompt fills it.",
)
@computing_options
@click.argument("saved", type=SomePath(), required=False, metavar="[RESULT]")
@report_options
def command(compare: Path | None, saved: Path | None, as_json: bool, quiet: bool, **asked: Any) -> None:
    """Measure tokens a second with and without a draft, and acceptance; or compare two saved results.

    With a RESULT that was saved with --json nothing is run.
    """
    report = Report(as_json, quiet)
    if (saved is None) == (asked["model"] is None):
        raise UsageError("no-model", "give a model with -m FILE, or a saved RESULT", subject="bench")
    with runtime_needed_by("nextn bench"):
        from nextn.runtime.identity import measure
    before = measure.load_bench(compare) if compare else None
    bench = measure.load_bench(saved) if saved else _measured(report, asked)
    worse = measure.compare(bench, before) if before else None
    told = bench.as_json() | ({"comparison": worse.as_json()} if worse else {})
    report.result("" if as_json else _text(bench, worse), told)
    findings = [*bench.findings, *(worse.findings if worse else ())]
    if any(finding.severity is Severity.ERROR for finding in findings):
        sys.exit(1)


def _measured(report: Report, asked: dict[str, Any]) -> Bench:
    """Run all that was asked for."""
    from nextn.runtime.identity.checking import Files, open_engines, prompts_of, versions
    from nextn.runtime.identity.checklist import checklist
    from nextn.runtime.identity.measure import Bench, EngineTold, judge_probe, measure
    from nextn.runtime.identity.observe import Settings
    from nextn.runtime.identity.pairing import pairing_with_head
    from nextn.runtime.identity.prompts import TOGETHER

    wanted = _wanted(asked)
    paired = pairing_with_head(wanted.model, wanted.draft)
    files, settings, findings = Files(wanted), Settings(wanted.n_max, wanted.n_predict), Findings()
    with ExitStack() as stack:
        engines = open_engines(files, stack)
        # One sequence at a time: what several at once do to the text is a matter of nextn identity.
        prompts = [prompt for prompt in prompts_of(files, engines) if prompt.category != TOGETHER]
        probed = _probed(files, prompts, report) if asked["probing"] else None
        verified = checklist(files.model.contents, files.draft.contents if files.draft else None)
        size = len(files.text.tokens)
        results = measure(engines, prompts, settings, findings, verified=verified, vocabulary=size, note=report.note)
        told = tuple(EngineTold(engine.name, engine.describe()) for engine in engines)
    if probed:
        findings += probed.findings
        judge_probe(probed, results, settings.n_predict, files.text.ends, findings)
    return Bench(
        tuple(results),
        told,
        tuple(findings),
        paired,
        probed.as_json() if probed else None,
        files.records(),
        versions(),
        {
            "n_max": list(settings.n_max),
            "n_predict": settings.n_predict,
            "prompts": [prompt.name for prompt in prompts],
            "prompts_sha256": hashlib.sha256(json.dumps([prompt.tokens for prompt in prompts]).encode()).hexdigest(),
            "context": wanted.context,
            "device": wanted.device,
        },
        ("nextn", *sys.argv[1:]),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _wanted(asked: dict[str, Any]) -> Wanted:
    """What is asked for, as a check has it; without an engine a probe is all, and else the reference runtime."""
    from nextn.runtime.identity.checking import Wanted

    return Wanted(
        model=asked["model"],
        draft=asked["draft"],
        engines=tuple(dict.fromkeys(asked["engines"])) or (() if asked["probing"] else ("reference",)),
        n_max=asked["n_max"],
        n_predict=asked["count"],
        bound=0.0,
        context=asked["context"],
        prompts=asked["prompts"],
        device=asked["device"],
        kernels=asked["kernels"],
        rescored=False,
    )


def _probed(files: Files, prompts: Sequence[Prompt], report: Report) -> Probe:
    from nextn.runtime.identity.probe import probe

    wanted = files.wanted
    report.note(f"probe: the head on what the trunk says behind {counted(len(prompts), 'prompt')}")
    return probe(
        wanted.model,
        wanted.draft,
        [prompt.tokens for prompt in prompts],
        wanted.n_predict,
        files.text.ends,
        longest=max(wanted.n_max),
        device=wanted.device,
        kernels=wanted.kernels,
    )


def _text(bench: Bench, worse: Regressions | None) -> str:
    """The measurement for people."""
    from nextn.runtime.identity.measure import COLUMNS, rows_of

    head = bench.pairing.head
    lines = [f"trunk {bench.pairing.trunk.main_type}, head {head.main_type if head else None}"]
    lines += table(COLUMNS, rows_of(bench.results)) if bench.results else []
    if bench.probe:
        for place, each in enumerate(bench.probe["positions"], 1):
            lines.append(
                f"probe, position {place}: {each['right']:.1%} right given true tokens, {each['accepted']:.1%} accepted"
                f", median rank {each['median_rank']:.0f}, of {each['tried']} places"
            )
        if not any(finding.rule.startswith("head-") for finding in bench.findings):
            lines.append("probe: nothing is wrong with the head")
    lines += [_compared(change) for change in (worse.changes if worse else ())]
    lines += [str(finding) for finding in (*bench.findings, *(worse.findings if worse else ()))]
    return "\n".join(lines)


def _compared(change: Change) -> str:
    """A configuration now and then, for people; of acceptance nothing where nothing was drafted."""
    drafted = change.accepted_now is not None and change.accepted_before is not None
    told = [f"acceptance {change.sigmas:+.1f} sigma lower than then"] if drafted else []
    told += [] if change.speed is None else [f"{change.speed:.2f} times the speed"]
    return f"{change.engine} n_max={change.n_max}: {', '.join(told) or 'nothing to compare'}"
