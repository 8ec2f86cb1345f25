"""The speculative loop on the states of the three families: what drafts leave behind, what comes back from a file."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES
from stub_heads import StubHeads, follows
from toy_models import noise
from watching import Watch

from nextn.gguf_schema.architecture import Role
from nextn.runtime.drafting import Options
from nextn.runtime.load import Pair, load_pair
from nextn.runtime.model import Trunk
from nextn.runtime.runs import Run
from nextn.runtime.segments import EmbeddingRows, Item
from nextn.runtime.speculative import Speculator

Converted = Callable[[str], dict[Role, Path]]
FAMILY = pytest.mark.parametrize("family", FAMILIES)
COUNT = 16


@cache
def load(model: Path) -> Pair:
    return load_pair(model)


@pytest.fixture
def pair(converted: Converted, family: str) -> Pair:
    return load(converted(family)[Role.COMBINED])


def prompts(family: str, *lengths: int) -> list[list[int]]:
    """The beginnings of a long prompt and of another, by turns."""
    known = sorted((prompt["ids"] for prompt in FAMILIES[family].prompts), key=len)
    return [known[-1 - index][:length] for index, length in enumerate(lengths)]


def said_by(trunk: Trunk, given: list[list[int]], count: int) -> list[list[int]]:
    return [run.tokens for run in Speculator(trunk).generate(given, count)]


@FAMILY
def test_cases_r18_r20_rejected_drafts_leave_nothing_behind(pair: Pair, family: str) -> None:
    """Two sequences, of 3 and 14 rows, that go back by other numbers of rows at the same time: after each round all of
    their states are those of sequences that never saw a draft. With sequences apart, enabling drafts passed every test
    with one and corrupted two."""
    given = prompts(family, 3, 14)
    said = said_by(pair.trunk, given, COUNT)
    for right_steps in range(4):
        guess = follows(said, given, right_steps)
        stub, quiet = (StubHeads(guess, 1, pair.trunk.hidden_width, pair.trunk.vocab_size) for _ in range(2))
        count = 5 + 3 * right_steps
        speculator = Speculator(pair.trunk, stub, Options(n_max=3), Watch(pair.trunk, quiet))
        runs = speculator.generate(given, count)
        assert [run.tokens for run in runs] == [tokens[:count] for tokens in said]
        whole = [each.accepted for run in runs for each in run.rounds if each.submitted == 3]
        assert set(whole) == {right_steps}


@FAMILY
def test_real_heads_leave_nothing_behind_either(pair: Pair, family: str) -> None:
    given = prompts(family, 9, 2)
    speculator = Speculator(pair.trunk, pair.heads, Options(n_max=5), Watch(pair.trunk, pair.heads))
    runs = speculator.generate(given, 10)
    assert [run.tokens for run in runs] == said_by(pair.trunk, given, 10)
    assert all(run.rounds for run in runs)


@FAMILY
def test_case_r11_a_saved_session_goes_on(pair: Pair, family: str, tmp_path: Path) -> None:
    [prompt] = prompts(family, 7)
    speculator = Speculator(pair.trunk, pair.heads, Options(n_max=3))
    [whole] = speculator.generate([prompt], 16)
    session, run = speculator.open(), Run("", len(prompt))
    speculator.prefill([session], [prompt], [run])
    speculator.resume([session], 8, (), [run])
    session.save(tmp_path / "session", pair.trunk, pair.heads)
    again, more = speculator.load(tmp_path / "session"), Run("", 0)
    speculator.resume([again], 8, (), [more])
    assert [*run.tokens, *more.tokens] == whole.tokens
    # The drafts too are as if nothing had been saved.
    kept, other = session.fork(), Run("", 0)
    speculator.resume([kept], 8, (), [other])
    assert other.rounds == more.rounds


@FAMILY
@pytest.mark.parametrize("positions", [[3, 4, 5, 6], [3, 3, 4, 4]])
def test_case_r07_embedding_rows(pair: Pair, family: str, positions: list[int]) -> None:
    """Three tokens, four embedding rows, two tokens: the same with a draft and without, in parts and at once."""
    tokens = prompts(family, 5)[0]
    width = _embedding_width(pair)
    prompt: list[Item] = [*tokens[:3], EmbeddingRows(noise(5, 4, width) / width**0.5, positions), *tokens[3:]]
    [plain] = Speculator(pair.trunk).generate([prompt], 10)
    for ubatch in (2, 512):
        options = Options(n_max=3, strict=True, ubatch=ubatch)
        [run] = Speculator(pair.trunk, pair.heads, options).generate([prompt], 10)
        assert run.tokens == plain.tokens
        assert run.rounds


def _embedding_width(pair: Pair) -> int:
    value: Any = pair.file.contents.get("embedding_length")
    return int(value.value)


@FAMILY
def test_case_r15_identical_prompts_get_one_answer(pair: Pair, family: str) -> None:
    [prompt] = prompts(family, 5)
    runs = Speculator(pair.trunk, pair.heads, Options(n_max=3)).generate([prompt] * 3, 8)
    assert len({str((run.tokens, run.rounds)) for run in runs}) == 1
