"""What a sequence keeps: written, taken back, forked, saved; and sessions, of which nothing half-made is left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from nextn.gguf_schema.contents import Contents, string
from nextn.gguf_schema.errors import InputError, UsageError
from nextn.runtime import session as module
from nextn.runtime.model import Chunk
from nextn.runtime.session import FORMAT, Session, load_session, no_hidden, open_session, rows_of, shifted
from nextn.runtime.state import ROLLBACK, RollbackError, Rows, State, Trail

WIDTH = 3


def numbers(*values: float, width: int = WIDTH) -> Tensor:
    """A row for each value."""
    return torch.tensor(values)[:, None].repeat(1, width)


def rows_with(*values: float) -> Rows:
    rows = Rows((WIDTH,), torch.float32)
    rows.write(0, numbers(*values))
    return rows


def held(rows: Rows, count: int) -> list[float]:
    return rows.first(count)[:, 0].tolist()


@dataclass
class Model:
    """Keeps its tokens, and as a trail their sum so far."""

    name: str = "toy"
    vocab_size: int = 50
    hidden_width: int = WIDTH
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    count: int = 1

    @property
    def contents(self) -> Contents:
        return Contents({"general.architecture": string(self.name)}, {})

    def new_state(self, rollback: int = ROLLBACK) -> State:
        rows = {"tokens": Rows((), torch.int64), "keys": Rows((2, self.hidden_width), self.dtype)}
        return State(rows, {"blk.1.sum": Trail(torch.zeros(1, dtype=self.dtype), rollback)})

    def read(self, state: State, *tokens: int, positions: list[int] | None = None) -> None:
        """Rows with positions count as an image's."""
        image = None if positions is None else torch.zeros(len(tokens), 1)
        chunk = Chunk(state, tokens, image, positions=positions)
        state.rows["tokens"].write(chunk.first, torch.tensor(tokens))
        keys = torch.tensor(tokens, dtype=self.dtype)[:, None, None]
        state.rows["keys"].write(chunk.first, keys.expand(-1, 2, self.hidden_width))
        trail = state.trails["blk.1.sum"]
        for place, token in enumerate(tokens, chunk.first):
            trail.put(place + 1, trail.at(place) + token)
        chunk.advance()


MODEL: Any = Model()


def says(state: State) -> tuple[list[int], float, int, int]:
    """All that a state of the model holds."""
    tokens = state.rows["tokens"].first(state.length).tolist()
    assert state.rows["keys"].first(state.length)[:, 1, 2].tolist() == tokens
    return tokens, float(state.trails["blk.1.sum"].at(state.length)), state.length, state.position


def reads(*tokens: int, rollback: int = ROLLBACK) -> State:
    state = MODEL.new_state(rollback)
    if tokens:
        MODEL.read(state, *tokens)
    return state


# Rows and trails


def test_rows_are_written_behind_others_and_over_them() -> None:
    rows = rows_with(1, 2, 3)
    rows.write(2, numbers(4, 5))
    assert held(rows, 4) == [1, 2, 4, 5]
    rows.write(4, numbers(*range(100)))
    assert held(rows, 104) == [1, 2, 4, 5, *range(100)]


def test_rows_have_no_gaps() -> None:
    """What would be between them is whatever the memory held before."""
    rows = rows_with(1, 2)
    with pytest.raises(ValueError, match="row 3 cannot be written behind 2 rows"):
        rows.write(3, numbers(4))
    rows.write(1, numbers(7))
    with pytest.raises(ValueError, match="3 rows asked for, 2 are written"):
        rows.first(3)
    rows.cut(1)
    with pytest.raises(ValueError, match="2 rows asked for, 1 are written"):
        rows.first(2)


def test_a_row_of_another_shape_is_not_spread() -> None:
    with pytest.raises(ValueError, match="shape"):
        rows_with(1).write(1, numbers(2, width=1))


