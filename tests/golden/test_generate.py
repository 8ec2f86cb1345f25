"""The speculative loop on the three families says and counts what transformers and real llama.cpp say and count.

Token for token: golden/transformers.json, of the trunk alone, and golden/llama_cpp.json, with its drafted and accepted
numbers for every prompt and length of drafts, and whole rounds where they were recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES

from nextn.gguf_schema.architecture import Role
from nextn.runtime.drafting import Options
from nextn.runtime.load import Pair, load_pair
from nextn.runtime.runs import Run
from nextn.runtime.speculative import Speculator
from nextn.runtime.text import Text

# The matrices are small: threads that wait for each other on busy cores make the tests ten times slower.
torch.set_num_threads(1)

Converted = Callable[[str], dict[Role, Path]]
COUNT = 64
PROBABILITY = 6e-4  # llama.cpp logs three decimals.
LENGTHS = (0, 1, 2, 3, 5)


@cache
def pair_of(model: Path, draft: Path | None = None) -> Pair:
    return load_pair(model, draft)


def goldens(family: str) -> list[dict[str, Any]]:
    """For each prompt its name, ids, and what both programs made of it."""
    fixture = FAMILIES[family]
    others = zip(fixture.read("llama_cpp.json")["prompts"], fixture.read("transformers.json")["prompts"], strict=True)
    merged = [
        {"ids": prompt["ids"], "greedy": trunk["greedy"], **told}
        for prompt, (told, trunk) in zip(fixture.prompts, others, strict=True)
    ]
    assert [golden["name"] for golden in merged] == [prompt["name"] for prompt in fixture.prompts]
    return merged


def quickest(family: str, count: int) -> list[dict[str, Any]]:
    return sorted(goldens(family), key=lambda golden: len(golden["ids"]) + 2 * len(golden["tokens"]))[:count]


def generate(pair: Pair, asked: list[dict[str, Any]], n_max: int) -> list[Run]:
    ends = Text(pair.file.contents).ends
    options = Options(n_max=n_max, strict=True)
    return Speculator(pair.trunk, pair.heads, options).generate([golden["ids"] for golden in asked], COUNT, ends)


def check(run: Run, golden: dict[str, Any], n_max: int, files: str = "combined") -> None:
    assert run.tokens == golden["tokens"] == golden["greedy"]
    assert run.stop == golden["stop"]
    if n_max == 0:
        assert run.rounds == []
        return
    # llama.cpp's own count for a pair at that length, or of the combined file: they are equal where both are there.
    counted = golden["draft"].get(f"{files} n_max={n_max}") or golden["draft"][f"combined n_max={n_max}"]
    assert (run.n_drafted, run.n_accepted) == (counted["drafted"], counted["accepted"])
    if "rounds" not in counted:
        return
    assert len(run.rounds) == len(counted["rounds"])
    for made, told in zip(run.rounds, counted["rounds"], strict=True):
        assert made.accepted == told["accepted"]
        if "submitted_ids" in told:
            assert list(made.drafted[: made.submitted]) == told["submitted_ids"]
        else:
            assert (list(made.drafted), made.submitted) == (told["drafted"], told["submitted"])
            assert made.probability == pytest.approx(told["probability"], abs=PROBABILITY)


@pytest.mark.parametrize("family", FAMILIES)
def test_some_prompts_at_once(converted: Converted, family: str) -> None:
    """llama.cpp had each to itself."""
    asked = quickest(family, 2)
    for run, golden in zip(generate(pair_of(converted(family)[Role.COMBINED]), asked, 3), asked, strict=True):
        check(run, golden, 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trunk_with_a_shared_head(converted: Converted, family: str) -> None:
    files = converted(family)
    [golden] = quickest(family, 1)
    [run] = generate(pair_of(files[Role.TRUNK], files[Role.MTP_SHARED]), [golden], 5)
    check(run, golden, 5, "trunk+mtp")


@pytest.mark.long
@pytest.mark.parametrize("n_max", LENGTHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_prompt(converted: Converted, family: str, n_max: int) -> None:
    pair = pair_of(converted(family)[Role.COMBINED])
    runs = []
    for golden in goldens(family):
        [run] = generate(pair, [golden], n_max)
        check(run, golden, n_max)
        runs.append(run)
    if n_max:
        summary = FAMILIES[family].read("llama_cpp.json")["summary"][f"combined n_max={n_max}"]
        assert sum(run.n_drafted for run in runs) == summary["drafted"]
        assert sum(run.n_accepted for run in runs) == summary["accepted"]


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_prompt_at_once_by_a_pair(converted: Converted, family: str) -> None:
    files = converted(family)
    runs = generate(pair_of(files[Role.TRUNK], files[Role.MTP]), goldens(family), 3)
    for run, golden in zip(runs, goldens(family), strict=True):
        check(run, golden, 3, "trunk+mtp")
