"""What a repository of GGUF files holds: what llama.cpp's `-hf` takes, what each file is, and which files pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from nextn.convert.hub.gguf_sets import GGUFSet, file_set, gguf_sets
from nextn.convert.hub.picks import Picks, picks
from nextn.convert.hub.repository import Repository
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError
from nextn.validators.examine import Report, examine, judge
from nextn.validators.findings import Severity

# A header with a vocabulary has some megabytes: of more files than this only those that `-hf` takes are read.
MOST_READ = 12
# Of more quantizations than this, what `-hf` takes is shown for the first ones alone.
MOST_TAGS = 100
TRUNKS = (Role.COMBINED, Role.TRUNK)
HEADS = (Role.MTP, Role.MTP_SHARED)


@dataclass(frozen=True)
class Pairing:
    """Whether a head may draft for a model, by their headers; `message` says why not."""

    model: str
    draft: str
    ok: bool
    message: str = ""


@dataclass(frozen=True)
class Survey:
    """A repository of GGUF files; `reports` are about the sets that were read, by the path of their first file."""

    repository: Repository
    sets: tuple[GGUFSet, ...]
    picks: tuple[Picks, ...]
    reports: Mapping[str, Report]
    pairs: tuple[Pairing, ...]

    @property
    def taken(self) -> Picks:
        """What `-hf` takes for the tag that was asked for, or without one."""
        return self.picks[0]

    @property
    def ok(self) -> bool:
        """Whether what `-hf` takes is there, sound, and pairs."""
        taken = self.taken
        files = {*taken.model[:1], *([taken.draft] if taken.draft else ())}
        incomplete = any(each.missing for each in self.sets if each.path in files)
        wrong = any(not self.reports[path].ok for path in files if path in self.reports)
        unfit = any(not pair.ok for pair in self.pairs if {pair.model, pair.draft} == files)
        return bool(files) and not (incomplete or wrong or unfit)

    def as_json(self) -> dict[str, Any]:
        """The survey as `--json` prints it."""
        return {
            "repository": {
                "id": self.repository.location.repo,
                "revision": self.repository.location.revision,
                "commit": self.repository.commit,
            },
            "files": [
                {"path": path, "bytes": self.repository.files[path].size} for each in self.sets for path in each.files
            ],
            "sets": [self._set(each) for each in self.sets],
            "picks": [asdict(each) for each in self.picks],
            "pairs": [asdict(pair) for pair in self.pairs],
            "ok": self.ok,
        }

    def _set(self, each: GGUFSet) -> dict[str, Any]:
        report = self.reports.get(each.path)
        role = report.model.role.role if report and report.model.role else None
        return {
            "path": each.path,
            "files": each.files,
            "kind": each.kind,
            "tag": each.tag or None,
            "missing": each.missing.message if each.missing else None,
            "role": role,
            "ok": report.ok if report else None,
        }


def survey(repository: Repository) -> Survey:
    """Look at the GGUF files of a repository; a tag of its location is the one that `-hf` is asked for.

    InputError when there are none, or a header cannot be read.
    """
    sets = tuple(_some_sets(repository))
    paths, tag = list(repository.files), repository.location.tag
    tags = dict.fromkeys(each.tag for each in sets if each.kind == "model" and each.tag)
    every = (picks(paths, tag), *(picks(paths, each) for each in islice(tags, MOST_TAGS) if each != tag))
    taken = {*every[0].model[:1], every[0].draft}
    read = [each for each in sets if not each.missing and (len(sets) <= MOST_READ or each.path in taken)]
    reports = {each.path: examine(file_set(repository, each.path)) for each in read if each.kind != "companion"}
    return Survey(repository, sets, every, reports, tuple(_pairs(reports)))


def examine_all(repository: Repository, *, runtime: str | None, strict: bool) -> dict[GGUFSet, Report | None]:
    """The verdict about every set, those of the location's tag if it has one; None for one that is not complete."""
    tag = repository.location.tag
    chosen = [each for each in _some_sets(repository) if not tag or each.tag == tag.upper()]
    if not chosen:
        raise InputError("no-tag", f"has no GGUF file of {tag}", subject=repository.name)
    return {
        each: None if each.missing else examine(file_set(repository, each.path), runtime=runtime, strict=strict)
        for each in chosen
    }


def _some_sets(repository: Repository) -> list[GGUFSet]:
    sets = gguf_sets(repository)
    if not sets:
        raise InputError(
            "no-gguf",
            "holds neither a checkpoint nor a GGUF file",
            subject=repository.name,
            remedy="check the name and the revision",
        )
    return sets


def _pairs(reports: Mapping[str, Report]) -> list[Pairing]:
    roles = {path: report.model.role.role for path, report in reports.items() if report.model.role}
    found = []
    for model in (path for path, role in roles.items() if role in TRUNKS):
        for draft in (path for path, role in roles.items() if role in HEADS):
            pair = judge(reports[model].model, reports[draft].model).pair
            errors = [finding.message for finding in pair if finding.severity is Severity.ERROR]
            found.append(Pairing(model, draft, not errors, errors[0] if errors else ""))
    return found