def test_a_fork_of_rows_is_a_copy_both_ways() -> None:
    rows = rows_with(1, 2, 3)
    fork = rows.fork()
    second = fork.fork()
    assert fork.first(3).data_ptr() == rows.first(3).data_ptr()
    rows.write(2, numbers(9))
    fork.write(3, numbers(4))
    assert [held(r, 3) for r in (rows, fork, second)] == [[1, 2, 9], [1, 2, 3], [1, 2, 3]]
    second.write(0, numbers(8))
    assert [held(rows, 3), held(fork, 4), held(second, 1)] == [[1, 2, 9], [1, 2, 3, 4], [8]]


def test_a_trail_keeps_as_many_values_as_it_is_asked_for() -> None:
    trail = Trail(torch.zeros(1), keep=2)
    for length in range(1, 6):
        trail.put(length, torch.tensor([float(length)]))
    assert [length for length, _ in trail.kept()] == [3, 4, 5]
    assert [trail.reaches(length) for length in range(7)] == [False, False, False, True, True, True, False]
    fork = trail.fork()
    trail.cut(3)
    trail.put(4, torch.tensor([40.0]))
    assert (trail.at(4).item(), fork.at(4).item(), fork.at(5).item()) == (40, 4, 5)


# Going back


@pytest.mark.parametrize("undone", range(6))
def test_a_state_that_went_back_is_like_new(undone: int) -> None:
    """Undoing all rows of the last forward was said to be done, and nothing came back (case R19)."""
    state = reads(1, 2, 3)
    MODEL.read(state, 4, 5, 6, 7, 8)
    state.truncate(8 - undone)
    fresh = reads(*range(1, 9 - undone))
    assert says(state) == says(fresh)
    MODEL.read(state, 20, 21)
    MODEL.read(fresh, 20, 21)
    assert says(state) == says(fresh)


@pytest.mark.parametrize("length", [-1, 0, 4, 11])
def test_going_back_too_far_changes_nothing(length: int) -> None:
    state = reads(*range(10), rollback=5)
    before = says(state), state.tensors()
    with pytest.raises(RollbackError):
        state.truncate(length)
    assert says(state) == before[0]
    assert all(torch.equal(tensor, before[1][name]) for name, tensor in state.tensors().items())
    state.truncate(5)
    assert says(state) == says(reads(*range(5)))


def test_the_error_says_what_is_kept() -> None:
    with pytest.raises(RollbackError, match=r"from 10 to 4 rows: blk\.1\.sum is kept from row 5 on"):
        reads(*range(10), rollback=5).truncate(4)


def test_rows_that_went_back_cannot_be_read() -> None:
    state = reads(1, 2, 3, 4)
    state.truncate(2)
    with pytest.raises(ValueError, match="3 rows asked for"):
        state.rows["tokens"].first(3)


# Positions


def test_rows_of_an_image_share_positions() -> None:
    """Comparing the number of tokens with a position switched drafting off behind an image (case R09)."""
    state = reads(1, 2, 3)
    MODEL.read(state, 0, 0, 0, 0, positions=[3, 3, 4, 4])
    assert (state.length, state.position) == (7, 5)
    MODEL.read(state, 9)
    assert (state.length, state.position) == (8, 6)
    assert Chunk(state, [1, 2]).places() == [6, 7]
    assert Chunk(state, [1, 2], start=10).places() == [8, 9]


# The position that follows each row of test_rows_of_an_image_share_positions and two rows of text.
FOLLOWING = [0, 1, 2, 3, 4, 4, 5, 5, 6, 7]


@pytest.mark.parametrize("length", range(len(FOLLOWING)))
@pytest.mark.parametrize("parts", [[4], [1, 3], [2, 2], [1, 1, 1, 1]])
def test_going_back_over_an_image_finds_its_positions(length: int, parts: list[int]) -> None:
    """The position used to go back by as many as the rows."""
    state, places = reads(1, 2, 3), [3, 3, 4, 4]
    for part in parts:
        MODEL.read(state, *[0] * part, positions=[places.pop(0) for _ in range(part)])
    MODEL.read(state, 8, 9)
    copy = state.fork()
    state.truncate(length)
    assert (state.length, state.position) == (length, FOLLOWING[length])
    copy.truncate(9)
    copy.truncate(length)
    assert (copy.position, copy.jumps) == (state.position, state.jumps)
    assert torch.equal(copy.tensors()["place"], state.tensors()["place"])


