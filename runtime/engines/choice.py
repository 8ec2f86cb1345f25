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


# What a specification begins with, and what opens it with what follows. Where nothing follows, it drafts with the files
# of the job; else the draft is another's choice: of who started the server, or of flags behind the program.
ENGINES: tuple[tuple[str, bool, Opener], ...] = (
    ("reference", False, lambda _, job: job.reference()),
    ("llama-cpp", False, _llama_cpp),
    ("llama-server=", True, _llama_server),
    ("http://", True, lambda rest, job: _server(f"http://{rest}", job)),
    ("https://", True, lambda rest, job: _server(f"https://{rest}", job)),
)


def opener_of(specification: str) -> Callable[[Job], Engine]:
    """What opens the engine of a specification; UsageError when there is none of that name."""
    _, rest, opener = _found(specification)
    return lambda job: opener(rest, job)


def drafts_with_files(specification: str) -> bool:
    """Whether what drafts is certainly in the files that the engine is given."""
    takes_more, *_ = _found(specification)
    return not takes_more


def _found(specification: str) -> tuple[bool, str, Opener]:
    for prefix, takes_more, opener in ENGINES:
        rest = specification.removeprefix(prefix)
        if rest != specification and bool(rest) == takes_more:
            return takes_more, rest, opener
    raise UsageError("engine", f"is no engine; there are {KNOWN}", subject=f"--engine {specification}")
