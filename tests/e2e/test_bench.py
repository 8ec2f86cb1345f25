"""`nextn bench` as users run it: on both engines, with the probe, and against a result that was saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES
from planted_heads import halves_swapped, offset, plant

from nextn.cli import main
from nextn.convert.pipeline import convert
from nextn.gguf_schema.architecture import Role
from nextn.runtime.identity.measure import Result, expected, judge_probe
from nextn.runtime.identity.probe import probe
from nextn.runtime.load import use_threads
from nextn.validators.findings import Findings

use_threads(1)

Converted = Callable[[str], dict[Role, Path]]
FAMILY = FAMILIES["step35"]
GOLDEN = FAMILY.read("llama_cpp.json")["prompts"]
SHORTEST = sorted(range(len(GOLDEN)), key=lambda i: len(FAMILY.prompts[i]["ids"]) + len(GOLDEN[i]["tokens"]))[:3]


class Bench:
    """Runs the command: exit status, stdout, stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str], prompts: Path) -> None:
        self.capsys, self.prompts = capsys, prompts
        lines = [{"name": FAMILY.prompts[i]["name"], "tokens": FAMILY.prompts[i]["ids"]} for i in SHORTEST]
        prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["bench", *map(str, arguments)])
        printed = self.capsys.readouterr()
        assert "Traceback" not in printed.err
        return int(ended.value.code or 0), printed.out, printed.err

    def measured(self, *arguments: object, status: int = 0) -> dict[str, Any]:
        got, out, err = self(*arguments, "--prompts", self.prompts, "--json")
        assert got == status, (out, err)
        told: dict[str, Any] = json.loads(out)
        return told


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Bench:
    return Bench(capsys, tmp_path / "prompts.jsonl")


@pytest.fixture(scope="module")
def model(converted: Converted) -> Path:
    return converted("step35")[Role.COMBINED]


