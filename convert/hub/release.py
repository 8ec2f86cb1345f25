"""What is to be published together: models given as files, what they are, and which heads fit which trunks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nextn.convert.hub.limits import check_paths, examine_name, path_in_repo
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import LocalFile
from nextn.gguf_schema.errors import InputError, listed
from nextn.gguf_schema.shards import shard_names
from nextn.validators.examine import Report, examine, judge
from nextn.validators.findings import Finding, Findings, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nextn.gguf_schema.contents import Contents

TARGETS = (Role.COMBINED, Role.TRUNK)
HEADS = (Role.MTP, Role.MTP_SHARED)


@dataclass(frozen=True)
class Model:
    """One model: the verdict about it, and its files by their paths in the repository, in the order of the shards."""

    report: Report
    files: Mapping[str, LocalFile]
    named: tuple[Finding, ...]

    @property
    def contents(self) -> Contents:
        """What its files say together."""
        return self.report.model.contents

    @property
    def role(self) -> Role | None:
        """What it is, by its tensors."""
        return self.report.model.role.role if self.report.model.role else None

    @property
    def path(self) -> str:
        """Where it is in the repository: its first file."""
        return next(iter(self.files))

    @property
    def type(self) -> str:
        """The type that holds most of its bytes."""
        held: Counter[str] = Counter()
        for tensor in self.contents:
            held[tensor.type.name] += tensor.nbytes
        return held.most_common(1)[0][0] if held else "–"


@dataclass(frozen=True)
class Pair:
    """A trunk, or combined model, and a head of the same release: the verdict about the two."""

    model: Model
    draft: Model
    report: Report


@dataclass(frozen=True)
class Release:
    """The models, and the pairs that fit; of a head that fits none of the trunks beside it, one pair that does not."""

    models: tuple[Model, ...]
    pairs: tuple[Pair, ...]
    misfits: tuple[Pair, ...]

    @property
    def files(self) -> dict[str, LocalFile]:
        """All files by their paths in the repository."""
        return {path: file for model in self.models for path, file in model.files.items()}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is to be said of files and of heads that fit nothing; notes are not."""
        each = [finding for model in self.models for finding in (*model.report.findings, *model.named)]
        found = [*each, *(finding for pair in self.misfits for finding in pair.report.pair)]
        return tuple(dict.fromkeys(finding for finding in found if finding.severity is not Severity.NOTE))

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


def read_release(paths: Iterable[Path]) -> Release:
    """Examine files as `nextn validate` does, shards as one model and heads with the trunks that are given.

    InputError for a file that cannot be read and for a set that is not given as a whole, UsageError for two files that
    would have one name.
    """
    models = tuple(_read(names) for names in _sets(paths))
    check_paths((path, file.name) for model in models for path, file in model.files.items())
    targets = [model for model in models if model.role in TARGETS]
    pairs: list[Pair] = []
    misfits: list[Pair] = []
    for draft in (model for model in models if model.role in HEADS):
        same = [model for model in targets if model.contents.architecture == draft.contents.architecture]
        tried = [Pair(model, draft, judge(model.report.model, draft.report.model)) for model in same or targets]
        fitting = [pair for pair in tried if not any(f.severity is Severity.ERROR for f in pair.report.pair)]
        pairs += fitting
        misfits += [] if fitting else tried[:1]
    return Release(models, tuple(pairs), tuple(misfits))


def _sets(paths: Iterable[Path]) -> list[tuple[Path, ...]]:
    """The files of each model, a set in the order of its shards; InputError when one of a set is not given."""
    given = {path.absolute(): path for path in paths}
    sets: dict[tuple[Path, ...], None] = {}
    for absolute, path in given.items():
        if absolute.is_dir():
            raise InputError("not-a-file", "is a folder", subject=str(path), remedy="give the files that are in it")
        names = shard_names(path)
        if missing := [name for name in names if absolute.with_name(name) not in given]:
            message = f"is one of {len(names)} files, and these are not given: {listed(missing, 8)}"
            raise InputError("missing-shard", message, subject=str(path), remedy="give all files of the set")
        sets[tuple(given[absolute.with_name(name)] for name in names)] = None
    return list(sets)


def _read(paths: Sequence[Path]) -> Model:
    report = examine(paths[0])
    role = report.model.role.role if report.model.role else None
    # Those that were examined, so that what becomes of them afterwards is noticed.
    headers = report.model.file.headers if report.model.file else ()
    opened = {Path(header.source.name): header.source for header in headers}
    sources = [opened.get(path) for path in paths]
    files = {
        path_in_repo(path.name, role): source if isinstance(source, LocalFile) else LocalFile(path)
        for path, source in zip(paths, sources, strict=True)
    }
    named = Findings()
    for path in files:
        examine_name(path, role, named)
    return Model(report, files, tuple(named))
