"""A llama.cpp process, watched: how it ended, the line of its log that says why, and what it had finished before.

llama.cpp answers some files with an exception, some with an abort and some with a segmentation fault. Each of these is
an `Outcome`, never a failure of the caller.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

from nextn.runtime.engines.engine import Continuation, Outcome, Status
from nextn.runtime.engines.server_api import with_rounds

LOG_TAIL = 16_384  # characters of the log that an outcome keeps
# The child writes this behind the log of each server that it is done with.
DONE = "nextn: done"
# Without GGML_NO_BACKTRACE an abort starts a debugger, which takes seconds and buries the message.
ENVIRONMENT = {"GGML_NO_BACKTRACE": "1"}


def supervise(command: Sequence[str], job: dict[str, Any], timeout_s: float) -> Outcome:
    """Run a child on a job and report how it ended; it is killed after `timeout_s` seconds without a new result."""
    environment = {**os.environ, **ENVIRONMENT}
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as stdin:
        stdin.write(json.dumps(job).encode())
        stdin.seek(0)
        with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=log, env=environment) as child:
            continuations, timed_out = _collect(child, timeout_s)
        log.seek(0)
        text = log.read().decode(errors="replace")
    status = "timeout" if timed_out else status_of(child.returncode)
    if job.get("rounds"):
        continuations = _told(continuations, text, together=bool(job.get("together")))
    return Outcome(status, message_of(status, child.returncode, timeout_s, text), continuations, text[-LOG_TAIL:])


def _collect(child: subprocess.Popen[bytes], timeout_s: float) -> tuple[tuple[Continuation, ...], bool]:
    """Read results until the child ends or is silent for too long; leaves no child behind."""
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read() -> None:
        for line in child.stdout or ():
            lines.put(line)
        lines.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    continuations: list[Continuation] = []
    try:
        # A line cut short by a crash is no result.
        while (line := lines.get(timeout=timeout_s)) is not None and line.endswith(b"\n"):
            continuations.append(_continuation(json.loads(line)))
        child.wait(timeout_s)
    except (queue.Empty, subprocess.TimeoutExpired):
        return tuple(continuations), True
    else:
        return tuple(continuations), False
    finally:
        child.kill()  # also when the caller is interrupted; no effect on a child that has been waited for
        reader.join(timeout_s)


def _continuation(fields: dict[str, Any]) -> Continuation:
    top = fields.pop("top", None)
    tops = None if top is None else tuple(tuple((i, p) for i, p in place) for place in top)
    return Continuation(**{**fields, "tokens": tuple(fields["tokens"])}, top=tops)


def _told(found: Sequence[Continuation], log: str, *, together: bool) -> tuple[Continuation, ...]:
    """The continuations with their rounds: of one server with a slot for each, or of a server for each."""
    if together:
        return with_rounds(found, log, slots=True)
    return tuple(
        told
        for each, part in zip(found, log.split(DONE), strict=False)
        for told in with_rounds([each], part, slots=True)
    )


def status_of(returncode: int) -> Status:
    """How a process ended, by the number that it left."""
    if returncode == 0:
        return "ok"
    if returncode == -signal.SIGABRT:
        return "abort"
    if returncode == -signal.SIGSEGV:
        return "segfault"
    return "killed" if returncode < 0 else "error"


LOG_LINE = re.compile(
    r"^(?:\d+\.)+\d+ (?P<level>[A-Z]) (?:(?:[a-z]+ +)?[\w:~()]+: )?(?:task id = \d+, error: )?(?P<text>.*)$"
)
FATAL_LINE = re.compile(
    r"^(?:\S*/)?(?P<text>[^\s/]+\.(?:c|h|cpp|hpp|cu|m):\d+: .*|terminate called .*|\s*what\(\): .*)$"
)
# Each caller reports the failure once more. Kept: "failed to load draft model", which tells which file it was.
ECHO = re.compile(r"failed to load model\b|failed to launch slot|exiting due to ")
# The one reason that is only a warning: "context type MTP requested but model doesn't contain MTP layers".
GRAVE_WARNING = re.compile(r"context type ")


def _decides(level: str, text: str) -> bool:
    return (level == "E" and not ECHO.match(text)) or (level == "W" and GRAVE_WARNING.match(text) is not None)


def decisive_lines(log: str) -> list[str]:
    """The lines of a llama.cpp log that say why it stopped, without time stamps, function names and repetitions."""
    lines = log.splitlines()
    fatal = [match["text"].strip() for match in map(FATAL_LINE.match, lines) if match]
    errors = [
        match["text"] for match in map(LOG_LINE.match, lines) if match and _decides(match["level"], match["text"])
    ]
    return list(dict.fromkeys(fatal or errors))


def last_words(log: str) -> str:
    """The last line of a log that is no warning: what llama.cpp was doing."""
    for line in reversed(log.splitlines()):
        match = LOG_LINE.match(line)
        if line.strip() and (match is None or match["level"] != "W"):
            return match["text"] if match else line.strip()
    return ""


def message_of(status: Status, returncode: int, timeout_s: float, log: str) -> str:
    """Why a process ended so, in one line; empty when all went well."""
    if status == "ok":
        return ""
    reason = "; ".join(decisive_lines(log))
    if reason and status in ("error", "abort"):
        return reason
    ending = {
        "error": f"exit status {returncode}",
        "abort": "aborted",
        "segfault": "segmentation fault",
        "killed": f"killed by signal {-returncode}",
        "timeout": f"no result within {timeout_s:g} s",
    }[status]
    detail = reason or last_words(log)
    return f"{ending}; last line of the log: {detail}" if detail else ending
