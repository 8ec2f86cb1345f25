"""Real llama.cpp on files of our converter: what loads as what, and every golden token and draft count.

The goldens come from files of llama.cpp's own converter (golden/llama_cpp.json). Equal draft counts at every length say
that the head in our file predicts the same tokens, not merely that the text is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from families import FAMILIES

from nextn.runtime.engines import llama_cpp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Converted = Callable[[str], dict[str, Path]]

pytest.importorskip("xllamacpp")

NO_EMBEDDING = "error loading model: check_tensor_dims: tensor 'token_embd.weight' not found"


def prompts(family: str) -> list[list[int]]:
    return [prompt["ids"] for prompt in FAMILIES[family].prompts]


def golden(family: str) -> list[dict[str, Any]]:
    expected: list[dict[str, Any]] = FAMILIES[family].read("llama_cpp.json")["prompts"]
    return expected


def drafting_configurations() -> list[tuple[str, str, int]]:
    """(family, "combined" or "trunk+mtp", n_max) for everything that the goldens cover."""
    found = []
    for name, family in FAMILIES.items():
        for configuration in family.read("llama_cpp.json")["summary"]:
            files, _, n_max = configuration.partition(" n_max=")
            found.append((name, files, int(n_max)))
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("role", ["combined", "trunk"])
def test_a_file_with_a_trunk_loads_as_a_model(converted: Converted, family: str, role: str) -> None:
    outcome = llama_cpp.load(converted(family)[role])
    assert outcome.status == "ok", outcome.message


@pytest.mark.parametrize("family", FAMILIES)
def test_a_combined_file_loads_as_its_own_draft_and_a_trunk_does_not(converted: Converted, family: str) -> None:
    files = converted(family)
    outcome = llama_cpp.load(files["combined"], mtp=True)
    assert outcome.status == "ok", outcome.message
    outcome = llama_cpp.load(files["trunk"], mtp=True)
    assert outcome.status == "error"
    assert outcome.message == (
        "context type MTP requested but model doesn't contain MTP layers; failed to create MTP context"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_an_mtp_file_loads_as_a_draft_and_crashes_as_a_model(converted: Converted, family: str) -> None:
    files = converted(family)
    outcome = llama_cpp.load(files["trunk"], files["mtp"])
    assert outcome.status == "ok", outcome.message
    assert llama_cpp.load(files["mtp"]).status == "segfault"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shared_sidecar_is_refused_in_every_place(converted: Converted, family: str) -> None:
    files = converted(family)
    outcome = llama_cpp.load(files["mtp-shared"])
    assert (outcome.status, outcome.message) == ("error", NO_EMBEDDING)
    outcome = llama_cpp.load(files["trunk"], files["mtp-shared"])
    assert outcome.status == "error"
    assert outcome.message == f"{NO_EMBEDDING}; failed to load draft model, '{files['mtp-shared']}'"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("role", ["combined", "trunk"])
def test_greedy_tokens_equal_the_golden_ones(converted: Converted, family: str, role: str) -> None:
    outcome = llama_cpp.run(converted(family)[role], prompts(family))
    assert outcome.status == "ok", outcome.message
    seen = [(list(each.tokens), each.stop, each.n_drafted) for each in outcome.continuations]
    assert seen == [(each["tokens"], each["stop"], 0) for each in golden(family)]


@pytest.mark.parametrize(("family", "files", "n_max"), drafting_configurations())
def test_drafting_keeps_the_tokens_and_accepts_as_much_as_the_golden_files(
    converted: Converted, family: str, files: str, n_max: int
) -> None:
    paths = converted(family)
    model, draft = (paths["combined"], None) if files == "combined" else (paths["trunk"], paths["mtp"])
    outcome = llama_cpp.run(model, prompts(family), draft=draft, n_max=n_max)
    assert outcome.status == "ok", outcome.message
    expected = golden(family)
    assert [list(each.tokens) for each in outcome.continuations] == [each["tokens"] for each in expected]
    counts = [each["draft"][f"{files} n_max={n_max}"] for each in expected]
    assert [(each.n_drafted, each.n_accepted) for each in outcome.continuations] == [
        (each["drafted"], each["accepted"]) for each in counts
    ]
