"""How fast engines are with and without a draft, and how much of the drafts they accept; kept as one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextn.runtime.engines.engine import Engine
from nextn.runtime.identity.acceptance import aggregate, context_rows, examine_acceptance
from nextn.runtime.identity.certificate import AggregateRecord, FileRecord
from nextn.runtime.identity.expected import Drafts, drafts_of
from nextn.runtime.identity.observe import Observation, Settings, observe
from nextn.runtime.identity.pairing import Pairing
from nextn.runtime.identity.probe import Probe
from nextn.runtime.identity.prompts import Prompt
from nextn.runtime.identity.records import encoded, load_record
from nextn.runtime.identity.regression import Measured, Regressions, changed
from nextn.validators.findings import Finding, Findings

FORMAT = "nextn bench 1"
COLUMNS = ("engine", "n_max", "tok/s", "ratio", "twice", "pred", "draft", "acc", "rate", "length", "by position")
# What a head can do and what an engine accepts of it differ by less than this.
POINTS = 0.05


@dataclass(frozen=True)
class Result:
    """One configuration of an engine over all prompts, run twice; `n_max` 0 is without a draft.

    `tokens_per_second` is of all tokens behind the first of each prompt, which comes with the prompt. `ratio` is to the
    same without a draft; `ratios` that of the first and of the second time: they tell how far it can be trusted.
    `mean_accepted_length` is of a round: accepted tokens and the trunk's own.
    """

    engine: str
    n_max: int
    n_requests: int
    total_predicted: int
    total_draft: int
    total_draft_accepted: int
    aggregate_accept_rate: float | None
    accepted_by_position: tuple[float, ...] | None
    accepted_by_decile: tuple[float | None, ...] | None
    mean_accepted_length: float | None
    tokens_per_second: float | None
    ratio: float | None
    ratios: tuple[float | None, ...]


@dataclass(frozen=True)
class EngineTold:
    """An engine and what it says of itself: versions, types of caches, and so on."""

    name: str
    describe: dict[str, str]


@dataclass(frozen=True)
class Bench:
    """What `nextn bench` measured."""

    results: tuple[Result, ...]
    engines: tuple[EngineTold, ...]
    findings: tuple[Finding, ...]
    pairing: Pairing
    probe: dict[str, Any] | None
    files: tuple[FileRecord, ...]
    versions: dict[str, str]
    settings: dict[str, Any]
    command: tuple[str, ...]
    created: str

    def as_json(self) -> dict[str, Any]:
        """The measurement as `--json` prints it."""
        told: dict[str, Any] = encoded(self)
        return {"format": FORMAT, **told}


def load_bench(path: Path) -> Bench:
    """Read a saved measurement; InputError, which names the key, for a file that is none or is damaged."""
    return load_record(Bench, FORMAT, path, "save one with nextn bench --json > FILE")


def measure(
    engines: Sequence[Engine],
    prompts: Sequence[Prompt],
    settings: Settings,
    findings: Findings,
    *,
    verified: Sequence[str] = (),
    vocabulary: int | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Run engines in ABBA order, without a draft and with each length; adds what is wrong with the acceptance.

    Raises InputError as `observe` does.
    """
    results: list[Result] = []
    for engine in engines:
        observed = observe(engine, prompts, settings, vocabulary=vocabulary, note=note)
        sums = aggregate(engine.name, observed, context_rows(observed))
        examine_acceptance(sums, observed, (), verified, findings)
        _tell_different(engine.name, observed, findings)
        results += [_result(each, observed) for each in sums]
    return results


def _result(sums: AggregateRecord, observed: Sequence[Observation]) -> Result:
    speeds = {n: [_speed(observed, n, time) for time in "12"] for n in (0, sums.n_max)}
    ratios = tuple(
        now / plain if now and plain else None for now, plain in zip(speeds[sums.n_max], speeds[0], strict=True)
    )
    both = {n: _speed(observed, n, "12") for n in (0, sums.n_max)}
    now, plain = both[sums.n_max], both[0]
    first = [o.made for o in observed if o.n_max == sums.n_max and o.is_first and o.made and o.together == 1]
    rounds = [each for made in first for each in made.rounds or ()]
    is_told = bool(rounds) and all(made.rounds is not None for made in first)
    return Result(
        sums.engine,
        sums.n_max,
        sums.n_requests,
        sums.total_predicted,
        sums.total_draft,
        sums.total_draft_accepted,
        sums.aggregate_accept_rate,
        sums.accepted_by_position,
        sums.accepted_by_decile,
        1 + sums.total_draft_accepted / len(rounds) if is_told else None,
        now,
        now / plain if now and plain else None,
        ratios,
    )


