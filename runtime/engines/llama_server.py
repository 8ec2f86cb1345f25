"""A llama-server binary as an engine: started on a loopback port for each run, and stopped."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from nextn.gguf_schema.errors import InputError
from nextn.runtime.engines.child import ENVIRONMENT, LOG_TAIL, message_of, status_of
from nextn.runtime.engines.engine import Asked, Continuation, Outcome, Prompts
from nextn.runtime.engines.server import properties
from nextn.runtime.engines.server_api import ServerError, continuation, request, send, together, with_rounds

# The settings under which runs can be compared exactly; what follows the binary in its specification wins over them.
FLAGS = {
    "--threads": "1",
    "--cache-type-k": "f32",
    "--cache-type-v": "f32",
    "--flash-attn": "off",
    "--cache-ram": "0",
    "--ctx-checkpoints": "0",
    "--fit": "off",
}
DRAFT_FLAGS = {"--spec-type": "draft-mtp", "--cache-type-k-draft": "f32", "--cache-type-v-draft": "f32"}
BETWEEN_LOOKS_S = 0.05
STOPPING_S = 10.0


class GoneError(Exception):
    """The server ended, or never became ready."""


@dataclass
class LlamaServer:
    """A program, and flags of its user that win over ours, run with a model and its draft.

    `context` is in tokens for each sequence, `timeout_s` the seconds that loading and each answer may take. InputError
    when there is no such program.
    """

    command: str
    model: Path
    draft: Path | None
    context: int
    vocabulary: int
    timeout_s: float = 300.0
    name: str = field(init=False)
    program: list[str] = field(init=False)
    more: list[str] = field(init=False)
    version: str = "not run yet"

    def __post_init__(self) -> None:
        self.name = f"llama-server={self.command}"
        words = words_of(self.command)
        first = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
        self.program, self.more = words[:first], words[first:]
        if not self.program or shutil.which(self.program[0]) is None:
            raise _no_program(self.command, "is no program that can be run")

    def describe(self) -> dict[str, str]:
        """The version that the server tells, and its flags."""
        return {
            "version": self.version,
            "vocabulary": str(self.vocabulary),
            "context": str(self.context),
            "kv_type": self._kv_type(),
            "flags": shlex.join(self.flags(Asked(0, 0), 1)[2:] + self.more),
        }

    def run(self, prompts: Prompts, asked: Asked) -> Outcome:
        """Continue each prompt, all of them in one new server."""
        return self._served(prompts, asked, slots=1)

    def run_together(self, prompts: Prompts, asked: Asked) -> Outcome:
        """Continue all prompts at once in one new server."""
        return self._served(prompts, asked, slots=len(prompts))

    def close(self) -> None:
        """Nothing: no server outlives its run."""

    def _kv_type(self) -> str:
        """The type of the keys' cache: that of the last flag that names one."""
        words = ["--cache-type-k", FLAGS["--cache-type-k"], *self.more]
        named = [
            value for flag, value in zip(words, [*words[1:], ""], strict=True) if flag in ("--cache-type-k", "-ctk")
        ]
        return named[-1]

    def flags(self, asked: Asked, slots: int) -> list[str]:
        """The flags of a run, without its port."""
        flags = {"--model": str(self.model), **FLAGS, "--ctx-size": str(slots * self.context), "--parallel": str(slots)}
        if asked.n_max:
            # At this verbosity the log tells of each draft.
            flags |= {**DRAFT_FLAGS, "--spec-draft-n-max": str(asked.n_max), "--verbosity": "5"}
            flags |= {"--model-draft": str(self.draft)} if self.draft else {}
        return [word for flag in flags.items() for word in flag] + ["--no-warmup"]

    def _served(self, prompts: Prompts, asked: Asked, slots: int) -> Outcome:
        port = free_port()
        place = ["--host", "127.0.0.1", "--port", str(port)]
        words = [*self.program, *self.flags(asked, slots), *place, *self.more]
        found: list[Continuation] = []
        failed = ""
        with tempfile.TemporaryFile() as log:
            try:
                with _running(words, log) as child:
                    url = f"http://127.0.0.1:{port}"
                    self._wait(child, url)
                    if slots > 1:
                        found = together(url, prompts, asked, timeout_s=self.timeout_s)
                    for prompt in prompts if slots == 1 else ():
                        answer = send(url, "/completion", request(prompt, asked), timeout_s=self.timeout_s)
                        found.append(continuation(answer, asked))
            except (ServerError, GoneError) as error:
                failed = str(error)
            log.seek(0)
            text = log.read().decode(errors="replace")
        if failed:
            return self._failure(child.returncode, failed, found, text)
        return Outcome("ok", "", with_rounds(found, text, slots=slots > 1), text[-LOG_TAIL:])

    def _wait(self, child: subprocess.Popen[bytes], url: str) -> None:
        """Return when the server is ready, and take its version; GoneError when it ends or takes too long."""
        end = time.monotonic() + self.timeout_s
        while time.monotonic() < end:
            if child.poll() is not None:
                raise GoneError("ended before it was ready")
            try:
                send(url, "/health", timeout_s=1.0)
            except ServerError:
                time.sleep(BETWEEN_LOOKS_S)
            else:
                self.version = properties(url, self.vocabulary).version or self.version
                return
        raise GoneError(f"was not ready within {self.timeout_s:g} s")

    def _failure(self, returncode: int, failed: str, found: list[Continuation], log: str) -> Outcome:
        """What went wrong: how the process ended if it did so by itself, else what it answered."""
        ended = status_of(returncode)
        status = "error" if ended in ("ok", "killed") else ended
        told = message_of(ended, returncode, self.timeout_s, log) if status == ended else ""
        return Outcome(status, "; ".join(filter(None, (failed, told))), tuple(found), log[-LOG_TAIL:])


def words_of(command: str) -> list[str]:
    """A program and its arguments, at least one word; InputError for a quote that does not end, and for no word."""
    try:
        words = [command] if Path(command).is_file() else shlex.split(command)
    except (ValueError, OSError) as error:
        raise _no_program(command, str(error)) from error
    if not words:
        raise _no_program(command, "names no program")
    return words


def _no_program(command: str, message: str) -> InputError:
    remedy = "give the path of the binary: --engine llama-server=/path/to/llama-server"
    return InputError("no-program", message, subject=f"llama-server={command}", remedy=remedy)


@contextmanager
def _running(words: list[str], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is asked to stop, and then made to; OSError becomes an InputError."""
    try:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT}
        )
    except OSError as error:
        raise InputError("no-program", f"cannot be run: {error.strerror}", subject=words[0]) from error
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOPPING_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def free_port() -> int:
    """A port of this machine that nobody listens on just now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
