"""A finding: one thing that is wrong or doubtful, where it is, and what to do about it."""

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
    """One finding; `rule` is a stable id for scripts, `subject` the file, tensor or key it is about."""

    severity: Severity
    rule: str
    subject: str
    message: str
    remedy: str | None = None

    def as_json(self) -> dict[str, str | None]:
        """The finding as the command line prints it with `--json`."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.severity}: {self.subject}: {self.message}" + (f" ({self.remedy})" if self.remedy else "")
