"""`nextn identity` on the tiny models: the reference runtime, real llama.cpp in process, behind HTTP, and as a program.

Expected tokens and counts are llama.cpp's golden ones; the full grid is marked long.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES
from identifying import Identity, write_prompts
from serving import LAUNCHER, real

from nextn.runtime.identity.certificate import load_certificate

Converted = Callable[[str], dict[str, Path]]
SHORT = (2, 4)  # two golden prompts of step35
COUNT = 12


@pytest.fixture
def identity(capsys: pytest.CaptureFixture[str]) -> Identity:
    return Identity(capsys)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "prompts.jsonl", "step35", *SHORT)


def golden(family: str, first: int, last: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = FAMILIES[family].read("llama_cpp.json")["prompts"][first:last]
    return found


def test_the_reference_runtime_is_identical_and_leaves_a_certificate(
    identity: Identity, converted: Converted, prompts: Path, tmp_path: Path
) -> None:
    files, folder = converted("step35"), tmp_path / "out"
    given = ("-m", files["trunk"], "-d", files["mtp"], "--prompts", prompts, "-n", COUNT, "-o", folder)
    told = identity.certificate(*given, "--n-max", "1,3")
    assert (told["identical"], told["verdict"], told["cause"]) == (True, "identical", None)
    assert [file["path"] for file in told["files"]] == [str(files["trunk"]), str(files["mtp"])]
    assert {"nextn", "torch", "python"} <= told["versions"].keys()
    expected = [each["tokens"][:COUNT] for each in golden("step35", *SHORT)]
    for n_max, order in ((0, "A1"), (1, "B1"), (3, "B1"), (3, "B2"), (1, "B2"), (0, "A2")):
        runs = [run for run in told["runs"] if (run["n_max"], run["order"]) == (n_max, order)]
        assert [run["tokens"] for run in runs] == expected
    kept = load_certificate(folder / "certificate.json")
    assert json.loads(json.dumps(kept.as_json())) == told
    assert not [finding for finding in told["findings"] if finding["severity"] == "error"]
    # A second run would replace it.
    error = identity.error(*given, status=2)
    assert error["code"] == "exists"
    # The same again has the same streams; a baseline that had others is a regression.
    again = ("-m", files["combined"], "--prompts", prompts, "-n", COUNT, "--n-max", "3")
    told = identity.certificate(*again, "--baseline", folder / "certificate.json")
    assert told["baseline"]["regression"] is False
    damaged = json.loads((folder / "certificate.json").read_text())
    damaged["aggregate"] = [
        each | {"total_draft_accepted": 10**6, "total_draft": 10**6} for each in damaged["aggregate"]
    ]
    (tmp_path / "better.json").write_text(json.dumps(damaged))
    told = identity.certificate(*again, "--baseline", tmp_path / "better.json", status=1)
    assert told["identical"]
    assert told["baseline"]["regression"]


def test_people_read_the_familiar_lines(identity: Identity, converted: Converted, prompts: Path) -> None:
    status, out, err = identity("-m", converted("step35")["combined"], "--prompts", prompts, "-n", 8, "--n-max", 2)
    assert status == 0
    lines = out.splitlines()
    assert lines[-1] == "identical"
    name = FAMILIES["step35"].prompts[SHORT[0]]["name"]
    (line,) = [line for line in lines if line.startswith("reference n_max=2") and name in line.split()]
    assert [word.partition("=")[0] for word in line.split() if "=" in word][1:] == [
        "pred",
        "draft",
        "acc",
        "rate",
        "tok/s",
    ]
    (sums,) = [line for line in lines if line.startswith("reference n_max=2:")]
    for key in ("n_requests=2", "total_predicted=16", "total_draft=", "aggregate_accept_rate=0.", "wall_s_total="):
        assert key in sums
    assert "reference: 2 prompts, n_max 2" in err


def test_real_llama_cpp_is_identical_with_the_golden_counts(
    identity: Identity, converted: Converted, tmp_path: Path
) -> None:
    pytest.importorskip("xllamacpp")
    prompts = write_prompts(tmp_path / "p.jsonl", "step35", 2, 3)
    files = converted("step35")
    given = ("-m", files["trunk"], "-d", files["mtp"], "--prompts", prompts, "--engine", "llama-cpp", "--n-max", "1,3")
    told = identity.certificate(*given)
    assert told["verdict"] == "identical"
    (expected,) = golden("step35", 2, 3)
    for run in told["runs"]:
        assert run["tokens"] == expected["tokens"]
        if run["n_max"]:
            counts = expected["draft"][f"trunk+mtp n_max={run['n_max']}"]
            assert (run["n_drafted"], run["n_accepted"]) == (counts["drafted"], counts["accepted"])
            assert run["rounds"] == len(expected["draft"][f"combined n_max={run['n_max']}"]["rounds"])
    assert told["engines"][0]["describe"]["kv_type"] == "F32"
    assert not [finding for finding in told["findings"] if finding["severity"] != "note"]


def test_two_real_servers_are_compared_over_http(identity: Identity, converted: Converted, prompts: Path) -> None:
    pytest.importorskip("xllamacpp")
    model = converted("step35")["combined"]
    with real(model, 0) as plain, real(model, 3) as drafting:
        spec = f"{plain},{drafting}"
        told = identity.certificate(
            "-m", model, "--prompts", prompts, "-n", COUNT, "--n-max", 3, "--engine", spec, "--context", 512
        )
        error = identity.error("-m", model, "--prompts", prompts, "-n", COUNT, "--engine", drafting, status=3)
        assert "PLAIN_URL,DRAFT_URL" in error["message"]
        # The server has 512 tokens of context, whatever --context says.
        error = identity.error("-m", model, "--prompts", prompts, "-n", 600, "--n-max", 3, "--engine", spec, status=3)
        assert error["code"] == "prompt-too-long"
    assert told["verdict"] == "identical"
    assert [run["tokens"] for run in told["runs"] if run["order"] == "B1"] == [
        each["tokens"][:COUNT] for each in golden("step35", *SHORT)
    ]
    assert all(run["n_drafted"] > 0 for run in told["runs"] if run["n_max"])
    described = told["engines"][0]["describe"]
    assert (described["vocabulary"], described["context"], described["drafts"]) == (
        "512",
        "512",
        "as the server was started",
    )


def test_a_program_is_started_for_each_run_and_stopped(identity: Identity, converted: Converted, prompts: Path) -> None:
    pytest.importorskip("xllamacpp")
    files = converted("step35")
    told = identity.certificate(
        *("-m", files["trunk"], "-d", files["mtp"], "--prompts", prompts, "-n", COUNT, "--n-max", 2),
        *("--engine", f"llama-server={LAUNCHER}"),
    )
    assert told["verdict"] == "identical"
    assert [run["tokens"] for run in told["runs"] if run["order"] == "A1"] == [
        each["tokens"][:COUNT] for each in golden("step35", *SHORT)
    ]
    assert all(run["rounds"] for run in told["runs"] if run["n_max"])
    assert "--cache-type-k f32" in told["engines"][0]["describe"]["flags"]


def test_a_program_that_gives_up_is_an_input_error_with_its_words(
    identity: Identity, converted: Converted, prompts: Path
) -> None:
    pytest.importorskip("xllamacpp")
    files = converted("step35")
    given = ("-m", files["trunk"], "-d", files["mtp"], "--prompts", prompts, "-n", COUNT)
    error = identity.error(*given, "--engine", f"llama-server={LAUNCHER} --no-such-flag", status=3)
    assert "ended before it was ready" in error["message"]
    assert "unrecognized arguments: --no-such-flag" in error["message"]
    error = identity.error(*given, "--engine", "llama-server=/no/such/binary", status=3)
    assert error["code"] == "no-program"


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("engine", ["reference", "llama-cpp"])
def test_the_whole_grid_is_identical(
    identity: Identity, converted: Converted, tmp_path: Path, family: str, engine: str
) -> None:
    files = converted(family)
    prompts = write_prompts(tmp_path / "p.jsonl", family, 0, 14)
    given = ("-m", files["trunk"], "-d", files["mtp"], "--engine", engine, "--n-max", "1,2,3,5")
    told = identity.certificate(*given, "--prompts", prompts)
    assert told["verdict"] == "identical"
    expected = golden(family, 0, 14)
    for n_max in (0, 1, 2, 3, 5):
        runs = [run for run in told["runs"] if run["n_max"] == n_max and run["order"] in ("A1", "B1")]
        assert [run["tokens"] for run in runs] == [each["tokens"] for each in expected]


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_the_built_in_prompts_are_identical_on_both_engines(
    identity: Identity, converted: Converted, family: str
) -> None:
    engines = ("--engine", "reference", "--engine", "llama-cpp")
    told = identity.certificate("-m", converted(family)["combined"], *engines, "-n", 32, "--context", 640)
    assert told["verdict"] == "identical", told["findings"]
    categories = {prompt["category"] for prompt in told["prompts"]}
    assert len(categories) == 11
    assert {run["together"] for run in told["runs"] if run["category"] == "multi_sequence"} == {1, 4}
    # Equal prompts at once get equal answers (R15).
    twins = [run["tokens"] for run in told["runs"] if run["prompt"] in ("multi_sequence_1", "multi_sequence_4")]
    assert len({tuple(tokens) for tokens in twins}) == 1
