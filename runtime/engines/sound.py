"""Answers that cannot be: an engine that gives one has failed, and nothing is judged by it."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from nextn.runtime.engines.engine import Continuation, Outcome


def sound(outcome: Outcome, prompts: int, vocabulary: int | None) -> Outcome:
    """The outcome up to the first answer that cannot be; of more or fewer answers than prompts those that fit."""
    found = outcome.continuations
    wrong = next((each for each in enumerate(found) if _fault(each[1], vocabulary)), None)
    if wrong is not None:
        place, made = wrong
        return replace(outcome, status="error", message=_fault(made, vocabulary), continuations=found[:place])
    if len(found) > prompts or (outcome.ok and len(found) < prompts):
        message = f"gave {len(found)} answers to {prompts} prompts"
        # Which answer is whose cannot be known when there are too many.
        kept = found if len(found) < prompts else ()
        return replace(outcome, status="error", message=message, continuations=kept)
    return outcome


def _fault(made: Continuation, vocabulary: int | None) -> str:
    """Why an answer cannot be; empty when it can."""
    if not made.tokens:
        return "said nothing, not even an end token"
    strange = [token for token in made.tokens if token < 0 or (vocabulary is not None and token >= vocabulary)]
    if strange:
        return f"said token {strange[0]}, and the vocabulary has {vocabulary or 'none below 0'}"
    counts = [(made.n_drafted, made.n_accepted), *((submitted, taken) for _, submitted, taken in made.rounds or ())]
    if wrong := [(drafted, taken) for drafted, taken in counts if not 0 <= taken <= drafted]:
        return f"accepted {wrong[0][1]} of {wrong[0][0]} drafted tokens"
    seconds = (made.seconds_prefill, made.seconds_decode)
    if not all(isfinite(each) and each >= 0 for each in seconds):
        return f"took {seconds[0]} and {seconds[1]} seconds"
    numbers = [value for place in made.top or () for _, value in place]
    if not all(map(isfinite, numbers)):
        return "told a log-probability that is no number"
    return ""
