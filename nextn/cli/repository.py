"""How a repository of GGUF files on the hub reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from nextn.cli.report import Report
from nextn.cli.verdict import printable, table, verdict_text
from nextn.gguf_schema.errors import counted, size

if TYPE_CHECKING:
    from nextn.convert.hub.gguf_sets import GGUFSet
    from nextn.convert.hub.picks import Picks
    from nextn.convert.hub.repository import Repository
    from nextn.convert.hub.survey import Survey
    from nextn.validators.examine import Report as Examination


def print_survey(found: Survey, report: Report) -> None:
    """Print what a repository holds; exit status 1 when what `-hf` takes is not sound."""
    report.result("" if report.as_json else _survey_text(found), found.as_json())
    if not found.ok:
        sys.exit(1)


def print_reports(repository: Repository, reports: Mapping[GGUFSet, Examination | None], report: Report) -> None:
    """Print the verdicts about the sets of a repository; exit status 1 when one is negative."""
    texts = [
        verdict_text(found, memory=False) if found else f"{printable(each.path)}\n  {_missing(each)}\n\nnot ok"
        for each, found in reports.items()
    ]
    ok = all(found is not None and found.ok for found in reports.values())
    data = {
        "repository": {"id": repository.location.repo, "commit": repository.commit},
        "sets": [
            {"path": each.path, **(found.as_json() if found else {"missing": _missing(each), "ok": False})}
            for each, found in reports.items()
        ],
        "ok": ok,
    }
    report.result("\n\n".join(texts), data)
    if not ok:
        sys.exit(1)


def _missing(each: GGUFSet) -> str:
    return each.missing.message if each.missing else ""


def _survey_text(found: Survey) -> str:
    files = counted(sum(len(each.files) for each in found.sets), "GGUF file")
    parts = [
        [f"{found.repository.name} at {found.repository.commit[:12]}: {files}", *_sets(found)],
        [f"llama.cpp's -hf takes, with --spec-type draft-mtp{_for(found.taken)}:", *_taken(found)],
        _other_tags(found),
        _pairs(found),
        ["ok" if found.ok else "not ok"],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _sets(found: Survey) -> list[str]:
    rows = []
    for each in found.sets:
        report = found.reports.get(each.path)
        role = str(report.model.role.role) if report and report.model.role else each.kind
        bytes_ = sum(found.repository.files[path].size for path in each.files)
        state = "incomplete" if each.missing else "not read" if report is None else "ok" if report.ok else "not ok"
        rows.append((role, str(len(each.files)), size(bytes_), state, printable(each.path)))
    return table(("role", "files", "size", "verdict", "path"), rows, right=(1, 2))


def _for(picks: Picks) -> str:
    return f", for the tag {picks.tag}" if picks.tag else ""


def _taken(found: Survey) -> Iterator[str]:
    picks = found.taken
    if picks.preset:
        yield "  preset.ini alone"
        return
    model = printable(picks.model[0]) if picks.model else "nothing"
    more = f" and {len(picks.model) - 1} more" if len(picks.model) > 1 else ""
    yield f"  model  {model}{more}"
    yield f"  draft  {printable(picks.draft) if picks.draft else 'nothing'}"
    if picks.images:
        yield f"  images {printable(picks.images)}"
    for each in found.sets:
        if each.missing and each.path in (*picks.model, picks.draft):
            yield f"  {printable(each.path)}: {each.missing.message}"
        if picks.draft in each.files and len(each.files) > 1:
            yield f"  of the draft's {len(each.files)} shards it takes this one alone, and then cannot load it"


def _other_tags(found: Survey) -> list[str]:
    rows = [
        (f":{picks.tag}", printable(picks.model[0]) if picks.model else "nothing", printable(picks.draft or "nothing"))
        for picks in found.picks[1:]
    ]
    return table(("tag", "model", "draft"), rows) if len(rows) > 1 else []


def _pairs(found: Survey) -> list[str]:
    if not found.pairs:
        return []
    rows = [
        (printable(pair.model), printable(pair.draft), "pair" if pair.ok else f"do not pair: {printable(pair.message)}")
        for pair in found.pairs
    ]
    return table(("model", "draft", "by their headers"), rows)