def test_both_engines_accept_what_llama_cpp_accepted(bench: Bench, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    told = bench.measured("-m", model, "--engine", "reference", "--engine", "llama-cpp", "--n-max", "1,3", "--probe")
    assert told["format"] == "nextn bench 1"
    assert [(each["engine"], each["n_max"]) for each in told["results"]] == [
        (engine, n_max) for engine in ("reference", "llama-cpp") for n_max in (0, 1, 3)
    ]
    for each in told["results"]:
        assert each["n_requests"] == 3
        assert each["total_predicted"] == sum(len(GOLDEN[i]["tokens"]) for i in SHORTEST)
        assert each["tokens_per_second"] > 0
        assert len(each["ratios"]) == 2
        if each["n_max"] == 0:
            assert (each["total_draft"], each["ratio"], each["mean_accepted_length"]) == (0, 1, None)
            continue
        counted = [GOLDEN[i]["draft"][f"combined n_max={each['n_max']}"] for i in SHORTEST]
        assert each["total_draft"] == sum(one["drafted"] for one in counted)
        assert each["total_draft_accepted"] == sum(one["accepted"] for one in counted)
        assert len(each["accepted_by_position"]) == each["n_max"]
        assert 1 <= each["mean_accepted_length"] <= 1 + each["n_max"]
    assert told["findings"] == []
    assert told["probe"]["positions"][0]["tried"] == sum(len(GOLDEN[i]["tokens"]) - 1 for i in SHORTEST)
    assert told["files"][0]["path"] == str(model)
    assert len(told["files"][0]["sha256"]) == 64
    assert told["versions"]["nextn"]
    assert told["pairing"]["head"]["types"].keys() == {"F32"}

    # Against itself nothing is worse; with fewer accepted it is, and the exit status says so.
    saved, better = tmp_path / "saved.json", tmp_path / "better.json"
    saved.write_text(json.dumps(told), encoding="utf-8")
    status, out, _ = bench("--compare", saved, saved)
    assert status == 0
    assert "reference n_max=1: acceptance +0.0 sigma lower than then, 1.00 times the speed" in out
    # Without a draft nothing is accepted.
    assert "reference n_max=0: 1.00 times the speed" in out
    for each in told["results"]:
        each["total_draft"], each["total_draft_accepted"] = 10 * each["total_draft"], 10 * each["total_draft"]
    better.write_text(json.dumps(told), encoding="utf-8")
    status, out, _ = bench("--compare", better, saved, "--json")
    compared = json.loads(out)["comparison"]
    assert (status, compared["regression"]) == (1, True)
    assert {finding["rule"] for finding in compared["findings"]} == {"baseline-acceptance"}
    # And the other way round.
    assert bench("--compare", saved, better)[0] == 0


def test_a_probe_alone_names_the_fault(bench: Bench, model: Path, tmp_path: Path) -> None:
    planted = plant(model, tmp_path / "planted.gguf", halves_swapped)
    told = bench.measured("-m", planted, "--probe", "-n", 16, "--n-max", 1, status=1)
    assert told["results"] == []
    assert [finding["rule"] for finding in told["findings"]] == ["head-halves-swapped"]
    status, out, _ = bench("-m", planted, "--probe", "-n", 16, "--n-max", 1, "--prompts", bench.prompts, "--quiet")
    assert status == 1
    assert "eh_proj: as if its halves were joined in the wrong order" in out
    assert "probe, position 1: " in out


def test_a_dead_head_fails_the_gate_with_what_was_checked(bench: Bench, model: Path, tmp_path: Path) -> None:
    planted = plant(model, tmp_path / "planted.gguf", offset(-1))
    told = bench.measured("-m", planted, "-n", 16, "--n-max", 1)
    [finding] = [each for each in told["findings"] if each["rule"] == "acceptance-gate"]
    assert "sampling is greedy" in finding["message"]
    assert told["results"][1]["total_draft_accepted"] == 0


def test_a_pair_is_recorded_with_both_types(bench: Bench, converted: Converted, tmp_path: Path) -> None:
    """One head, the trunk in two types: two records and two probes (case I14)."""
    head = converted("step35")[Role.MTP]
    coarse = convert(FAMILY.checkpoint, tmp_path, (Role.TRUNK,), "q4_0").outputs[0].path
    told = [
        bench.measured("-m", trunk, "-d", head, "--probe", "-n", 16, "--n-max", 1)
        for trunk in (converted("step35")[Role.TRUNK], coarse)
    ]
    assert [next(iter(each["pairing"]["trunk"]["types"])) for each in told] == ["F32", "Q4_0"]
    assert {next(iter(each["pairing"]["head"]["types"])) for each in told} == {"F32"}
    assert told[0]["probe"] != told[1]["probe"]
    assert [len(each["files"]) for each in told] == [2, 2]


def result(drafted: int, accepted: int) -> Result:
    return Result("gpu", 1, 1, 30, drafted, accepted, accepted / drafted, None, None, None, None, None, ())


def test_an_engine_that_accepts_less_than_the_head_can(model: Path) -> None:
    """Five points are allowed."""
    ids = [FAMILY.prompts[i]["ids"] for i in SHORTEST]
    probed = probe(model, None, ids, 24, longest=1)
    should = expected(probed, 1, 24, ())
    assert should.rate is not None
    for points, warned in ((0.0, 0), (0.04, 0), (0.06, 1), (-0.06, 1)):
        findings = Findings()
        judge_probe(probed, [result(10_000, round(10_000 * (should.rate - points)))], 24, (), findings)
        assert [finding.rule for finding in findings] == ["probe-disagrees"] * warned


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "give a model with -m FILE, or a saved RESULT"),
        (("-m", "none.gguf"), 3, "none.gguf"),
        (("-m", "none.gguf", "saved.json"), 2, "give a model with -m FILE, or a saved RESULT"),
        (("none.json",), 3, "none.json: cannot be read"),
        (("-m", "MODEL", "--n-max", "0"), 2, "a draft has at least one token"),
        (("-m", "MODEL", "--n-max", "x"), 2, "is no list of draft lengths"),
        (("-m", "MODEL", "--engine", "vllm"), 2, "is no engine"),
        (("-m", "MODEL", "--compare", "none.json"), 3, "none.json: cannot be read"),
        (("-m", "MODEL", "--prompts", "none.jsonl"), 3, "none.jsonl: cannot be read"),
        (("-m", "TRUNK"), 3, "has no head to draft with"),
        (("-m", "MODEL", "-d", "TRUNK"), 3, "trunk-F32.gguf: has no head to draft with"),
    ],
)
def test_what_is_asked_wrongly(
    bench: Bench, converted: Converted, arguments: tuple[str, ...], status: int, said: str
) -> None:
    files = {"MODEL": converted("step35")[Role.COMBINED], "TRUNK": converted("step35")[Role.TRUNK]}
    got, _, err = bench(*(files.get(word, word) for word in arguments))
    assert got == status, err
    assert said in err
