"""Interpreted Triton kernels say what the goldens say on a short prompt of each family, with drafts and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from families import FAMILIES

from nextn.gguf_schema.architecture import Role
from nextn.kernels.triton import TritonOperations
from nextn.runtime.drafting import Options
from nextn.runtime.load import load_pair
from nextn.runtime.speculative import Speculator

LONGEST, COUNT = 8, 8

pytestmark = pytest.mark.long


@pytest.mark.parametrize("n_max", [0, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output(
    converted: Callable[[str], dict[Role, Path]], family: str, n_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiplied, linear = [], TritonOperations.linear
    monkeypatch.setattr(TritonOperations, "linear", lambda *given: multiplied.append(given) or linear(*given))
    fixture = FAMILIES[family]
    said = fixture.read("transformers.json")["prompts"]
    asked = [(p["ids"], told["greedy"]) for p, told in zip(fixture.prompts, said, strict=True)]
    prompt, greedy = max((pair for pair in asked if len(pair[0]) <= LONGEST), key=lambda pair: len(pair[0]))
    pair = load_pair(converted(family)[Role.COMBINED], kernels="triton", drafting=n_max > 0)
    run = Speculator(pair.trunk, pair.heads, Options(n_max=n_max, strict=True)).generate([prompt], COUNT)[0]
    assert len(greedy) > COUNT
    assert run.tokens == greedy[:COUNT]
    assert multiplied
    assert bool(run.n_drafted) == (n_max > 0)
