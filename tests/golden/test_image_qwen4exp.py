"""Rows of an image stand at positions on three axes: a Qwen model then computes what transformers computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from qwen4exp_models import FAMILY, model

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import UsageError
from nextn.runtime.drafting import Options
from nextn.runtime.model import Chunk, Position
from nextn.runtime.models.qwen4exp import Heads, Trunk
from nextn.runtime.models.qwen4exp_attention import axes
from nextn.runtime.segments import EmbeddingRows, Item
from nextn.runtime.speculative import Speculator

# 20 tokens, an image of 3 rows with 4 patches each, 12 tokens.
GOLDEN: dict[str, Any] = FAMILY.read("image.json")
BEFORE, AFTER, FIXED_IDS = GOLDEN["before"], GOLDEN["after"], GOLDEN["fixed_ids"]
POSITIONS: list[Position] = [(t, y, x) for t, y, x in GOLDEN["positions"]]
TEXT_BEHIND = 24  # behind the last column of an image that begins at 20 and has 4
LOGITS = 1e-4  # What two programs in float32 may differ by.


@pytest.fixture(scope="module")
def models(converted: Callable[[str], dict[Role, Path]]) -> tuple[Trunk, Heads]:
    return model(converted("qwen4exp")[Role.COMBINED])


def prompt_of(trunk: Trunk, positions: list[Position] | None = POSITIONS) -> list[Item]:
    return [*BEFORE, EmbeddingRows(trunk.embedding.gather(GOLDEN["image_ids"]), positions), *AFTER]


@pytest.mark.parametrize("cuts", [(), (5,), (1, 4, 9)])
def test_logits_behind_an_image_are_those_of_transformers(models: tuple[Trunk, Heads], cuts: tuple[int, ...]) -> None:
    """Whole, and cut within the image."""
    trunk, _ = models
    state = trunk.new_state()
    trunk.forward([Chunk(state, BEFORE)])
    image, rows = trunk.embedding.gather(GOLDEN["image_ids"]), []
    for start, end in zip((0, *cuts), (*cuts, len(image)), strict=True):
        rows.append(trunk.forward([Chunk(state, embeddings=image[start:end], positions=POSITIONS[start:end])]))
    assert (state.length, state.position) == (len(BEFORE) + len(image), TEXT_BEHIND)
    rows.append(trunk.forward([Chunk(state, AFTER)]))
    logits = trunk.logits(torch.cat(rows))[:, FIXED_IDS]
    golden = torch.tensor([*GOLDEN["logits_of_image"], *GOLDEN["logits_behind"]])
    assert (logits - golden).abs().max() < LOGITS


def test_the_axes_matter(models: tuple[Trunk, Heads]) -> None:
    """Else the tests above would say nothing: with the time alone, logits differ by a hundred times what they may."""
    trunk, _ = models
    logits = []
    for positions in (POSITIONS, [20] * len(POSITIONS)):
        state = trunk.new_state()
        trunk.forward([Chunk(state, BEFORE)])
        image = trunk.embedding.gather(GOLDEN["image_ids"])
        logits.append(trunk.logits(trunk.forward([Chunk(state, embeddings=image, positions=positions)])))
    assert (logits[0] - logits[1]).abs().max() > 100 * LOGITS


@pytest.mark.parametrize("ubatch", [7, 512])
def test_case_r09_drafts_go_on_behind_an_image_of_three_axes(models: tuple[Trunk, Heads], ubatch: int) -> None:
    trunk, heads = models
    for each, n_max in ((None, 0), (heads, 1), (heads, 3)):
        options = Options(n_max=n_max, ubatch=ubatch, strict=True)
        speculator = Speculator(trunk, each, options)
        [run] = speculator.generate([prompt_of(trunk)], len(GOLDEN["tokens"]))
        assert min(GOLDEN["margins"]) > LOGITS
        assert run.tokens == GOLDEN["tokens"]
        assert run.n_drafted > 0 or not n_max


def test_going_back_into_an_image_and_on_again(models: tuple[Trunk, Heads]) -> None:
    trunk, _ = models
    image = trunk.embedding.gather(GOLDEN["image_ids"])
    state = trunk.new_state(40)
    trunk.forward([Chunk(state, BEFORE)])
    wanted = trunk.forward([Chunk(state, embeddings=image, positions=POSITIONS)])
    trunk.forward([Chunk(state, AFTER)])
    # Behind the first line of the image text would stand at 24; behind its first two patches at 22.
    for length, position in ((len(BEFORE) + 5, TEXT_BEHIND), (len(BEFORE) + 2, 22), (len(BEFORE), 20)):
        state.truncate(length)
        assert state.position == position
    again = trunk.forward([Chunk(state, embeddings=image, positions=POSITIONS)])
    assert torch.equal(again, wanted)


@pytest.mark.parametrize(
    "positions",
    [
        POSITIONS[:-1],
        [(t - 20, y - 20, x - 20) for t, y, x in POSITIONS],  # counted from the image's own beginning
        [(21, 20, 20), *POSITIONS[1:]],  # goes back
        [(-1, 0, 0), *POSITIONS[1:]],
        [(20, 20, 2**31), *POSITIONS[1:]],
        [(20, 20), *POSITIONS[1:]],
    ],
)
def test_positions_that_are_none(models: tuple[Trunk, Heads], positions: list[Position]) -> None:
    trunk, _ = models
    with pytest.raises(UsageError, match=r"positions|embedding rows begin at"):
        Speculator(trunk).generate([prompt_of(trunk, positions)], 1)


def test_text_has_one_position_each(models: tuple[Trunk, Heads]) -> None:
    trunk, _ = models
    with pytest.raises(UsageError, match="of text are not consecutive"):
        trunk.forward([Chunk(trunk.new_state(), [1], positions=[(0, 0, 0)])])


def test_which_frequency_goes_by_which_axis() -> None:
    """Real models: 11, 11 and 10 frequencies of 32, in turn (mrope_interleaved); what no section asks for is time's."""
    assert axes([11, 11, 10, 0], 32) == [0, 1, 2] * 10 + [0, 1]
    assert axes([3, 3, 2, 0], 8) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert axes([4, 1, 1, 0], 8) == [0, 1, 2, 0, 0, 0, 0, 0]
