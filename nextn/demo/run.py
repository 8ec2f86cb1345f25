"""The main job on the bundled tiny checkpoint: convert it, draft with the result in llama.cpp, compare the tokens.

The reference runtime does the same, also with the shared sidecar, and has to say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from nextn.convert.pipeline import Conversion, convert
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError, extra
from nextn.runtime.engines import llama_cpp
from nextn.runtime.engines.engine import Asked, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

CHECKPOINT = "step35-tiny"
PROMPTS = (
    "def add_nine(value):\n    return",
    "Weather report for Kyoto.\nOn Wednesday it will be s",
    "Anna: How is the weather in Oslo today?\n",
)
N_PREDICT = 48  # tokens
N_MAX = 3  # the checkpoint has three chained heads
LLAMA_CPP, REFERENCE = "llama-cpp", "reference"
# Engine, model, draft, tokens of a draft.
RUNS: tuple[tuple[str, Role, Role | None, int], ...] = (
    (LLAMA_CPP, Role.COMBINED, None, 0),
    (LLAMA_CPP, Role.TRUNK, None, 0),
    (LLAMA_CPP, Role.COMBINED, None, N_MAX),
    (LLAMA_CPP, Role.TRUNK, Role.MTP, N_MAX),
    (REFERENCE, Role.COMBINED, None, 0),
    (REFERENCE, Role.COMBINED, None, N_MAX),
    (REFERENCE, Role.TRUNK, Role.MTP, N_MAX),
    (REFERENCE, Role.TRUNK, Role.MTP_SHARED, N_MAX),
)
REFUSAL = "check_tensor_dims: tensor 'token_embd.weight' not found"


@dataclass(frozen=True)
class Prompt:
    """A prompt as text and as the token ids that llama.cpp is given."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """All prompts on one choice of files by one engine; `n_max` 0 is without drafting."""

    engine: str
    model: Role
    draft: Role | None
    n_max: int
    outcome: Outcome
    texts: tuple[str, ...]
    identical: bool  # to the tokens of the first run

    @property
    def files(self) -> str:
        """The roles of the files, as people say it: `trunk + mtp`."""
        return f"{self.model} + {self.draft}" if self.draft else str(self.model)

    @property
    def drafted(self) -> int:
        """Draft tokens that were verified, over all prompts."""
        return sum(each.n_drafted for each in self.outcome.continuations)

    @property
    def accepted(self) -> int:
        """Draft tokens that were accepted, over all prompts."""
        return sum(each.n_accepted for each in self.outcome.continuations)


@dataclass(frozen=True)
class Demonstration:
    """What the demo did and found."""

    folder: Path
    conversion: Conversion
    llama_cpp_version: str
    prompts: tuple[Prompt, ...]
    runs: tuple[Run, ...]
    refusal: Outcome

    @property
    def checks(self) -> dict[str, bool]:
        """What has to hold, by name."""
        drafting = [run for run in self.runs if run.n_max]
        return {
            "every run finished": all(run.outcome.ok for run in self.runs),
            "all runs gave the same tokens": all(run.identical for run in self.runs),
            "drafts were accepted": all(run.accepted for run in drafting),
            "every pair of files accepts the same": len({(run.drafted, run.accepted) for run in drafting}) == 1,
            "llama.cpp refuses the shared sidecar": self.refusal.status == "error" and REFUSAL in self.refusal.message,
        }

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(self.checks.values())

    def as_json(self) -> dict[str, Any]:
        """The demonstration as `--json` prints it."""
        return {
            "outputs": [output.as_json() for output in self.conversion.outputs],
            "seconds": round(self.conversion.seconds, 3),
            "versions": {"xllamacpp": self.llama_cpp_version},
            "prompts": [{"text": prompt.text, "tokens": prompt.ids} for prompt in self.prompts],
            "runs": [_run_as_json(run) for run in self.runs],
            "refusal": {"status": self.refusal.status, "message": self.refusal.message},
            "checks": self.checks,
            "ok": self.ok,
        }


def demonstrate(
    folder: Path, *, overwrite: bool = False, note: Callable[[str], None] = lambda _: None
) -> Demonstration:
    """Convert the bundled checkpoint into `folder` in every role and try the files in llama.cpp; takes a few seconds.

    `note` is told what happens. A failed check is a result. Raises InputError without llama.cpp or torch, UsageError
    when an output exists and `overwrite` is false.
    """
    version = llama_cpp.require()
    if find_spec("torch") is None:
        message = "nextn demo needs torch, which is not installed"
        raise InputError("runtime-missing", message, remedy=extra("runtime"))
    with as_file(files("nextn.demo") / CHECKPOINT) as checkpoint:
        note("converting the bundled checkpoint")
        conversion = convert(checkpoint, folder, tuple(Role), "f32", overwrite=overwrite)
        prompts, decode = _tokenizer(checkpoint)
    paths = {output.role: output.path for output in conversion.outputs}
    runs: list[Run] = []
    ids = [prompt.ids for prompt in prompts]
    for engine, model, draft, n_max in RUNS:
        files_ = f"{model}{f' + {draft}' if draft else ''}"
        note(f"{engine}: generating with {files_}, {'drafting' if n_max else 'not drafting'}")
        outcome = _ENGINES[engine](paths[model], ids, paths[draft] if draft else None, n_max)
        tokens = [each.tokens for each in outcome.continuations]
        expected = [each.tokens for each in runs[0].outcome.continuations] if runs else tokens
        texts = tuple(decode(each) for each in tokens)
        runs.append(Run(engine, model, draft, n_max, outcome, texts, outcome.ok and tokens == expected))
    refusal = llama_cpp.load(paths[Role.TRUNK], paths[Role.MTP_SHARED])
    return Demonstration(folder, conversion, version, prompts, tuple(runs), refusal)


def _by_llama_cpp(model: Path, prompts: Sequence[tuple[int, ...]], draft: Path | None, n_max: int) -> Outcome:
    return llama_cpp.run(model, prompts, draft=draft, n_max=n_max, n_predict=N_PREDICT)


def _by_reference(model: Path, prompts: Sequence[tuple[int, ...]], draft: Path | None, n_max: int) -> Outcome:
    from nextn.runtime.engines.reference import Reference
    from nextn.runtime.load import load_pair, use_threads
    from nextn.runtime.text import Text

    use_threads(1)
    pair = load_pair(model, draft, drafting=n_max > 0)
    reference = Reference(pair.trunk, pair.heads, Text(pair.file.contents).ends)
    return reference.run(prompts, Asked(n_max, N_PREDICT))


_ENGINES = {LLAMA_CPP: _by_llama_cpp, REFERENCE: _by_reference}


def _tokenizer(checkpoint: Path) -> tuple[tuple[Prompt, ...], Callable[[tuple[int, ...]], str]]:
    """The prompts, tokenised, and the way from tokens back to text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    prompts = tuple(Prompt(text, tuple(tokenizer.encode(text).ids)) for text in PROMPTS)
    return prompts, lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def _run_as_json(run: Run) -> dict[str, Any]:
    return {
        "engine": run.engine,
        "model": run.model,
        "draft": run.draft,
        "n_max": run.n_max,
        "status": run.outcome.status,
        "message": run.outcome.message,
        "identical": run.identical,
        "n_drafted": run.drafted,
        "n_accepted": run.accepted,
        "tokens": [each.tokens for each in run.outcome.continuations],
        "texts": run.texts,
    }
