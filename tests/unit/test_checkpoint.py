"""Folders, indexes and shards of a checkpoint: what is refused, and what index and headers say about each other."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.numpy
from checkpoints import INDEX, Model, model, safetensors_bytes, stored
from families import FAMILIES

from nextn.convert.checkpoint import Checkpoint, open_checkpoint, shown
from nextn.gguf_schema.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def checkpoint(folder: Path) -> Path:
    """Two shards and their index: `a` and `b` in the first, `c` in the second."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    write_part(folder / ONE, "b", "a")
    write_part(folder / TWO, "c")
    write_index(folder, a=ONE, b=ONE, c=TWO)
    return folder


def write_part(path: Path, *names: str) -> None:
    path.write_bytes(safetensors_bytes({name: stored(np.zeros(4, "<f4") + ord(name)) for name in names}))


def write_index(folder: Path, **weight_map: str) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def refusal(folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        open_checkpoint(folder)
    return caught.value


def notes(opened: Checkpoint) -> list[tuple[str, str, str]]:
    return [(str(f.severity), f.rule, f.subject) for f in opened.findings]


# --- reading


def test_tensors_come_by_file_then_by_name(tmp_path: Path) -> None:
    opened = open_checkpoint(checkpoint(tmp_path / "m"))
    assert list(opened.tensors) == ["a", "b", "c"]
    assert opened.findings == ()
    assert opened.missing == {}


def test_elements_are_read_by_range(tmp_path: Path) -> None:
    (folder := tmp_path / "m").mkdir()
    (folder / "config.json").write_text("{}")
    matrix = np.arange(12, dtype="<f2").reshape(3, 4)
    safetensors.numpy.save_file({"x": np.ones(5, "<f4"), "m": matrix}, folder / "model.safetensors")
    tensor = open_checkpoint(folder).tensors["m"]
    assert (tensor.dtype, tensor.shape, tensor.elements, tensor.nbytes) == ("F16", (3, 4), 12, 24)
    assert tensor.read(0, 12) == matrix.tobytes()
    assert tensor.read(4, 4) == matrix[1].tobytes()


def test_a_range_beyond_the_tensor_is_never_the_next_tensors_bytes(tmp_path: Path) -> None:
    tensor = open_checkpoint(checkpoint(tmp_path / "m")).tensors["a"]
    for start, count in ((0, 5), (4, 1), (-1, 2)):
        with pytest.raises(InputError) as caught:
            tensor.read(start, count)
        assert caught.value.subject == "a"


def test_the_text_configuration_lies_over_the_root(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps({"a": 1, "b": 2, "text_config": {"b": 3, "c": 4}}))
    text = open_checkpoint(folder).text_config
    assert {key: text[key] for key in "abc"} == {"a": 1, "b": 3, "c": 4}


def test_a_link_to_a_shard_is_followed(tmp_path: Path) -> None:
    """The hub's cache holds links to files with other names."""
    folder = checkpoint(tmp_path / "m")
    (folder / TWO).rename(tmp_path / "blob")
    (folder / TWO).symlink_to(tmp_path / "blob")
    assert open_checkpoint(folder).tensors["c"].read(0, 1) == np.float32(ord("c")).tobytes()


def test_the_copies_that_tests_edit_are_read_by_the_library(tmp_path: Path) -> None:
    """Guards the helper: what it writes are the fixture's tensors."""
    source = model("qwen4exp")
    folder = source.write(tmp_path)
    for path in folder.glob("*.safetensors"):
        for name, held in safetensors.deserialize(path.read_bytes()):
            assert bytes(held["data"]) == source.tensors[name].data


# --- the folder


def test_no_configuration(tmp_path: Path) -> None:
    error = refusal(tmp_path)
    assert (error.code, error.subject) == ("no-config", str(tmp_path))
    assert "config.json" in str(error.remedy)


@pytest.mark.parametrize(
    ("content", "message"), [(b"{", "not valid JSON"), (b"[]", "no JSON object"), (b"\xff", "not valid JSON")]
)
@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_json_that_is_none(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / name).write_bytes(content)
    error = refusal(folder)
    assert (error.code, error.subject) == ("bad-json", str(folder / name))
    assert message in error.message


@pytest.mark.parametrize("name", ["config.json", INDEX, TWO])
def test_an_unreadable_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the superuser no file is: the system's refusal is played to it."""
    folder = checkpoint(tmp_path / "m")

    def refusing(function: Any) -> Any:
        def opened(path: Any, *arguments: Any, **options: Any) -> Any:
            if str(path) == str(folder / name):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return function(path, *arguments, **options)

        return opened

    monkeypatch.setattr(os, "open", refusing(os.open))
    monkeypatch.setattr(io, "open", refusing(io.open))
    error = refusal(folder)
    assert (error.code, error.subject) == ("unreadable", str(folder / name))
    assert "Permission denied" in error.message


def test_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    error = refusal(tmp_path)
    assert (error.code, error.subject) == ("no-weights", str(tmp_path))


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("exploded",)


def test_pickled_weights_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    error = refusal(tmp_path)
    assert error.code == "pickle"
    assert "safetensors" in str(error.remedy)
    assert not (tmp_path / "exploded").exists()


def test_pickled_weights_beside_safetensors_do_not_matter(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert open_checkpoint(folder).findings == ()


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(("kind", "message"), [("link", "a link to a file that is not there"), ("folder", "no file")])
def test_a_shard_that_is_no_file(tmp_path: Path, kind: str, message: str, index: bool) -> None:
    """Without an index a part of the model would be gone without a word."""
    folder = checkpoint(tmp_path / "m")
    (folder / TWO).unlink()
    (folder / TWO).mkdir() if kind == "folder" else (folder / TWO).symlink_to("/nonexistent")
    if not index:
        (folder / INDEX).unlink()
    error = refusal(folder)
    assert (error.code, error.subject) == ("not-a-shard", str(folder / TWO))
    assert message in error.message


def test_a_key_that_occurs_twice(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / "config.json").write_text('{"text_config": {"rms_norm_eps": 1e-5, "rms_norm_eps": 0.5}}')
    error = refusal(folder)
    assert (error.code, error.subject) == ("bad-json", str(folder / "config.json"))
    assert "a name occurs twice: 'rms_norm_eps'" in error.message


def test_a_value_in_a_message_is_short() -> None:
    bomb: object = "x"
    for _ in range(40):
        bomb = [bomb] * 10
    for value in (bomb, 1 << 100_000, {"a": [1 << 100_000]}, "x" * 10_000):
        assert len(shown(value)) <= 120


# --- the index


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_without_a_map_of_names(tmp_path: Path, content: str) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / INDEX).write_text(content)
    error = refusal(folder)
    assert (error.code, error.subject) == ("bad-index", str(folder / INDEX))


@pytest.mark.parametrize("part", ["../other.safetensors", "/etc/passwd", "sub/part.safetensors", ".", "..", ""])
def test_an_index_that_leaves_the_folder(tmp_path: Path, part: str) -> None:
    folder = checkpoint(tmp_path / "m")
    write_part(tmp_path / "other.safetensors", "c")
    write_index(folder, a=ONE, b=ONE, c=part)
    error = refusal(folder)
    assert (error.code, error.subject) == ("bad-index", str(folder / INDEX))
    assert repr(part) in error.message


def test_a_part_that_is_not_there_is_named_with_its_tensors(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / TWO).unlink()
    opened = open_checkpoint(folder)
    assert opened.missing == {"c": TWO}
    assert list(opened.tensors) == ["a", "b"]
    (found,) = opened.findings
    assert (found.rule, found.subject, found.remedy) == ("missing-tensors", TWO, f"download {TWO} again")
    assert found.message == "is not there, with 1 tensor: c"


def test_an_index_alone(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / ONE).unlink()
    (folder / TWO).unlink()
    opened = open_checkpoint(folder)
    assert opened.missing == {"a": ONE, "b": ONE, "c": TWO}
    assert notes(opened) == [("warning", "missing-tensors", ONE), ("warning", "missing-tensors", TWO)]


def test_a_part_without_a_tensor_that_the_index_expects_there(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    write_index(folder, a=ONE, b=ONE, c=TWO, d=TWO)
    opened = open_checkpoint(folder)
    assert opened.missing == {"d": TWO}
    (found,) = opened.findings
    assert (found.subject, found.message) == (TWO, "lacks 1 tensor that the index expects from it: d")


def test_a_tensor_in_another_part_than_the_index_says(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    write_index(folder, a=ONE, b=TWO, c=TWO)
    opened = open_checkpoint(folder)
    assert opened.missing == {}
    assert opened.tensors["b"].source.name == str(folder / ONE)
    (found,) = opened.findings
    assert (found.rule, found.subject) == ("index-other-part", "b")
    assert found.message == f"is in {ONE}, where the index does not look for it ({TWO} lacks it); it is used"


def test_two_copies_of_a_tensor_and_the_index_chooses(tmp_path: Path) -> None:
    """Case Q07: which of two sources of a name is meant is recorded."""
    folder = checkpoint(tmp_path / "m")
    write_part(folder / TWO, "a", "c")
    opened = open_checkpoint(folder)
    assert opened.tensors["a"].source.name == str(folder / ONE)
    (found,) = opened.findings
    assert (found.rule, found.subject) == ("index-other-part", "a")
    assert found.message == f"is in {TWO} too, but the index takes it from {ONE}; that one is used"


def test_two_copies_of_a_tensor_and_no_index(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    write_part(folder / TWO, "a", "c")
    (folder / INDEX).unlink()
    error = refusal(folder)
    assert (error.code, error.subject) == ("duplicate-tensor", "a")
    assert ONE in error.message
    assert TWO in error.message


def test_tensors_that_the_index_does_not_list_are_used(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    write_part(folder / "mtp.safetensors", "d", "e", "f", "g")
    opened = open_checkpoint(folder)
    assert list(opened.tensors) == ["a", "b", "c", "d", "e", "f", "g"]
    assert notes(opened) == [("warning", "index-lacks-tensors", "mtp.safetensors")]
    assert "4 tensors that the index does not list (d, e, f, … 1 more)" in opened.findings[0].message


# --- damaged parts


def test_a_truncated_part_of_a_real_checkpoint(tmp_path: Path) -> None:
    """Case C29: the part, the tensor and the missing bytes, before anything else."""
    source: Model = model("step35")
    folder = source.write(tmp_path)
    part = folder / "model-00003-of-00003.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    error = refusal(folder)
    last = [name for name, tensor in source.tensors.items() if tensor.part == part.name][-1]
    assert (error.code, error.subject) == ("truncated-shard", str(part))
    assert error.message == f"is 1 byte short: 1 tensor cut off from {last} on"


def test_a_shard_that_is_missing_without_an_index_is_told_by_the_names(tmp_path: Path) -> None:
    """A head often stands alone in the last shard: it must not be taken for no head."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(FAMILIES["step35"].checkpoint, folder)
    (folder / "model.safetensors.index.json").unlink()
    open_checkpoint(folder)
    (folder / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(InputError, match="1 shard of 3 not there: model-00003-of-00003") as caught:
        open_checkpoint(folder)
    assert caught.value.code == "missing-shard"
