"""Which engine a specification names: `reference`, `llama-cpp`, `llama-server=PATH`, `URL` or `PLAIN_URL,DRAFT_URL`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nextn.gguf_schema.errors import UsageError
from nextn.runtime.engines.engine import Engine
from nextn.runtime.engines.llama_cpp import LlamaCpp, require
from nextn.runtime.engines.llama_server import LlamaServer
from nextn.runtime.engines.server import Server

KNOWN = "reference, llama-cpp, http://HOST:PORT, PLAIN_URL,DRAFT_URL or llama-server=PATH"


@dataclass(frozen=True)
class Job:
    """What engines are opened for: files, tokens of context, draft lengths, tokens of the vocabulary.

    `reference` loads the files on the reference runtime.
    """

    model: Path
    draft: Path | None
    context: int
    n_max: tuple[int, ...]
    vocabulary: int
    reference: Callable[[], Engine]


Opener = Callable[[str, Job], Engine]


def _llama_cpp(_: str, job: Job) -> Engine:
    require()
    return LlamaCpp(job.model, job.draft, job.context, job.vocabulary)


def _llama_server(value: str, job: Job) -> Engine:
    return LlamaServer(value, job.model, job.draft, job.context, job.vocabulary)


def _server(url: str, job: Job) -> Engine:
    plain, _, drafting = url.rpartition(",")
    return Server(drafting.rstrip("/"), plain.rstrip("/") or None, job.n_max, job.vocabulary)


# What a specification begins with, whether more follows, and what opens it with what follows.
ENGINES: tuple[tuple[str, bool, Opener], ...] = (
    ("reference", False, lambda _, job: job.reference()),
    ("llama-cpp", False, _llama_cpp),
    ("llama-server=", True, _llama_server),
    ("http://", True, lambda rest, job: _server(f"http://{rest}", job)),
    ("https://", True, lambda rest, job: _server(f"https://{rest}", job)),
)


def opener_of(specification: str) -> Callable[[Job], Engine]:
    """What opens the engine of a specification; UsageError when there is none of that name."""
    for prefix, takes_more, opener in ENGINES:
        rest = specification.removeprefix(prefix)
        if rest != specification and bool(rest) == takes_more:
            return lambda job: opener(rest, job)
    raise UsageError("engine", f"is no engine; there are {KNOWN}", subject=f"--engine {specification}")
