"""Findings about the data of tensors; expected values by hand, or from the gguf package's decoders."""

from __future__ import annotations

import hashlib
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import gguf
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from families import FAMILIES
from gguf.quants import dequantize, quantize
from small_files import Tensors, f32, make, noise

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.shards import open_gguf
from nextn.gguf_schema.types import TENSOR_TYPES
from nextn.validators import scan
from nextn.validators.examine import examine
from nextn.validators.findings import Findings
from nextn.validators.payload import examine_payload
from nextn.validators.scan import FLOATS
from nextn.validators.structural import examine_small

BLOCK_TYPES = sorted(
    {*FLOATS, "IQ1_M", "MXFP4", "NVFP4"} - {"F64", "F32", "F16", "BF16", "Q8_1", "Q8_K", "Q1_0", "Q2_0"}
)

WEIGHT = "blk.0.ffn_up.weight"


def found(tensors: Tensors) -> list[tuple[str, str, str, str]]:
    findings = Findings()
    examine_payload(make(tensors), findings)
    return [(finding.severity, finding.rule, finding.subject, finding.message) for finding in findings]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_files_of_every_family_are_clean(family: str, converted: Callable[[str], dict[Role, Path]]) -> None:
    for path in converted(family).values():
        file, findings = open_gguf(path), Findings()
        hashes = examine_payload(file, findings, hashes=True)
        examine_small(file, findings)
        assert findings == []
        assert hashes == {name: hashlib.sha256(file.read_tensor(name)).hexdigest() for name in file.contents.tensors}


class TestNotFinite:
    @pytest.mark.parametrize(
        ("kind", "dtype"),
        [("F32", np.float32), ("F16", np.float16), ("BF16", ml_dtypes.bfloat16), ("F64", np.float64)],
    )
    def test_floats(self, kind: str, dtype: npt.DTypeLike) -> None:
        values = noise(8, 40).astype(dtype)
        values[3, 7], values[5, 0], values[6, 1] = np.inf, np.nan, -np.inf
        assert found({WEIGHT: (kind, (40, 8), values.tobytes())}) == [
            (
                "error", "not-finite", WEIGHT,
                f"1 NaN and 2 infinite values in {kind} data, the first in row 3 of 8",
            )
        ]  # fmt: skip

    def test_the_largest_numbers_are_numbers(self) -> None:
        for kind, dtype in (("F32", np.float32), ("F16", np.float16), ("BF16", ml_dtypes.bfloat16)):
            values = noise(2, 32).astype(dtype)
            values[0, :2] = ml_dtypes.finfo(dtype).max, ml_dtypes.finfo(dtype).min
            assert found({WEIGHT: (kind, (32, 2), values.tobytes())}) == []

    def test_a_scale_in_each_place(self) -> None:
        # Q4_K: d and dmin are the first two halves of 144 bytes; 0x7E00 is a NaN, 0x7C00 an infinity.
        blocks = np.random.default_rng(1).integers(0, 0x3C, (6, 144), dtype=np.uint8)
        blocks[2, 0:2] = 0x00, 0x7E
        blocks[4, 2:4] = 0x00, 0xFC
        assert found({WEIGHT: ("Q4_K", (512, 3), blocks.tobytes())}) == [
            (
                "error", "not-finite", WEIGHT,
                "1 NaN and 1 infinite scales of blocks in Q4_K data, the first in row 1 of 3",
            )
        ]  # fmt: skip

    @pytest.mark.parametrize("kind", BLOCK_TYPES)
    def test_blocks_against_their_decoder(self, kind: str) -> None:
        type_ = TENSOR_TYPES[kind]
        n = 3000
        blocks = np.random.default_rng(1).integers(0, 256, (n, type_.size), dtype=np.uint8)
        with np.errstate(all="ignore"):
            bad = ~np.isfinite(dequantize(blocks, gguf.GGMLQuantizationType(type_.id))).all(axis=1)
        if kind == "MXFP4":
            bad = blocks[:, 0] == 255  # The largest scales are numbers, though the values overflow.
        assert bad.any() is np.bool_(kind != "NVFP4"), "of NVFP4 every byte is a scale"
        for index in (*np.flatnonzero(bad)[:20], *np.flatnonzero(~bad)[:20]):
            raw = blocks[index].tobytes()
            rules = [rule for _, rule, _, _ in found({WEIGHT: (kind, (type_.block,), raw)})]
            assert ("not-finite" in rules) is bool(bad[index]), index
        rules = [rule for _, rule, _, _ in found({WEIGHT: (kind, (type_.block, n), blocks.tobytes())})]
        assert ("not-finite" in rules) is bool(bad.any())

    @pytest.mark.parametrize(("kind", "places"), [("Q8_1", (0, 2)), ("Q1_0", (0,)), ("Q2_0", (0,))])
    def test_types_without_a_decoder(self, kind: str, places: tuple[int, ...]) -> None:
        type_ = TENSOR_TYPES[kind]
        for place in places:
            blocks = np.full((4, type_.size), 0x11, np.uint8)
            assert found({WEIGHT: (kind, (type_.block, 4), blocks.tobytes())}) == []
            blocks[1, place + 1] = 0x7E
            assert [rule for _, rule, _, _ in found({WEIGHT: (kind, (type_.block, 4), blocks.tobytes())})] == [
                "not-finite"
            ]

    def test_integers_are_always_numbers(self) -> None:
        assert found({WEIGHT: ("I32", (8,), b"\xff" * 32)}) == []

    def test_many_tensors(self) -> None:
        bad = np.full((2, 32), np.nan, np.float32)
        messages = found({f"blk.{i}.w.weight": f32(bad) for i in range(7)})
        assert [rule for _, rule, _, _ in messages] == ["not-finite"] * 5 + ["constant-rows"] * 5 + ["blocks-equal"]
        assert messages[4][3] == "and 3 tensors more: blk.4.w.weight, blk.5.w.weight, blk.6.w.weight"


