"""What became worse since a kept certificate or measurement; the statistics are computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate, run

from nextn.gguf_schema.errors import InputError
from nextn.runtime.identity.certificate import Certificate
from nextn.runtime.identity.measure import Bench, load_bench
from nextn.runtime.identity.measure import compare as compare_measured
from nextn.runtime.identity.regression import Measured, Regressions, changed, compare
from nextn.validators.findings import Findings

PROMPT = {"name": "p", "category": "code_python", "prompt_tokens": 2, "tokens": [5, 6]}
FILES = [{"path": "a.gguf", "sha256": "ab" * 32}]


def sums(accepted: int, drafted: int = 400, **changed: Any) -> dict[str, Any]:
    told = {
        "engine": "reference",
        "n_max": 1,
        "n_requests": 1,
        "total_predicted": 100,
        "total_draft": drafted,
        "total_draft_accepted": accepted,
        "aggregate_accept_rate": accepted / drafted if drafted else None,
        "wall_s_total": 2.0,
    }
    return told | changed


def kept(**changed: Any) -> Certificate:
    told = {"prompts": [PROMPT], "runs": [run(), run(n_max=1)], "aggregate": [sums(320)], "files": FILES}
    return certificate(**(told | {"settings": {"n_predict": 4}} | changed))


def rules(found: Regressions) -> list[tuple[str, str]]:
    return [(finding.severity.value, finding.rule) for finding in found.findings]


def test_the_same_again_is_no_regression() -> None:
    found = compare(kept(), kept())
    assert (found.found, rules(found)) == (False, [])
    [change] = found.changes
    assert (change.accepted_now, change.accepted_before, change.sigmas, change.speed) == (0.8, 0.8, 0, 1)
    assert found.as_json()["regression"] is False


@pytest.mark.parametrize(("accepted", "drafted"), [(900, 400), (-3, 400), (3, -400), (5, -5)])
def test_counts_that_cannot_be_are_no_crash(accepted: int, drafted: int) -> None:
    """A baseline that was damaged is still compared as far as it goes."""
    damaged = kept(aggregate=[sums(accepted, drafted)])
    assert len(compare(kept(), damaged).changes) == len(compare(damaged, kept()).changes) == 1


@pytest.mark.parametrize(
    # Both sides together have the rate p, and the difference the deviation sqrt(p (1 - p) 2 / 400):
    # 320 and 284: p = 0.755, deviation 0.030411, difference 0.09; 320 and 285: p = 0.75625, 0.030359, 0.0875.
    ("accepted", "sigmas", "worse"),
    [(284, 2.96, False), (283, 3.04, True), (285, 2.88, False), (320, 0, False), (360, -3.96, False)],
)
def test_a_drop_of_three_sigma_is_one(accepted: int, sigmas: float, worse: bool) -> None:
    found = compare(kept(aggregate=[sums(accepted)]), kept())
    assert found.changes[0].sigmas == pytest.approx(sigmas, abs=0.005)
    assert found.found is worse
    assert rules(found) == ([("error", "baseline-acceptance")] if worse else [])


def test_a_head_that_drafts_no_more_is_one() -> None:
    assert rules(compare(kept(aggregate=[sums(0, 0)]), kept())) == [("error", "baseline-acceptance")]


def test_speed_is_told_but_fails_nothing() -> None:
    """100 tokens in 2 s, and in 4."""
    found = compare(kept(aggregate=[sums(320, wall_s_total=4.0)]), kept())
    assert found.changes[0].speed == 0.5
    assert (found.found, rules(found)) == (False, [("warning", "baseline-speed")])


def test_another_text_of_the_same_files_is_one() -> None:
    found = compare(kept(runs=[run(tokens=(1, 2, 9, 4))]), kept())
    assert rules(found) == [("error", "baseline-stream")]
    assert "p from token 2 on" in found.findings[0].message


def test_another_text_of_other_files_is_expected() -> None:
    other = [{"path": "a.gguf", "sha256": "cd" * 32}]
    found = compare(kept(runs=[run(tokens=(1, 2, 9, 4))], files=other), kept())
    assert (found.found, rules(found)) == (False, [("warning", "baseline-stream")])


def test_a_text_that_ends_elsewhere_is_another() -> None:
    shorter = [run(tokens=(1, 2, 3))]
    assert rules(compare(kept(runs=shorter), kept())) == [("error", "baseline-stream")]
    # Unless it was asked for in another length.
    found = compare(kept(runs=shorter, settings={"n_predict": 3}), kept())
    assert rules(found) == [("note", "baseline-settings")]


def test_a_verdict_that_became_worse_is_one() -> None:
    found = compare(kept(verdict="logic", identical=False), kept())
    assert rules(found) == [("error", "baseline-verdict")]
    assert not compare(kept(verdict="logic", identical=False), kept(verdict="logic", identical=False)).found


def test_other_prompts_are_not_compared() -> None:
    two = [PROMPT, PROMPT | {"name": "q"}]
    found = compare(kept(prompts=two, aggregate=[sums(100)]), kept())
    assert (found.changes, rules(found)) == ((), [("note", "baseline-prompt")])
    nothing = compare(kept(prompts=[PROMPT | {"tokens": [5, 7]}]), kept())
    assert ("error", "baseline-prompts") in rules(nothing)


def test_engines_and_lengths_that_one_side_lacks() -> None:
    old = kept(aggregate=[sums(320), sums(300, n_max=2)])
    now = kept(runs=[run(), run(engine="llama-cpp")])
    assert rules(compare(now, old)) == [("note", "baseline-engine"), ("note", "baseline-configuration")]


def test_nothing_before_is_no_drop() -> None:
    findings = Findings()
    [change] = changed([Measured("e", 1, 10, 0, None)], [Measured("e", 1, 0, 0, 5.0)], findings)
    assert (change.sigmas, change.accepted_before, change.accepted_now, change.speed) == (0, None, 0, None)
    assert findings == []


def measured(**changed: Any) -> dict[str, Any]:
    told = {
        "format": "nextn bench 1",
        "results": [],
        "engines": [],
        "findings": [],
        "pairing": {"architecture": "step35", "trunk": {"path": "a.gguf", "types": {"Q8_0": 34}}, "head": None},
        "probe": None,
        "files": FILES,
        "versions": {"nextn": "0.1.0"},
        "settings": {"n_predict": 64, "prompts": ["p"]},
        "command": [],
        "created": "2026-11-30T00:00:00+00:00",
    }
    return told | changed


def result(accepted: int, speed: float | None = 50.0) -> dict[str, Any]:
    return sums(accepted) | {
        "accepted_by_position": None,
        "accepted_by_decile": None,
        "mean_accepted_length": None,
        "tokens_per_second": speed,
        "ratio": None,
        "ratios": [1.5, None],
    }


def saved(path: Path, **changed: Any) -> Bench:
    path.write_text(json.dumps(measured(**changed)), encoding="utf-8")
    return load_bench(path)


def test_saved_measurements(tmp_path: Path) -> None:
    before = saved(tmp_path / "a.json", results=[result(320)])
    assert before.as_json()["results"][0]["ratios"] == [1.5, None]
    assert not compare_measured(before, before).found
    now = saved(tmp_path / "b.json", results=[result(283, 25.0)], settings={"n_predict": 8}, files=[])
    assert rules(compare_measured(now, before)) == [
        ("warning", "baseline-settings"),
        ("note", "baseline-files"),
        ("error", "baseline-acceptance"),
        ("warning", "baseline-speed"),
    ]


def test_an_engine_that_computes_otherwise_is_told(tmp_path: Path) -> None:
    """Speeds of the definition and of the compiled forms were compared without a word."""

    def of(name: str, **describe: str) -> Bench:
        return saved(tmp_path / f"{name}.json", engines=[{"name": "reference", "describe": describe}])

    now, then = of("now", kernels="reference", version="2"), of("then", kernels="cpu", version="1")
    [finding] = compare_measured(now, then).findings
    assert (finding.severity.value, finding.rule, finding.subject) == ("warning", "baseline-engine", "reference")
    assert finding.message == "computes otherwise: kernels reference, cpu then"
    assert compare_measured(now, of("older", version="1")).findings == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "is no 'nextn bench 1'"),
        ('{"format": "nextn identity 1"}', "is no 'nextn bench 1': 'nextn identity 1'"),
        ('{"format": "nextn bench 1"}', "results is missing"),
        (json.dumps(measured(results=[{}])), r"results\[0\].engine is missing"),
        (json.dumps(measured(results=[result(3) | {"n_max": "1"}])), r"results\[0\].n_max has the value '1'"),
        (json.dumps(measured(results=[result(3) | {"tokens_per_second": []}])), "tokens_per_second has the value"),
        (json.dumps(measured(pairing=4)), "pairing is no object"),
        (json.dumps(measured(command="nextn")), "command has the value 'nextn'"),
    ],
)
def test_damaged_measurements(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "saved.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said) as raised:
        load_bench(path)
    assert raised.value.subject == str(path)


def test_a_measurement_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_bench(tmp_path / "none.json")
