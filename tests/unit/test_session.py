"""Sessions come back whole from their files, which are complete or not there; anything else is an InputError."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from reading_model import MODEL, WIDTH, Model, reads, says
from torch import Tensor

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import f32, string
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.shards import open_gguf
from nextn.runtime import session as module
from nextn.runtime.session import FORMAT, Session, identity, load_session, no_hidden, open_session, rows_of, shifted
from nextn.runtime.state import RollbackError

NORM = "blk.0.attn_norm.weight"


def session_of(*tokens: int, last: int | None = 9, heads: bool = True) -> Session:
    session = open_session(MODEL, MODEL if heads else None)
    for state in (session.trunk, session.heads):
        if state is not None:
            MODEL.read(state, *tokens)
    session.pending, session.last, session.tokens = torch.tensor([1.0, 2.0, 3.0]), last, [*tokens, -1]
    return session


def saved(session: Session, path: Path) -> Path:
    session.save(path / "s.session", MODEL, MODEL if session.heads else None)
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
        ({"trunk": "other"}, "is of another model"),
        ({"heads": "other"}, "is of other draft heads"),
        ({"heads": None}, "is of other draft heads"),
        ({"format": "nextn session 1"}, "is no session of this version"),
        ({"format": None}, "is no session of this version"),
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
        place = told if name in ("trunk", "heads", "format", "last") else tensors
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
        session_of(4).save(path, MODEL, MODEL)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_folder_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        session_of(1).save(tmp_path / "absent" / "s", MODEL, MODEL)


def test_a_fork_of_a_session_is_another() -> None:
    session = session_of(1, 2)
    fork = session.fork()
    MODEL.read(fork.trunk, 5)
    fork.tokens.append(5)
    assert says(session.trunk) == says(reads(1, 2))
    assert session.tokens == [1, 2, -1]


def test_heads_take_the_hidden_row_of_the_token_before() -> None:
    session = session_of(1)
    assert shifted(session, torch.tensor([[7.0] * 3, [8.0] * 3, [9.0] * 3])).tolist() == [
        [1, 2, 3],
        [7, 7, 7],
        [8, 8, 8],
    ]
    assert [len(part) for part in rows_of([2, 0, 1], torch.tensor([[7.0] * 3, [8.0] * 3, [9.0] * 3]))] == [2, 0, 1]


def test_the_format_has_a_version() -> None:
    assert FORMAT.split()[-1].isdecimal()


def test_models_are_told_apart_by_names_keys_and_types_but_not_by_how_files_are_cut(
    converted: Callable[[str], dict[Role, Path]],
) -> None:
    files = {role: open_gguf(path).contents for role, path in converted("step35").items()}
    for of_heads, roles in ((False, (Role.COMBINED, Role.TRUNK)), (True, (Role.COMBINED, Role.MTP, Role.MTP_SHARED))):
        assert len({identity(files[role], of_heads=of_heads) for role in roles}) == 1
    combined = files[Role.COMBINED]
    others = [
        replace(combined, keys={**combined.keys, "general.name": string("another")}),
        replace(combined, keys={**combined.keys, "step35.rope.freq_base": f32(1e4)}),
        replace(combined, tensors={**combined.tensors, NORM: replace(combined.tensors[NORM], ne=(64,))}),
    ]
    assert len({identity(each, of_heads=False) for each in (combined, *others)}) == 4
    assert identity(combined, of_heads=False) != identity(combined, of_heads=True)