@pytest.mark.parametrize(
    ("tokens", "positions"),
    [([1, 2, 3], [0, 1, 1]), ([1, 2], [3, 5]), ([1, 2], [4, 3]), ([1, 2], [5]), ([1], [5, 6]), ([1], [-1]), ([], [1])],
)
def test_text_stands_at_consecutive_positions(tokens: list[int], positions: list[int]) -> None:
    """Such a batch looped until memory was gone (case R08)."""
    with pytest.raises(UsageError, match="positions"):
        Chunk(MODEL.new_state(), tokens, positions=positions).places()


def test_text_does_not_stand_where_the_row_before_it_does() -> None:
    state = reads(1, 2, 3)
    with pytest.raises(UsageError, match="not consecutive, from 3 on"):
        Chunk(state, [4], positions=[2]).places()
    assert Chunk(state, [4, 5], positions=[6, 7]).places() == [6, 7]
    assert Chunk(state, [], positions=[]).places() == []


def test_positions_of_an_image_may_repeat_but_not_go_back() -> None:
    state, image = reads(1, 2, 3), torch.zeros(3, 1)
    assert Chunk(state, embeddings=image, positions=[3, 3, 4]).places() == [3, 3, 4]
    assert Chunk(state, embeddings=image, positions=[2, 2, 7]).places() == [2, 2, 7]  # its first part went before
    for positions in ([3, 2, 4], [1, 3, 4], [3, 3]):
        with pytest.raises(UsageError):
            Chunk(state, embeddings=image, positions=positions).places()


# Forks and snapshots


def test_forks_go_their_own_ways() -> None:
    state = reads(1, 2, 3)
    fork = state.fork()
    MODEL.read(state, 4)
    MODEL.read(fork, 5, 6)
    fork.truncate(4)
    assert says(state) == says(reads(1, 2, 3, 4))
    assert says(fork) == says(reads(1, 2, 3, 5))


def test_a_snapshot_can_be_restored_twice() -> None:
    state = reads(1, 2, 3)
    snapshot = state.snapshot()
    for tokens in ((4, 5), (6,), tuple(range(40))):
        MODEL.read(state, *tokens)
        state.restore(snapshot)
        assert says(state) == says(snapshot) == says(reads(1, 2, 3))
    state.truncate(1)
    assert says(snapshot) == says(reads(1, 2, 3))


# Tensors of a state


def test_the_tensors_of_a_state_make_it_again() -> None:
    state = reads(1, 2, 3)
    MODEL.read(state, 0, 0, positions=[3, 3])
    other = reads(7, 8)
    fork = other.fork()
    other.load_tensors(state.tensors())
    assert says(other) == says(state)
    other.truncate(4)
    assert other.position == 4
    assert says(fork) == says(reads(7, 8))


def test_a_state_takes_no_more_of_a_trail_than_it_keeps() -> None:
    state = reads(*range(10), rollback=8)
    shorter = MODEL.new_state(2)
    shorter.load_tensors(state.tensors())
    assert [length for length, _ in shorter.trails["blk.1.sum"].kept()] == [8, 9, 10]


