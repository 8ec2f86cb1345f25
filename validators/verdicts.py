"""What runtimes do with a file or a pair, as findings: where one that was asked for, or every one, fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.nextn_generic import role_of
from nextn.validators.findings import Severity
from nextn.validators.loader_keys import Outcome
from nextn.validators.runtimes import BUNDLED, Use
from nextn.validators.wording import BUILDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nextn.gguf_schema.contents import Contents
    from nextn.validators.findings import Findings
    from nextn.validators.forecast import Forecast
    from nextn.validators.role import RoleReport

FAILS = (Outcome.REFUSES, Outcome.ABORTS, Outcome.SEGFAULTS, Outcome.HANGS)


def use_of(role: RoleReport | None, draft: Contents | None) -> Use:
    """What a file, or with a `draft` the pair, is for: a file without a trunk can only draft."""
    if draft is not None:
        return Use.PAIRED
    return Use.DRAFT if role and not role.trunk_blocks and role.nextn_blocks else Use.MAIN


def deciding(rows: Sequence[Forecast], use: Use) -> list[Forecast]:
    """The rows that a verdict about a use goes by: of a runtime that says nothing of a pair, those of its files."""
    of_use = {row.runtime for row in rows if row.as_ is use}
    return [row for row in rows if row.as_ is use or (use is Use.PAIRED and row.runtime not in of_use)]


def examine_runtime(
    runtime: str, rows: Sequence[Forecast], use: Use, model: Contents, draft: Contents | None, findings: Findings
) -> None:
    """Errors where the runtime that was asked for does not load the file well, or nothing is known of it."""
    subject, remedy = (draft or model).name, _rehydrated(model, draft)
    found = deciding(rows, use)
    for row in found:
        if row.outcome is not Outcome.LOADS:
            message = f"in {row.runtime}, as {row.as_}: {row.outcome}: {row.message}"
            findings.error("forecast", subject, message, remedy, row.source)
    if not any(row.as_ is use or row.outcome is not Outcome.LOADS for row in found):
        names = dict.fromkeys(contents.architecture or "no architecture" for contents in (model, draft) if contents)
        message = f"nothing is known of {' with '.join(names)} in {runtime}: whether it loads is not forecast"
        findings.error("forecast-unknown", subject, message, "load it there, or ask for another build", BUILDS)


def examine_forecast(
    rows: Sequence[Forecast], use: Use, role: Role | None, model: Contents, draft: Contents | None, findings: Findings
) -> None:
    """What becomes of a file that is well-formed: an error where b11549 does badly with it, a note where all do."""
    if not _examine_bundled(rows, use, role, model, draft, findings):
        _examine_all(rows, use, model, draft, findings)


def _examine_bundled(
    rows: Sequence[Forecast], use: Use, role: Role | None, model: Contents, draft: Contents | None, findings: Findings
) -> bool:
    """Whether b11549 does badly with a file, or pair, in which no rule found anything wrong; that is then an error.

    A file with a trunk must load as a model; one without, as a draft. A shared sidecar loads nowhere, by its nature.
    """
    shared = Role.MTP_SHARED in (role, role_of(draft) if draft else None)
    uses = (Use.MAIN, Use.DRAFT) if role is Role.COMBINED and use is Use.MAIN else (use,)
    found = [row for row in rows if row.runtime == BUNDLED.name and row.as_ in uses]
    bad = [row for row in found if row.outcome is not Outcome.LOADS]
    if shared or not bad or not (len(bad) == len(uses) or (bad[0].as_ is use and bad[0].outcome in FAILS)):
        return False
    row = bad[0]
    told = any(finding.severity is not Severity.NOTE and finding.subject in row.message for finding in findings)
    if row.outcome is Outcome.WRONG and told:
        return False  # A rule found it, and says whether it is surely wrong.
    message = f"llama.cpp b11549 {row.outcome}, as {row.as_}: {row.message}"
    findings.error("does-not-load", (draft or model).name, message, "convert it again", row.source)
    return True


def _examine_all(
    rows: Sequence[Forecast], use: Use, model: Contents, draft: Contents | None, findings: Findings
) -> None:
    """A note when no listed build loads a file in which nothing is wrong: the forecast decides, not the verdict."""
    found = deciding(rows, use)
    if found and all(row.outcome in FAILS for row in found):
        message = "well-formed, but no listed llama.cpp build loads it"
        findings.note("loads-nowhere", (draft or model).name, message, _rehydrated(model, draft), BUILDS)


def _rehydrated(model: Contents, draft: Contents | None) -> str | None:
    """How to make of a shared sidecar a head that builds load."""
    if role_of(draft or model) is not Role.MTP_SHARED:
        return None
    return f"nextn join TRUNK {'HEAD' if draft else 'FILE'} --emit mtp -o OUT.gguf"
