"""Findings about small tensors: decays and norm gammas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_files import Tensors, f32, make, noise

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.shards import open_gguf
from nextn.validators.findings import Findings, Severity
from nextn.validators.structural import examine_small


def small(tensors: Tensors, architecture: str) -> list[tuple[str, str, str]]:
    findings = Findings()
    examine_small(make(tensors, architecture), findings)
    return [(finding.rule, finding.subject, finding.message) for finding in findings]


class TestDecay:
    @pytest.mark.parametrize(("value", "shown"), [(0.5, "0.5"), (0.0, "0"), (float("nan"), "nan")])
    def test_not_negative(self, value: float, shown: str) -> None:
        values = [-1.0, -0.5, value, -3.0]
        message = f"1 of 4 values are not negative, the first is value 2: {shown}; -exp(A_log) is negative everywhere"
        assert small({"blk.0.ssm_a": f32(values)}, "toy") == [("ssm-a-not-negative", "blk.0.ssm_a", message)]

    def test_two_dimensions_and_16_bits(self) -> None:
        values = -np.ones((4, 16), np.float16)
        assert small({"blk.0.ssm_a": ("F16", (16, 4), values.tobytes())}, "mamba") == []
        assert len(small({"blk.0.ssm_a": ("F16", (16, 4), (-values).tobytes())}, "mamba")) == 1

    def test_bfloat16(self) -> None:
        # -1.5 is 0xBFC0 in bfloat16, 1.5 is 0x3FC0.
        assert small({"blk.0.ssm_a": ("BF16", (4,), bytes.fromhex("c0bfc0bfc0bfc0bf"))}, "toy") == []
        [(_, _, message)] = small({"blk.0.ssm_a": ("BF16", (4,), bytes.fromhex("c0bfc0bfc03fc0bf"))}, "toy")
        assert "the first is value 2: 1.5;" in message

    def test_cut(self) -> None:
        findings = Findings()
        examine_small(make({"blk.0.ssm_a": f32(np.ones(8))}, cut=1), findings)
        assert findings == []


def shifted(path: Path, by: float, only: str = "norm.weight", where: Callable[[str], bool] = lambda _: True) -> Tensors:
    """The small tensors of a file; to those whose name ends in `only` is added something."""
    file = open_gguf(path)
    tensors = {}
    for info in file.contents:
        if len(info.ne) == 1 and info.type.name == "F32":
            values = np.frombuffer(file.read_tensor(info.name), np.float32)
            add = by if "norm" in info.name and info.name.endswith(only) and where(info.name) else 0
            tensors[info.name] = f32(values + np.float32(add))
    # A matrix of the head marks its block.
    marks = {name for name in file.contents.tensors if name.endswith("nextn.eh_proj.weight")}
    return tensors | {name: f32(noise(2, 32)) for name in marks}


class TestGammas:
    @pytest.mark.parametrize("family", ["step35", "qwen4exp"])
    @pytest.mark.parametrize(("by", "rule"), [(0, None), (-1, "norm-offset-missing"), (1, "norm-offset-twice")])
    def test_the_whole_file(
        self, family: str, by: float, rule: str | None, converted: Callable[[str], dict[Role, Path]]
    ) -> None:
        notes = small(shifted(converted(family)[Role.COMBINED], by, ".weight"), family)
        heads = {"step35": 3, "qwen4exp": 1}[family]
        assert [each for each, _, _ in notes] == ([rule] * (1 + heads) if rule else [])

    def test_the_message_holds_the_evidence(self) -> None:
        names = ["attn_norm", "nextn.enorm", "nextn.hnorm"]
        gammas = {
            f"blk.2.{name}.weight": f32(np.full(8, value)) for name, value in zip(names, (0.01, 0, 1), strict=True)
        }
        assert small(gammas, "step35") == [
            (
                "norm-offset-missing",
                "blk.2.attn_norm.weight",
                "2 of 3 norm gammas of head blk.2 have a mean (blk.2.attn_norm.weight 0.010, "
                "blk.2.nextn.enorm.weight 0.000) near 0: as if the 1 of 1 + w was never added",
            )
        ]

    def test_one_of_many_needs_negative_values(self) -> None:
        gammas = {f"blk.{i}.attn_norm.weight": f32(np.full(8, 1.0)) for i in range(5)}
        low = f32(np.full(8, 0.3))
        assert small(gammas | {"blk.5.attn_norm.weight": low}, "step35") == []
        around = f32(np.linspace(-0.3, 0.3, 8))
        notes = small(gammas | {"blk.5.attn_norm.weight": around}, "step35")
        assert [(rule, subject) for rule, subject, _ in notes] == [("norm-offset-missing", "blk.5.attn_norm.weight")]

    @pytest.mark.parametrize("by", [-1, 0, 1])
    def test_families_that_add_nothing(self, by: float, converted: Callable[[str], dict[Role, Path]]) -> None:
        assert small(shifted(converted("glm5-next")[Role.COMBINED], by), "glm5-next") == []

    def test_the_exception(self) -> None:
        gammas = {f"blk.{i}.ssm_norm.weight": f32(np.full(8, 0.1)) for i in range(5)}
        assert small(gammas, "qwen4exp") == []
        assert len(small(gammas, "step35")) == 1

    def test_they_are_notes(self) -> None:
        findings = Findings()
        examine_small(make({"output_norm.weight": f32(np.zeros(8))}, "qwen35"), findings)
        assert [finding.severity for finding in findings] == [Severity.NOTE]
