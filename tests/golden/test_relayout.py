"""Files in the layouts of forks are, to the byte, those that gguf-py's writer makes with the forks' names.

And back: of these files, which no code of ours wrote, come the converter's, which equal llama.cpp's (test_convert.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors
from by_hand import EH_PROJ, FORKS, HEAD_ALONE, LETTERS, OLD_GLM, Hand, by_hand
from families import FAMILIES
from surgery import carried_out, seen

from nextn.convert.pipeline import convert
from nextn.convert.surgery.operations import plan_relayout
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import VerdictError
from nextn.validators.examine import examine
from nextn.validators.findings import Severity

COMBINED, TRUNK, MTP, SHARED = Role
HEADS = (COMBINED, MTP, SHARED)
Converted = Callable[[str, str], dict[Role, Path]]
# What the validator has against files that llama.cpp does not read; nothing else may be wrong with them.
STRANGE = {"layout", "compress-ratios", "architecture-spelling"}
OFTEN = [("q8_0", COMBINED), ("q8_0", SHARED), ("q4_0", MTP), ("f32", MTP)]
QWENS = [
    pytest.param(outtype, role, marks=[] if (outtype, role) in OFTEN else [pytest.mark.long], id=f"{outtype}-{role}")
    for outtype in ("q8_0", "q4_0", "bf16", "f32")
    for role in HEADS
]


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a crash of the machine would leave is no matter here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def converted_in(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """The converter's files of a family in a type."""

    @cache
    def get(family: str, outtype: str) -> dict[Role, Path]:
        done = convert(FAMILIES[family].checkpoint, tmp_path_factory.mktemp(family), tuple(Role), outtype)
        return {output.role: output.path for output in done.outputs if output.role}

    return get


def relaid(source: Path, to: str, output: Path) -> Path:
    (written,) = carried_out(plan_relayout(source, output, to), output.parent).outputs
    return written.path


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def faults(path: Path, role: Role) -> set[str]:
    """The rules that a file breaks, but for its strange names; it has the role."""
    found = examine(path, role=role, strict=True).findings
    return {each.rule for each in found if each.severity is not Severity.NOTE} - STRANGE


@pytest.mark.parametrize(("outtype", "role"), QWENS)
def test_every_fork_of_qwen4exp(outtype: str, role: Role, converted_in: Converted, tmp_path: Path) -> None:
    """From upstream, from the fork before, and back."""
    upstream = converted_in("qwen4exp", outtype)[role]
    before = upstream
    for layout, hand in FORKS.items():
        if role is COMBINED and layout in HEAD_ALONE:
            with pytest.raises(VerdictError, match="the trunk's"):
                plan_relayout(upstream, tmp_path / "none.gguf", layout)
            continue
        theirs = by_hand(upstream, tmp_path / f"{layout}.gguf", hand)
        assert same(relaid(upstream, LETTERS.get(layout, layout), tmp_path / f"to-{layout}.gguf"), theirs)
        assert same(relaid(before, layout, tmp_path / f"on-{layout}.gguf"), theirs)
        assert same(relaid(theirs, "upstream", tmp_path / f"from-{layout}.gguf"), upstream)
        assert faults(theirs, role) <= ({"shared-unmarked"} if layout == "pull-request" else set())
        before = theirs
    assert faults(upstream, role) == set()


@pytest.mark.parametrize("outtype", ["f32", "bf16"])
def test_case_s01_halves_are_those_of_the_checkpoint(outtype: str, converted_in: Converted, tmp_path: Path) -> None:
    """A wrong order of columns would have the right shape: the first half is what the embedding goes through."""
    upstream = converted_in("qwen4exp", outtype)[MTP]
    halves = seen(relaid(upstream, "split-fc", tmp_path / "split.gguf")).tensors
    for ours, theirs in (("fc_embd", "mtp.fc_embedding.weight"), ("fc_hidden", "mtp.fc_hidden.weight")):
        (ne, _, data) = halves[f"blk.8.nextn.{ours}.weight"]
        stored = checkpoint_tensor(theirs)
        assert (ne, len(data)) == ([128, 128], 128 * 128 * (4 if outtype == "f32" else 2))
        if outtype == "f32":
            stored = (np.frombuffer(stored, "<u2").astype("<u4") << 16).tobytes()
        assert data == stored


def checkpoint_tensor(name: str) -> bytes:
    """A BF16 tensor of the checkpoint of qwen4exp."""
    for path in FAMILIES["qwen4exp"].checkpoint.glob("*.safetensors"):
        for found, tensor in safetensors.deserialize(path.read_bytes()):
            if found == name:
                assert tensor["dtype"] == "BF16"
                return bytes(tensor["data"])
    raise LookupError(name)


