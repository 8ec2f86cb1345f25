"""The whole check: runs every engine, judges each, and writes it all down."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict

from nextn.runtime.engines.engine import Asked, Engine
from nextn.runtime.identity.acceptance import aggregate, by_decile, by_position, context_rows, examine_acceptance
from nextn.runtime.identity.certificate import (
    AggregateRecord,
    Certificate,
    Divergence,
    EngineRecord,
    PromptRecord,
    RunRecord,
    Verdict,
)
from nextn.runtime.identity.judge import Judged, Parting, judge
from nextn.runtime.identity.observe import Observation, Settings, observe
from nextn.runtime.identity.prompts import Prompt
from nextn.runtime.identity.rescore import Rescorer
from nextn.validators.findings import Findings

# The gravest first: the certificate's verdict is that of the engine that fares worst.
GRAVITY: tuple[Verdict, ...] = ("logic", "nondeterministic", "near_tie", "identical")
# Log-probabilities that an engine is asked for when there is no reference runtime to ask.
TOP = 5
Decode = Callable[[Sequence[int]], str]


def check(
    engines: Sequence[Engine],
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    rescorer: Rescorer | None = None,
    yardstick: Engine | None = None,
    decode: Decode | None = None,
    verified: Sequence[str] = (),
    vocabulary: int | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Certificate:
    """Run and judge engines; the certificate lacks only its files, versions, command and time.

    `yardstick` is the reference runtime with the same files: what its drafts are worth is expected of the others.
    `verified` is what is known to be right about the files, `vocabulary` their number of tokens. Raises InputError
    as `observe` does.
    """
    findings = Findings()
    top = TOP if rescorer is None else 0
    vocabulary = vocabulary or (rescorer.trunk.vocab_size if rescorer else None)
    observed = {e.name: observe(e, prompts, settings, top=top, vocabulary=vocabulary, note=note) for e in engines}
    rows = max(map(context_rows, observed.values()))
    sums = {name: aggregate(name, found, rows) for name, found in observed.items()}
    expected = _expected(yardstick, sums, prompts, settings, rows, note)
    classes: dict[str, list[tuple[int, ...]]] = {}
    judged, records, runs = [], [], []
    for engine in engines:
        found = observed[engine.name]
        judged.append(judge(engine.name, found, settings, rescorer, findings))
        examine_acceptance(sums[engine.name], found, expected, verified, findings)
        records.append(_engine(engine, found, judged[-1]))
        runs += [_run(engine.name, o, judged[-1], place, classes, decode, rows) for place, o in enumerate(found)]
    _tell_classes(runs, classes, findings)
    worst = min(judged, key=lambda each: GRAVITY.index(each.verdict))
    return Certificate(
        identical=worst.verdict == "identical",
        verdict=worst.verdict,
        cause=worst.cause,
        engines=tuple(records),
        prompts=tuple(PromptRecord(p.name, p.category, len(p.tokens), p.tokens, p.text) for p in prompts),
        runs=tuple(runs),
        aggregate=tuple(each for name in observed for each in sums[name]),
        findings=tuple(findings),
        stream_sha256=records[0].stream_sha256,
        files=(),
        versions={},
        settings={**asdict(settings), "n_max": list(settings.n_max), "context_rows": rows},
        command=(),
        created="",
    )


def _expected(
    yardstick: Engine | None,
    sums: dict[str, list[AggregateRecord]],
    prompts: Sequence[Prompt],
    settings: Settings,
    rows: int,
    note: Callable[[str], None],
) -> list[AggregateRecord]:
    """What the reference runtime accepts; it is run once for it, unless it is one of the engines."""
    if yardstick is None or yardstick.name in sums:
        return sums[yardstick.name] if yardstick else []
    note(f"{yardstick.name}: what the drafts are worth")
    found: list[Observation] = []
    for n_max in settings.n_max:
        outcome = yardstick.run([p.tokens for p in prompts], Asked(n_max, settings.n_predict))
        found += [
            Observation(prompt, n_max, "B1", 1, "ok", "", made)
            for prompt, made in zip(prompts, outcome.continuations, strict=False)
        ]
    return aggregate(yardstick.name, found, rows)


def _engine(engine: Engine, observed: Sequence[Observation], judged: Judged) -> EngineRecord:
    streams = [[o.prompt.name, list(o.tokens)] for o in observed if o.order == "A1" and o.together == 1]
    digest = hashlib.sha256(json.dumps(streams, separators=(",", ":")).encode()).hexdigest()
    said = engine.describe()
    return EngineRecord(
        engine.name, said, judged.deterministic, judged.verdict, judged.cause, digest if judged.deterministic else None
    )


def _run(
    engine: str,
    o: Observation,
    judged: Judged,
    place: int,
    classes: dict[str, list[tuple[int, ...]]],
    decode: Decode | None,
    rows: int,
) -> RunRecord:
    parting = judged.partings.get(place)
    made, rounds = o.made, o.made.rounds if o.made and o.made.n_drafted else None
    texts = classes.setdefault(o.prompt.name, [])
    if o.tokens not in texts:
        texts.append(o.tokens)
    return RunRecord(
        engine,
        o.prompt.name,
        o.prompt.category,
        o.n_max,
        o.order,
        o.status,
        o.message,
        o.tokens,
        decode(o.tokens) if decode else None,
        made.stop if made else "",
        made.n_drafted if made else 0,
        made.n_accepted if made else 0,
        texts.index(o.tokens),
        together=o.together,
        identical=parting is None if judged.deterministic and made else None,
        first_divergence=parting.index if parting else None,
        margin=parting.margin if parting else None,
        margins=parting.margins if parting else None,
        divergence=_divergence(parting, decode) if parting else None,
        accepted_by_position=by_position(rounds) if rounds else made.accepted_by_position if made else None,
        accepted_by_decile=by_decile(rounds, rows) if rounds else None,
        rounds=len(rounds) if rounds else None,
        seconds_prefill=made.seconds_prefill if made else 0.0,
        seconds_decode=made.seconds_decode if made else 0.0,
    )


def _divergence(parting: Parting, decode: Decode | None) -> Divergence:
    without, with_ = (
        decode([token]) if decode and token is not None else None for token in (parting.without, parting.with_)
    )
    return Divergence(parting.index, parting.without, parting.with_, without, with_)


def _tell_classes(runs: Sequence[RunRecord], classes: dict[str, list[tuple[int, ...]]], findings: Findings) -> None:
    """A note for each prompt that did not get the same text everywhere: which configurations agree."""
    for prompt, texts in classes.items():
        if len(texts) == 1:
            continue
        told = []
        for number in range(len(texts)):
            members = [run for run in runs if run.prompt == prompt and run.class_ == number]
            told.append(", ".join(dict.fromkeys(f"{run.engine} {_configuration(run)}" for run in members)))
        findings.note("classes", f"prompt {prompt}", f"{len(texts)} different texts: {'; '.join(told)}")


def _configuration(run: RunRecord) -> str:
    beside = f" x{run.together}" if run.together > 1 else ""
    return (f"n_max {run.n_max}" if run.n_max else "plain") + beside
