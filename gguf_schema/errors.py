"""The errors a user can act on: a stable code, what is wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable


class NextnError(Exception):
    """Base of every expected failure; the command line turns it into one or two lines and an exit status.

    `code` is stable and meant for scripts; `subject` names the file, tensor or key; `remedy` says what to do.
    """

    exit_status = 3

    def __init__(self, code: str, message: str, *, subject: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.subject = subject
        self.remedy = remedy

    def __str__(self) -> str:
        where = f"{self.subject}: " if self.subject else ""
        return f"{where}{self.message}" + (f"\n{self.remedy}" if self.remedy else "")


class VerdictError(NextnError):
    """The input is readable but the verdict is negative: an invalid file, a refused pair, a diverging stream."""

    exit_status = 1


class UsageError(NextnError):
    """The command was used wrongly: contradictory options, an output that exists or is an input."""

    exit_status = 2


class InputError(NextnError):
    """The input cannot be read, is incomplete or unsupported, or there is no space for the output."""

    exit_status = 3


class HubError(NextnError):
    """The hub or the network did not answer as needed."""

    exit_status = 4


def extra(name: str) -> str:
    """The remedy for a missing extra of pyproject.toml: nextn is installed from its clone."""
    return f"install the extra {name!r}: pip install '.[{name}]' in the clone of nextn"


def reason(error: Exception) -> str:
    """What an error says, for messages that name the file themselves: the system's own texts name it, too."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def size(count: float) -> str:
    """A number of bytes for people: `3.71 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        # From here on three digits would round to a thousand.
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def listed(names: Iterable[str], shown: int = 3) -> str:
    """The first names of many, for messages: `a, b, c, … 4 more`."""
    names = list(names)
    return ", ".join(names[:shown]) + (f", … {len(names) - shown} more" if len(names) > shown else "")


def counted(number: int, thing: str) -> str:
    """A number and what it counts, for messages: `1 head`, `3 heads`."""
    return f"{number} {thing}" + ("" if number == 1 else "s")