class TestZeros:
    def test_a_matrix_of_zeros_is_lost_data(self) -> None:
        message = "all 64 values are zero"
        zeros = np.zeros((2, 32), np.float32)
        assert found({WEIGHT: f32(zeros)}) == [("warning", "all-zero", WEIGHT, message)]
        assert found({WEIGHT: f32(-zeros)}) == [("warning", "all-zero", WEIGHT, message)]

    def test_a_bias_may_be_zero(self) -> None:
        name = "blk.0.exp_probs_b.bias"
        assert found({name: f32(np.zeros(32))}) == [("note", "all-zero", name, "all 32 values are zero")]

    @pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
    def test_blocks_of_zeros(self, kind: str) -> None:
        type_ = gguf.GGMLQuantizationType[kind]
        data = quantize(np.zeros((2, 64), np.float32), type_)
        assert not dequantize(data, type_).any()
        assert [rule for _, rule, _, _ in found({WEIGHT: (kind, (64, 2), data.tobytes())})] == ["all-zero"]

    def test_one_value_is_enough(self) -> None:
        values = np.zeros((4, 64), np.float32)
        values[3, 63] = 1e-30
        assert [rule for _, rule, _, _ in found({WEIGHT: f32(values)})] == ["constant-rows"]


class TestConstantRows:
    VALUES = noise(10, 64)
    VALUES[4] = 0
    VALUES[7] = 2.5

    @pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
    def test_of_every_kind(self, kind: str) -> None:
        data = quantize(self.VALUES, gguf.GGMLQuantizationType[kind])
        message = "2 rows of 10 hold one value throughout, the first is row 4"
        for name, severity in ((WEIGHT, "warning"), ("token_embd.weight", "note"), ("output.weight", "note")):
            assert found({name: (kind, (64, 10), data.tobytes())}) == [(severity, "constant-rows", name, message)]

    def test_equal_ends_are_not_enough(self) -> None:
        values = noise(4, 64)
        values[:, 0] = values[:, -1] = 1
        assert found({WEIGHT: f32(values)}) == []
        data = quantize(values, gguf.GGMLQuantizationType.Q8_0).reshape(4, -1, 34).repeat(2, axis=1)
        assert found({WEIGHT: ("Q8_0", (128, 4), data.tobytes())}) == [], "equal blocks, but not of one value"

    def test_short_rows_and_vectors_may_be_constant(self) -> None:
        assert found({"blk.0.ssm_conv1d.weight": f32(np.ones((8, 4))), "output_norm.weight": f32(np.ones(64))}) == []


@pytest.mark.parametrize("chunk", [128, 1000, 4096])
def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    values = noise(50, 96)
    values[20], values[33, 5], values[40] = 0, np.nan, 0
    q8 = quantize(noise(50, 96), gguf.GGMLQuantizationType.Q8_0)
    q8[41, 34:36] = 0x00, 0x7C
    tensors = {
        "blk.0.a.weight": f32(values),
        "blk.0.b.weight": ("Q8_0", (96, 50), q8.tobytes()),
        "blk.0.c.weight": f32(noise(5000)),
    }
    whole = found(tensors)
    assert len(whole) == 3
    monkeypatch.setattr(scan, "CHUNK", chunk)
    # Rows longer than a chunk are not compared.
    expected = whole if chunk > 384 else [each for each in whole if each[1] != "constant-rows"]
    assert found(tensors) == expected
    hashes = examine_payload(make(tensors), Findings(), hashes=True, jobs=3)
    assert hashes == {name: hashlib.sha256(raw).hexdigest() for name, (_, _, raw) in tensors.items()}


