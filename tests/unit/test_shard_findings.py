"""Findings about sets of shards: what is missing, what does not belong, and what gives it away."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from examined import examine
from gguf_bytes import INT32, STRING, UINT16, UINT32, header, key, tensor, text

from nextn.gguf_schema.errors import InputError
from nextn.validators.container import examine_container

if TYPE_CHECKING:
    from pathlib import Path


ALIGNED = key("general.alignment", UINT32, struct.pack("<I", 64))


def shard(
    index: int,
    count: int,
    total: int | None = None,
    name: str | None = None,
    extra: tuple[bytes, ...] = (),
    by: int = 32,
) -> bytes:
    keys = [
        key("split.no", UINT16, struct.pack("<H", index)),
        key("split.count", UINT16, struct.pack("<H", count)),
        key("split.tensors.count", INT32, struct.pack("<i", count if total is None else total)),
        *extra,
    ]
    return header(keys, [tensor(name or f"t{index}", [8])], alignment=by) + bytes(32).ljust(by, b"\0")


def general(name: str, value: str) -> tuple[bytes, ...]:
    return (key(f"general.{name}", STRING, text(value)),)


def rules(*files: bytes) -> list[tuple[str, str, str]]:
    return [(finding.rule, finding.subject, finding.message) for finding in examine(*files)[1]]


def test_a_whole_set_has_none() -> None:
    model, findings = examine(*(shard(i, 3) for i in range(3)))
    assert findings == []
    assert model is not None
    assert len(model.contents.tensors) == 3


def test_wrong_numbers() -> None:
    assert rules(shard(0, 2), shard(0, 2, name="t1")) == [
        ("shard-number", "m-1", "key 'split.no': 0, want 1 for file 2 of 2")
    ]
    assert rules(shard(0, 3, 2), shard(1, 2)) == [
        ("shard-count", "m-0", "key 'split.count': 3, want 2 for file 1 of 2")
    ]
    assert rules(shard(0, 2, 7), shard(1, 2, 7)) == [
        ("shard-tensors", "m-0", "key 'split.tensors.count': 7, want 2 for file 1 of 2 with 2 tensors in all"),
        ("shard-tensors", "m-1", "key 'split.tensors.count': 7, want 2 for file 2 of 2 with 2 tensors in all"),
    ]


def test_what_gives_mixed_sets_away() -> None:
    mixed = {
        "key 'split.tensors.count': 9, but 2 in m-0": shard(1, 2, 9),
        "alignment: 64, but 32 in m-0": shard(1, 2, extra=(ALIGNED,), by=64),
        "GGUF version: 2, but 3 in m-0": b"GGUF\x02" + shard(1, 2)[5:],
        "key 'general.uuid': other, but one in m-0": shard(1, 2, extra=general("uuid", "other")),
        "key 'general.architecture': step35, but toy in m-0": shard(1, 2, extra=general("architecture", "step35")),
    }
    first = shard(0, 2, extra=general("uuid", "one") + general("architecture", "toy"))
    for words, second in mixed.items():
        found = [(subject, message) for rule, subject, message in rules(first, second) if rule == "mixed-shards"]
        assert found == [("m-1", f"{words}: not of one set")]
    assert rules(first, shard(1, 2, extra=general("uuid", "one"))) == []


def test_a_tensor_of_another_set() -> None:
    model, findings = examine(shard(0, 2, name="t"), shard(1, 2, name="t"))
    assert [(f.rule, f.subject, f.message) for f in findings] == [
        ("duplicate-tensor", "m-1", "tensor 't': is there twice, also in m-0")
    ]
    assert findings[0].remedy == "files of a set come from one conversion and keep the names they were written under"
    assert model is None


def test_keys_of_a_set_that_are_missing() -> None:
    plain = [header(tensors=[tensor(name, [8])]) + bytes(32) for name in ("a", "b")]
    assert [message for rule, _, message in rules(*plain) if rule == "shard-keys"] == [
        "key 'split.no': missing in file 1 of 2",
        "key 'split.count': missing in file 1 of 2",
        "key 'split.tensors.count': missing in file 1 of 2",
        "key 'split.no': missing in file 2 of 2",
    ]


def write_set(folder: Path, *files: bytes) -> list[Path]:
    paths = [folder / f"m-{i + 1:05d}-of-{len(files):05d}.gguf" for i in range(len(files))]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    return paths


def test_missing_shards_are_named_and_the_others_examined(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shard(0, 3), shard(1, 3)[:-1], shard(2, 3))
    paths[2].unlink()
    found = examine_container(paths[0])
    assert not found.whole
    assert [(finding.rule, finding.subject) for finding in found.findings] == [
        ("missing-shard", str(paths[0])),
        ("truncated", str(paths[1])),
    ]
    assert found.findings[0].message == "1 of the 3 files of the set is missing: m-00003-of-00003.gguf"
    assert list(found.file.contents.tensors) == ["t0", "t1"], "what is there is shown"
    paths[1].unlink()
    assert examine_container(paths[0]).findings[0].message.startswith("2 of the 3 files of the set are missing: ")


def test_a_cut_shard_is_named_whichever_is_given(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shard(0, 3), shard(1, 3)[:-1], shard(2, 3))
    for path in paths:
        found = examine_container(path)
        assert found.whole
        assert [(finding.rule, finding.subject) for finding in found.findings] == [("truncated", str(paths[1]))]


def test_a_shard_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "renamed.gguf"
    path.write_bytes(shard(1, 3))
    found = examine_container(path)
    assert not found.whole, "two thirds of it are elsewhere"
    (finding,) = found.findings
    assert (finding.rule, finding.remedy) == (
        "shard-count",
        "put it beside the others under a name like NAME-00002-of-00003.gguf",
    )
    assert "file 2 of 3" in finding.message


def test_one_cause_is_one_error() -> None:
    # A file of another set has other tensors too, and a copied one the same ones again.
    assert [rule for rule, _, _ in rules(shard(0, 3, 3), shard(1, 3, 9), shard(2, 3, 3))] == ["mixed-shards"]
    assert [rule for rule, _, _ in rules(shard(0, 3), shard(1, 3), shard(1, 3))] == ["shard-number"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be opened"):
        examine_container(tmp_path / "m.gguf")
