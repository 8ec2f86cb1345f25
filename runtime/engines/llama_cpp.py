"""Real llama.cpp as an engine: what it generates, what it drafts, or how exactly it refuses a file.

It always runs in a child process (`llama_cpp_child`), so that a crash of it is a result.
"""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nextn.gguf_schema.errors import InputError, UsageError, extra
from nextn.runtime.engines.child import supervise
from nextn.runtime.engines.engine import Asked, Outcome, Prompts

CHILD = (sys.executable, "-P", "-m", "nextn.runtime.engines.llama_cpp_child")
SMALLEST_CONTEXT = 1024
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class LlamaCpp:
    """Real llama.cpp in a child process; every run has a new server, with caches of F32.

    `context` is in tokens for each sequence, `timeout_s` the seconds that one prompt may take, loading included. With
    one of `threads` runs can be compared exactly.
    """

    model: Path
    draft: Path | None
    context: int
    vocabulary: int
    timeout_s: float = TIMEOUT_S
    name: str = "llama-cpp"
    threads: int = 1

    def describe(self) -> dict[str, str]:
        """Version, and the settings under which runs can be compared exactly. InputError without xllamacpp."""
        return {
            "version": f"xllamacpp {require()}",
            "vocabulary": str(self.vocabulary),
            "context": str(self.context),
            "kv_type": "F32",
            "flash_attention": "off",
            "threads": str(self.threads),
            "gpu_layers": "0",
        }

    def run(self, prompts: Prompts, asked: Asked) -> Outcome:
        """Continue each prompt in a server of its own."""
        return self._launched(prompts, asked, together=False)

    def run_together(self, prompts: Prompts, asked: Asked) -> Outcome:
        """Continue all prompts in one server, each in a slot of its own."""
        return self._launched(prompts, asked, together=True)

    def _launched(self, prompts: Prompts, asked: Asked, *, together: bool) -> Outcome:
        job = _job(prompts, asked, self.context) | {
            "together": together,
            "rounds": asked.n_max > 0,
            "threads": self.threads,
        }
        timeout_s = self.timeout_s * (len(prompts) if together else 1)
        return _launch(job, self.model, self.draft, mtp=asked.n_max > 0, timeout_s=timeout_s)

    def close(self) -> None:
        """Nothing: no child outlives its run."""


def version() -> str | None:
    """Version of the installed xllamacpp, whose last part is llama.cpp's build number; None if there is none."""
    # What pip has noted may be gone all the same: the child would find that out late, and say it in its log.
    if find_spec("xllamacpp") is None:
        return None
    try:
        return importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError:
        return None


def require() -> str:
    """The version of the installed xllamacpp; raises InputError when there is none."""
    if (found := version()) is None:
        raise InputError("llama-cpp-missing", "llama.cpp is not installed", remedy=extra("llamacpp"))
    return found


def run(
    model: Path,
    prompts: Prompts,
    *,
    draft: Path | None = None,
    n_max: int = 0,
    n_predict: int = 64,
    context: int | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Outcome:
    """Continue each prompt (token ids, fed as they are) greedily by up to `n_predict` tokens, each in a fresh server.

    `n_max` is the longest draft: 0 generates without drafting and loads no draft; above 0 the head of `draft` drafts,
    or the model's own. `context` is in tokens (default: what the longest prompt needs, at least 1024), `timeout_s` the
    seconds that one prompt may take, loading included. Raises InputError for a missing file or a missing xllamacpp,
    UsageError without prompts; whatever llama.cpp itself does is the outcome.
    """
    if context is None:
        needed = max((len(prompt) for prompt in prompts), default=0) + n_predict + n_max + 2
        context = max(SMALLEST_CONTEXT, -(-needed // 256) * 256)
    return _launch(_job(prompts, Asked(n_max, n_predict), context), model, draft, mtp=n_max > 0, timeout_s=timeout_s)


def load(model: Path, draft: Path | None = None, *, mtp: bool = False, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Start llama.cpp's server on `model` and let it go: does it load, and if not, what does it say?

    `mtp` asks for drafting with the model's own head, `draft` for drafting with the head of that file. Raises
    InputError for a missing file or a missing xllamacpp.
    """
    job = {"n_max": 0, "n_predict": 0, "context": SMALLEST_CONTEXT, "prompts": []}
    return _launch(job, model, draft, mtp=mtp or draft is not None, timeout_s=timeout_s)


def _job(prompts: Prompts, asked: Asked, context: int) -> dict[str, Any]:
    if not prompts or not all(prompts):
        raise UsageError("prompt-empty", "llama.cpp needs at least one prompt of at least one token")
    return {
        "n_max": asked.n_max,
        "n_predict": asked.n_predict,
        "top": asked.top,
        "context": context,
        "prompts": [list(prompt) for prompt in prompts],
    }


def _launch(job: dict[str, Any], model: Path, draft: Path | None, *, mtp: bool, timeout_s: float) -> Outcome:
    require()
    for path in (model, draft):
        if path is not None and not path.is_file():
            raise InputError("file-missing", "no such file", subject=str(path))
    files = {"model": str(model), "draft": str(draft) if mtp and draft else None}
    return supervise(CHILD, {**job, **files, "mtp": mtp, "timeout_s": timeout_s}, timeout_s)
