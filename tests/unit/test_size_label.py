from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nextn.convert.metadata import file_name, read_description, size_label
from nextn.gguf_schema.contents import TensorInfo
from nextn.gguf_schema.types import F32

if TYPE_CHECKING:
    from pathlib import Path


def tensor(name: str, *ne: int) -> TensorInfo:
    return TensorInfo(name, ne, F32, 0)


@pytest.mark.parametrize(
    ("elements", "label"),
    [
        (1_400_000, "1.4M"),
        (9_400_000, "9.4M"),
        (9_500_000, "10M"),
        (9_960_000, "10M"),
        (10_000_000_000, "10B"),
        (848_000, "848K"),
        (400, "0.40K"),
        (1_000_000, "1000K"),
        (1_000_001, "1.0M"),
        (1_000_000_000_000, "1000B"),
        (2_500_000_000_000, "2.5T"),
    ],
)
def test_unit_and_digits_of_a_size(elements: int, label: str) -> None:
    assert size_label([tensor("output.weight", elements)]) == label


def test_one_expert_of_each_layer_counts() -> None:
    tensors = [
        tensor("token_embd.weight", 1000, 2000),  # 2 M
        tensor("blk.1.ffn_up_exps.weight", 1000, 500, 8),  # 0.5 M per expert
        tensor("blk.1.ffn_down_exps.weight", 500, 1000, 8),  # 0.5 M per expert
        tensor("blk.1.ffn_up_shexp.weight", 1000, 500),  # 0.5 M
    ]
    assert size_label(tensors) == "8x3.5M"


def test_number_of_experts_is_the_mean() -> None:
    tensors = [tensor("blk.0.ffn_up_exps.weight", 1000, 1000, 4), tensor("blk.1.ffn_up_exps.weight", 1000, 1000, 8)]
    assert size_label(tensors) == "6x2.0M"


STEP, QWEN, GLM = (4096, 1280, 288), (2560, 640, 512), (4096, 2048, 288)  # width, expert width, experts


@pytest.mark.parametrize(
    ("sizes", "layers", "elements", "label"),
    [
        (STEP, 42, 196_956_130_432, "288x7.4B"),
        (STEP, 42, 199_384_301_440, "288x10B"),
        (STEP, 0, 3_484_091_200, "3.5B"),
        (STEP, 0, 2_428_175_168, "2.4B"),
        (QWEN, 48, 176_943_899_520, "512x56B"),
        (QWEN, 49, 179_551_050_368, "512x56B"),
        (QWEN, 1, 3_878_549_248, "512x1.4B"),
        (QWEN, 1, 2_607_150_848, "512x95M"),
        (GLM, 42, 313_326_811_966, "288x10B"),
        (GLM, 43, 320_759_404_382, "288x10B"),
        (GLM, 1, 8_701_373_472, "288x1.5B"),
        (GLM, 1, 7_432_596_512, "288x210M"),
    ],
)
def test_labels_of_real_models(sizes: tuple[int, int, int], layers: int, elements: int, label: str) -> None:
    """Elements and labels of trunk, combined, mtp and mtp-shared from tests/fixtures/configs/README.md."""
    width, inner, count = sizes
    experts = [tensor(f"blk.{i}.ffn_{p}_exps.weight", width, inner, count) for i in range(layers) for p in "gud"]
    rest = tensor("rest", elements - sum(t.elements for t in experts))
    assert size_label([*experts, rest]) == label


def test_label_differs_between_outputs_and_a_given_one_does_not(tmp_path: Path) -> None:
    small, large = [tensor("a", 400_000)], [tensor("a", 2_000_000)]
    description = read_description(tmp_path, name="model")
    labels = [description.general_keys("step35", t)["general.size_label"].value for t in (small, large)]
    assert labels == ["400K", "2.0M"]
    given = replace(description, overrides={"general.size_label": "tiny"})
    assert [given.general_keys("x", t)["general.size_label"].value for t in (small, large)] == ["tiny", "tiny"]


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("combined", "Some-Model-BF16.gguf"),
        ("trunk", "Some-Model-trunk-BF16.gguf"),
        ("mtp", "mtp-Some-Model-BF16.gguf"),
        ("mtp-shared", "shared/mtp-Some-Model-shared-BF16.gguf"),
    ],
)
def test_file_names(role: str, expected: str) -> None:
    assert file_name(role, "Some-Model", "bf16") == expected


def test_stem_leaves_the_computed_size_out_and_has_no_separators(tmp_path: Path) -> None:
    description = read_description(tmp_path, name="Some-Model")
    assert description.stem() == "Some-Model"
    named = read_description(tmp_path, name="Some-Model", model_name="../Another Name")
    assert named.stem() == "..-Another-Name"
    versioned = replace(description, overrides={"general.basename": "Base", "general.version": "v1/2\\3"})
    assert versioned.stem() == "Base-v1-2-3"
