"""Sets of shards: opened from any member, and refused when something is missing or does not belong."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from gguf_bytes import INT32, STRING, UINT16, UINT32, header, key, tensor, text

from nextn.gguf_schema.container import read_header
from nextn.gguf_schema.contents import MemoryFile
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.shards import join_shards, open_gguf, shard_name, shard_names

if TYPE_CHECKING:
    from pathlib import Path


def split_keys(index: int, count: int, tensors: int) -> list[bytes]:
    return [
        key("split.no", UINT16, struct.pack("<H", index)),
        key("split.count", UINT16, struct.pack("<H", count)),
        key("split.tensors.count", INT32, struct.pack("<i", tensors)),
    ]


def shard(index: int, count: int, name: str | None = None, total: int | None = None, value: float = 0) -> bytes:
    """A shard with one tensor of eight numbers, all equal to `value`."""
    keys = split_keys(index, count, count if total is None else total)
    if index == 0:
        keys.insert(0, key("general.architecture", STRING, text("toy")))
    return header(keys, [tensor(name or f"t{index}", [8])]) + struct.pack("<8f", *[value] * 8)


def write_set(folder: Path, *files: bytes, stem: str = "m") -> list[Path]:
    paths = [folder / f"{stem}-{i + 1:05d}-of-{len(files):05d}.gguf" for i in range(len(files))]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    return paths


def refusal(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        open_gguf(path)
    return caught.value


@pytest.mark.parametrize("member", range(3))
def test_any_member_opens_the_set(tmp_path: Path, member: int) -> None:
    paths = write_set(tmp_path, *(shard(i, 3, value=i) for i in range(3)))
    model = open_gguf(paths[member])
    assert model.paths == tuple(paths)
    assert [(info.name, info.shard) for info in model.contents] == [("t0", 0), ("t1", 1), ("t2", 2)]
    assert model.contents.architecture == "toy"
    assert model.contents.keys == model.headers[0].contents.keys
    assert model.read_tensor("t2") == struct.pack("<8f", *[2.0] * 8)
    source, offset, nbytes = model.tensor_bytes("t1")
    assert (source.name, nbytes) == (str(paths[1]), 32)
    assert offset + nbytes == source.size


def test_single_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header(tensors=[tensor("t", [8])]) + bytes(32))
    model = open_gguf(path)
    assert model.paths == (path,)
    with pytest.raises(InputError, match="tensor 'x': not in the file"):
        model.tensor_bytes("x")


def test_missing_shards_are_named_in_one_error(tmp_path: Path) -> None:
    paths = write_set(tmp_path, *(shard(i, 4) for i in range(4)))
    paths[1].unlink()
    paths[3].unlink()
    for path in paths:
        error = refusal(path)
        assert error.code == "missing-shard"
        assert error.subject == str(path)
        words = "2 of the 4 files of the set are missing: m-00002-of-00004.gguf, m-00004-of-00004.gguf"
        assert error.message == words


def test_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "m.gguf").code == "unreadable"


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        ([shard(0, 2), shard(0, 2, "t1")], "shard-number", "key 'split.no': 0, want 1 for file 2 of 2"),
        ([shard(1, 2), shard(0, 2)], "shard-number", "key 'split.no': 1, want 0 for file 1 of 2"),
        ([shard(0, 3), shard(1, 3)], "shard-count", "key 'split.count': 3, want 2"),
        ([shard(0, 2, total=3), shard(1, 2, total=3)], "shard-tensors", "key 'split.tensors.count': 3, want 2"),
        ([shard(0, 2), shard(1, 2, total=7)], "mixed-shards", "key 'split.tensors.count': 7, but 2 in "),
    ],
)
def test_split_keys_that_do_not_fit(tmp_path: Path, files: list[bytes], code: str, words: str) -> None:
    error = refusal(write_set(tmp_path, *files)[0])
    assert error.code == code
    assert words in error.message


def test_two_sets_mixed(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shard(0, 2, "t"), shard(1, 2, "t"))
    error = refusal(paths[0])
    assert error.code == "duplicate-tensor"
    assert error.subject == str(paths[1])
    assert error.message == f"tensor 't': is there twice, also in {paths[0]}"


def test_a_renamed_shard_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "renamed.gguf"
    path.write_bytes(shard(1, 3))
    error = refusal(path)
    assert error.code == "shard-count"
    assert "says that it is file 2 of 3 (split.no 1, split.count 3), and is not named so" in error.message
    assert error.remedy == "Put it beside the others under a name like NAME-00002-of-00003.gguf."


def test_a_merged_file_keeps_its_keys(tmp_path: Path) -> None:
    # llama-gguf-split --merge sets the count to 0 and leaves the rest.
    path = tmp_path / "m.gguf"
    path.write_bytes(shard(0, 0, total=1))
    assert list(open_gguf(path).contents.tensors) == ["t0"]


def test_shards_without_split_keys(tmp_path: Path) -> None:
    files = [header(tensors=[tensor(name, [8])]) + bytes(32) for name in ("a", "b")]
    assert list(open_gguf(write_set(tmp_path, *files)[1]).contents.tensors) == ["a", "b"]


def test_a_cut_shard_is_named(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shard(0, 3), shard(1, 3)[:-1], shard(2, 3))
    error = refusal(paths[0])
    assert (error.code, error.subject) == ("truncated", str(paths[1]))
    assert "tensor 't1': " in error.message
    assert "needs 32 bytes, 31 left: 1 missing" in error.message
    assert len(open_gguf(paths[0], strict=False).headers) == 3


def test_names(tmp_path: Path) -> None:
    assert shard_name("m", 1, 12) == "m-00002-of-00012.gguf"
    assert shard_names(tmp_path / "a-00001-of-00002-00002-of-00002.gguf") == (
        "a-00001-of-00002-00001-of-00002.gguf",
        "a-00001-of-00002-00002-of-00002.gguf",
    )
    for name in ("m.gguf", "m-00003-of-00002.gguf", "m-00000-of-00002.gguf", "m-00000-of-00000.gguf", "m-1-of-2.gguf"):
        assert shard_names(tmp_path / name) == (name,)


def test_shards_in_memory() -> None:
    headers = [read_header(MemoryFile(shard(i, 2, value=i), f"hub/m-{i}")) for i in range(2)]
    model = join_shards(headers)
    assert model.contents.name == "hub/m-0"
    assert model.read_tensor("t1") == struct.pack("<8f", *[1.0] * 8)


def test_a_split_number_that_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header([key("split.no", STRING, text("0")), key("x", UINT32, bytes(4))]))
    assert refusal(path).code == "shard-number"


@pytest.mark.parametrize("small_first_shard", [False, True])
def test_written_by_gguf_py(tmp_path: Path, small_first_shard: bool) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "toy", split_max_tensors=2, small_first_shard=small_first_shard)
    data = {f"blk.{i}.w": np.full((2, 16), i, np.float32) for i in range(5)}
    for name, values in data.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 3 + small_first_shard
    model = open_gguf(paths[-1])
    assert model.paths == tuple(paths)
    assert {info.name: (info.ne, model.read_tensor(info.name)) for info in model.contents} == {
        name: ((16, 2), values.tobytes()) for name, values in data.items()
    }
