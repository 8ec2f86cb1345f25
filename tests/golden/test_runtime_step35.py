"""A Step model computes what transformers computes, and its heads draft what llama.cpp drafts.

transformers is the golden of the trunk alone: it cannot load the heads of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from step35_models import FAMILY, PROMPTS, beside, model
from torch import Tensor

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.shards import open_gguf
from nextn.runtime.model import Chunk
from nextn.runtime.models.step35 import Heads, Trunk
from nextn.runtime.state import State
from nextn.runtime.weights import Weights

TRANSFORMERS = FAMILY.read("transformers.json")
FIXED_IDS: list[int] = TRANSFORMERS["fixed_ids"]
TRUNK: dict[str, dict[str, Any]] = {prompt["name"]: prompt for prompt in TRANSFORMERS["prompts"]}
LLAMA_CPP: dict[str, dict[str, Any]] = {prompt["name"]: prompt for prompt in FAMILY.read("llama_cpp.json")["prompts"]}
NAMES = list(PROMPTS)

LOGITS = 1e-4  # What two programs in float32 may differ by.
PROBABILITY = 6e-4  # llama.cpp logs three decimals.
NEAR_TIE = 1e-3
COUNT = 64
# Tokens that llama.cpp ends at: `<|end_of_text|>` and `<|im_end|>`, not `<|stop|>`, which config.json lists too.
ENDS = (1, 503)


@pytest.fixture(scope="module")
def files(converted: Callable[[str], dict[Role, Path]]) -> dict[Role, Path]:
    return converted("step35")


@pytest.fixture(scope="module")
def models(files: dict[Role, Path]) -> tuple[Trunk, Heads]:
    return model(files[Role.COMBINED])


def read(trunk: Trunk, tokens: list[int]) -> Tensor:
    return trunk.logits(trunk.forward([Chunk(trunk.new_state(), tokens)])).double()


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_the_trunk_are_those_of_transformers(models: tuple[Trunk, Heads], name: str) -> None:
    logits = read(models[0], PROMPTS[name])
    for golden in TRUNK[name]["rows"]:
        row = logits[golden["position"]]
        assert row[FIXED_IDS].tolist() == pytest.approx(golden["logits"], abs=LOGITS)
        assert float(row.logsumexp(0)) == pytest.approx(golden["logsumexp"], abs=LOGITS)


@pytest.mark.parametrize("name", NAMES)
def test_the_ten_likeliest_tokens_are_those_of_transformers(models: tuple[Trunk, Heads], name: str) -> None:
    last = read(models[0], PROMPTS[name])[-1].log_softmax(0)
    golden = TRUNK[name]["top10"]
    assert last[[token for token, _ in golden]].tolist() == pytest.approx([p for _, p in golden], abs=LOGITS)
    assert sorted(last.topk(10).indices.tolist()) == sorted(token for token, _ in golden)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_and_their_margins_are_those_of_transformers(models: tuple[Trunk, Heads], name: str) -> None:
    """All of them in one forward, each behind the golden ones before: a row's bits do not depend on that."""
    greedy, margins = TRUNK[name]["greedy"], TRUNK[name]["margin"]
    prompt = PROMPTS[name]
    best = read(models[0], [*prompt, *greedy[:-1]])[len(prompt) - 1 :].topk(2)
    chosen = best.indices[:, 0].tolist()
    assert [a for a, m in zip(chosen, margins, strict=True) if m > NEAR_TIE] == [
        b for b, m in zip(greedy, margins, strict=True) if m > NEAR_TIE
    ]
    assert (best.values[:, 0] - best.values[:, 1]).tolist() == pytest.approx(margins, abs=2 * LOGITS)


@pytest.mark.parametrize("name", [*NAMES[:3], *(pytest.param(n, marks=pytest.mark.long) for n in NAMES[3:])])
def test_greedy_generation_token_by_token(models: tuple[Trunk, Heads], name: str) -> None:
    trunk, _ = models
    state = trunk.new_state()
    hidden, said = trunk.forward([Chunk(state, PROMPTS[name])])[-1:], []
    golden = TRUNK[name]["greedy"]
    while len(said) < len(golden):
        said.append(int(trunk.logits(hidden).argmax()))
        hidden = trunk.forward([Chunk(state, said[-1:])])
    assert said == golden