def test_memory_is_bounded() -> None:
    file = make({f"blk.{i}.w.weight": f32(noise(1024, 2048)) for i in range(8)})
    tracemalloc.start()
    examine_payload(file, Findings(), jobs=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20, "of 64 MiB of data"


def test_data_that_is_not_there_is_left_alone() -> None:
    file = make({"blk.0.a.weight": f32(noise(8, 32)), "blk.0.b.weight": f32(np.zeros((8, 32)))}, cut=1)
    findings = Findings()
    assert list(examine_payload(file, findings, hashes=True)) == ["blk.0.a.weight"]
    assert findings == []


class TestCopies:
    OUTPUT = f32(noise(16, 32))
    HEADS: ClassVar = {f"blk.{i}.nextn.eh_proj.weight": f32(noise(16, 64) + i) for i in (2, 3)}

    def test_the_output_of_a_head_is_the_trunks(self) -> None:
        name = "blk.2.nextn.shared_head_head.weight"
        tensors = {"output.weight": self.OUTPUT, name: self.OUTPUT, **self.HEADS}
        message = f"the same 2048 bytes as in {name}"
        assert found(tensors) == [("warning", "head-output-copied", "output.weight", message)]
        tensors = {"token_embd.weight": self.OUTPUT, name: self.OUTPUT, **self.HEADS}
        assert [rule for _, rule, _, _ in found(tensors)] == ["head-output-copied"], "a tied output"

    def test_outputs_of_their_own(self) -> None:
        outputs = {f"blk.{i}.nextn.shared_head_head.weight": f32(noise(16, 32) + i) for i in (2, 3)}
        assert found({"output.weight": self.OUTPUT, **outputs, **self.HEADS}) == []

    def test_heads_that_are_equal(self) -> None:
        one = f32(noise(16, 64))
        tensors = {f"blk.{i}.nextn.eh_proj.weight": one for i in (2, 3, 4)}
        message = "the same 4096 bytes as in blk.3.nextn.eh_proj.weight, blk.4.nextn.eh_proj.weight"
        assert found(tensors) == [("warning", "heads-equal", "blk.2.nextn.eh_proj.weight", message)]

    def test_a_table_that_the_head_does_not_need(self) -> None:
        name = "blk.2.nextn.embed_tokens.weight"
        messages = found({"token_embd.weight": self.OUTPUT, name: self.OUTPUT, **self.HEADS})
        assert messages == [("note", "embedding-copied", "token_embd.weight", f"the same 2048 bytes as in {name}")]

    def test_equal_matrices_of_two_blocks(self) -> None:
        tensors = {"blk.0.a.weight": self.OUTPUT, "blk.1.a.weight": self.OUTPUT, "blk.1.b.weight": self.OUTPUT}
        message = "the same 2048 bytes as in blk.1.a.weight"
        assert found(tensors) == [("warning", "blocks-equal", "blk.0.a.weight", message)]
        norm = f32(noise(512))
        assert found({"blk.0.a_norm.weight": norm, "blk.1.a_norm.weight": norm}) == [], "norms may be"

    def test_equal_experts(self) -> None:
        one, others = noise(4, 32), noise(3, 4, 32)
        name = "blk.1.ffn_up_exps.weight"
        message = "3 experts of 4 hold the same bytes as another one"
        assert found({name: f32([one] * 4)}) == [("warning", "experts-equal", name, message)]
        assert found({name: f32([one, *others[1:]])}) == []

    @pytest.mark.parametrize(("kind", "quant"), [("Q8_0", b"\0" * 32), ("Q4_0", b"\x88" * 16)])
    def test_quants_of_zero_under_scales(self, kind: str, quant: bytes) -> None:
        blocks = [np.float16(1 + i / 16).tobytes() + quant for i in range(4)]
        lost = [("warning", "all-zero", WEIGHT, "all 128 values are zero")]
        assert found({WEIGHT: (kind, (64, 2), b"".join(blocks))}) == lost
        blocks[3] = blocks[3][:-1] + b"\1"
        assert "all-zero" not in [rule for _, rule, _, _ in found({WEIGHT: (kind, (64, 2), b"".join(blocks))})]


def test_a_file_that_is_written_to_while_it_is_read(
    converted: Callable[[str], dict[Role, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Header and data are then not of one file; whatever was found of them is worth nothing."""
    path = Path(shutil.copy(converted("step35")[Role.MTP], tmp_path))

    def rewrite(*arguments: object) -> None:
        with path.open("r+b") as out:
            out.seek(-32, os.SEEK_END)
            out.write(bytes(32))
        examine_payload(*arguments)  # type: ignore[arg-type]

    assert examine(path, deep=True).ok
    monkeypatch.setattr("nextn.validators.payload.examine_payload", rewrite)
    with pytest.raises(InputError, match="was changed while it was read") as caught:
        examine(path, deep=True)
    assert (caught.value.code, caught.value.exit_status) == ("source-changed", 3)
