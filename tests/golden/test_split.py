"""Split sets are those of gguf-py's GGUFWriter with the same settings, and real llama.cpp drafts with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from families import FAMILIES

from nextn.convert.pipeline import convert
from nextn.convert.planner import Options
from nextn.convert.splitting import Split, parse_size
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import UsageError
from nextn.gguf_schema.nextn_generic import TARGET_EMBEDDING_SHA256
from nextn.gguf_schema.shards import GGUFFile, open_gguf
from nextn.runtime.engines import llama_cpp

SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
SPLITS = [
    Split(max_bytes=1_000_000),
    Split(max_bytes=1),
    Split(max_bytes=65_536),
    Split(max_tensors=40),
    Split(max_tensors=1),
    Split(max_bytes=300_000, max_tensors=7),
    Split(max_bytes=1_000_000, metadata_first=True),
    Split(max_tensors=1_000, metadata_first=True),
    Split(max_tensors=40, metadata_first=True),
    Split(max_bytes=10**12),
]


def by_library(whole: GGUFFile, path: Path, split: Split) -> None:
    """The same tensors in the same order through the library's writer."""
    writer = gguf.GGUFWriter(
        path,
        "step35",
        split_max_tensors=split.max_tensors,
        split_max_size=split.max_bytes,
        small_first_shard=split.metadata_first,
    )
    writer.add_name("x")
    for tensor in whole.contents:
        data = np.frombuffer(whole.read_tensor(tensor.name), np.uint8)
        shape = (*tensor.ne[:0:-1], tensor.type.row_bytes(tensor.ne[0]))
        type_ = gguf.GGMLQuantizationType[tensor.type.name]
        writer.add_tensor(tensor.name, data.reshape(shape), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def shards(folder: Path) -> dict[str, Any]:
    """By file name: split keys with their types, and every tensor with dimensions, type and bytes, in order."""
    found = {}
    for path in sorted(folder.glob("*.gguf")):
        reader = gguf.GGUFReader(path)
        keys = {key: (field.types, field.contents()) for key, field in reader.fields.items() if key in SPLIT_KEYS}
        tensors = [(t.name, t.shape.tolist(), t.tensor_type, t.data.tobytes()) for t in reader.tensors]
        found[path.name.removeprefix("model")] = (keys, tensors)
    return found


def split_files(family: str, folder: Path, split: Split, *roles: Role, outtype: str = "f32") -> dict[Role, list[Path]]:
    name = str(folder / "{role}.gguf")
    options = Options(roles, outtype, split=split, outfile=name)
    files: dict[Role, list[Path]] = {}
    for output in convert(FAMILIES[family].checkpoint, Path(), options=options).outputs:
        files.setdefault(output.role, []).append(output.path)
    return files


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    (output,) = convert(FAMILIES["step35"].checkpoint, tmp_path_factory.mktemp("whole"), outtype="q8_0").outputs
    return open_gguf(output.path)


@pytest.mark.parametrize("split", SPLITS, ids=repr)
def test_shards_are_those_of_the_library(whole: GGUFFile, split: Split, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    by_library(whole, tmp_path / "theirs" / "combined.gguf", split)
    split_files("step35", tmp_path / "ours", split, Role.COMBINED, outtype="q8_0")
    ours, theirs = shards(tmp_path / "ours"), shards(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    assert ours == theirs


@pytest.mark.parametrize("split", [Split(max_tensors=50), Split(max_bytes=10**6, metadata_first=True)], ids=repr)
def test_only_the_first_shard_carries_metadata_and_any_shard_opens_the_set(
    whole: GGUFFile, split: Split, tmp_path: Path
) -> None:
    paths = split_files("step35", tmp_path, split, Role.COMBINED, outtype="q8_0")[Role.COMBINED]
    assert len(paths) > 2
    first, *others = (set(gguf.GGUFReader(path).fields) for path in paths)
    own = set(whole.contents.keys) | set(SPLIT_KEYS)
    assert {name for name in first if not name.startswith("GGUF.")} == own
    assert all({name for name in keys if not name.startswith("GGUF.")} == set(SPLIT_KEYS) for keys in others)
    for path in paths:
        file = open_gguf(path)
        assert [t.name for t in file.contents] == [t.name for t in whole.contents]
        assert all(file.read_tensor(name) == whole.read_tensor(name) for name in whole.contents.tensors)
        without = {key: value for key, value in file.contents.keys.items() if key not in SPLIT_KEYS}
        assert without == whole.contents.keys


def test_a_split_sidecar_has_its_hash_in_the_first_shard(tmp_path: Path) -> None:
    """The hash is known only when the embedding was streamed, which the sidecar does not even hold."""
    split = Split(max_tensors=20, metadata_first=True)
    shared = split_files("step35", tmp_path / "split", split, Role.MTP_SHARED)[Role.MTP_SHARED]
    (one,) = split_files("step35", tmp_path / "one", Split(), Role.MTP_SHARED)[Role.MTP_SHARED]
    golden = FAMILIES["step35"].read("gguf/combined-f32.json")["tensors"]
    (embedding,) = (tensor["sha256"] for tensor in golden if tensor["name"] == "token_embd.weight")
    assert len(shared) == 4
    for path in (one, shared[-1]):
        assert open_gguf(path).contents.keys[TARGET_EMBEDDING_SHA256].value == embedding


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("split", [Split(max_bytes=500_000), Split(max_tensors=30, metadata_first=True)], ids=repr)
def test_llama_cpp_drafts_with_split_sets(family: str, split: Split, tmp_path: Path) -> None:
    """Combined; and a trunk with its draft, both in shards: tokens and draft counts are the golden ones."""
    pytest.importorskip("xllamacpp")
    files = split_files(family, tmp_path, split, Role.COMBINED, Role.TRUNK, Role.MTP)
    assert all(len(paths) > 1 for paths in files.values())
    golden = FAMILIES[family].read("llama_cpp.json")
    prompts = [prompt["ids"] for prompt in FAMILIES[family].prompts[:2]]
    expected = golden["prompts"][:2]
    for name, model, draft in (
        ("combined", files[Role.COMBINED][0], None),
        ("trunk+mtp", files[Role.TRUNK][0], files[Role.MTP][0]),
    ):
        lengths = [key for key in golden["summary"] if key.startswith(f"{name} ")]
        if not lengths:
            continue
        configuration = lengths[0]
        n_max = int(configuration.partition("n_max=")[2])
        outcome = llama_cpp.run(model, prompts, draft=draft, n_max=n_max)
        assert outcome.status == "ok", outcome.message
        assert [list(each.tokens) for each in outcome.continuations] == [each["tokens"] for each in expected]
        counts = [each["draft"][configuration] for each in expected]
        assert [(each.n_drafted, each.n_accepted) for each in outcome.continuations] == [
            (each["drafted"], each["accepted"]) for each in counts
        ]


# --- what is asked for


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("500", 500), ("2K", 2000), ("500M", 500 * 10**6), ("48G", 48 * 10**9), (" 48g ", 48 * 10**9)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "1.5G", "48GB", "1T"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert (caught.value.code, caught.value.subject) == ("bad-size", "--split-max-size")
