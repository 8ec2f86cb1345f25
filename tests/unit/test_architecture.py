"""The tables hold together, and their rules give lengths, roles and dimensions as the specifications say."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
from real_models import MODELS

from nextn.gguf_schema.architecture import (
    FILE_TYPE,
    WITH_HEAD,
    WITH_TRUNK,
    Architecture,
    Hyperparameters,
    KeySpec,
    Role,
    Rule,
    TensorSpec,
    block_of,
)
from nextn.gguf_schema.contents import Value
from nextn.gguf_schema.glm5_next import GLM5_NEXT
from nextn.gguf_schema.qwen4exp import QWEN4EXP
from nextn.gguf_schema.step35 import STEP35
from nextn.gguf_schema.types import ValueType

ARCHITECTURES = {
    "step-3.7-flash": STEP35,
    "qwen3.8-flash-next": QWEN4EXP,
    "glm-5.3-flash": GLM5_NEXT,
}
EACH = pytest.mark.parametrize(("model", "architecture"), ARCHITECTURES.items(), ids=ARCHITECTURES)
COMBINED, TRUNK, MTP, MTP_SHARED = Role


@dataclass(frozen=True, kw_only=True)
class Toy(Hyperparameters):
    widths: tuple[int, ...] = (4, 8, 4, 8, 16)
    pool_kinds: tuple[bool, ...] = (True, False, True)
    layers: tuple[int, ...] | None = (1,)
    a_limit: float | None = None

    def double(self, i: int) -> int:
        return 2 * self.widths[i]

    @property
    def nine(self) -> int:
        return 9


TOY = Toy(trunk_blocks=3, nextn_blocks=2, vocab_size=100, context_length=64, embedding_length=32)
U32, I32, BOOL, F32 = ValueType.UINT32, ValueType.INT32, ValueType.BOOL, ValueType.FLOAT32


@EACH
def test_every_key_has_a_hyperparameter(model: str, architecture: Architecture) -> None:
    held = {field.name for field in fields(architecture.hyperparameters)} | {"nextn_predict_layers"}
    keys = {spec.field for spec in architecture.keys if spec is not FILE_TYPE and spec.rule is not Rule.BLOCK_COUNT}
    assert keys <= held
    assert isinstance(MODELS[model].hyperparameters, architecture.hyperparameters)


@EACH
def test_names_are_unique(model: str, architecture: Architecture) -> None:
    for specs in (architecture.keys, architecture.tensors):
        names = [spec.name for spec in specs]
        assert len(set(names)) == len(names)


@EACH
def test_every_dimension_is_a_number_or_a_hyperparameter(model: str, architecture: Architecture) -> None:
    h = MODELS[model].hyperparameters
    for spec in architecture.tensors:
        blocks = [i for i in (h.blocks(COMBINED) if spec.per_block else [-1]) if spec.when(h, i)]
        assert blocks, f"{spec.name}: no block of {model} has it"
        for i in blocks:
            ne = spec.ne(h, i)
            assert 1 <= len(ne) <= 4
            assert min(ne) > 0, spec.name


@EACH
def test_tensors_inside_blocks_take_their_role_from_the_block(model: str, architecture: Architecture) -> None:
    """A `roles` entry on one of these would have no effect."""
    whole = TensorSpec("", "").roles
    assert all(spec.roles == whole for spec in architecture.tensors if spec.per_block)


@EACH
def test_a_file_is_trunk_or_head_or_both(model: str, architecture: Architecture) -> None:
    h = MODELS[model].hyperparameters
    names = {role: {tensor.name for tensor in architecture.tensors_of(h, role)} for role in Role}
    assert names[COMBINED] == names[TRUNK] | names[MTP]
    assert names[MTP] - names[MTP_SHARED] == {"token_embd.weight", "output.weight"}
    assert names[TRUNK] & names[MTP] == {name for name in names[COMBINED] & names[MTP] if block_of(name) is None}
    assert not any(".nextn." in name for name in names[TRUNK])


@EACH
def test_every_role_has_every_key_except_those_of_the_other_part(model: str, architecture: Architecture) -> None:
    h = MODELS[model].hyperparameters
    keys = {role: architecture.key_values(h, role, 1).keys() for role in Role}
    assert keys[MTP] == keys[MTP_SHARED]
    assert keys[COMBINED] == keys[TRUNK] | {f"{architecture.name}.nextn_predict_layers"}
    ngrams = {key for key in keys[COMBINED] if ".ple." in key or key.endswith("embedding_length_per_layer_input")}
    assert len(ngrams) == (10 if architecture is QWEN4EXP else 0)
    assert keys[MTP] == keys[COMBINED] - ngrams


@pytest.mark.parametrize(
    ("role", "count", "blocks"),
    [(COMBINED, 5, range(5)), (TRUNK, 3, range(3)), (MTP, 5, range(3, 5)), (MTP_SHARED, 5, range(3, 5))],
)
def test_a_head_counts_the_blocks_of_the_trunk_too(role: Role, count: int, blocks: range) -> None:
    assert TOY.block_count(role) == count
    assert TOY.blocks(role) == blocks
    assert KeySpec("block_count", U32, Rule.BLOCK_COUNT).value(TOY, role) == Value(U32, count)


@pytest.mark.parametrize("role", Role)
def test_length_and_value_of_an_array_follow_the_rule(role: Role) -> None:
    per_block = KeySpec("widths", I32, Rule.PER_BLOCK)
    wanted = (4, 8, 4) if role is TRUNK else (4, 8, 4, 8, 16)
    assert per_block.length(TOY, role) == len(wanted)
    assert per_block.value(TOY, role) == Value(ValueType.ARRAY, wanted, I32)
    per_trunk_block = KeySpec("pool.kinds", BOOL, Rule.PER_TRUNK_BLOCK)
    assert per_trunk_block.length(TOY, role) == 3
    assert per_trunk_block.value(TOY, role) == Value(ValueType.ARRAY, (True, False, True), BOOL)
    free = KeySpec("layers", I32, Rule.LIST)
    assert free.length(TOY, role) is None
    assert free.value(TOY, role) == Value(ValueType.ARRAY, (1,), I32)
    assert KeySpec("vocab_size", U32).length(TOY, role) is None
    assert KeySpec("vocab_size", U32).value(TOY, role) == Value(U32, 100)


def test_a_key_is_not_written_in_other_roles_or_without_a_value() -> None:
    assert KeySpec("a.limit", F32).value(TOY, COMBINED) is None
    of_trunk, of_head = KeySpec("layers", I32, Rule.LIST, WITH_TRUNK), KeySpec("vocab_size", U32, roles=WITH_HEAD)
    assert [role for role in Role if of_trunk.value(TOY, role)] == [COMBINED, TRUNK]
    assert [role for role in Role if of_head.value(TOY, role)] == [COMBINED, MTP, MTP_SHARED]
    assert TOY.nextn_predict_layers == 2
    assert (
        Toy(trunk_blocks=3, nextn_blocks=0, vocab_size=1, context_length=1, embedding_length=1).nextn_predict_layers
        is None
    )


def test_dimensions_are_numbers_fields_properties_tuples_and_methods() -> None:
    assert TensorSpec("x", "3 embedding_length nine widths").ne(TOY, 4) == (3, 32, 9, 16)
    assert TensorSpec("x", "double").ne(TOY, 1) == (16,)


@pytest.mark.parametrize(
    ("name", "block"), [("blk.0.attn_q.weight", 0), ("blk.45.nextn.enorm.weight", 45), ("output.weight", None)]
)
def test_block_of_a_name(name: str, block: int | None) -> None:
    assert block_of(name) == block


def values(model: str, role: Role, *keys: str) -> list[object]:
    architecture = ARCHITECTURES[model]
    held = architecture.key_values(MODELS[model].hyperparameters, role, 32)
    return [held[f"{architecture.name}.{key}"].value for key in keys]


def test_arrays_of_step_at_real_size() -> None:
    """step35.md, 6.2: arrays are as long as the file's block count; the three heads are sliding layers of 96 heads."""
    heads = [64 if i % 4 == 0 and i < 45 else 96 for i in range(48)]
    clamps = [7.0 if i in (43, 44) else 0.0 for i in range(48)]
    shared = [16.0 if i in (43, 44) else 0.0 for i in range(48)]
    keys = ("attention.head_count", "attention.head_count_kv", "attention.sliding_window_pattern")
    keys += ("swiglu_clamp_exp", "swiglu_clamp_shexp")
    expected = [heads, [8] * 48, [count == 96 for count in heads], clamps, shared]
    for role, count in ((COMBINED, 48), (TRUNK, 45), (MTP, 48), (MTP_SHARED, 48)):
        held = values("step-3.7-flash", role, "block_count", *keys)
        assert held == [count, *(tuple(array[:count]) for array in expected)]


