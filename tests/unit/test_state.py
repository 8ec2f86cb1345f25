"""What a sequence keeps: written, taken back, forked, and made again from its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reading_model import MODEL, WIDTH, reads, says
from torch import Tensor

from nextn.gguf_schema.errors import UsageError
from nextn.runtime.model import Chunk, joined_axes, joined_positions
from nextn.runtime.state import RollbackError, Rows, Trail


def numbers(*values: float, width: int = WIDTH) -> Tensor:
    """A row for each value."""
    return torch.tensor(values)[:, None].repeat(1, width)


def rows_with(*values: float) -> Rows:
    rows = Rows((WIDTH,), torch.float32)
    rows.write(0, numbers(*values))
    return rows


def held(rows: Rows, count: int) -> list[float]:
    return rows.first(count)[:, 0].tolist()


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


def test_a_model_of_one_axis_refuses_three() -> None:
    chunk = Chunk(MODEL.new_state(), embeddings=torch.zeros(2, 1), positions=[(0, 0, 0), (0, 0, 1)])
    with pytest.raises(UsageError, match="three axes"):
        joined_positions([chunk])
    assert joined_axes([chunk, Chunk(reads(1, 2), [3])]).tolist() == [[0, 0, 0], [0, 0, 1], [2, 2, 2]]
    chunk.advance()
    assert (chunk.state.length, chunk.state.position) == (2, 2)


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
