"""Real llama.cpp drafts with files that were cut, joined and rehydrated as with the golden ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import surgery
from families import FAMILIES

from nextn.gguf_schema.architecture import Role
from nextn.runtime.engines import llama_cpp

pytest.importorskip("xllamacpp")

COMBINED, TRUNK, MTP, SHARED = Role
Converted = Callable[[str], dict[Role, Path]]
SAMPLE = [("step35", "rehydrated")]


def grid() -> list[Any]:
    """What to draft with, by family; all but a sample is long."""
    return [
        pytest.param(family, files, marks=() if (family, files) in SAMPLE else pytest.mark.long)
        for family in FAMILIES
        for files in ("trunk+mtp", "joined", "rehydrated")
    ]


@pytest.mark.parametrize(("family", "what"), grid())
def test_llama_cpp_drafts_as_with_the_golden_files(
    converted: Converted, family: str, what: str, tmp_path: Path
) -> None:
    parts = surgery.split(converted(family)[COMBINED], tmp_path, TRUNK, MTP, SHARED)
    model, draft = parts[TRUNK], parts[MTP]
    if what == "joined":
        model = surgery.joined(parts[TRUNK], parts[SHARED], tmp_path / "joined.gguf")
    if what == "rehydrated":
        draft = surgery.joined(parts[TRUNK], parts[SHARED], tmp_path / "mtp.gguf", MTP)
    golden = FAMILIES[family].read("llama_cpp.json")
    files = "combined" if what == "joined" else "trunk+mtp"
    configuration = next(key for key in golden["summary"] if key.startswith(f"{files} "))
    prompts = [prompt["ids"] for prompt in FAMILIES[family].prompts]
    n_max = int(configuration.partition("n_max=")[2])
    outcome = llama_cpp.run(model, prompts, draft=None if what == "joined" else draft, n_max=n_max)
    assert outcome.status == "ok", outcome.message
    assert [list(each.tokens) for each in outcome.continuations] == [each["tokens"] for each in golden["prompts"]]
    counts = [each["draft"][configuration] for each in golden["prompts"]]
    assert [(each.n_drafted, each.n_accepted) for each in outcome.continuations] == [
        (each["drafted"], each["accepted"]) for each in counts
    ]


@pytest.mark.parametrize("heads", [1, pytest.param(2, marks=pytest.mark.long)])
def test_llama_cpp_drafts_with_fewer_heads(converted: Converted, heads: int, tmp_path: Path) -> None:
    """step35.md 6.7 [RUN K'=1, 2]: the tokens stay; head 0 alone is right as often as it is the first of three."""
    model = surgery.split(converted("step35")[COMBINED], tmp_path, COMBINED, heads=heads)[COMBINED]
    golden = FAMILIES["step35"].read("llama_cpp.json")
    outcome = llama_cpp.run(model, [prompt["ids"] for prompt in FAMILIES["step35"].prompts], n_max=heads)
    assert outcome.status == "ok", outcome.message
    assert [list(each.tokens) for each in outcome.continuations] == [each["tokens"] for each in golden["prompts"]]
    counts = [each["draft"].get(f"combined n_max={heads}") for each in golden["prompts"]]
    for each, count in zip(outcome.continuations, counts, strict=True):
        assert each.n_drafted > 0
        assert count is None or (each.n_drafted, each.n_accepted) == (count["drafted"], count["accepted"])
