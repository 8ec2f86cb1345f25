"""Every planted fault gets the right verdict and cause; without one an engine is identical (I01 to I09, R14, R18)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import toy_engines as toys
from toy_models import ToyTrunk

from nextn.runtime.identity.certificate import Certificate
from nextn.runtime.identity.check import check
from nextn.runtime.identity.observe import Settings
from nextn.runtime.identity.rescore import Rescorer

TRUNK = ToyTrunk()
TIED = toys.tied_trunk()
SETTINGS = Settings(n_max=(1, 2, 3, 5), n_predict=20, bound=0.01)
PROMPTS = toys.toy_prompts(3)
ENDLESS: dict[str, Any] = {"ends": ()}

# Kind of engine, how it is made, verdict, cause, and what the finding says of it.
PLANTED: dict[str, tuple[type[toys.ToyEngine], dict[str, Any], str, str | None, str]] = {
    "none": (toys.ToyEngine, {}, "identical", None, ""),
    "rounding by width": (toys.RoundsByWidth, {"trunk": TIED, **ENDLESS}, "near_tie", "width", "closer than 0.01"),
    "kernel switch at width 4": (
        toys.RoundsByWidth,
        {"trunk": TIED, "width": 4, **ENDLESS},
        "near_tie",
        "width",
        "closer than 0.01",
    ),
    "wrong kernel from width 4 on": (
        toys.RoundsByWidth,
        {"width": 4, "by": 1.5, **ENDLESS},
        "logic",
        "width",
        "drafts shorter than 3",
    ),
    "wrong kernel for every batch": (
        toys.RoundsByWidth,
        {"by": 1.5, **ENDLESS},
        "logic",
        "width",
        "before any draft was rejected",
    ),
    "accepts one more": (toys.AcceptsOneMore, ENDLESS, "logic", "accept", "each drafted and accepted"),
    "last of a draft not compared": (toys.AcceptsLastUnseen, {}, "logic", "accept", "each drafted and accepted"),
    "a token is skipped": (toys.SkipsOne, {}, "logic", "accept", "a token that is missing"),
    "recurrent state stays": (toys.KeepsRecurrent, {}, "logic", "rollback", "behind a rejected draft"),
    "nothing goes back": (toys.KeepsRows, {}, "logic", "rollback", "behind a rejected draft"),
    "position stays": (toys.KeepsPosition, {}, "logic", "position", "rejected rows are not given back"),
    "positions one on": (toys.ShiftsPosition, {}, "logic", "position", "stands +1"),
    "positions one back": (toys.ShiftsPosition, {"by": -1, **ENDLESS}, "logic", "position", "stands -1"),
    "positions drift": (toys.ShiftsPosition, {"drift": True}, "logic", "position", "says the same when"),
    "drafted end ends nothing": (toys.GoesOnBehindEnd, {}, "logic", "token_limit", "where they end"),
    "drafted end is dropped": (toys.DropsEnd, {}, "logic", "token_limit", "where they end"),
    "more than the limit": (toys.SaysTooMuch, ENDLESS, "logic", "token_limit", "where they end"),
    "random tie-break": (toys.BreaksTies, {}, "nondeterministic", None, "the second time"),
    "leak between sequences": (toys.Leaks, {}, "logic", "leak", "every prompt alone is right"),
}


def checked(engine: toys.ToyEngine) -> Certificate:
    return check([engine], PROMPTS, SETTINGS, rescorer=Rescorer(engine.trunk, lambda: toys.wide(engine.trunk)))


@cache
def planted(name: str) -> Certificate:
    kind, options, *_ = PLANTED[name]
    return checked(kind(**{"trunk": TRUNK, **options}))


@pytest.mark.parametrize("name", PLANTED)
def test_verdict_and_cause_of_a_planted_fault(name: str) -> None:
    *_, verdict, cause, told = PLANTED[name]
    certificate = planted(name)
    assert (certificate.verdict, certificate.cause) == (verdict, cause)
    assert certificate.identical is (verdict == "identical")
    errors = [finding.message for finding in certificate.findings if finding.severity == "error"]
    assert len(errors) == (verdict != "identical")
    assert all(told in message for message in errors)


def test_every_draft_length_and_both_passes_are_there_in_abba_order() -> None:
    runs = [run for run in planted("none").runs if run.prompt == "p0"]
    assert [(run.order, run.n_max) for run in runs] == [
        ("A1", 0),
        *(("B1", n) for n in (1, 2, 3, 5)),
        *(("B2", n) for n in (5, 3, 2, 1)),
        ("A2", 0),
    ]
    assert all(run.identical and run.first_divergence is None and run.class_ == 0 for run in runs)


def test_a_near_tie_is_told_with_its_place_both_tokens_and_the_margin_in_both_types() -> None:
    parted = [run for run in planted("rounding by width").runs if run.identical is False]
    assert parted
    plain = {run.prompt: run.tokens for run in planted("rounding by width").runs if run.order == "A1"}
    for run in parted:
        assert run.divergence is not None
        assert run.margins is not None
        place = run.first_divergence
        assert place is not None
        assert run.tokens[:place] == plain[run.prompt][:place]
        assert (run.divergence.without, run.divergence.with_) == (plain[run.prompt][place], run.tokens[place])
        assert {run.divergence.without, run.divergence.with_} == set(toys.TIED)
        assert 0 <= run.margins.float32 < 0.01
        assert run.margins.float64 == run.margin


def test_texts_fall_into_classes_by_the_width_that_they_were_verified_at() -> None:
    """I03: a kernel that is another one from four rows on gives one text below and another from there on."""
    certificate = planted("wrong kernel from width 4 on")
    for prompt in certificate.prompts:
        classes = {
            n: {run.class_ for run in certificate.runs if (run.prompt, run.n_max, run.together) == (prompt.name, n, 1)}
            for n in (0, 1, 2, 3, 5)
        }
        assert classes[0] == classes[1] == classes[2] == {0}
        assert all(len(found) == 1 for found in classes.values())
    assert any("plain, toy n_max 1, toy n_max 2" in f.message for f in certificate.findings if f.rule == "classes")


@pytest.mark.parametrize(
    ("name", "moves"), [("accepts one more", True), ("nothing goes back", True), ("positions one on", False)]
)
def test_the_depth_test_is_told(name: str, moves: bool) -> None:
    """I04: a place that moves with the draft length is rollback or acceptance, one that does not is numerics."""
    (told,) = [finding.message for finding in planted(name).findings if finding.rule == "depth-test"]
    assert ("does not move" in told) is not moves


def test_nothing_is_judged_when_the_same_configuration_gives_two_texts() -> None:
    certificate = planted("random tie-break")
    assert not certificate.engines[0].deterministic
    assert certificate.stream_sha256 is None
    assert {run.identical for run in certificate.runs} == {None}


@pytest.mark.parametrize("name", ["accepts one more", "recurrent state stays"])
def test_an_engine_that_tells_no_rounds_gets_no_cause_that_they_would_have_shown(name: str) -> None:
    kind, options, *_ = PLANTED[name]
    certificate = checked(kind(**{"trunk": TRUNK, **options}, tells_rounds=False))
    assert (certificate.verdict, certificate.cause) == ("logic", "unknown")


def test_the_gravest_engine_gives_the_verdict() -> None:
    good, bad = toys.ToyEngine(TRUNK), toys.AcceptsOneMore(TRUNK, name="bad")
    rescorer = Rescorer(TRUNK, lambda: toys.wide(TRUNK))
    certificate = check([good, bad], PROMPTS[:2], Settings((2,), 12), rescorer=rescorer)
    assert (certificate.verdict, certificate.cause) == ("logic", "accept")
    assert [(each.name, each.verdict) for each in certificate.engines] == [("toy", "identical"), ("bad", "logic")]
    assert certificate.engines[0].stream_sha256 == certificate.engines[1].stream_sha256