BROKEN: dict[str, tuple[Callable[[dict[str, Tensor]], Any], type[Exception]]] = {
    "no place": (lambda t: t.pop("place"), KeyError),
    "no rows": (lambda t: t.pop("rows.keys"), KeyError),
    "fewer rows": (lambda t: t.update({"rows.tokens": t["rows.tokens"][:2]}), ValueError),
    "other width": (lambda t: t.update({"rows.keys": torch.zeros(3, 2, WIDTH + 1)}), ValueError),
    "other type": (lambda t: t.update({"rows.keys": t["rows.keys"].double()}), ValueError),
    "other rows": (lambda t: t.update({"rows.values": t["rows.keys"]}), ValueError),
    "no trail": (lambda t: [t.pop(name) for name in list(t) if name.startswith("trail")], ValueError),
    "no last value": (lambda t: t.pop("trail.blk.1.sum.3"), ValueError),
    "value beyond": (lambda t: t.update({"trail.blk.1.sum.4": torch.zeros(1)}), ValueError),
    "value of other shape": (lambda t: t.update({"trail.blk.1.sum.2": torch.zeros(2)}), ValueError),
    "value without number": (lambda t: t.update({"trail.blk.1.sum.x": torch.zeros(1)}), ValueError),
    "other trail": (lambda t: t.update({"trail.blk.1.3": torch.zeros(1)}), ValueError),
    "short place": (lambda t: t.update({"place": torch.tensor([3])}), ValueError),
    "odd place": (lambda t: t.update({"place": torch.tensor([3, 3, 1])}), ValueError),
    "negative place": (lambda t: t.update({"place": torch.tensor([3, -3])}), ValueError),
    "float place": (lambda t: t.update({"place": torch.tensor([3.0, 3.0])}), ValueError),
}


@pytest.mark.parametrize("case", BROKEN)
def test_tensors_that_do_not_fit_change_nothing(case: str) -> None:
    change, error = BROKEN[case]
    tensors = reads(1, 2, 3).tensors()
    change(tensors)
    state = reads(7, 8)
    with pytest.raises(error):
        state.load_tensors(tensors)
    assert says(state) == says(reads(7, 8))


# Sessions


def session_of(*tokens: int, last: int | None = 9, heads: bool = True) -> Session:
    session = open_session(MODEL, MODEL if heads else None)
    for state in (session.trunk, session.heads):
        if state is not None:
            MODEL.read(state, *tokens)
    session.pending, session.last, session.tokens = torch.tensor([1.0, 2.0, 3.0]), last, [*tokens, -1]
    return session


def saved(session: Session, path: Path) -> Path:
    session.save(path / "s.session", "toy")
    return path / "s.session"


@pytest.mark.parametrize("last", [None, 0, 9])
@pytest.mark.parametrize("heads", [False, True])
def test_a_session_comes_back_whole(tmp_path: Path, last: int | None, heads: bool) -> None:
    """A prompt cache brought both caches back, but not the hidden row between them (case R11)."""
    session = session_of(1, 2, 3, last=last, heads=heads)
    session.drafting = False
    loaded = load_session(saved(session, tmp_path), MODEL, MODEL if heads else None)
    assert says(loaded.trunk) == says(session.trunk)
    assert (loaded.last, loaded.tokens, loaded.drafting) == (last, [1, 2, 3, -1], False)
    assert loaded.pending.tolist() == [1, 2, 3]
    assert (loaded.heads is not None) == heads
    assert loaded.heads is None or says(loaded.heads) == says(reads(1, 2, 3))


def test_an_empty_session_can_be_saved(tmp_path: Path) -> None:
    loaded = load_session(saved(open_session(MODEL, MODEL), tmp_path), MODEL, MODEL)
    assert (loaded.trunk.length, loaded.tokens, loaded.last) == (0, [], None)
    assert torch.equal(loaded.pending, no_hidden(MODEL))


def test_values_that_share_memory_can_be_saved(tmp_path: Path) -> None:
    session = session_of(1, 2)
    trail = session.trunk.trails["blk.1.sum"]
    trail.put(1, trail.at(2))
    session.pending = torch.arange(6.0).reshape(2, 3)[1]
    loaded = load_session(saved(session.fork(), tmp_path), MODEL, MODEL)
    assert float(loaded.trunk.trails["blk.1.sum"].at(1)) == 3
    assert loaded.pending.tolist() == [3, 4, 5]


def test_heads_may_be_left_out_but_not_made_up(tmp_path: Path) -> None:
    assert load_session(saved(session_of(1, 2), tmp_path), MODEL, None).heads is None
    with pytest.raises(InputError, match="saved without draft heads"):
        load_session(saved(session_of(1, 2, heads=False), tmp_path), MODEL, MODEL)


