"""What is published together, and hashes that are computed once."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from families import FAMILIES

from nextn.convert.hub.facts import Base
from nextn.convert.hub.hashes import Hashes, assert_unchanged
from nextn.convert.hub.publishing import facts_of
from nextn.convert.hub.release import read_release
from nextn.convert.pipeline import convert
from nextn.convert.planner import Options
from nextn.convert.splitting import Split
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import LocalFile
from nextn.gguf_schema.errors import InputError, UsageError

Converted = Callable[[str], dict[Role, Path]]


def test_roles_places_and_pairs(converted: Converted) -> None:
    made = converted("step35")
    release = read_release(made.values())
    assert release.ok
    assert {path: model.role for model in release.models for path in model.files} == {
        "Step35-Tiny-F32.gguf": Role.COMBINED,
        "Step35-Tiny-trunk-F32.gguf": Role.TRUNK,
        "mtp-Step35-Tiny-F32.gguf": Role.MTP,
        "shared/mtp-Step35-Tiny-shared-F32.gguf": Role.MTP_SHARED,
    }
    pairs = {(pair.model.role, pair.draft.role) for pair in release.pairs}
    assert pairs == {(model, head) for model in (Role.COMBINED, Role.TRUNK) for head in (Role.MTP, Role.MTP_SHARED)}


def test_facts_say_what_the_files_say(converted: Converted) -> None:
    made = converted("step35")
    release = read_release(made.values())
    facts = facts_of(release, dict.fromkeys(release.files, "0" * 64), None, ())
    rows = {row.role: row for row in facts.rows}
    assert {role: row.loads for role, row in rows.items()} == {
        "combined": "loads",
        "trunk": "loads",
        "mtp": "loads",
        "mtp-shared": "refuses: error loading model: check_tensor_dims: tensor 'token_embd.weight' not found",
    }
    assert {row.bytes for row in facts.rows} == {path.stat().st_size for path in made.values()}
    target = rows["mtp-shared"].target
    assert target is not None
    assert target.name == "Step35 Tiny"
    assert [row.type for row in facts.rows] == ["F32"] * 4


def test_the_base_is_what_the_files_say_they_were_made_from(tmp_path: Path) -> None:
    told = tmp_path / "metadata.json"
    told.write_text('{"general.source.repo_url": "https://hub.example/maker/Step35", "general.license": "mit"}')
    options = Options((Role.MTP,), "f32", metadata_file=told)
    made = convert(FAMILIES["step35"].checkpoint, tmp_path, options=options)
    release = read_release(output.path for output in made.outputs)
    hashes = dict.fromkeys(release.files, "0" * 64)
    facts = facts_of(release, hashes, None, ())
    assert (facts.base, facts.license) == (Base("maker/Step35"), "mit")
    assert facts_of(release, hashes, Base("other/Base"), ()).base == Base("other/Base")


def test_a_head_of_another_model_fits_nothing(converted: Converted) -> None:
    release = read_release([converted("step35")[Role.MTP], converted("qwen4exp")[Role.TRUNK]])
    assert not release.ok
    assert release.pairs == ()
    assert len(release.misfits) == 1
    # Beside a trunk that it fits, another model does no harm.
    more = read_release(
        [converted("step35")[role] for role in (Role.MTP, Role.TRUNK)] + [converted("qwen4exp")[Role.TRUNK]]
    )
    assert more.ok
    assert len(more.pairs) == 1


def test_shards_are_one_model_and_all_must_be_given(tmp_path: Path) -> None:
    checkpoint = FAMILIES["step35"].checkpoint
    convert(checkpoint, tmp_path, options=Options((Role.TRUNK,), "f32", split=Split(max_tensors=30)))
    shards = sorted(tmp_path.glob("*.gguf"))
    assert len(shards) == 3
    release = read_release([shards[2], shards[0], shards[1]])
    (model,) = release.models
    assert [*model.files] == [shard.name for shard in shards]
    with pytest.raises(InputError, match="these are not given") as caught:
        read_release(shards[:2])
    assert caught.value.code == "missing-shard"
    assert shards[2].name in caught.value.message


def test_one_name_for_two_files(tmp_path: Path, converted: Converted) -> None:
    trunk = converted("step35")[Role.TRUNK]
    shutil.copy(trunk, tmp_path)
    with pytest.raises(UsageError) as caught:
        read_release([trunk, tmp_path / trunk.name])
    assert caught.value.code == "name-clash"
    # The same file twice is one file.
    assert len(read_release([trunk, trunk]).models) == 1


def test_hashes_are_computed_once_and_outlive_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    data = os.urandom(20_000_000)
    path.write_bytes(data)
    told: list[int] = []
    expected = hashlib.sha256(data).hexdigest()
    assert Hashes(tmp_path / "kept").of(LocalFile(path), told.append) == expected
    assert sum(told) == len(data)
    monkeypatch.setattr(LocalFile, "read", None)
    assert Hashes(tmp_path / "kept").of(LocalFile(path), told.append) == expected
    assert sum(told) == 2 * len(data)
    assert Hashes(tmp_path / "others").known(LocalFile(path)) is None


def test_a_file_that_was_written_to_is_hashed_again(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one")
    times = path.stat()
    known = Hashes(tmp_path / "kept")
    known.of(LocalFile(path), lambda _: None)
    path.write_bytes(b"two")
    # Even when its time of modification is set back.
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert known.known(LocalFile(path)) is None
    assert known.of(LocalFile(path), lambda _: None) == hashlib.sha256(b"two").hexdigest()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"a": 1}', b"\xff"])
def test_what_was_kept_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "sha256.json").write_bytes(content)
    path = tmp_path / "f"
    path.write_bytes(b"one")
    assert Hashes(tmp_path / "kept").of(LocalFile(path), lambda _: None) == hashlib.sha256(b"one").hexdigest()


def test_where_nothing_can_be_kept_hashes_are_computed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one")
    (tmp_path / "file").write_bytes(b"")
    assert Hashes(tmp_path / "file" / "no").of(LocalFile(path), lambda _: None) == hashlib.sha256(b"one").hexdigest()


def test_changes_and_replacements_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one")
    file = LocalFile(path)
    assert_unchanged(file)
    path.rename(tmp_path / "g")
    path.write_bytes(b"one")
    with pytest.raises(InputError) as caught:
        assert_unchanged(file)
    assert caught.value.code == "source-changed"
