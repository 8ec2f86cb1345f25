"""Real llama.cpp as an engine: what it generates, what it drafts, or how exactly it refuses a file.

llama.cpp answers some files with an exception, some with an abort and some with a segmentation fault. It therefore
always runs in a child process (`llama_cpp_child`), and each of these is an `Outcome`, never a failure of the caller.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nextn.gguf_schema.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Status = Literal["ok", "error", "abort", "segfault", "killed", "timeout"]

CHILD = (sys.executable, "-P", "-m", "nextn.runtime.engines.llama_cpp_child")
LOG_TAIL = 16_384  # characters of the log that an outcome keeps
SMALLEST_CONTEXT = 1024


@dataclass(frozen=True)
class Continuation:
    """What llama.cpp made of one prompt: token ids (an end token included), draft counts, why it stopped, seconds."""

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    stop: str  # "eos" or "limit"
    seconds_prefill: float
    seconds_decode: float


@dataclass(frozen=True)
class Outcome:
    """How a child process ended, the line of llama.cpp's log that says why, and every prompt finished before that."""

    status: Status
    message: str
    continuations: tuple[Continuation, ...]
    log: str

    @property
    def ok(self) -> bool:
        """Whether everything that was asked for happened."""
        return self.status == "ok"


def version() -> str | None:
    """Version of the installed xllamacpp, whose last part is llama.cpp's build number; None if there is none."""
    try:
        return importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError:
        return None


def require() -> str:
    """The version of the installed xllamacpp; raises InputError when there is none."""
    if (found := version()) is None:
        raise InputError(
            "llama-cpp-missing", "llama.cpp is not installed", remedy="pip install the extra `llamacpp`: xllamacpp"
        )
    return found


def run(
    model: Path,
    prompts: Sequence[Sequence[int]],
    *,
    draft: Path | None = None,
    n_max: int = 0,
    n_predict: int = 64,
    context: int | None = None,
    timeout_s: float = 300.0,
) -> Outcome:
    """Continue each prompt (token ids, fed as they are) greedily by up to `n_predict` tokens, each in a fresh server.

    `n_max` is the longest draft: 0 generates without drafting and loads no draft; above 0 the head of `draft` drafts,
    or the model's own. `context` is in tokens (default: what the longest prompt needs, at least 1024), `timeout_s` the
    seconds that one prompt may take, loading included. Raises InputError for a missing file or a missing xllamacpp,
    UsageError without prompts; whatever llama.cpp itself does is the outcome.
    """
    if not prompts or not all(prompts):
        raise UsageError("prompt-empty", "llama.cpp needs at least one prompt of at least one token")
    if context is None:
        needed = max(len(prompt) for prompt in prompts) + n_predict + n_max + 2
        context = max(SMALLEST_CONTEXT, -(-needed // 256) * 256)
    job = {
        "n_max": n_max,
        "n_predict": n_predict,
        "context": context,
        "prompts": [list(prompt) for prompt in prompts],
    }
    return _launch(job, model, draft, mtp=n_max > 0, timeout_s=timeout_s)


def load(model: Path, draft: Path | None = None, *, mtp: bool = False, timeout_s: float = 300.0) -> Outcome:
    """Start llama.cpp's server on `model` and let it go: does it load, and if not, what does it say?

    `mtp` asks for drafting with the model's own head, `draft` for drafting with the head of that file. Raises
    InputError for a missing file or a missing xllamacpp.
    """
    job = {"n_max": 0, "n_predict": 0, "context": SMALLEST_CONTEXT, "prompts": []}
    return _launch(job, model, draft, mtp=mtp or draft is not None, timeout_s=timeout_s)


def _launch(job: dict[str, Any], model: Path, draft: Path | None, *, mtp: bool, timeout_s: float) -> Outcome:
    require()
    for path in (model, draft):
        if path is not None and not path.is_file():
            raise InputError("file-missing", "no such file", subject=str(path))
    files = {"model": str(model), "draft": str(draft) if mtp and draft else None}
    return supervise(CHILD, {**job, **files, "mtp": mtp, "timeout_s": timeout_s}, timeout_s)


def supervise(command: Sequence[str], job: dict[str, Any], timeout_s: float) -> Outcome:
    """Run a child on a job and report how it ended; it is killed after `timeout_s` seconds without a new result."""
    # Without GGML_NO_BACKTRACE an abort starts a debugger, which takes seconds and buries the message.
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as stdin:
        stdin.write(json.dumps(job).encode())
        stdin.seek(0)
        with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=log, env=environment) as child:
            continuations, timed_out = _collect(child, timeout_s)
        log.seek(0)
        text = log.read().decode(errors="replace")
    status = "timeout" if timed_out else _status(child.returncode)
    return Outcome(status, _message(status, child.returncode, timeout_s, text), continuations, text[-LOG_TAIL:])


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
            fields = json.loads(line)
            continuations.append(Continuation(**{**fields, "tokens": tuple(fields["tokens"])}))
        child.wait(timeout_s)
    except (queue.Empty, subprocess.TimeoutExpired):
        return tuple(continuations), True
    else:
        return tuple(continuations), False
    finally:
        child.kill()  # also when the caller is interrupted; no effect on a child that has been waited for
        reader.join(timeout_s)


def _status(returncode: int) -> Status:
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


def _message(status: Status, returncode: int, timeout_s: float, log: str) -> str:
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
