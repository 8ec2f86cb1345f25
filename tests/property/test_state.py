"""Whatever is done to a sequence, it holds what a plain list of its tokens says; a session comes back from its file."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.gguf_schema.contents import Contents, string
from nextn.runtime.model import Chunk
from nextn.runtime.session import load_session, open_session
from nextn.runtime.state import RollbackError, Rows, State, Trail

KEEP = 4
VOCABULARY = 9
# Rows of 40 values and more make buffers grow twice.
Tokens = list[int]
tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=50)
# What is done, to which of the sequences, and with what.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 9), tokens),
        st.tuples(st.just("image"), st.integers(0, 9), st.lists(st.integers(0, 2), min_size=1, max_size=6)),
        st.tuples(st.just("truncate"), st.integers(0, 9), st.integers(-1, 7)),
        st.tuples(st.just("fork"), st.integers(0, 9), st.none()),
        st.tuples(st.just("restore"), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.just("copy"), st.integers(0, 9), st.none()),
    ),
    max_size=25,
)


@dataclass
class Model:
    """Keeps its tokens, and as a trail all of them in one number."""

    vocab_size: int = VOCABULARY
    hidden_width: int = 1
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    contents: Contents = field(default_factory=lambda: Contents({"general.architecture": string("toy")}, {}))

    def new_state(self, rollback: int = KEEP) -> State:
        rows = {"token": Rows((), torch.int64), "pair": Rows((2,), torch.float64)}
        return State(rows, {"a.mix": Trail(torch.zeros(1, dtype=torch.int64), rollback)})


MODEL: Any = Model()


@dataclass
class Told:
    """What a sequence must hold: its tokens with their positions, and how far back its trail reaches."""

    tokens: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    least: int = 0

    @property
    def position(self) -> int:
        return self.places[-1] + 1 if self.places else 0

    def copy(self) -> Told:
        return Told(list(self.tokens), list(self.places), self.least)


def mixed(tokens: list[int]) -> int:
    number = 0
    for token in tokens:
        number = (31 * number + token + 1) % 1_000_003
    return number


def read(state: State, told: Told, new: list[int], places: list[int] | None = None) -> None:
    image = None if places is None else torch.zeros(len(new), 1)
    chunk = Chunk(state, new, image, positions=places)
    told.places += chunk.places()
    told.tokens += new
    told.least = max(told.least, len(told.tokens) - KEEP)
    state.rows["token"].write(chunk.first, torch.tensor(new))
    state.rows["pair"].write(chunk.first, torch.tensor(new, dtype=torch.float64)[:, None].expand(-1, 2))
    trail = state.trails["a.mix"]
    for place, token in enumerate(new, chunk.first):
        trail.put(place + 1, (31 * trail.at(place) + token + 1) % 1_000_003)
    chunk.advance()


def check(state: State, told: Told) -> None:
    count = len(told.tokens)
    assert (state.length, state.position) == (count, told.position)
    assert state.rows["token"].first(count).tolist() == told.tokens
    assert state.rows["pair"].first(count)[:, 1].tolist() == told.tokens
    reached = [length for length in range(count + 2) if state.trails["a.mix"].reaches(length)]
    assert reached == list(range(told.least, count + 1))
    assert all(state.trails["a.mix"].at(n).item() == mixed(told.tokens[:n]) for n in reached)


def back(state: State, told: Told, rows: int) -> None:
    length = len(told.tokens) - rows
    if told.least <= length <= len(told.tokens):
        state.truncate(length)
        told.tokens, told.places = told.tokens[:length], told.places[:length]
        return
    try:
        state.truncate(length)
    except RollbackError:
        return
    raise AssertionError(f"went back to {length}")


@settings(max_examples=60, deadline=None)
@given(steps)
def test_a_state_is_what_was_done_to_it(steps: list[tuple[str, int, Any]]) -> None:
    sequences = [(MODEL.new_state(), Told())]
    for what, which, with_ in steps:
        state, told = sequences[which % len(sequences)]
        match what:
            case "read":
                read(state, told, with_)
            case "image":
                places = [told.position]
                for step in with_[1:]:
                    places.append(places[-1] + step)
                read(state, told, [0] * len(places), places)
            case "truncate":
                back(state, told, with_)
            case "fork":
                sequences.append((state.fork(), told.copy()))
            case "restore":
                from_state, from_told = sequences[with_ % len(sequences)]
                state.restore(from_state)
                told.tokens, told.places, told.least = vars(from_told.copy()).values()
            case "copy":
                other = MODEL.new_state()
                other.load_tensors({name: tensor.clone() for name, tensor in state.tensors().items()})
                sequences.append((other, told.copy()))
    for state, told in sequences:
        check(state, told)


@settings(max_examples=25, deadline=None)
@given(st.lists(tokens, max_size=4), st.integers(0, KEEP), st.none() | st.integers(0, VOCABULARY - 1))
def test_a_session_comes_back_from_its_file(parts: list[Tokens], undone: int, last: int | None) -> None:
    session, told = open_session(MODEL, None, KEEP), Told()
    for part in parts:
        read(session.trunk, told, part)
        back(session.trunk, told, undone)
    session.last, session.tokens = last, list(told.tokens)
    session.pending = torch.tensor([0.1], dtype=torch.float64)
    with tempfile.TemporaryDirectory() as folder:
        session.save(Path(folder) / "s", MODEL)
        loaded = load_session(Path(folder) / "s", MODEL, None, KEEP)
    check(loaded.trunk, told)
    assert (loaded.last, loaded.tokens, loaded.pending.item()) == (last, told.tokens, 0.1)
    read(loaded.trunk, told, [1, 2, 3])
    check(loaded.trunk, told)
