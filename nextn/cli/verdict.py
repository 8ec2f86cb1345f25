"""How a report about a file or a pair reads on a terminal: at most a screen for a healthy file."""

from __future__ import annotations

import os
import sys
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from nextn.gguf_schema.errors import counted, size
from nextn.gguf_schema.nextn_generic import BLOCK_COUNT, NEXTN_PREDICT_LAYERS
from nextn.validators.findings import Severity
from nextn.validators.loader_keys import Outcome
from nextn.validators.verdicts import deciding
from nextn.validators.wording import typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nextn.gguf_schema.contents import Contents
    from nextn.validators.estimate import Estimate
    from nextn.validators.examine import Examined, Report
    from nextn.validators.findings import Finding

COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
# Findings of one rule; a file that is wrong throughout has hundreds.
MOST_SHOWN = 4
# Columns that a terminal has at the least; some say 0.
NARROWEST = 40
OUTCOME_COLOURS = {Outcome.LOADS: "green", Outcome.WRONG: "yellow"}


def verdict_text(report: Report, *, memory: bool) -> str:
    """The whole report; with `memory`, the estimate too."""
    parts = [_file(report.model)]
    if report.draft:
        parts.append(_file(report.draft, "draft: "))
    if report.estimate:
        parts.append(_weights(report.estimate))
        if memory:
            parts.append(_memory(report.estimate))
    parts.append(_forecast(report))
    parts.append(_findings(report))
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _file(examined: Examined, label: str = "") -> list[str]:
    """What one file is."""
    path, _ = examined.files[0]
    role, layout, contents = examined.role, examined.layout, examined.contents
    shards = f" and {len(examined.files) - 1} more" if len(examined.files) > 1 else ""
    architecture = printable(contents.architecture) or "no architecture"
    keys = ", ".join(f"{key} {_declared(contents, key)}" for key in (BLOCK_COUNT, NEXTN_PREDICT_LAYERS))
    if role is not None:
        blocks = f"{counted(role.trunk_blocks, 'trunk block')}, {counted(role.nextn_blocks, 'nextn block')}"
        is_ = f"{click.style(role.name or 'no role', bold=True)}: {blocks} ({keys})"
    else:
        is_ = "no model" if examined.whole else f"role unknown, not all of it is there ({keys})"
    tensors = counted(len(contents.tensors), "tensor")
    bytes_ = size(sum(size for _, size in examined.files))
    others = f", or {' or '.join(layout.others)}" if layout and layout.others else ""
    return [
        f"{label}{click.style(printable(path), bold=True)}{shards}",
        f"  {architecture}, {is_}",
        f"  {tensors}, {_parameters(examined.parameters)} parameters, {bytes_}"
        + (f"; layout {layout.id}{others}" if layout else ""),
    ]


def _declared(contents: Contents, key: str) -> str:
    """What a key says; with the type when that is no number."""
    value = contents.get(key)
    if value is None:
        return "absent"
    return str(value.value) if isinstance(value.value, int) else printable(typed(value))


def _parameters(count: int) -> str:
    number = float(count)
    for unit in ("", " thousand", " million", " billion"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} trillion"


def _weights(estimate: Estimate) -> list[str]:
    """Sizes and types by part."""
    types: dict[str, Counter[str]] = {}
    for weights in estimate.weights:
        types.setdefault(weights.part, Counter())[weights.type] += weights.bytes
    rows = [
        (part, size(bytes_), ", ".join(_share(name, part_bytes, bytes_) for name, part_bytes in ordered))
        for part, bytes_ in estimate.weights_by("part").items()
        if (ordered := types[part].most_common())
    ]
    return table(("part", "size", "types"), rows, right=(1,))


def _share(name: str, part: int, whole: int) -> str:
    """A type, with its bytes unless they are all there is, as far as sizes are shown."""
    return name if size(part) == size(whole) else f"{name} {size(part)}"


def _memory(estimate: Estimate) -> list[str]:
    s = estimate.settings
    rows = [
        (f"{group['part']} {group['kind']}", size(group["bytes"]), _rows(group)) for group in estimate.states_by_kind()
    ]
    name, bytes_ = estimate.activation
    if bytes_:
        rows.append(("largest activation", size(bytes_), f"{name}, for one ubatch"))
    rows += [
        (f"borrowed {name}", size(bytes_) if bytes_ else "", "counted with the target")
        for name, bytes_ in estimate.borrowed.items()
    ]
    host, (device,) = estimate.devices(1)
    _, split = estimate.devices(2)
    total = f"total with the weights {size(host + device)}: {size(host)} in host memory, {size(device)} on one device"
    if bytes_:
        total += ", the activation counted once"
    return [
        f"memory for {s.context} tokens, {s.ubatch} at once, caches in {s.kv_type}, drafts of {s.n_max}",
        *table(("what", "size", "made of"), rows, right=(1,)),
        total,
        f"on two devices {' + '.join(map(size, split))}" + (", each with an activation of its own" if bytes_ else ""),
        *(f"not counted: {printable(note)}" for note in estimate.notes),
    ]


