"""A finding: one thing that is wrong or doubtful, where it is, why it matters, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from nextn.gguf_schema.errors import counted


class Severity(StrEnum):
    """How bad a finding is: an error makes the verdict negative."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One finding; `rule` is a stable id for scripts, `subject` the file, tensor or key it is about.

    `reason` names the source of the rule: a file of llama.cpp, a format description, a document of this project.
    """

    severity: Severity
    rule: str
    subject: str
    message: str
    remedy: str | None = None
    reason: str | None = None

    def as_json(self) -> dict[str, str | None]:
        """The finding as the command line prints it with `--json`."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.severity}: {self.subject}: {self.message}" + (f"; {self.remedy}" if self.remedy else "")


class Findings(list[Finding]):
    """Findings in the order in which they were made."""

    def error(
        self, rule: str, subject: str, message: str, remedy: str | None = None, reason: str | None = None
    ) -> None:
        """Add something that makes the verdict negative."""
        self.append(Finding(Severity.ERROR, rule, subject, message, remedy, reason))

    def warn(self, rule: str, subject: str, message: str, remedy: str | None = None, reason: str | None = None) -> None:
        """Add something doubtful."""
        self.append(Finding(Severity.WARNING, rule, subject, message, remedy, reason))

    def note(self, rule: str, subject: str, message: str, remedy: str | None = None, reason: str | None = None) -> None:
        """Add something worth knowing."""
        self.append(Finding(Severity.NOTE, rule, subject, message, remedy, reason))


# More findings of one rule and severity than this are told by the first of them and one about the others: a file that
# is wrong throughout, or hostile, has thousands.
MOST_OF_A_RULE, SHOWN_OF_A_RULE = 64, 16


def folded(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, those of one rule and severity as few as a reader can bear."""
    findings = list(findings)
    numbers = Counter((finding.rule, finding.severity) for finding in findings)
    rest: dict[tuple[str, Severity], list[Finding]] = {key: [] for key, n in numbers.items() if n > MOST_OF_A_RULE}
    seen: Counter[tuple[str, Severity]] = Counter()
    kept = []
    for finding in findings:
        key = (finding.rule, finding.severity)
        seen[key] += 1
        if key in rest and seen[key] > SHOWN_OF_A_RULE:
            rest[key].append(finding)
        else:
            kept.append(finding)
    for more in rest.values():
        first, last = more[0], more[-1]
        message = f"{first.message}; and {counted(len(more) - 1, 'more finding')} like this, the last: {last.subject}"
        kept.append(replace(first, message=message))
    return kept