def rows_of(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """The results for people: a row for each configuration, in the columns of `COLUMNS`."""
    return [
        (
            each.engine,
            str(each.n_max),
            _shown(each.tokens_per_second, ".1f"),
            _shown(each.ratio, ".2f"),
            " ".join(_shown(ratio, ".2f") for ratio in each.ratios),
            *map(str, (each.total_predicted, each.total_draft, each.total_draft_accepted)),
            _shown(each.aggregate_accept_rate, ".3f"),
            _shown(each.mean_accepted_length, ".2f"),
            " ".join(f"{part:.2f}" for part in each.accepted_by_position or ()),
        )
        for each in results
    ]


def _shown(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def _speed(observed: Sequence[Observation], n_max: int, times: str) -> float | None:
    """Tokens a second over all prompts, of the given times; None when no second was told."""
    made = [o.made for o in observed if o.n_max == n_max and o.together == 1 and o.order[-1] in times and o.made]
    tokens, seconds = sum(len(each.tokens) - 1 for each in made), sum(each.seconds_decode for each in made)
    return tokens / seconds if seconds > 0 and tokens > 0 else None


def _tell_different(engine: str, observed: Sequence[Observation], findings: Findings) -> None:
    """A warning when a draft changed what was said: speeds of other texts cannot be compared."""
    plain = {o.prompt.name: o.tokens for o in observed if o.order == "A1"}
    for n_max in dict.fromkeys(o.n_max for o in observed if o.n_max):
        others = [o for o in observed if o.n_max == n_max and o.is_first and o.made]
        if different := [o.prompt.name for o in others if o.tokens != plain[o.prompt.name]]:
            message = (
                f"with a draft {len(different)} of {len(others)} prompts have another text, the first {different[0]}"
            )
            findings.warn("text-differs", f"{engine}, n_max {n_max}", message, "nextn identity says why")


def judge_probe(
    probe: Probe, results: Sequence[Result], n_predict: int, ends: Collection[int], findings: Findings
) -> None:
    """Add a warning for each engine that accepts clearly more or less than the head can do on the same prompts."""
    for each in results:
        if not each.total_draft:
            continue
        # Chained heads draft no more tokens than they are, whatever is asked for.
        able = expected(probe, min(each.n_max, len(probe.positions)), n_predict, ends)
        rate = each.total_draft_accepted / each.total_draft
        if able.rate is not None and abs(able.rate - rate) > POINTS:
            message = f"accepts {rate:.1%} of drafted tokens; by the probe the head is good for {able.rate:.1%}"
            remedy = "less: look at the engine, its backend and its caches; more: it may not verify what it accepts"
            findings.warn("probe-disagrees", f"{each.engine}, n_max {each.n_max}", message, remedy)


def expected(probe: Probe, n_max: int, n_predict: int, ends: Collection[int]) -> Drafts:
    """The tokens that an engine should draft and accept on the probe's prompts."""
    parts = [
        drafts_of(stream.tokens[stream.start :], right, n_max, n_predict, ends)
        for stream, right in zip(probe.streams, probe.drafts, strict=True)
    ]
    return Drafts(sum(part.n_drafted for part in parts), sum(part.n_accepted for part in parts))


def compare(now: Bench, before: Bench) -> Regressions:
    """What is worse in a measurement than in an earlier one."""
    findings = Findings()
    if {key: now.settings.get(key) for key in COMPARED} != {key: before.settings.get(key) for key in COMPARED}:
        findings.warn("baseline-settings", "settings", "prompts or their lengths are others than then")
    if sorted(file.sha256 for file in now.files) != sorted(file.sha256 for file in before.files):
        findings.note("baseline-files", "files", "are others than then")
    then = {engine.name: engine.describe for engine in before.engines}
    for engine in now.engines:
        was = then.get(engine.name, {})
        others = [
            f"{key} {value}, {was[key]} then"
            for key, value in engine.describe.items()
            if key in TOLD and was.get(key, value) != value
        ]
        if others:
            findings.warn("baseline-engine", engine.name, f"computes otherwise: {'; '.join(others)}")
    return Regressions(tuple(changed(_measured(now), _measured(before), findings)), findings)


# What engines tell of themselves that figures depend on.
TOLD = ("kernels", "device", "kv_type", "threads")
# Settings that figures depend on.
COMPARED = ("n_predict", "prompts_sha256")


def _measured(bench: Bench) -> list[Measured]:
    return [
        Measured(each.engine, each.n_max, each.total_draft, each.total_draft_accepted, each.tokens_per_second)
        for each in bench.results
    ]
