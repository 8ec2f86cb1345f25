"""Executing plans: what is refused before work, what an error leaves behind, and what is read and held."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkpoints import model
from families import FAMILIES

from nextn.convert.checkpoint import open_checkpoint
from nextn.convert.pipeline import convert
from nextn.convert.plan import Plan, hash_placeholder, plan_file
from nextn.convert.planner import Options, plan_conversion
from nextn.convert.writer import write_plan
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import ByteSource, string
from nextn.gguf_schema.errors import InputError, NextnError, UsageError

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)


def fingerprints(folder: Path) -> dict[str, tuple[str, int]]:
    """Hash and modification time of every file."""
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def final_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.gguf"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return model("step35").write(tmp_path)


def plan_of(folder: Path, wrap: Any = None, **options: Any) -> Plan:
    """The plan for all roles; `wrap` replaces the byte source of every tensor."""
    checkpoint = open_checkpoint(folder)
    if wrap:
        tensors = {name: replace(tensor, source=wrap(tensor.source)) for name, tensor in checkpoint.tensors.items()}
        checkpoint = replace(checkpoint, tensors=tensors)
    return plan_conversion(checkpoint, Options(tuple(Role), **options))


# --- refused before work


def test_an_output_that_exists(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(source, out, (Role.COMBINED,), "bf16")
    before = fingerprints(out)
    with pytest.raises(UsageError) as caught:
        convert(source, out, tuple(Role), "bf16")
    assert (caught.value.code, caught.value.subject) == ("output-exists", str(final_files(out)[0]))
    assert "--overwrite" in str(caught.value.remedy)
    assert fingerprints(out) == before


def test_overwriting_when_asked(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (path,) = (output.path for output in convert(source, out, (Role.COMBINED,), "bf16").outputs)
    whole = path.read_bytes()
    path.write_bytes(b"something else")
    convert(source, out, (Role.COMBINED,), "bf16", overwrite=True)
    assert path.read_bytes() == whole
    assert fingerprints(out).keys() == {str(path)}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("through_link", [False, True])
def test_an_output_that_is_an_input(source: Path, tmp_path: Path, overwrite: bool, through_link: bool) -> None:
    """Cases S07 and S11: refused before anything is opened, by whatever path."""
    plan = plan_of(source)
    own = source / plan.files[0].path
    own.write_bytes(b"precious")
    folder = source
    if through_link:
        folder = tmp_path / "link"
        folder.symlink_to(source)
    before = fingerprints(source)
    with pytest.raises(UsageError) as caught:
        write_plan(replace(plan, inputs=(own,)), folder, overwrite=overwrite)
    assert (caught.value.code, caught.value.subject) == ("output-is-input", str(folder / plan.files[0].path))
    assert fingerprints(source) == before


def test_no_space(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case U07: seen before the first byte is read, on the disk of the output."""
    asked = []

    def disk_usage(path: Path) -> SimpleNamespace:
        asked.append(Path(path))
        return SimpleNamespace(free=plan.total_bytes - 1)

    reads: list[int] = []
    plan = plan_of(source, lambda inner: Recording(inner, reads))
    reads.clear()
    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    with pytest.raises(InputError) as caught:
        write_plan(plan, tmp_path / "out")
    error = caught.value
    assert error.subject == str(tmp_path / "out")
    assert f"{plan.total_bytes:,}" in error.message
    assert f"{plan.total_bytes - 1:,}" in error.message
    assert set(asked) == {tmp_path / "out"}
    assert reads == []
    assert fingerprints(tmp_path / "out") == {}


def test_just_enough_space(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(source)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=plan.total_bytes))
    paths = write_plan(plan, tmp_path / "out").paths
    assert sum(path.stat().st_size for path in paths) == plan.total_bytes


def test_a_folder_that_cannot_be_made(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError) as caught:
        convert(source, tmp_path / "file" / "out")
    assert caught.value.code == "no-folder"
    assert str(caught.value.subject).startswith(str(tmp_path / "file"))


def test_a_header_that_would_not_be_read_is_not_planned() -> None:
    keys = {"general.architecture": string("toy")} | {f"toy.{i}": string("") for i in range(1 << 12)}
    with pytest.raises(InputError) as caught:
        plan_file(Role.TRUNK, PurePosixPath("x"), keys, [])
    assert (caught.value.code, caught.value.message) == ("too-long", "4097 keys, want at most 4096")


def test_a_name_like_a_hash_to_come(source: Path) -> None:
    with pytest.raises(InputError) as caught:
        plan_conversion(
            open_checkpoint(source), Options((Role.MTP_SHARED,), model_name=hash_placeholder("token_embd.weight"))
        )
    assert caught.value.code == "bad-value"


# --- errors on the way


@dataclass(eq=False)
class Recording:
    """A byte source that notes what is read, and fails when a number of bytes has been read."""

    inner: ByteSource
    reads: list[Any] = field(default_factory=list)
    fail_after: float = float("inf")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def read(self, offset: int, length: int) -> bytes:
        self.reads.append((self.inner.name, offset, length))
        if sum(size for _, _, size in self.reads) > self.fail_after:
            raise InputError("read-error", f"read error at byte {offset}", subject=self.inner.name)
        return self.inner.read(offset, length)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_failing_read_leaves_no_file_under_a_final_name(source: Path, tmp_path: Path, share: float) -> None:
    reads: list[Any] = []
    plan = plan_of(source, lambda inner: Recording(inner, reads, fail_after=share * 2_500_000))
    before = fingerprints(source)
    with pytest.raises(InputError) as caught:
        write_plan(plan, tmp_path / "out")
    assert caught.value.code == "read-error"
    assert str(caught.value.subject).endswith(".safetensors")
    assert final_files(tmp_path / "out") == []
    assert fingerprints(source) == before


