"""`nextn repair` as a command: files that llama.cpp does not take become those of the converter, each change told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from by_hand import Hand, by_hand
from command import result, run
from edited_contents import generic
from repairable import GLM, HEADS_KV, NEXTN, QWEN, RATIOS, REPAIRABLE, STEP, Repairable
from surgery import seen
from verdicts import verdict

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.container import encode_header, lay_out
from nextn.gguf_schema.contents import Contents
from nextn.runtime.engines import llama_cpp

Converted = Callable[[str], dict[Role, Path]]
COMBINED, TRUNK, MTP, SHARED = Role
# Every kind of fault once, and every family.
OFTEN = {
    "c02-step35-combined", "c06-glm5-next-combined", "c06-qwen4exp-mtp", "c06-step35-mtp-shared",
    "c14-glm5-next-trunk", "c14-qwen4exp-mtp", "c16-glm5-next-mtp", "s18-step35-combined", "v11-qwen4exp-combined",
}  # fmt: skip
# Those that llama.cpp is asked about in every run of the tests.
LOADED = {"c14-glm5-next-trunk", "c06-qwen4exp-mtp", "s18-step35-combined"}
FAULTS = [
    pytest.param(fault, marks=[] if fault.id in OFTEN else [pytest.mark.long], id=fault.id) for fault in REPAIRABLE
]
LOADS = [
    pytest.param(fault, marks=[] if fault.id in LOADED else [pytest.mark.long], id=fault.id)
    for fault in REPAIRABLE
    if fault.refusal
]


def broken(fault: Repairable, converted: Converted, folder: Path) -> Path:
    return by_hand(converted(fault.family)[fault.base], folder / "broken.gguf", fault.hand)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_repaired_and_told(fault: Repairable, converted: Converted, tmp_path: Path) -> None:
    path, out = broken(fault, converted, tmp_path), tmp_path / "sub" / "repaired.gguf"
    before = path.read_bytes()
    done = run("repair", path, "-o", out)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(fault.changes)
    assert all(part in line for line, part in zip(lines, fault.changes, strict=True))
    assert all(line.partition(": ")[2] for line in lines), "a reason"
    assert path.read_bytes() == before
    healthy = converted(fault.family)[fault.gives]
    if fault.gives is fault.base:
        assert out.read_bytes() == healthy.read_bytes()
    else:
        ours, theirs = seen(out), seen(healthy)
        assert ours.tensors == theirs.tensors
        assert list(ours.keys) == list(theirs.keys)
        assert [key for key in ours.keys if ours.keys[key] != theirs.keys[key]] == ["general.size_label"]
    shown = verdict("validate", out, "--strict", "--role", fault.gives, status=0)
    assert (shown["ok"], shown["role"]) == (True, fault.gives)
    assert [each.name for each in out.parent.iterdir()] == ["repaired.gguf"]


@pytest.mark.parametrize("fault", LOADS)
def test_llama_cpp_before_and_after(fault: Repairable, converted: Converted, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    path, out = broken(fault, converted, tmp_path), tmp_path / "repaired.gguf"
    result("repair", path, "-o", out)
    trunk = converted(fault.family)[TRUNK]
    before, after = (llama_cpp.load(*((each,) if fault.gives.has_trunk else (trunk, each))) for each in (path, out))
    assert (before.status, fault.refusal in before.message) == ("error", True), before.message
    # It wants token_embd.weight in every file.
    assert after.status == ("error" if fault.gives is SHARED else "ok"), after.message


def test_case_c02_of_qwen35_which_alone_insists(tmp_path: Path) -> None:
    """Cases C02 to C05: fine-tunes of an architecture without tables here; two keys become those of a trunk."""
    path, out = tmp_path / "broken.gguf", tmp_path / "repaired.gguf"
    contents = generic("qwen35", range(3), (), block_count=4, nextn_predict_layers=1)
    path.write_bytes(as_bytes(contents))
    assert "head-declared" in str(verdict("validate", path, status=1)["findings"])
    changes = result("repair", path, "-o", out)["changes"]
    assert changes == [
        "qwen35.block_count 4 → 3: no tensor of blk.3 is there, the blocks are blk.0-2",
        f"qwen35.{NEXTN} 1 → (removed): no tensor is named blk.N.nextn.*, and the blocks are blk.0-2",
    ]
    assert (seen(out).number("block_count"), seen(out).number(NEXTN)) == (3, None)
    assert seen(out).tensors == seen(path).tensors
    assert verdict("validate", out, status=0)["role"] == "trunk"


def as_bytes(contents: Contents) -> bytes:
    """A file with data of zeros."""
    sized = (replace(tensor, nbytes=tensor.type.tensor_bytes(tensor.ne)) for tensor in contents)
    placed, size = lay_out(sized)
    return encode_header(contents.keys, placed) + bytes(size)


def test_several_faults_at_once(converted: Converted, tmp_path: Path) -> None:
    """Another spelling, a lost key and a short array."""
    healthy = converted(QWEN)[COMBINED]
    hand = Hand(keys={NEXTN: None, RATIOS: lambda old: old[:-1]}, architecture="qwen4-exp")
    path = by_hand(healthy, tmp_path / "broken.gguf", hand)
    changes = result("repair", path, "-o", tmp_path / "out.gguf")["changes"]
    assert len(changes) == 4
    assert (tmp_path / "out.gguf").read_bytes() == healthy.read_bytes()


def test_json_and_provenance(converted: Converted, tmp_path: Path) -> None:
    path = by_hand(converted(STEP)[COMBINED], tmp_path / "broken.gguf", Hand(keys={NEXTN: None}))
    printed = result("repair", path, "-o", tmp_path / "out.gguf", "--provenance", "--manifest", tmp_path / "m.json")
    assert printed.keys() >= {"outputs", "dropped", "warnings", "seconds", "bytes_read", "peak_rss_bytes", "changes"}
    (output,) = printed["outputs"]
    assert (output["path"], output["role"], output["tensors"]) == (str(tmp_path / "out.gguf"), "combined", 130)
    assert len(output["sha256"]) == 64
    assert len(printed["changes"]) == 1
    fields = gguf.GGUFReader(tmp_path / "out.gguf").fields
    assert fields["nextn.source.operation"].contents() == "repair"


def test_a_dry_run_tells_and_writes_nothing(converted: Converted, tmp_path: Path) -> None:
    path = by_hand(converted(STEP)[COMBINED], tmp_path / "broken.gguf", Hand(keys={NEXTN: None}))
    arguments = ("repair", path, "-o", tmp_path / "sub" / "out.gguf", "--dry-run")
    done = run(*arguments)
    assert done.returncode == 0
    assert done.stderr.startswith(f"step35.{NEXTN} (missing) → 3: ")
    printed = result(*arguments)
    assert (printed["dry_run"], len(printed["changes"]), printed["outputs"][0]["exists"]) == (True, 1, False)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("family", "role"), [(STEP, COMBINED), (QWEN, SHARED), (GLM, TRUNK)])
def test_a_healthy_file_is_left_alone(family: str, role: Role, converted: Converted, tmp_path: Path) -> None:
    path, out = converted(family)[role], tmp_path / "sub" / "out.gguf"
    done = run("repair", path, "-o", out)
    assert (done.returncode, done.stdout) == (0, f"{path}: nothing to repair, nothing written\n")
    assert done.stderr == ""
    printed = result("repair", path, "-o", out)
    assert (printed["outputs"], printed["dropped"], printed["warnings"], printed["changes"]) == ([], [], [], [])
    assert printed.keys() >= {"seconds", "bytes_read", "peak_rss_bytes"}
    assert list(tmp_path.iterdir()) == []


def test_what_no_repair_can_make_is_told(converted: Converted, tmp_path: Path) -> None:
    """A tensor that is missing: there is nothing to repair, and all is not well."""
    path = by_hand(converted(STEP)[TRUNK], tmp_path / "broken.gguf", Hand(without=("blk.1.attn_q.weight",)))
    done = run("repair", path, "-o", tmp_path / "out.gguf")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no key repairs it: blk.1.attn_q.weight is missing" in done.stderr
    assert list(tmp_path.iterdir()) == [path]


AMBIGUOUS = {
    "no tensor proves": (STEP, COMBINED, Hand(keys={"swiglu_clamp_exp": lambda old: old[:5]})),
    "it was renumbered": (QWEN, MTP, Hand(renumbered=(8, 0))),
    "fewer than declared": (GLM, TRUNK, Hand(without=("blk.5.",))),
    "either may be right": (GLM, MTP, Hand(behind={NEXTN: ("=tokenizer.ggml.nextn_predict_layers", 3)})),
    "either entries are missing in between": (GLM, COMBINED, Hand(keys={HEADS_KV: lambda old: old[1:]})),
}


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_two_repairs_are_named_and_none_is_done(text: str, converted: Converted, tmp_path: Path) -> None:
    family, role, hand = AMBIGUOUS[text]
    path = by_hand(converted(family)[role], tmp_path / "broken.gguf", hand)
    done = run("repair", path, "-o", tmp_path / "sub" / "out.gguf", "--json")
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith(f"error: {path}: 1 fault with more than one repair: ")
    assert text in done.stderr
    assert ", or " in done.stderr or "either may be right" in done.stderr
    assert '"code": "ambiguous-repair"' in done.stdout
    assert list(tmp_path.iterdir()) == [path]


def test_repair_of_a_repair_is_none(converted: Converted, tmp_path: Path) -> None:
    path = by_hand(converted(STEP)[COMBINED], tmp_path / "broken.gguf", Hand(keys={NEXTN: 0}))
    result("repair", path, "-o", tmp_path / "once.gguf")
    assert result("repair", tmp_path / "once.gguf", "-o", tmp_path / "twice.gguf")["outputs"] == []
    shutil.copy(tmp_path / "once.gguf", tmp_path / "twice.gguf")
    result("repair", path, "-o", tmp_path / "twice.gguf", "--overwrite")
    assert (tmp_path / "twice.gguf").read_bytes() == (tmp_path / "once.gguf").read_bytes()