def test_arrays_of_qwen_at_real_size() -> None:
    """qwen4exp.md, 6.1: 48 or 49 entries; the head is a sparse full-attention layer."""
    full = [i % 4 == 3 or i == 48 for i in range(49)]
    for role, count in ((COMBINED, 49), (TRUNK, 48), (MTP, 49), (MTP_SHARED, 49)):
        held = values("qwen3.8-flash-next", role, "attention.recurrent_layers", "attention.compress_ratios")
        assert held == [tuple(not f for f in full[:count]), tuple(4 if f else 0 for f in full[:count])]
        assert values("qwen3.8-flash-next", role, "rope.dimension_sections") == [(11, 11, 10, 0)]


def test_arrays_of_glm_at_real_size() -> None:
    """glm5-next.md, 6.1: the indexer types never count the head."""
    mla = [int(i % 4 == 3 or i == 45) for i in range(46)]
    for role, count in ((COMBINED, 46), (TRUNK, 45), (MTP, 46), (MTP_SHARED, 46)):
        keys = ("attention.head_count_kv", "swiglu_clamp_exp", "swiglu_clamp_shexp", "attention.indexer.types")
        limits = (10.0,) * count
        assert values("glm-5.3-flash", role, *keys) == [tuple(mla[:count]), limits, limits, (True,) * 45]