def test_a_file_that_is_cut_while_it_is_read(source: Path, tmp_path: Path) -> None:
    plan = plan_of(source)
    os.truncate(source / "model-00002-of-00003.safetensors", 5000)
    with pytest.raises(NextnError) as caught:
        write_plan(plan, tmp_path / "out")
    assert caught.value.subject == str(source / "model-00002-of-00003.safetensors")
    assert final_files(tmp_path / "out") == []


@pytest.mark.parametrize(("outtype", "value"), [("f16", 1e5), ("q8_0", 1e30)])
def test_a_value_that_becomes_infinite_names_the_tensor(outtype: str, value: float, tmp_path: Path) -> None:
    copy = model("step35")
    (name,) = copy.named(r"layers\.0\.mlp\.up_proj")
    words = np.frombuffer(copy.tensors[name].data, "<u2").copy()
    words[777] = np.float32(value).view("<u4") >> 16
    copy.tensors[name] = copy.tensors[name]._replace(data=words.tobytes())
    folder = copy.write(tmp_path)
    with pytest.raises(InputError) as caught:
        convert(folder, tmp_path / "out", tuple(Role), outtype)
    error = caught.value
    assert (error.code, error.subject) == ("overflow", "blk.0.ffn_up.weight")
    assert name in error.message
    assert "bf16" in str(error.remedy)
    assert final_files(tmp_path / "out") == []
    convert(folder, tmp_path / "out", tuple(Role), "bf16")


# --- reading and holding


@EACH_FAMILY
@pytest.mark.parametrize("outtype", ["bf16", "q8_0"])
def test_each_source_byte_is_read_once_for_all_files(family: str, outtype: str, tmp_path: Path) -> None:
    copy = model(family)
    reads: list[Any] = []
    plan = plan_of(copy.write(tmp_path), lambda inner: Recording(inner, reads), outtype=outtype)
    planning = sum(size for _, _, size in reads)
    assert planning == sum(len(t.data) for t in copy.tensors.values() if t.dtype == "I64")
    reads.clear()
    write_plan(plan, tmp_path / "out")
    by_file: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, offset, size in reads:
        if name != "rope_freqs":
            by_file[name].append((offset, offset + size))
    total = 0
    for spans in by_file.values():
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        total += sum(end - begin for begin, end in spans)
    vision = [name for name in copy.tensors if name.startswith(("vision_model.", "vit_", "model.visual."))]
    constants = [name for name, tensor in copy.tensors.items() if tensor.dtype == "I64"]
    assert total == sum(len(t.data) for name, t in copy.tensors.items() if name not in (*vision, *constants))


CHILD = """
import sys
from pathlib import Path, PurePosixPath
from nextn.convert.source_tensor import SourceTensor
from nextn.convert.plan import Payload, Plan, plan_file
from nextn.convert.transforms import copy, split_rows
from nextn.convert.writer import write_plan
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import LocalFile, TensorInfo, string
from nextn.gguf_schema.types import TENSOR_TYPES
import gguf  # quantizers; loaded before memory is measured

def peak():
    (line,) = [l for l in open("/proc/self/status") if l.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

folder, kind, type_ = Path(sys.argv[1]), sys.argv[2], TENSOR_TYPES[sys.argv[3]]
source = LocalFile(folder / "source")
if kind == "many":
    tensors = [SourceTensor(f"s{i}", "F32", (2048, 1024), source, i << 23) for i in range(64)]
    recipes = {f"t{i}": copy(tensor) for i, tensor in enumerate(tensors)}
else:
    fused = SourceTensor("fused", "F32", (64, 2048, 1024), source, 0)
    recipes = {"gate": split_rows(fused, 0, 1024), "up": split_rows(fused, 1024, 1024)}
payload = []
for name, recipe in recipes.items():
    ne = recipe.shape[::-1]
    payload.append(Payload(TensorInfo(name, ne, type_, type_.tensor_bytes(ne)), recipe))
keys = {"general.architecture": string("toy")}
file = plan_file(Role.TRUNK, PurePosixPath("out.gguf"), keys, [p.info for p in payload])
plan = Plan((file,), tuple(payload))
before = peak()
write_plan(plan, folder)
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures memory the Linux way")
@pytest.mark.parametrize("kind", ["many", "one"])
@pytest.mark.parametrize("type_", ["F32", "Q8_0"])
def test_memory_stays_bounded(kind: str, type_: str, tmp_path: Path) -> None:
    """Cases C25 and C26: 64 tensors of 8 MB, or one fused tensor of 512 MB, within 200 MB."""
    with (tmp_path / "source").open("wb") as file:
        file.truncate(1 << 29)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), kind, type_], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200 << 20
    size = {"F32": 1 << 29, "Q8_0": (1 << 27) // 32 * 34}[type_]
    assert size < (tmp_path / "out.gguf").stat().st_size < size + 10_000