def _rows(group: dict[str, Any]) -> str:
    """How often a state is there, and of how many cells, or planes to go back to, it is made."""
    unit = "plane" if group["kind"] in ("recurrent", "convolution") else "cell"
    return f"{counted(group['blocks'], 'block')}, {counted(group['rows'], unit)}"


def _forecast(report: Report) -> list[str]:
    """A line for each runtime and each use that the file may be put to; those of one reason share it."""
    rows = deciding(report.forecast, report.use)
    if not report.draft and report.model.role and report.model.role.nextn_blocks:
        rows = list(report.forecast)  # A head that somebody loads as a model is worth a warning.
    if not rows:
        return []
    head, *lines = table(
        ("runtime", "as", "outcome"), [(row.runtime, str(row.as_), _outcome(row.outcome)) for row in rows]
    )
    reasons = ["" if row.outcome is Outcome.LOADS else printable(row.message) for row in rows]
    shown, width = [head], _columns()
    for index, (line, reason) in enumerate(zip(lines, reasons, strict=True)):
        before, following = [*reasons, ""][index - 1], [*reasons, ""][index + 1]
        beside = f"{line}  {reason}"
        if reason and reason not in (before, following) and (width is None or len(click.unstyle(beside)) <= width):
            shown.append(beside)
            continue
        shown.append(line)
        if reason and reason != following:
            shown += _wrapped(reason, "    ", width)
    return shown


def _columns() -> int | None:
    """Characters of a line on the terminal; elsewhere lines are not broken, so that they can be searched."""
    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).columns, NARROWEST)
    except (OSError, ValueError):
        return None


def _wrapped(text: str, indent: str, width: int | None) -> list[str]:
    if width is None:
        return [indent + text]
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def printable(text: str) -> str:
    """A text of a file without what a terminal obeys instead of showing it: such characters are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _outcome(outcome: Outcome) -> str:
    return click.style(outcome, fg=OUTCOME_COLOURS.get(outcome, "red"))


def _findings(report: Report) -> list[str]:
    """Findings by severity, those of one rule together, and the verdict."""
    lines: list[str] = []
    for severity in Severity:
        rules: dict[str, list[tuple[str, Finding]]] = {}
        for of, finding in report.attributed:
            if finding.severity is severity:
                rules.setdefault(finding.rule, []).append((of, finding))
        if rules:
            title = counted(sum(map(len, rules.values())), severity)
            lines.append(click.style(title, fg=COLOURS[severity], bold=True))
            lines += [line for rule, group in rules.items() for line in _group(rule, group)]
    verdict = click.style("ok", fg="green", bold=True) if report.ok else click.style("not ok", fg="red", bold=True)
    return [*lines, verdict]


def _group(rule: str, group: Sequence[tuple[str, Finding]]) -> Iterator[str]:
    """The findings of one rule; what to do is said once where it is the same for the next."""
    shown = group[:MOST_SHOWN]
    for index, (of, finding) in enumerate(shown):
        whose = "draft: " if of == "draft" else ""
        yield f"  {whose}{printable(finding.subject)}: {printable(finding.message)} [{rule}]"
        last = index + 1 == len(shown)
        if last and len(group) > len(shown):
            yield f"  … and {len(group) - len(shown)} more; --json has them all"
        if finding.remedy and (last or shown[index + 1][1].remedy != finding.remedy):
            yield f"    {printable(finding.remedy)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Rows in columns, those of `right` flush right; styled cells count without their style."""
    rows = [head, *rows]
    widths = [max(len(click.unstyle(row[column])) for row in rows) for column in range(len(head))]
    lines = []
    for index, row in enumerate(rows):
        cells = []
        for column, cell in enumerate(row):
            gap = " " * (widths[column] - len(click.unstyle(cell)))
            cells.append(gap + cell if column in right else cell + gap)
        line = "  ".join(cells).rstrip()
        lines.append(click.style(line, dim=True) if index == 0 else line)
    return lines
