"""A finding: one thing that is wrong or doubtful, where it is, why it matters, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


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
