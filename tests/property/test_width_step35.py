"""A row of a Step model has the same bits at every width, in every chunk, beside any neighbours, and after going back.

Everything here is compared bit for bit with rows that were computed alone, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from step35_models import FAMILY, PROMPTS, beside, model, one_by_one
from torch import Tensor

from nextn.convert.pipeline import convert
from nextn.gguf_schema.architecture import Role
from nextn.runtime.model import Chunk
from nextn.runtime.models.step35 import Heads, Trunk

WIDTHS = (*range(1, 10), 16, 36)
CHUNKS = (1, 3, 16, 1000)
# Of files, and of what they are computed with if that is not the definition.
TYPES = ("f32", "q8_0", "q4_0", "f32-cpu", "q8_0-cpu")
# Four sequences of different lengths, three of them longer than the window of 16.
SEQUENCES = [PROMPTS[name] for name in ("non_ascii", "code", "two", "chat_special")]
LONGEST = SEQUENCES[0]


VARIANTS: dict[str, Any] = {"": {}, "float64": {"dtype": torch.float64}, "cpu": {"form": "cpu"}}


def sample(*, long: bool) -> pytest.MarkDecorator | tuple[()]:
    return pytest.mark.long if long else ()


WIDE = [
    pytest.param(type_, width, marks=sample(long=type_ not in ("f32", "q8_0") and width not in (3, 16)))
    for type_ in (*TYPES, "f32-float64")
    for width in WIDTHS
]


class Alone:
    """A model, and the rows of all sequences computed one by one: of the trunk, and of each head behind true rows."""

    def __init__(self, trunk: Trunk, heads: Heads) -> None:
        self.trunk, self.heads = trunk, heads
        self.rows = [one_by_one(trunk, tokens) for tokens in SEQUENCES]
        self.logits = [torch.cat([trunk.logits(row[None]) for row in rows]) for rows in self.rows]
        self.beside = [beside(rows) for rows in self.rows]
        self.head_rows = [[self._of_head(k, number) for number in range(4)] for k in range(heads.count)]

    def _of_head(self, head: int, number: int) -> Tensor:
        state = self.heads.new_state()
        rows = []
        for token, hidden in zip(SEQUENCES[number], self.beside[number], strict=True):
            chunk = Chunk(state, [token], hidden=hidden[None])
            rows.append(self.heads.forward([chunk], head))
            chunk.advance()
        return torch.cat(rows)


@pytest.fixture(scope="module")
def alone(
    converted: Callable[[str], dict[Role, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Alone]:
    done: dict[str, Alone] = {}

    def get(type_: str) -> Alone:
        if type_ not in done:
            name, _, variant = type_.partition("-")
            if name == "f32":
                path = converted("step35")[Role.COMBINED]
            else:
                folder = tmp_path_factory.mktemp(name)
                path = convert(FAMILY.checkpoint, folder, (Role.COMBINED,), name).outputs[0].path
            done[type_] = Alone(*model(path, **VARIANTS[variant]))
        return done[type_]

    return get


def in_chunks(tokens: list[int], step: int) -> list[slice]:
    return [slice(start, min(start + step, len(tokens))) for start in range(0, len(tokens), step)]


@pytest.mark.parametrize(("type_", "width"), WIDE)
def test_rows_of_the_trunk_at_every_width(alone: Callable[[str], Alone], type_: str, width: int) -> None:
    it = alone(type_)
    state = it.trunk.new_state()
    rows = torch.cat([it.trunk.forward([Chunk(state, LONGEST[part])]) for part in in_chunks(LONGEST, width)])
    assert torch.equal(rows, it.rows[0])
    logits = torch.cat([it.trunk.logits(rows[part]) for part in in_chunks(LONGEST, width)])
    assert torch.equal(logits, it.logits[0])


@pytest.mark.parametrize(("type_", "width"), WIDE)
def test_rows_of_the_heads_at_every_width(alone: Callable[[str], Alone], type_: str, width: int) -> None:
    """The rows before them are caught up in chunks of other sizes; the last ones stand in the cache uncounted."""
    it = alone(type_)
    caught_up = len(LONGEST) - width
    state = it.heads.new_state()
    for part in in_chunks(LONGEST[:caught_up], 7):
        it.heads.catch_up([Chunk(state, LONGEST[part], hidden=it.beside[0][part])])
    for head in range(it.heads.count):
        chunk = Chunk(state, LONGEST[caught_up:], hidden=it.beside[0][caught_up:])
        rows = it.heads.forward([chunk], head)
        assert torch.equal(rows, it.head_rows[head][0][caught_up:])
        alone_too = torch.cat([it.heads.logits(row[None], head) for row in rows])
        assert torch.equal(it.heads.logits(rows, head), alone_too)
    assert state.length == caught_up


GRID = [(type_, size, chunk) for type_ in TYPES for size in range(1, 5) for chunk in CHUNKS]
SOME = {("f32", 3, 3), ("q8_0", 4, 16), ("q4_0", 2, 1000), ("f32-cpu", 4, 3), ("q8_0-cpu", 3, 16)}


@pytest.mark.parametrize(
    ("type_", "size", "step"), [pytest.param(*case, marks=sample(long=case not in SOME)) for case in GRID]
)
def test_sequences_in_one_forward_do_not_see_each_other(
    alone: Callable[[str], Alone], type_: str, size: int, step: int
) -> None:
    it = alone(type_)
    states = [it.trunk.new_state() for _ in range(size)]
    caches = [it.heads.new_state() for _ in range(size)]
    for number in range(0, len(LONGEST), step):
        part = slice(number, number + step)
        going = [n for n in range(size) if SEQUENCES[n][part]]
        rows = it.trunk.forward([Chunk(states[n], SEQUENCES[n][part]) for n in going])
        assert torch.equal(rows, torch.cat([it.rows[n][part] for n in going]))
        chunks = [Chunk(caches[n], SEQUENCES[n][part], hidden=it.beside[n][part]) for n in going]
        for head in range(it.heads.count):
            drafted = it.heads.forward(chunks, head)
            assert torch.equal(drafted, torch.cat([it.head_rows[head][n][part] for n in going]))
        it.heads.catch_up(chunks)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=1, max_size=8))
def test_any_order_of_reading(alone: Callable[[str], Alone], widths: list[list[int]]) -> None:
    """Each forward takes some rows of each of the four sequences, or none."""
    it = alone("f32")
    states = [it.trunk.new_state() for _ in SEQUENCES]
    for taken in widths:
        parts = [
            (n, slice(s.length, s.length + width))
            for n, (s, width) in enumerate(zip(states, taken, strict=True))
            if width and s.length < len(SEQUENCES[n])
        ]
        if parts:
            rows = it.trunk.forward([Chunk(states[n], SEQUENCES[n][part]) for n, part in parts])
            assert torch.equal(rows, torch.cat([it.rows[n][part] for n, part in parts]))


@pytest.mark.parametrize(
    "type_", [pytest.param(type_, marks=sample(long=type_ not in ("q8_0", "q8_0-cpu"))) for type_ in TYPES]
)
def test_going_back_leaves_nothing_behind(alone: Callable[[str], Alone], type_: str) -> None:
    """At each place a wrong draft is read, by trunk and heads, and taken back; then the true rows follow."""
    it = alone(type_)
    state, caches = it.trunk.new_state(), it.heads.new_state()
    wrong = [7, 300, 7, 41, 502]
    for place in range(len(LONGEST)):
        for width in (1, len(wrong)):
            rows = it.trunk.forward([Chunk(state, wrong[:width])])
            draft = Chunk(caches, wrong[:width], hidden=rows)
            it.heads.forward([draft], place % it.heads.count)
            it.heads.catch_up([draft])
            state.truncate(place)
            caches.truncate(place)
        chunk = Chunk(caches, LONGEST[place : place + 1], hidden=it.beside[0][place : place + 1])
        for head in range(it.heads.count):
            assert torch.equal(it.heads.forward([chunk], head)[0], it.head_rows[head][0][place])
        it.heads.catch_up([chunk])
        assert torch.equal(it.trunk.forward([Chunk(state, chunk.tokens)])[0], it.rows[0][place])


@pytest.mark.parametrize("place", [1, 15, 16, 17, 40])
def test_going_back_from_the_end_to_any_place(alone: Callable[[str], Alone], place: int) -> None:
    it = alone("f32")
    state = it.trunk.new_state()
    it.trunk.forward([Chunk(state, LONGEST)])
    state.truncate(place)
    assert torch.equal(it.trunk.forward([Chunk(state, LONGEST[place:])]), it.rows[0][place:])


def test_a_fork_goes_its_own_way(alone: Callable[[str], Alone]) -> None:
    it = alone("f32")
    state = it.trunk.new_state()
    it.trunk.forward([Chunk(state, LONGEST[:20])])
    other = state.fork()
    it.trunk.forward([Chunk(other, LONGEST[:9])])
    assert torch.equal(it.trunk.forward([Chunk(state, LONGEST[20:])]), it.rows[0][20:])
    other.truncate(20)
    assert torch.equal(it.trunk.forward([Chunk(other, LONGEST[20:])]), it.rows[0][20:])


def test_a_looped_head_finds_the_rows_of_its_draft(alone: Callable[[str], Alone]) -> None:
    """A file with one head loops it: each step gives one row, behind uncounted ones."""
    it = alone("f32")
    state = it.heads.new_state()
    it.heads.catch_up([Chunk(state, LONGEST[:20], hidden=it.beside[0][:20])])
    for place in range(20, 40):
        part = slice(place, place + 1)
        row = it.heads.forward([Chunk(state, LONGEST[part], hidden=it.beside[0][part], start=place)], 0)
        assert torch.equal(row[0], it.head_rows[0][0][place])
    assert state.length == 20
