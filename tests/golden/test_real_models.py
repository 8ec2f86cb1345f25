"""At real size, without weights: tables and plans give the published counts of the four real models.

Expected numbers are those of tests/fixtures/configs/README.md; tests/real_models.py holds the names and shapes of the
checkpoints, written down from the specifications.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import pytest
from real_models import MODELS, NGRAM_CONSTANTS, NGRAM_TABLE, RealModel, elements, glm, in_fp8

from nextn.convert.families import family_of
from nextn.convert.mapping import VISION_REASON
from nextn.convert.metadata import size_label
from nextn.convert.planner import Options, plan_conversion
from nextn.convert.safetensors_header import DTYPE_BYTES
from nextn.gguf_schema.architecture import ExpectedTensor, Role
from nextn.gguf_schema.contents import TensorInfo
from nextn.gguf_schema.types import BF16, F32, Q8_0, TensorType

if TYPE_CHECKING:
    from pathlib import Path

    from nextn.convert.plan import Plan

STEP = {
    Role.TRUNK: (754, 196_956_130_432, "288x7.4B"),
    Role.COMBINED: (805, 199_384_301_440, "288x10B"),
    Role.MTP: (55, 3_484_091_200, "3.5B"),
    Role.MTP_SHARED: (53, 2_428_175_168, "2.4B"),
}
# Tensors, elements and computed size label of each file.
FILES: dict[str, dict[Role, tuple[int, int, str]]] = {
    "step-3.5-flash": STEP,
    "step-3.7-flash": STEP,
    "qwen3.8-flash-next": {
        Role.TRUNK: (1224, 176_943_899_520, "512x56B"),
        Role.COMBINED: (1256, 179_551_050_368, "512x56B"),
        Role.MTP: (34, 3_878_549_248, "512x1.4B"),
        Role.MTP_SHARED: (32, 2_607_150_848, "512x95M"),
    },
    "glm-5.3-flash": {
        Role.TRUNK: (1383, 313_326_811_966, "288x10B"),
        Role.COMBINED: (1412, 320_759_404_382, "288x10B"),
        Role.MTP: (32, 8_701_373_472, "288x1.5B"),
        Role.MTP_SHARED: (30, 7_432_596_512, "288x210M"),
    },
}
# Tensors of the checkpoint: of the text model, of its head, of trunk and globals.
CHECKPOINTS = {
    "step-3.5-flash": (804, 51, 753),
    "step-3.7-flash": (804, 51, 753),
    "qwen3.8-flash-next": (1325, 31, 1294),
    "glm-5.3-flash": (38_423, 889, 37_534),
}
# Elements of the text model and of its head.
CHECKPOINT_ELEMENTS = {
    "step-3.5-flash": (199_384_301_376, 2_428_171_008),
    "step-3.7-flash": (199_384_301_376, 2_428_171_008),
    "qwen3.8-flash-next": (179_551_050_403, 2_607_150_848),
    "glm-5.3-flash": (320_759_404_382, 7_432_592_416),
}
EACH_MODEL = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def from_tables(model: RealModel, role: Role) -> list[ExpectedTensor]:
    """The required tensors of a file, by the tables and the configuration alone."""
    tensors = family_of(model.config).architecture.tensors_of(model.hyperparameters, role)
    return [tensor for tensor in tensors if not tensor.spec.optional]


def data_bytes(tensors: list[ExpectedTensor], type_: TensorType) -> int:
    return sum((F32 if tensor.spec.f32 else type_).tensor_bytes(tensor.ne) for tensor in tensors)


@EACH_MODEL
@pytest.mark.parametrize("role", Role)
def test_tables_give_the_published_counts(model: RealModel, role: Role) -> None:
    tensors = from_tables(model, role)
    label = size_label(TensorInfo(tensor.name, tensor.ne, F32, 0) for tensor in tensors)
    assert (len(tensors), sum(prod(tensor.ne) for tensor in tensors), label) == FILES[model.folder][role]


@pytest.mark.parametrize(("role", "total"), [(Role.TRUNK, 196_956_130_368), (Role.MTP, 3_484_091_136)])
def test_published_totals_of_step_leave_out_the_rope_factors(role: Role, total: int) -> None:
    tensors = {tensor.name: prod(tensor.ne) for tensor in from_tables(MODELS["step-3.7-flash"], role)}
    assert tensors.pop("rope_freqs.weight") == 64
    assert sum(tensors.values()) == total


def test_published_parts_of_a_step_head() -> None:
    tensors = {tensor.name: prod(tensor.ne) for tensor in from_tables(MODELS["step-3.7-flash"], Role.COMBINED)}
    for i in (45, 46, 47):
        assert sum(count for name, count in tensors.items() if name.startswith(f"blk.{i}.")) == 809_390_336
        assert tensors[f"blk.{i}.nextn.shared_head_head.weight"] == 527_958_016


def test_published_parts_of_qwen() -> None:
    tensors = {tensor.name: prod(tensor.ne) for tensor in from_tables(MODELS["qwen3.8-flash-next"], Role.TRUNK)}
    assert tensors["per_layer_token_embd.weight"] == 51_200_245_760
    # The published rest leaves out the 35 integer constants, which are keys in a file.
    assert sum(tensors.values()) - tensors["per_layer_token_embd.weight"] == 125_743_653_760


@pytest.mark.parametrize(
    ("model", "role", "type_", "total"),
    [
        ("step-3.7-flash", Role.MTP, BF16, 6_968_315_136),
        ("step-3.7-flash", Role.MTP, Q8_0, 3_702_041_856),
        ("qwen3.8-flash-next", Role.MTP_SHARED, Q8_0, 2_774_085_632),
    ],
)
def test_tables_give_the_published_sizes(model: str, role: Role, type_: TensorType, total: int) -> None:
    assert data_bytes(from_tables(MODELS[model], role), type_) == total


@EACH_MODEL
def test_the_written_down_checkpoints_have_the_published_counts(model: RealModel) -> None:
    """Guards the expectations below, not the code."""
    text, head, rest = CHECKPOINTS[model.folder]
    assert (len(model.text), len(model.head)) == (text, head)
    assert len(model.text) - len(model.head) == rest
    assert (elements(model.text), elements(model.head)) == CHECKPOINT_ELEMENTS[model.folder]


def test_the_written_down_towers_and_bytes_are_the_published_ones() -> None:
    qwen = MODELS["qwen3.8-flash-next"].tensors
    assert (len(qwen), elements(qwen)) == (1658, 179_999_981_459)
    fp8 = in_fp8(glm())
    assert len(fp8) == 76_108
    scales = [name for name in fp8 if name.endswith("_scale_inv")]
    assert (len(scales), sum("layers.45." in name for name in scales)) == (37_338, 871)
    text_bytes = sum(DTYPE_BYTES[dtype] * prod(shape) for name, (dtype, shape) in fp8.items() if "visual" not in name)
    assert text_bytes + 2 * 563_627_008 == 328_326_771_576


@pytest.fixture(scope="module", params=MODELS)
def planned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[RealModel, Plan]:
    model = MODELS[request.param]
    folder = tmp_path_factory.mktemp(model.folder)
    return model, plan_conversion(model.checkpoint(folder), Options(tuple(Role)))


def test_plans_have_the_published_counts(planned: tuple[RealModel, Plan]) -> None:
    model, plan = planned
    assert {
        file.role: (
            len(file.tensors),
            sum(tensor.elements for tensor in file.tensors),
            file.keys["general.size_label"].value,
        )
        for file in plan.files
    } == FILES[model.folder]


def test_plans_use_every_tensor_once_and_drop_only_what_is_no_text(planned: tuple[RealModel, Plan]) -> None:
    model, plan = planned
    constants = {NGRAM_TABLE + name for name in NGRAM_CONSTANTS if model.family == "qwen4exp"}
    dropped = {dropped.name: dropped.reason for dropped in plan.dropped}
    assert len(dropped) == len(plan.dropped)
    vision = model.tensors.keys() - model.text.keys()
    assert dropped.keys() == vision | constants
    assert {dropped[name] for name in vision} <= {VISION_REASON}
    assert all("metadata array" in dropped[name] for name in constants)
    used = {source.name for payload in plan.payload for source in payload.recipe.sources}
    assert used - {"rope_freqs"} == model.text.keys() - constants


def test_plans_note_only_what_is_doubtful(planned: tuple[RealModel, Plan]) -> None:
    model, plan = planned
    # The original context length of Step-3.5 is not known.
    expected = ["assumed-context"] if model.folder == "step-3.5-flash" else []
    assert [finding.rule for finding in plan.findings] == expected


@pytest.mark.parametrize("planned", ["qwen3.8-flash-next"], indirect=True)
def test_plans_carry_the_integer_constants_exactly(planned: tuple[RealModel, Plan]) -> None:
    _, plan = planned
    names = {"layer_multipliers": "layer_multipliers", "head_offsets": "ngram_heads_offsets"}
    names["head_vocab_sizes"] = "ngram_heads_vocab_sizes"
    for file in plan.files:
        held: dict[str, Any] = {key: file.contents.get(f"ple.{key}") for key in names}
        if not file.role.has_trunk:
            assert set(held.values()) == {None}
            continue
        assert {key: tuple(value.items) for key, value in held.items()} == {
            key: NGRAM_CONSTANTS[name] for key, name in names.items()
        }


@pytest.mark.parametrize("role", [Role.TRUNK, Role.MTP, Role.MTP_SHARED])
def test_a_role_alone_gives_the_same_file_and_leaves_out_the_rest(
    planned: tuple[RealModel, Plan], role: Role, tmp_path: Path
) -> None:
    model, together = planned
    (folder := tmp_path / model.folder).mkdir()
    alone = plan_conversion(model.checkpoint(folder), Options((role,)))
    assert [file.tensors for file in alone.files] == [file.tensors for file in together.files if file.role is role]
    beside_head = {name for name in model.text if name.endswith(("embed_tokens.weight", "lm_head.weight"))}
    beside_head |= {name for name in model.text if name in ("model.norm.weight", "model.language_model.norm.weight")}
    trunk = model.text.keys() - model.head.keys() - beside_head
    # The shared sidecar holds no embeddings, but it names their hash.
    left_out = {Role.TRUNK: set(model.head), Role.MTP: trunk, Role.MTP_SHARED: trunk | {"lm_head.weight"}}
    always = {dropped.name for dropped in together.dropped}
    assert {dropped.name for dropped in alone.dropped} == left_out[role] | always


def test_the_fp8_repository_gives_the_same_files(tmp_path: Path) -> None:
    plan = plan_conversion(MODELS["glm-5.3-flash"].checkpoint(tmp_path, fp8=True), Options(tuple(Role)))
    counts = {file.role: (len(file.tensors), sum(t.elements for t in file.tensors)) for file in plan.files}
    assert counts == {role: held[:2] for role, held in FILES["glm-5.3-flash"].items()}
    assert plan.source_bytes == 328_326_771_576 - 2 * 563_627_008