@pytest.mark.parametrize("outtype", ["q8_0", "q4_0"])
def test_halves_of_quantized_rows_have_the_values_of_the_whole(
    outtype: str, converted_in: Converted, tmp_path: Path
) -> None:
    """Blocks are not opened: a row's bytes are cut between two, and the values are the same."""
    upstream = converted_in("qwen4exp", outtype)[MTP]
    split = relaid(upstream, "split-proj", tmp_path / "split.gguf")
    whole, left, right = (
        values(path, f"blk.8.nextn.{name}.weight")
        for path, name in ((upstream, "eh_proj"), (split, "embed_proj"), (split, "hidden_proj"))
    )
    assert whole.shape == (128, 256)
    assert np.array_equal(whole, np.concatenate([left, right], axis=1))
    assert not np.array_equal(left, right)


def values(path: Path, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    (tensor,) = (each for each in gguf.GGUFReader(path).tensors if each.name == name)
    assert tensor.tensor_type.name.startswith("Q")
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


@pytest.mark.parametrize(("outtype", "role"), [("q8_0", COMBINED), ("q8_0", TRUNK), ("f32", MTP), ("q4_0", SHARED)])
def test_case_c16_the_old_spelling_of_glm(outtype: str, role: Role, converted_in: Converted, tmp_path: Path) -> None:
    upstream = converted_in("glm5-next", outtype)[role]
    old = by_hand(upstream, tmp_path / "old.gguf", OLD_GLM)
    shared_experts = [t for t in gguf.GGUFReader(old).tensors if t.name.endswith("ffn_up_shexp.weight")]
    assert {t.shape[1] for t in shared_experts} == {64}, "the key that is new says what the tensors show"
    assert same(relaid(upstream, "glm5next", tmp_path / "to.gguf"), old)
    assert same(relaid(old, "upstream", tmp_path / "from.gguf"), upstream)
    assert faults(old, role) == set()
    assert seen(old).tensors == seen(upstream).tensors


@pytest.mark.parametrize("architecture", ["glm5next", None])
def test_case_c17_one_number_under_two_names(architecture: str | None, converted_in: Converted, tmp_path: Path) -> None:
    """Old files have either name; one whose architecture was rewritten may have kept the older."""
    upstream = converted_in("glm5-next", "q8_0")[MTP]
    kept = {} if architecture else {"keys": {}, "behind": {}}
    alias = Hand(**{**vars(OLD_GLM), "architecture": architecture, **kept})
    newer = Hand(**{**vars(alias), "moved": {}})
    for number, hand in enumerate((alias, newer)):
        theirs = by_hand(upstream, tmp_path / f"{number}.gguf", hand)
        assert same(relaid(theirs, "upstream", tmp_path / f"new-{number}.gguf"), upstream)
    pools = {tensor.shape[1] for tensor in gguf.GGUFReader(upstream).tensors if "compressor_ape" in tensor.name}
    assert pools == {seen(upstream).number("attention.indexer.kpool")}


def test_the_pre_tokenizer_of_stepfun(converted_in: Converted, tmp_path: Path) -> None:
    for role, upstream in converted_in("step35", "q8_0").items():
        theirs = by_hand(upstream, tmp_path / f"{role}.gguf", Hand(keys={"tokenizer.ggml.pre": "step35"}))
        assert same(relaid(upstream, "stepfun-fork", tmp_path / f"to-{role}.gguf"), theirs)
        assert same(relaid(theirs, "upstream", tmp_path / f"from-{role}.gguf"), upstream)


def test_what_is_there_already_is_copied(converted_in: Converted, tmp_path: Path) -> None:
    for family in FAMILIES:
        for role, upstream in converted_in(family, "q8_0").items():
            assert same(relaid(upstream, "upstream", tmp_path / f"{family}-{role}.gguf"), upstream)
    trunk = converted_in("qwen4exp", "q8_0")[TRUNK]
    for layout in FORKS:
        assert same(relaid(trunk, layout, tmp_path / f"{layout}.gguf"), trunk), "trunks are named alike everywhere"


def test_order_is_kept_whatever_it_is(converted_in: Converted, tmp_path: Path) -> None:
    """Halves that are far apart, the hidden one first: the matrix stands where the first of them stood."""
    upstream = converted_in("qwen4exp", "q8_0")[MTP]
    split = by_hand(upstream, tmp_path / "split.gguf", FORKS["split-fc"])
    reader = gguf.GGUFReader(split)
    writer = gguf.GGUFWriter(tmp_path / "turned.gguf", "qwen4exp")
    for key, held in list(reader.fields.items())[4:]:
        writer.add_key_value(key, held.contents(), held.types[0], held.types[-1] if len(held.types) > 1 else None)
    for tensor in reversed(reader.tensors):
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    turned = seen(relaid(tmp_path / "turned.gguf", "upstream", tmp_path / "out.gguf"))
    assert list(turned.tensors) == list(reversed(seen(upstream).tensors))
    assert turned.tensors == seen(upstream).tensors
    assert EH_PROJ.replace("b", "blk.8.nextn", 1) in turned.tensors
