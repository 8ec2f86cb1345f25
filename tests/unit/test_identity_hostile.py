"""Engines that answer what cannot be, mix prompts up, fail, or only round: what is said of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import toy_engines as toys
from torch import Tensor
from toy_models import VOCABULARY, ToyTrunk, noise

from nextn.gguf_schema.errors import InputError
from nextn.runtime.engines.engine import Asked, Continuation, Outcome, Prompts
from nextn.runtime.identity.certificate import Certificate
from nextn.runtime.identity.check import check
from nextn.runtime.identity.observe import Settings
from nextn.runtime.identity.rescore import Rescorer
from nextn.runtime.state import State

TRUNK, TIED = ToyTrunk(), toys.tied_trunk()
PROMPTS = toys.toy_prompts(3)
Change = Callable[[list[Continuation]], list[Continuation]]


@dataclass
class Changed(toys.ToyEngine):
    """Its answers are changed: with drafts of more than `above` tokens, or always where that is -1."""

    change: Change = list
    above: int = 0

    def run(self, prompts: Prompts, asked: Asked) -> Outcome:
        outcome = super().run(prompts, asked)
        if asked.n_max <= self.above:
            return outcome
        return replace(outcome, continuations=tuple(self.change(list(outcome.continuations))))

    def run_together(self, prompts: Prompts, asked: Asked) -> Outcome | None:
        return None


def judged(engine: toys.ToyEngine, n: int = 10, n_max: tuple[int, ...] = (1, 3)) -> Certificate:
    rescorer = Rescorer(engine.trunk, lambda: toys.wide(engine.trunk))
    found = check([engine], PROMPTS, Settings(n_max, n), rescorer=rescorer)
    json.dumps(found.as_json(), allow_nan=False)
    return found


def messages(certificate: Certificate, rule: str) -> list[str]:
    return [finding.message for finding in certificate.findings if finding.rule == rule]


def each(**changed: Any) -> Change:
    return lambda found: [replace(made, **changed) for made in found]


IMPOSSIBLE: dict[str, tuple[Change, str]] = {
    "no token": (each(tokens=()), "said nothing"),
    "a token behind the vocabulary": (each(tokens=(1, VOCABULARY)), f"said token {VOCABULARY}"),
    "a token below 0": (each(tokens=(1, -1)), "said token -1"),
    "fewer drafted than none": (each(n_drafted=-5, n_accepted=-9), "accepted -9 of -5 drafted tokens"),
    "more accepted than drafted": (each(n_drafted=5, n_accepted=9), "accepted 9 of 5 drafted tokens"),
    "a round with more accepted": (each(rounds=((3, 2, 4),)), "accepted 4 of 2 drafted tokens"),
    "seconds that are none": (each(seconds_decode=float("nan")), "nan seconds"),
    "seconds below 0": (each(seconds_prefill=-1.0), "took -1.0"),
    "log-probabilities that are none": (each(top=(((1, float("nan")),),)), "log-probability that is no number"),
    "an answer too many": (lambda found: [*found, found[0]], "gave 4 answers to 3 prompts"),
    "an answer too few": (lambda found: found[:-1], "gave 2 answers to 3 prompts"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_answers_that_cannot_be_are_failed_runs(name: str) -> None:
    change, said = IMPOSSIBLE[name]
    certificate = judged(Changed(TRUNK, change=change, above=1), n=6)
    assert (certificate.verdict, certificate.cause) == ("logic", "unknown")
    assert said in messages(certificate, "engine-failed")[0]
    with pytest.raises(InputError, match="without a draft: "):
        judged(Changed(TRUNK, change=change, above=-1), n=6)


@pytest.mark.parametrize("missing", [1, 3])
def test_a_text_that_ends_too_early_is_a_matter_of_the_limit(missing: int) -> None:
    def shorter(found: list[Continuation]) -> list[Continuation]:
        return [replace(made, tokens=made.tokens[:-missing]) for made in found]

    certificate = judged(Changed(TRUNK, change=shorter))
    assert (certificate.verdict, certificate.cause) == ("logic", "token_limit")


def test_answers_of_other_prompts_leak() -> None:
    certificate = judged(Changed(TRUNK, change=lambda found: found[1:] + found[:1]))
    assert (certificate.verdict, certificate.cause) == ("logic", "leak")
    assert "each text is the plain one of another prompt" in messages(certificate, "diverges")[0]


def test_an_engine_that_answers_other_prompts_with_and_without_drafts_is_doubted() -> None:
    certificate = judged(Changed(TRUNK, change=lambda found: found[1:] + found[:1], above=-1))
    [doubt] = [finding for finding in certificate.findings if finding.rule == "engine-differs"]
    assert doubt.severity == "warning"
    assert "is it the same model" in (doubt.remedy or "")


class TooFew(toys.ToyEngine):
    """Now and then one token of a right draft is not accepted."""

    def accept(self, draft: Sequence[int], chosen: Sequence[int]) -> int:
        right = super().accept(draft, chosen)
        return max(right - 1, 0) if sum(chosen) % 2 else right


def test_too_few_accepted_tokens_change_no_text_and_are_found_by_acceptance() -> None:
    good, few = toys.ToyEngine(TRUNK, ends=()), TooFew(TRUNK, ends=(), name="few")
    certificate = check([few], PROMPTS, Settings((3,), 60), yardstick=good)
    assert certificate.identical
    assert len(messages(certificate, "acceptance-low")) == 1


def test_an_engine_that_keeps_its_answers_is_identical_and_has_drafted_nothing() -> None:
    certificate = judged(Changed(TRUNK, change=each(n_drafted=0, n_accepted=0, rounds=())))
    assert certificate.identical
    assert len(messages(certificate, "nothing-drafted")) == 2


class Overwrites(toys.ToyEngine):
    """A batch that ends behind row 16 destroys row 8."""

    def verify(self, each: toys.Growing, batch: Sequence[int], sequences: Sequence[toys.Growing]) -> Tensor:
        hidden = super().verify(each, batch, sequences)
        if len(batch) > 1 and each.state.length >= 16:
            _destroy(each.state, 8)
        return hidden


def _destroy(state: State, row: int) -> None:
    for rows in state.rows.values():
        rows.first(row + 1)[row] = 3.0


def test_a_destroyed_row_of_the_cache_is_no_near_tie() -> None:
    certificate = judged(Overwrites(TRUNK, ends=()), n=30)
    assert certificate.verdict == "logic"
    assert all(run.first_divergence is None or run.first_divergence > 5 for run in certificate.runs)


class LeaksIntoThird(toys.ToyEngine):
    """Of three sequences the last gets states of the first."""

    def verify(self, each: toys.Growing, batch: Sequence[int], sequences: Sequence[toys.Growing]) -> Tensor:
        hidden = super().verify(each, batch, sequences)
        if len(sequences) > 2 and each is sequences[2]:
            first = sequences[0].state
            for name, trail in each.state.trails.items():
                trail.put(each.state.length, first.trails[name].at(first.length))
        return hidden


def test_a_leak_into_the_third_sequence_alone_is_seen_with_three() -> None:
    prompts = [replace(prompt, category=toys.TOGETHER) for prompt in PROMPTS]
    rescorer = Rescorer(TRUNK, lambda: toys.wide(TRUNK))
    certificate = check([LeaksIntoThird(TRUNK, ends=())], prompts, Settings((2,), 16), rescorer=rescorer)
    assert (certificate.verdict, certificate.cause) == ("logic", "leak")
    assert {run.prompt for run in certificate.runs if run.identical is False} == {prompts[2].name}


@dataclass
class Rounds(toys.ToyEngine):
    """Sound, but every width rounds otherwise, that of one row too."""

    by: float = 0.003

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        return logits + self.by * noise(len(hidden) + 7, *logits.shape)


@pytest.mark.parametrize("by", [0.003, 0.05])
def test_an_engine_that_only_rounds_parts_at_near_ties(by: float) -> None:
    """Coarse caches: what the plain text departs from the reference runtime tells how far rounding goes."""
    certificate = judged(Rounds(TIED, ends=(), by=by), n=24)
    assert (certificate.verdict, certificate.cause) == ("near_tie", "width")
    assert len(messages(certificate, "engine-differs")) == (by > 0.01)


def test_an_engine_that_only_rounds_and_has_a_fault_is_still_wrong() -> None:
    class Faulty(Rounds, toys.AcceptsOneMore):
        pass

    certificate = judged(Faulty(TIED, ends=(), by=0.05), n=24)
    assert certificate.verdict == "logic"


def test_a_failed_run_beside_near_ties_is_no_near_tie() -> None:
    class Fails(toys.RoundsByWidth):
        def run(self, prompts: Prompts, asked: Asked) -> Outcome:
            outcome = super().run(prompts, asked)
            if asked.n_max < 3:
                return outcome
            return replace(outcome, status="abort", message="GGML_ASSERT", continuations=outcome.continuations[:2])

    certificate = judged(Fails(TIED, ends=()), n=24)
    assert (certificate.verdict, certificate.cause) == ("logic", "unknown")
    assert messages(certificate, "near-tie")
    assert "GGML_ASSERT" in messages(certificate, "engine-failed")[0]