def test_a_session_may_keep_fewer_rows_than_it_was_saved_with(tmp_path: Path) -> None:
    loaded = load_session(saved(session_of(*range(9)), tmp_path), MODEL, MODEL, rollback=2)
    with pytest.raises(RollbackError):
        loaded.trunk.truncate(6)
    loaded.trunk.truncate(7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "other"}, "is no session of toy"),
        ({"format": "nextn session 0"}, "is no session of toy"),
        ({"format": None}, "is no session of toy"),
        ({"last": "50"}, "tokens beyond"),
        ({"last": "-1"}, "tokens beyond"),
        ({"last": "x"}, "does not fit"),
        ({"last": None}, "lacks 'last'"),
        ({"pending": torch.zeros(WIDTH + 1)}, "pending"),
        ({"pending": torch.zeros(WIDTH, dtype=torch.float64)}, "pending"),
        ({"tokens": torch.tensor([50])}, "tokens beyond"),
        ({"tokens": torch.tensor([[1]])}, "tokens are"),
        ({"tokens": None}, "lacks 'tokens'"),
        ({"trunk.place": None}, "lacks 'place'"),
        ({"trunk.rows.keys": torch.zeros(3, 2, WIDTH + 1)}, "want"),
        ({"heads.rows.more": torch.zeros(1)}, "no part"),
    ],
    ids=str,
)
def test_a_file_of_something_else_is_an_input_error(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = saved(session_of(1, 2, 3), tmp_path)
    with safetensors.safe_open(path, "pt") as file:
        told, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for name, value in change.items():
        place = told if name in ("architecture", "format", "last") else tensors
        place.pop(name) if value is None else place.update({name: value})
    safetensors.torch.save_file(tensors, path, told)
    with pytest.raises(InputError, match=message) as caught:
        load_session(path, MODEL, MODEL)
    assert caught.value.subject == str(path)


def test_a_model_of_other_width_or_type_refuses_a_session(tmp_path: Path) -> None:
    path = saved(session_of(1, 2, 3), tmp_path)
    for other in (Model(hidden_width=4), Model(dtype=torch.float64), Model(vocab_size=9)):
        model: Any = other
        with pytest.raises(InputError):
            load_session(path, model, model)


def test_no_damage_makes_anything_but_an_input_error(tmp_path: Path) -> None:
    """Cut at many places, and with a bit turned in the header."""
    path = saved(session_of(1, 2, 3), tmp_path)
    whole = path.read_bytes()
    for size in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError):
            load_session(path, MODEL, MODEL)
    for place in range(0, 900, 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with suppress(InputError):
            load_session(path, MODEL, MODEL)


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"PK\x03\x04" + bytes(100)])
def test_pickles_and_other_files_are_not_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s").write_bytes(content)
    for path in (tmp_path / "s", tmp_path / "absent", tmp_path):
        with pytest.raises(InputError, match="cannot be read as a session"):
            load_session(path, MODEL, MODEL)


def test_a_file_is_complete_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(session_of(1, 2, 3), tmp_path)
    before = path.read_bytes()

    def full(_: dict[str, Tensor], to: Path, __: dict[str, str]) -> None:
        to.write_bytes(before[:50])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(InputError, match="No space left"):
        session_of(4).save(path, "toy")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_folder_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        session_of(1).save(tmp_path / "absent" / "s", "toy")


def test_a_fork_of_a_session_is_another() -> None:
    session = session_of(1, 2)
    fork = session.fork()
    MODEL.read(fork.trunk, 5)
    fork.tokens.append(5)
    assert says(session.trunk) == says(reads(1, 2))
    assert session.tokens == [1, 2, -1]


def test_heads_take_the_hidden_row_of_the_token_before() -> None:
    session = session_of(1)
    assert shifted(session, numbers(7, 8, 9)).tolist() == [[1, 2, 3], [7, 7, 7], [8, 8, 8]]
    assert [len(part) for part in rows_of([2, 0, 1], numbers(7, 8, 9))] == [2, 0, 1]


def test_the_format_has_a_version() -> None:
    assert FORMAT.split()[-1].isdecimal()
