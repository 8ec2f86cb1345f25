"""Judges one engine: whether it repeats itself, whether drafts changed its texts, and whether that was a near tie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from nextn.gguf_schema.errors import counted, listed
from nextn.runtime.identity.cause import Evidence, Kept, cause_of, depth_test
from nextn.runtime.identity.certificate import Cause, Margins, Verdict
from nextn.runtime.identity.observe import Observation, Settings
from nextn.runtime.identity.rescore import Rescorer
from nextn.runtime.identity.strayed import Strayed, first_difference, places
from nextn.validators.findings import Findings

# Whose texts differ in more than this many places from one run to the next is told by the first of them.
SHOWN = 3
# Logits up to which a plain text tells how coarsely an engine rounds: beyond, twice that would call faults near ties.
NUMERICS = 0.5


@dataclass(frozen=True)
class Parting:
    """Where a run parted from the plain one, and how close the tokens were there; `behind` is that of the farther one.

    `margins` is None when the reference runtime was not asked; then `margin` is of the engine's own log-probabilities,
    or None as well.
    """

    index: int
    without: int | None
    with_: int | None
    margin: float | None
    margins: Margins | None
    is_near: bool


@dataclass
class Judged:
    """What was found about an engine; `partings` are by the place of the run among the observed."""

    deterministic: bool
    verdict: Verdict
    cause: Cause | None
    partings: dict[int, Parting] = field(default_factory=dict)


def judge(
    name: str, observed: Sequence[Observation], settings: Settings, rescorer: Rescorer | None, findings: Findings
) -> Judged:
    """Determinism first: an engine that does not repeat itself is judged no further."""
    if changing := _changing(observed):
        message = f"says something else the second time: {listed(changing, SHOWN)}"
        remedy = "sampling must be greedy; look for ties broken at random, races, and state kept between requests"
        findings.error("nondeterministic", name, message, remedy)
        return Judged(False, "nondeterministic", None)
    plain = {o.prompt.name: o for o in observed if o.n_max == 0 and o.together == 1 and o.order == "A1"}
    behind = _departs(name, plain.values(), rescorer, settings.bound, findings) if rescorer else 0.0
    if 0 < behind <= NUMERICS:
        settings = replace(settings, bound=2 * behind)
    judged = Judged(True, "identical", None)
    for place, run in enumerate(observed):
        base = plain[run.prompt.name]
        if run.made and (index := first_difference(base.tokens, run.tokens)) is not None:
            judged.partings[place] = _parting(base, run, index, rescorer, settings.bound)
    _explain(name, observed, plain, judged, settings, None if behind > NUMERICS else rescorer, findings)
    return judged


def _changing(observed: Sequence[Observation]) -> list[str]:
    """The configurations that did not give the same tokens both times."""
    first = {o.configuration: o for o in observed if o.is_first}
    second = [o for o in observed if not o.is_first and o.made and first[o.configuration].made]
    return [_configuration(o) for o in second if o.tokens != first[o.configuration].tokens]


def _configuration(o: Observation) -> str:
    beside = f", {o.together} at once" if o.together > 1 else ""
    return f"{o.prompt.name} ({f'n_max {o.n_max}' if o.n_max else 'no draft'}{beside})"


def _departs(name: str, plain: Iterable[Observation], rescorer: Rescorer, bound: float, findings: Findings) -> float:
    """By how many logits the engine says without a draft what the reference runtime would not; 0 within the bound."""
    worst, where = 0.0, ""
    for o in plain:
        behind = rescorer.deficits(o.prompt.tokens, o.tokens)
        if max(behind) > worst:
            worst, where = max(behind), f"token {behind.index(max(behind))} of prompt {o.prompt.name}"
    if worst <= bound:
        return 0.0
    message = f"without a draft it already says what the reference runtime would not, by {worst:.3g} logits: {where}"
    if worst > NUMERICS:
        remedy = "caches in q4_0 do that; without such, is it the same model, and are its rows where they belong?"
        findings.warn("engine-differs", name, message, remedy)
    else:
        remedy = f"so it rounds, with quantized caches for instance: for it the bound is {2 * worst:.3g} logits"
        findings.note("engine-differs", name, message, remedy)
    return worst


def _parting(base: Observation, run: Observation, index: int, rescorer: Rescorer | None, bound: float) -> Parting:
    without = base.tokens[index] if index < len(base.tokens) else None
    with_ = run.tokens[index] if index < len(run.tokens) else None
    if without is None or with_ is None:
        return Parting(index, without, with_, None, None, is_near=False)
    if rescorer is not None:
        tie = rescorer.tie(base.prompt.tokens, base.tokens[:index], (without, with_))
        return Parting(index, without, with_, tie.margins.float64, tie.margins, tie.is_near(bound))
    top = dict(base.made.top[index]) if base.made and base.made.top and index < len(base.made.top) else {}
    ranked = sorted(top.values(), reverse=True)
    margin = ranked[0] - ranked[1] if len(ranked) > 1 else None
    near = margin is not None and {without, with_} <= top.keys() and abs(top[without] - top[with_]) < bound
    return Parting(index, without, with_, margin, None, near)


def _explain(
    name: str,
    observed: Sequence[Observation],
    plain: dict[str, Observation],
    judged: Judged,
    settings: Settings,
    rescorer: Rescorer | None,
    findings: Findings,
) -> None:
    """The verdict and its cause, from the runs that parted; one first run of each configuration is enough."""
    parted = [(observed[place], parting) for place, parting in judged.partings.items() if observed[place].is_first]
    strayed = [_strayed(o, plain[o.prompt.name], parting.index, settings.bound, rescorer) for o, parting in parted]
    # Behind a near tie the texts are two different ones, but each of them must still be the model's.
    is_logic = [not p.is_near or len(s.wrong or ()) > 0 for s, (_, p) in zip(strayed, parted, strict=True)]
    wrong = [run for run, logic in zip(strayed, is_logic, strict=True) if logic]
    failed = [o for o in observed if o.made is None]
    if failed:
        told = f"{counted(len(failed), 'run')} failed, the first {_configuration(failed[0])}: {failed[0].message}"
        findings.error("engine-failed", name, told)
        judged.verdict, judged.cause = "logic", "unknown"
    if wrong:
        kept = [
            _kept(o) for i, o in enumerate(observed) if i not in judged.partings and o.is_first and o.n_max and o.made
        ]
        evidence = Evidence(wrong, kept, settings.n_predict, settings.bound, rescorer)
        judged.verdict = "logic"
        judged.cause, why = cause_of(evidence)
        message = f"{counted(len(wrong), 'run')} changed by the draft; {judged.cause}: {why}"
        findings.error("diverges", name, message, remedy=_as_near_tie(wrong, rescorer))
    elif parted:
        if not failed:
            judged.verdict, judged.cause = "near_tie", "width"
        message = f"{counted(len(parted), 'run')} parted where two tokens are closer than {settings.bound:.3g} logits"
        findings.error("near-tie", name, message, remedy="rows of a batch are rounded otherwise than single ones")
    if parted:
        findings.note("depth-test", name, depth_test(strayed))


def _as_near_tie(wrong: Sequence[Strayed], rescorer: Rescorer | None) -> str | None:
    """What bound would call it near ties, when rounding could be the reason after all."""
    if rescorer is None:
        return None
    behind = max(max(rescorer.deficits(run.prompt, run.drafted)) for run in wrong)
    told = f"no token is more than {behind:.3g} logits behind the best: with a larger --bound that is a near tie"
    return told if behind <= NUMERICS else None


def _strayed(o: Observation, base: Observation, index: int, bound: float, rescorer: Rescorer | None) -> Strayed:
    wrong = None
    if rescorer is not None:
        behind = rescorer.deficits(o.prompt.tokens, o.tokens)
        wrong = tuple(place for place, by in enumerate(behind) if by > bound)
    return Strayed(
        o.prompt.tokens,
        base.tokens,
        o.tokens,
        index,
        o.n_max,
        o.together,
        plain_stopped=base.made is not None and base.made.stop == "eos",
        rounds=o.made.rounds if o.made else None,
        wrong=wrong,
    )


def _kept(o: Observation) -> Kept:
    rounds = o.made.rounds if o.made else None
    return Kept(o.n_max, places(rounds or (), len(o.prompt.tokens), len(o.tokens)))