def draft(heads: Heads, state: State, last: int, pending: Tensor, n_max: int) -> tuple[list[int], list[float]]:
    """Step i asks head i, which gets all rows of the draft: beside `last` the trunk's row, then each head's newest."""
    tokens, hidden = [last], [pending]
    probabilities = []
    for head in range(min(n_max, heads.count)):
        row = heads.forward([Chunk(state, tokens, hidden=torch.stack(hidden))], head)[-1]
        best = heads.logits(row[None], head)[0].topk(10)
        probabilities.append(float(best.values.double().softmax(0)[0]))
        tokens.append(int(best.indices[0]))
        hidden.append(row)
    return tokens[1:], probabilities


def verified(best: list[int], drafted: list[int]) -> list[int]:
    """The trunk's tokens up to the first one that was not drafted, or an end token before the draft's last."""
    said = []
    for place, token in enumerate(best):
        said.append(token)
        if place == len(drafted) or token != drafted[place] or (token in ENDS and place < len(drafted) - 1):
            break
    return said


def speculate(trunk: Trunk, heads: Heads, prompt: list[int], n_max: int) -> tuple[list[int], list[dict[str, Any]]]:
    """Tokens and rounds as llama.cpp's server makes and counts them."""
    state, caches = trunk.new_state(), heads.new_state()
    rows = trunk.forward([Chunk(state, prompt)])
    heads.catch_up([Chunk(caches, prompt, hidden=beside(rows))])
    pending = rows[-1]
    said, rounds = [int(trunk.logits(rows[-1:]).argmax())], []
    while len(said) < COUNT and said[-1] not in ENDS:
        left = COUNT - len(said) - 1
        drafted, probability = draft(heads, caches, said[-1], pending, n_max) if left else ([], [])
        batch, before = [said[-1], *drafted[:left]], state.length
        rows = trunk.forward([Chunk(state, batch)])
        new = verified(trunk.logits(rows).argmax(1).tolist(), batch[1:])
        if left:
            rounds.append(
                {
                    "drafted": drafted,
                    "probability": pytest.approx(probability, abs=PROBABILITY),
                    "submitted": len(batch) - 1,
                    "accepted": len(new) - 1,
                }
            )
        heads.catch_up([Chunk(caches, batch, hidden=torch.cat((pending[None], rows[:-1])))])
        state.truncate(before + len(new))
        caches.truncate(before + len(new))
        pending = rows[len(new) - 1]
        for token in new:
            if len(said) < COUNT and said[-1] not in ENDS:
                said.append(token)
    return said, rounds


SOME = {(name, 3) for name in NAMES} | {("short", 1), ("short", 2)}
CASES = [(name, n_max) for name in NAMES for n_max in (1, 2, 3)]


@pytest.mark.parametrize(
    ("name", "n_max"),
    [pytest.param(*case, marks=[] if case in SOME else pytest.mark.long) for case in CASES],
)
def test_rounds_are_those_of_llama_cpp(models: tuple[Trunk, Heads], name: str, n_max: int) -> None:
    """Drafts, their probabilities and what is accepted. Probabilities show what tokens hide: a head fed with hidden
    rows behind the norm drafts the same tokens here."""
    said, rounds = speculate(*models, PROMPTS[name], n_max)
    golden = LLAMA_CPP[name]["draft"][f"combined n_max={n_max}"]
    assert said == LLAMA_CPP[name]["tokens"]
    assert rounds == golden["rounds"]
    assert sum(r["submitted"] for r in rounds) == golden["drafted"]
    assert sum(r["accepted"] for r in rounds) == golden["accepted"]


@pytest.mark.parametrize("role", [Role.MTP, Role.MTP_SHARED])
def test_a_head_in_a_file_of_its_own_is_the_same(files: dict[Role, Path], role: Role) -> None:
    trunk_weights = Weights(open_gguf(files[Role.TRUNK]))
    trunk = Trunk(trunk_weights)
    apart = Heads(Weights(open_gguf(files[role]), lender=trunk_weights))
    _, together = model(files[Role.COMBINED])
    tokens = PROMPTS["short"]
    hidden = beside(trunk.forward([Chunk(trunk.new_state(), tokens)]))
    for head in range(3):
        rows, wanted = (h.forward([Chunk(h.new_state(), tokens, hidden=hidden)], head) for h in (apart, together))
        assert torch.equal(rows, wanted)
        assert torch.equal(apart.logits(rows, head), together.logits(wanted, head))


def test_float64_tells_the_error_of_float32(files: dict[Role, Path], models: tuple[Trunk, Heads]) -> None:
    exact, _ = model(files[Role.COMBINED], torch.float64)
    tokens = PROMPTS["window_2x_plus_1"]
    far = exact.logits(exact.forward([Chunk(exact.new_state(), tokens)]))
    assert far.dtype == torch.float64
    difference = float((far - read(models[0], tokens)).abs().max())
    assert 0 < difference < LOGITS
