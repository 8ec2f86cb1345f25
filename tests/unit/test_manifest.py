"""The manifest: hashes of files, and for each tensor what it was made of, so that anyone can check it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from command import ALL_ROLES, STEP, result, run
from fp8 import fp8_model

DTYPES: dict[str, Any] = {"BF16": ml_dtypes.bfloat16, "F32": np.dtype("<f4"), "F8_E4M3": ml_dtypes.float8_e4m3fn}


def stored(place: dict[str, Any]) -> np.ndarray[Any, Any]:
    """A source tensor by what the manifest says of it."""
    dtype = np.dtype(DTYPES[place["dtype"]])
    count = int(np.prod(place["shape"], dtype=int))
    with Path(place["file"]).open("rb") as file:
        file.seek(place["offset"])
        return np.frombuffer(file.read(count * dtype.itemsize), dtype).reshape(place["shape"])


@pytest.fixture
def manifest(tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    path = tmp_path / "reports" / "manifest.json"
    arguments = ("convert", STEP, "-o", tmp_path / "out", *ALL_ROLES, "--outtype", "q8_0", "--manifest", path)
    shown = result(*arguments)
    return json.loads(path.read_text(encoding="utf-8")), shown


def test_hashes_are_those_of_the_files(manifest: tuple[dict[str, Any], dict[str, Any]]) -> None:
    content, shown = manifest
    assert [file["role"] for file in content["files"]] == ["combined", "trunk", "mtp", "mtp-shared"]
    for file, output in zip(content["files"], shown["outputs"], strict=True):
        data = Path(file["path"]).read_bytes()
        assert file["sha256"] == output["sha256"] == hashlib.sha256(data).hexdigest()
        assert file["bytes"] == len(data)
    assert content["dropped"] == shown["dropped"]
    assert all(dropped["reason"] for dropped in content["dropped"])


def test_every_tensor_tells_where_it_is_and_what_it_is_made_of(
    manifest: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    content, _ = manifest
    for file in content["files"]:
        reader = gguf.GGUFReader(file["path"])
        data = Path(file["path"]).read_bytes()
        told = [(t["name"], t["ne"], t["type"], data[t["offset"] : t["offset"] + t["bytes"]]) for t in file["tensors"]]
        assert told == [(t.name, t.shape.tolist(), t.tensor_type.name, t.data.tobytes()) for t in reader.tensors]
        made = {t["name"]: t for t in file["tensors"]}
        if "blk.0.attn_norm.weight" in made:
            norm = made["blk.0.attn_norm.weight"]
            assert norm["transform"] == "1 + w"
            (source,) = norm["sources"]
            values = stored(source).astype("<f4") + np.float32(1)
            place = slice(norm["offset"], norm["offset"] + norm["bytes"])
            assert data[place] == values.tobytes()
            assert made["rope_freqs.weight"]["sources"] == []
            assert made["rope_freqs.weight"]["transform"] == "computed"
        up = made["blk.5.ffn_up.weight"] if "blk.5.ffn_up.weight" in made else made["blk.0.ffn_up.weight"]
        (source,) = up["sources"]
        assert (up["transform"], source["scale"]) == ("copy", None)
        quantized = gguf.quants.quantize(stored(source).astype("<f4"), gguf.GGMLQuantizationType.Q8_0)
        assert data[up["offset"] : up["offset"] + up["bytes"]] == quantized.tobytes()


def test_every_source_tensor_is_told(manifest: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Case Q07: what went in, and what did not, is the whole checkpoint."""
    content, _ = manifest
    used = {s["name"] for file in content["files"] for tensor in file["tensors"] for s in tensor["sources"]}
    index = json.loads((STEP / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"]
    assert used | {dropped["name"] for dropped in content["dropped"]} == index.keys()
    for file in content["files"]:
        for tensor in file["tensors"]:
            assert all(Path(s["file"]).name == index[s["name"]] for s in tensor["sources"])


def test_scales_and_experts_are_told(tmp_path: Path) -> None:
    folder = fp8_model("glm5-next").write(tmp_path)
    result("convert", folder, "-o", tmp_path / "out", "--outtype", "f32", "--manifest", tmp_path / "m.json")
    content = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    (file,) = content["files"]
    (experts,) = (t for t in file["tensors"] if t["name"] == "blk.2.ffn_down_exps.weight")
    assert experts["transform"] == "stacked"
    assert [s["name"].split(".")[-3] for s in experts["sources"]] == [str(i) for i in range(8)]
    last = experts["sources"][-1]
    assert last["scale"]["name"] == last["name"] + "_scale_inv"
    # Blocks of 32 by 48: the first value of the last expert.
    value = stored(last).astype("<f4")[0, 0] * stored(last["scale"])[0, 0]
    data = Path(file["path"]).read_bytes()
    assert np.frombuffer(data, "<f4", 1, experts["offset"] + 7 * 128 * 64 * 4)[0] == value


def test_json_has_no_hashes_without_a_manifest(tmp_path: Path) -> None:
    (output,) = result("convert", STEP, "-o", tmp_path, "--mtp")["outputs"]
    assert output["sha256"] is None


# --- the manifest is a file like others


def refused(tmp_path: Path, *arguments: object) -> tuple[int, dict[str, Any]]:
    done = run("convert", *arguments, "--json")
    assert not list(tmp_path.rglob("*.partial"))
    return done.returncode, json.loads(done.stdout)["error"]


def test_a_manifest_that_exists_is_kept_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text("precious")
    arguments = (STEP, "-o", tmp_path / "out", "--mtp", "--manifest", path)
    status, error = refused(tmp_path, *arguments)
    assert (status, error["code"], error["subject"]) == (2, "output-exists", str(path))
    assert path.read_text() == "precious"
    assert not list(tmp_path.rglob("*.gguf"))
    result("convert", *arguments, "--overwrite")
    assert json.loads(path.read_text())["files"]


def test_a_manifest_over_an_input_or_an_output(tmp_path: Path) -> None:
    checkpoint = tmp_path / "model"
    fp8_model("step35").write(tmp_path)
    config = checkpoint / "config.json"
    before = config.read_bytes()
    status, error = refused(
        tmp_path, checkpoint, "-o", tmp_path / "out", "--manifest", tmp_path / "model" / ".." / "model" / "config.json",
        "--overwrite",
    )  # fmt: skip
    assert (status, error["code"]) == (2, "output-is-input")
    assert config.read_bytes() == before
    same = tmp_path / "x.gguf"
    status, error = refused(tmp_path, checkpoint, "--outfile", same, "--manifest", same)
    assert (status, error["code"], error["subject"]) == (2, "same-output", str(same))
    status, error = refused(tmp_path, checkpoint, "--outfile", same, "--manifest", tmp_path)
    assert (status, error["code"], error["subject"]) == (2, "output-is-folder", str(tmp_path))


def test_killed_before_the_manifest_is_written(tmp_path: Path) -> None:
    """The files are all there, but the run is not over: the same command writes the manifest."""
    from interrupted import calls, child, hashes

    arguments = ("convert", STEP, "-o", tmp_path / "out", "--mtp", "--manifest", tmp_path / "out" / "m.json")
    child("kill", -1, tmp_path / "log", *arguments)
    whole = hashes(tmp_path / "out")
    names = [name for name, _ in calls(tmp_path / "log")]
    last = len(names) - 1 - names[::-1].index("replace")  # the manifest's own renaming
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    struck = child("kill", last, tmp_path / "log", *arguments)
    assert struck.returncode == -9
    assert {path.name for path in (tmp_path / "out").glob("*.gguf")} == {"mtp-Step35-Tiny-BF16.gguf"}
    assert not (tmp_path / "out" / "m.json").exists()
    (output,) = result(*arguments)["outputs"]
    assert output["sha256"]
    assert hashes(tmp_path / "out") == whole
