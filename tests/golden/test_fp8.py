"""FP8 checkpoints become tensor for tensor what the upstream converter makes of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from checkpoints import model
from fp8 import TRUNK, fp8_model, golden_path

from nextn.convert.pipeline import convert
from nextn.convert.planner import Options
from nextn.gguf_schema.architecture import Role, block_of
from nextn.gguf_schema.shards import open_gguf

EACH_FAMILY = pytest.mark.parametrize("family", TRUNK)


def described(folder: Path, out: Path, **options: object) -> dict[str, list[str]]:
    (output,) = convert(folder, out, options=Options((Role.COMBINED,), **options)).outputs  # type: ignore[arg-type]
    file = open_gguf(output.path)
    return {
        tensor.name: [tensor.type.name, hashlib.sha256(file.read_tensor(tensor.name)).hexdigest()]
        for tensor in file.contents
    }


@EACH_FAMILY
@pytest.mark.parametrize("outtype", ["f32", "bf16", "q8_0", "bf16-as-q8"])
def test_fp8_equals_upstream(family: str, outtype: str, tmp_path: Path) -> None:
    golden = json.loads(golden_path(family).read_text(encoding="utf-8"))[outtype]
    folder = fp8_model(family).write(tmp_path)
    asked, _, as_q8 = outtype.partition("-as-")
    assert described(folder, tmp_path / "out", outtype=asked, fp8_as_q8=bool(as_q8)) == golden


@EACH_FAMILY
def test_an_unscaled_head_passes_through(family: str, tmp_path: Path) -> None:
    """Case C22: the head's tensors, and whatever else is not FP8, are those of the BF16 checkpoint."""
    plain = described(model(family).write(tmp_path / "bf16"), tmp_path / "plain", outtype="auto")
    fp8 = described(fp8_model(family).write(tmp_path / "fp8"), tmp_path / "out", outtype="auto")
    same = {name for name, tensor in fp8.items() if tensor == plain[name]}
    heads = {name for name in fp8 if (block_of(name) or 0) >= {"glm5-next": 6, "step35": 5}[family]}
    assert heads
    assert heads | {"token_embd.weight", "output.weight", "output_norm.weight"} <= same
    assert {type_ for type_, _ in fp8.values()} == {"F32", "BF16"}
    assert 20 < len(fp8) - len(same) < len(fp8)
