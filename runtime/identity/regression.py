"""What became worse since a run that was kept: streams, acceptance, speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nextn.runtime.identity.acceptance import SIGMAS, drop
from nextn.runtime.identity.certificate import AggregateRecord, Certificate, RunRecord
from nextn.runtime.identity.strayed import first_difference
from nextn.validators.findings import Findings, Severity

# A speed below this part of the earlier one is told.
SLOW = 0.8


@dataclass(frozen=True)
class Change:
    """One configuration then and now: accepted parts, by how many standard deviations less it is, and speed as a ratio.

    None where a side has no draft, or no seconds.
    """

    engine: str
    n_max: int
    accepted_before: float | None
    accepted_now: float | None
    sigmas: float
    speed: float | None


@dataclass(frozen=True)
class Regressions:
    """All configurations that both runs have, and what is worse: errors are regressions, the rest is worth knowing."""

    changes: tuple[Change, ...]
    findings: Findings

    @property
    def found(self) -> bool:
        """Whether anything is worse."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The comparison as `--json` prints it."""
        return {
            "regression": self.found,
            "changes": [asdict(change) for change in self.changes],
            "findings": [finding.as_json() for finding in self.findings],
        }


@dataclass(frozen=True)
class Measured:
    """One configuration of an engine: tokens that were verified and accepted, and tokens a second, None if unknown."""

    engine: str
    n_max: int
    drafted: int
    accepted: int
    speed: float | None


def compare(now: Certificate, before: Certificate) -> Regressions:
    """What is worse in a certificate than in an earlier one, of which it need not have all engines and prompts."""
    findings = Findings()
    prompts = _same_prompts(now, before, findings)
    if now.settings.get("n_predict") != before.settings.get("n_predict"):
        message = f"{now.settings.get('n_predict')} tokens behind each prompt, {before.settings.get('n_predict')} then"
        findings.note("baseline-settings", "n_predict", f"{message}: streams are compared as far as both go")
    _compare_streams(now, before, prompts, findings)
    if before.verdict == "identical" and now.verdict != "identical":
        findings.error("baseline-verdict", "verdict", f"is {now.verdict}, and was identical")
    # Sums over other prompts, or other lengths of text, say nothing about each other.
    whole = len(prompts) == len(now.prompts) == len(before.prompts)
    changes = changed(_measured(now.aggregate), _measured(before.aggregate), findings) if whole else ()
    return Regressions(tuple(changes), findings)


def changed(now: Iterable[Measured], before: Iterable[Measured], findings: Findings) -> list[Change]:
    """The configurations of both sides; adds an error for each that accepts less than chance explains."""
    old = {(each.engine, each.n_max): each for each in before}
    found = []
    for new in now:
        was = old.pop((new.engine, new.n_max), None)
        if was is None:
            continue
        sigmas = drop((was.accepted, was.drafted), (new.accepted, new.drafted))
        speed = new.speed / was.speed if new.speed and was.speed else None
        found.append(Change(new.engine, new.n_max, _rate(was), _rate(new), round(sigmas, 2), speed))
        subject = f"{new.engine}, n_max {new.n_max}"
        if sigmas > SIGMAS:
            message = f"{_rate(new):.1%} of drafted tokens accepted, {_rate(was):.1%} then: {sigmas:.1f} sigma less"
            findings.error("baseline-acceptance", subject, message, "nextn bench --probe tells what the head is worth")
        elif was.drafted and not new.drafted:
            findings.error("baseline-acceptance", subject, f"nothing is drafted, {was.drafted} tokens were then")
        if speed is not None and speed < SLOW:
            message = f"{speed:.2f} times the speed of then"
            findings.warn("baseline-speed", subject, message, "measure again on a quiet machine: seconds prove little")
    for engine, n_max in old:
        findings.note("baseline-configuration", f"{engine}, n_max {n_max}", "was not run now")
    return found


def _rate(measured: Measured) -> float | None:
    return measured.accepted / measured.drafted if measured.drafted else None


def _measured(records: Iterable[AggregateRecord]) -> Iterator[Measured]:
    for each in records:
        speed = each.total_predicted / each.wall_s_total if each.wall_s_total > 0 else None
        yield Measured(each.engine, each.n_max, each.total_draft, each.total_draft_accepted, speed)


def _same_prompts(now: Certificate, before: Certificate, findings: Findings) -> set[str]:
    """Names of the prompts that both have with the same tokens; a note about the others."""
    old = {prompt.name: prompt.tokens for prompt in before.prompts}
    same = {prompt.name for prompt in now.prompts if old.get(prompt.name) == prompt.tokens}
    others = [prompt.name for prompt in (*now.prompts, *before.prompts) if prompt.name not in same]
    for name in dict.fromkeys(others if same else ()):
        findings.note("baseline-prompt", f"prompt {name}", "is not the same in both runs, and is not compared")
    if not same:
        remedy = "give the prompts of the baseline, and files with its tokenizer"
        findings.error("baseline-prompts", "prompts", "none is the same in both runs", remedy)
    return same


def _compare_streams(now: Certificate, before: Certificate, prompts: set[str], findings: Findings) -> None:
    """An error for each engine that says something else without a draft; what drafts change is the verdict's matter.

    Of other files another text is only to be expected.
    """
    same_files = _files(now) == _files(before)
    as_long = now.settings.get("n_predict") == before.settings.get("n_predict")
    old = _plain(before.runs)
    for engine, streams in _plain(now.runs).items():
        if engine not in old:
            findings.note("baseline-engine", engine, "has no run in the baseline")
            continue
        both = [(name, streams[name], old[engine][name]) for name in streams if name in prompts and name in old[engine]]
        parted = [(name, place) for name, a, b in both if (place := _parting(a, b, as_long)) is not None]
        if not parted:
            continue
        (name, place), add = parted[0], findings.error if same_files else findings.warn
        message = f"{len(parted)} of {len(both)} prompts have another text than then: {name} from token {place} on"
        add("baseline-stream", engine, message if same_files else f"{message}; the files are others, too")


def _parting(now: Sequence[int], before: Sequence[int], as_long: bool) -> int | None:
    """The first place at which two texts differ; texts that were asked for in other lengths may end anywhere."""
    place = first_difference(now, before)
    return None if place == min(len(now), len(before)) and not as_long else place


def _plain(runs: Sequence[RunRecord]) -> Mapping[str, dict[str, tuple[int, ...]]]:
    """What each engine said to each prompt without a draft."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for run in runs:
        if run.n_max == 0 and run.together == 1 and run.order == "A1" and run.status == "ok":
            found.setdefault(run.engine, {})[run.prompt] = run.tokens
    return found


def _files(certificate: Certificate) -> list[str]:
    return sorted(file.sha256 for file in certificate.files)
