"""A check of files: opens what it needs, makes prompts, runs, and says what took part."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path

from nextn import __version__
from nextn.gguf_schema.errors import InputError, reason
from nextn.gguf_schema.shards import GGUFFile, open_gguf
from nextn.kernels.operations import DEFAULT
from nextn.runtime.engines.choice import Job, drafts_with_files, opener_of
from nextn.runtime.engines.engine import Engine
from nextn.runtime.engines.reference import Reference
from nextn.runtime.identity.certificate import Certificate, FileRecord
from nextn.runtime.identity.check import check
from nextn.runtime.identity.checklist import checklist
from nextn.runtime.identity.observe import SPARE, Settings
from nextn.runtime.identity.pairing import pairing_with_head
from nextn.runtime.identity.prompts import Prompt, default_prompts
from nextn.runtime.identity.rescore import Rescorer
from nextn.runtime.load import Pair, fit_threads, load_pair
from nextn.runtime.prompts import read_prompts
from nextn.runtime.text import Text

OWN = "own"  # the category of prompts of one's own
PACKAGES = ("torch", "xllamacpp", "tokenizers", "numpy")


@dataclass(frozen=True)
class Wanted:
    """What is asked of a check: files, specifications of engines, and settings.

    `context` is in tokens; `rescored` says whether the reference runtime is asked about every parting.
    """

    model: Path
    draft: Path | None
    engines: tuple[str, ...]
    n_max: tuple[int, ...]
    n_predict: int
    bound: float
    context: int
    prompts: Path | None = None
    device: str = "cpu"
    kernels: str | None = None
    rescored: bool = True


class Files:
    """The files of a check, and what is read of them; the model is loaded when it is first needed."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.model = open_gguf(wanted.model)
        self.draft = open_gguf(wanted.draft) if wanted.draft else None
        self.text = Text(self.model.contents)
        self._stamps = self._stamped()
        fit_threads(self.paths)

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files that take part, shards one by one."""
        files: list[GGUFFile] = [self.model, *([self.draft] if self.draft else [])]
        return tuple(path for file in files for path in file.paths)

    @cached_property
    def pair(self) -> Pair:
        """Trunk and heads on the reference runtime."""
        wanted = self.wanted
        return load_pair(wanted.model, wanted.draft, device=wanted.device, kernels=wanted.kernels)

    @cached_property
    def reference(self) -> Reference:
        """The reference runtime as an engine."""
        about = {"kernels": self.wanted.kernels or DEFAULT[self.wanted.device]}
        return Reference(self.pair.trunk, self.pair.heads, self.text.ends, self.wanted.context, about)

    def rescorer(self) -> Rescorer:
        """The trunk, and how to have it in float64."""
        wanted = self.wanted
        return Rescorer(
            self.pair.trunk,
            lambda: load_pair(wanted.model, dtype="float64", device=wanted.device, drafting=False).trunk,
        )

    def records(self) -> tuple[FileRecord, ...]:
        """All files with their hashes; InputError when one cannot be read, or was written to since it was opened."""
        found = tuple(FileRecord(str(path), sha256_of(path)) for path in self.paths)
        for path, before, now in zip(self.paths, self._stamps, self._stamped(), strict=True):
            if before != now:
                message = "changed while it was checked: what was run is not what is there now"
                raise InputError("changed", message, subject=str(path), remedy="run it again when nothing writes there")
        return found

    def _stamped(self) -> list[tuple[int, int, int]]:
        """What changes with a file: its bytes, the time of its last change (ns), its number on the disk."""
        try:
            return [(s.st_size, s.st_mtime_ns, s.st_ino) for s in (path.stat() for path in self.paths)]
        except OSError as error:
            message = f"cannot be read: {reason(error)}"
            raise InputError("unreadable", message, subject=str(self.wanted.model)) from error


def check_files(wanted: Wanted, stack: ExitStack, note: Callable[[str], None]) -> Certificate:
    """Check files by the wanted engines, which are closed with `stack`; the certificate lacks only its command.

    Raises InputError and VerdictError for files that cannot be used, InputError when it is known that nothing drafts,
    and what `check` raises.
    """
    files = Files(wanted)
    if wanted.draft is None and all(map(drafts_with_files, wanted.engines)):
        pairing_with_head(wanted.model, None)
    engines = open_engines(files, stack)
    rescored = wanted.rescored and _can_rescore(files, note)
    certificate = check(
        engines,
        prompts_of(files, engines),
        Settings(wanted.n_max, wanted.n_predict, wanted.bound),
        rescorer=files.rescorer() if rescored else None,
        yardstick=files.reference if rescored else None,
        decode=files.text.decode,
        verified=checklist(files.model.contents, files.draft.contents if files.draft else None),
        vocabulary=len(files.text.tokens),
        note=note,
    )
    return replace(
        certificate,
        files=files.records(),
        versions=versions(),
        settings={
            **certificate.settings,
            "context": wanted.context,
            "rescored": rescored,
            "device": wanted.device,
            "kernels": wanted.kernels,
        },
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def open_engines(files: Files, stack: ExitStack) -> list[Engine]:
    """The wanted engines, which are closed with `stack`; raises what opening them raises."""
    wanted, engines = files.wanted, list[Engine]()
    job = Job(wanted.model, wanted.draft, wanted.context, wanted.n_max, len(files.text.tokens), lambda: files.reference)
    for specification in wanted.engines:
        engines.append(opener_of(specification)(job))
        stack.callback(engines[-1].close)
    return engines


def _can_rescore(files: Files, note: Callable[[str], None]) -> bool:
    """Whether the reference runtime has the model's architecture; all else that is wrong with a file is an error."""
    try:
        _ = files.pair
    except InputError as error:
        if error.code != "no-such-model":
            raise
        note(f"partings are judged by the engines' own log-probabilities: {error.message}")
        return False
    return True


def prompts_of(files: Files, engines: Sequence[Engine]) -> list[Prompt]:
    """The prompts of one's own, or those that are built in; the long one fills the smallest context."""
    wanted, text = files.wanted, files.text
    if wanted.prompts is not None:
        own = read_prompts(wanted.prompts, text.encode, len(text.tokens))
        names = [prompt.name for prompt in own]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError("bad-prompt", f"has two prompts named {twice!r}", subject=str(wanted.prompts))
        return [Prompt(prompt.name, OWN, prompt.tokens, text.decode(prompt.tokens)) for prompt in own]
    context = min([wanted.context, *(e.context for e in engines if e.context is not None)])
    return default_prompts(text.encode, context - wanted.n_predict - max(wanted.n_max) - SPARE)


def sha256_of(path: Path) -> str:
    """The digest of a file, in hexadecimal; InputError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError("unreadable", f"cannot be read: {reason(error)}", subject=str(path)) from error


def versions() -> dict[str, str]:
    """What a result depends on beside files and settings."""
    found = {"python": sys.version.split()[0], "nextn": __version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
