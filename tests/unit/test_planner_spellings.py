"""However a checkpoint spells its configuration and its names, the plan and the written bytes are the same."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checkpoints import Model, model, planned, rules, stored, written
from families import FAMILIES

from nextn.convert.pipeline import plan
from nextn.convert.planner import Options
from nextn.gguf_schema.architecture import Role

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Originals = Callable[[str], tuple[Any, Any]]

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)
TEXT_PREFIX = {"step35": "model.", "qwen4exp": "model.language_model.", "glm5-next": "model.language_model."}
# The first layer behind the trunk: the head's.
HEAD_LAYER = {"step35": 5, "qwen4exp": 8, "glm5-next": 6}


def as_planned(folder: Path) -> list[tuple[Any, ...]]:
    """Roles, keys in order, and tensors with types and sizes of all four files."""
    files = planned(folder).files
    return [(f.role, list(f.keys.items()), {t.name: (t.ne, t.type) for t in f.tensors}) for f in files]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Originals:
    """Plan and bytes of an unedited fixture, made once."""
    made: dict[str, tuple[Any, Any]] = {}

    def original(family: str) -> tuple[Any, Any]:
        if family not in made:
            folder = model(family).write(tmp_path_factory.mktemp(family))
            made[family] = as_planned(folder), written(folder)
        return made[family]

    return original


# --- configuration


def step35_by_transformers(config: dict[str, Any]) -> None:
    """step35.md, 1.2: the right column of the table; lists are cut to the trunk."""
    text = config["text_config"]
    sliding = text.pop("attention_other_setting")
    kinds = text["layer_types"]
    text["layer_types"], text["mtp_layer_types"] = kinds[:5], kinds[5:]
    text["num_key_value_heads"] = text.pop("num_attention_groups")
    text["num_sliding_attention_heads"] = sliding["num_attention_heads"]
    text["per_layer_config"] = {
        str(i): {"num_attention_heads": 6} for i, kind in enumerate(kinds[:5]) if kind == "sliding_attention"
    }
    text.pop("rope_theta"), text.pop("partial_rotary_factors")
    text["rope_parameters"] = {
        "full_attention": {"rope_theta": 5e6, "partial_rotary_factor": 0.5, **text.pop("rope_scaling")},
        "sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 1.0, "rope_type": "default"},
    }
    text.pop("moe_layers_enum"), text.pop("moe_every_n_layer")
    text["mlp_layer_types"] = ["dense", "dense", "sparse", "sparse", "sparse"]
    text["mtp_mlp_layer_types"] = ["dense"] * 3
    text["n_routed_experts"] = text.pop("moe_num_experts")
    text["num_experts_per_tok"] = text.pop("moe_top_k")
    for limits in ("swiglu_limits", "swiglu_limits_shared"):
        text[limits] = text[limits][:5]


def qwen4exp_by_transformers(config: dict[str, Any]) -> None:
    """qwen4exp.md, 1, trap 1: the class renames the attention layers."""
    text = config["text_config"]
    text["layer_types"] = [kind.replace("full_attention", "indexed_attention") for kind in text["layer_types"]]


def glm5_next_by_transformers(config: dict[str, Any]) -> None:
    """glm5-next.md, 1.1: flat keys for the linear layers, and no keys for what the class does not know."""
    text = config["text_config"]
    linear = text.pop("linear_attn_config")
    text |= {
        "linear_num_heads": linear["num_heads"],
        "linear_head_dim": linear["head_dim"],
        "linear_conv_kernel_dim": linear["short_conv_kernel_size"],
        "linear_lower_bound": linear["gate_lower_bound"],
    }
    text.pop("first_k_dense_replace"), text.pop("num_nextn_predict_layers")
    text["layer_types"] = [kind.replace("deepseek_sparse", "indexed") for kind in text["layer_types"]]


def test_step35_as_transformers_writes_it(tmp_path: Path, originals: Originals) -> None:
    copy = model("step35")
    step35_by_transformers(copy.config)
    folder = copy.write(tmp_path)
    assert as_planned(folder) == originals("step35")[0]
    assert set(rules(planned(folder))) == {"short-list"}


def test_step35_with_heads_layer_by_layer_only(tmp_path: Path, originals: Originals) -> None:
    copy = model("step35")
    step35_by_transformers(copy.config)
    del copy.text["num_sliding_attention_heads"]
    assert as_planned(copy.write(tmp_path)) == originals("step35")[0]


def test_qwen4exp_as_transformers_writes_it(tmp_path: Path, originals: Originals) -> None:
    copy = model("qwen4exp")
    qwen4exp_by_transformers(copy.config)
    folder = copy.write(tmp_path)
    assert as_planned(folder) == originals("qwen4exp")[0]
    assert rules(planned(folder)) == []


def test_glm5_next_as_transformers_writes_it(tmp_path: Path, originals: Originals) -> None:
    copy = model("glm5-next")
    glm5_next_by_transformers(copy.config)
    folder = copy.write(tmp_path)
    assert as_planned(folder) == originals("glm5-next")[0]
    assert rules(planned(folder)) == ["head-count"]


@EACH_FAMILY
def test_a_text_configuration_at_the_root(family: str, tmp_path: Path, originals: Originals) -> None:
    copy = model(family)
    copy.config |= copy.config.pop("text_config")
    copy.config["architectures"] = {
        "step35": ["Step3p5ForCausalLM"], "qwen4exp": ["Qwen4ExpForCausalLM"], "glm5-next": ["Glm5NextForCausalLM"],
    }[family]  # fmt: skip
    assert as_planned(copy.write(tmp_path)) == originals(family)[0]


@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("qwen4exp", "layer_types"),
        ("qwen4exp", "full_attention_interval"),
        ("qwen4exp", "mtp_num_hidden_layers"),
        ("glm5-next", "mlp_layer_types"),
        ("glm5-next", "indexer_types"),
        ("glm5-next", "index_kpool_always_select_tail"),
        ("step35", "norm_expert_weight"),
        ("step35", "moe_every_n_layer"),
    ],
)
def test_keys_that_say_what_is_the_default(family: str, key: str, tmp_path: Path, originals: Originals) -> None:
    copy = model(family)
    del copy.text[key]
    assert as_planned(copy.write(tmp_path)) == originals(family)[0]


# --- names


@EACH_FAMILY
@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model."])
def test_every_prefix(family: str, prefix: str, tmp_path: Path, originals: Originals) -> None:
    copy = model(family)
    if prefix != TEXT_PREFIX[family]:
        copy.rename(f"^{re.escape(TEXT_PREFIX[family])}(?!visual)", prefix)
    assert written(copy.write(tmp_path)) == originals(family)[1]


def appended(copy: Model) -> None:
    """The heads as layers behind the trunk; what belongs to no layer goes to the first head."""
    copy.rename(r"^mtp\.layers\.0\.", "model.layers.8.")
    copy.rename(r"^mtp\.", "model.layers.8.")


def behind_mtp(copy: Model, first: int, prefix: str) -> None:
    for layer in range(first, first + 3):
        if any(f".layers.{layer}." in name for name in copy.tensors):
            copy.rename(rf"^model\.(language_model\.)?layers\.{layer}\.", f"{prefix}layers.{layer - first}.")


@pytest.mark.parametrize("prefix", ["mtp.", "model.mtp.", "language_model.mtp."])
@EACH_FAMILY
def test_heads_behind_mtp(family: str, prefix: str, tmp_path: Path, originals: Originals) -> None:
    copy = model(family)
    if family == "qwen4exp":
        copy.rename(r"^mtp\.", "mtp2.")
        copy.rename(r"^mtp2\.", prefix)
    else:
        behind_mtp(copy, HEAD_LAYER[family], prefix)
    assert written(copy.write(tmp_path)) == originals(family)[1]


def test_the_qwen_head_as_a_layer_behind_the_trunk(tmp_path: Path, originals: Originals) -> None:
    copy = model("qwen4exp")
    appended(copy)
    assert written(copy.write(tmp_path)) == originals("qwen4exp")[1]


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (r"transformer\.shared_head\.", "shared_head."),
        (r"transformer\.shared_head\.output", "shared_head.head"),
        (r"transformer\.shared_head\.output", "transformer.shared_head.head"),
    ],
)
def test_step35_shared_heads(pattern: str, replacement: str, tmp_path: Path, originals: Originals) -> None:
    copy = model("step35")
    copy.rename(pattern, replacement)
    assert written(copy.write(tmp_path)) == originals("step35")[1]


def test_qwen_experts_one_by_one(tmp_path: Path, originals: Originals) -> None:
    """qwen4exp.md, 2.2: gate rows come first in the fused tensor. Ten experts and more would sort wrongly as text."""
    copy = model("qwen4exp")
    for name in copy.named(r"\.mlp\.experts\."):
        old = copy.tensors.pop(name)
        matrices = np.frombuffer(old.data, "<u2").reshape(old.shape)
        for e, matrix in enumerate(matrices):
            parts = {"gate_proj": matrix[:32], "up_proj": matrix[32:]} if "gate_up" in name else {"down_proj": matrix}
            for part, rows in parts.items():
                new = re.sub(r"(gate_up|down)_proj$", f"{e}.{part}.weight", name)
                copy.tensors[new] = stored(rows.copy(), old.part, "BF16")
    assert written(copy.write(tmp_path)) == originals("qwen4exp")[1]


def test_the_qwen_table_in_one_piece(tmp_path: Path, originals: Originals) -> None:
    copy = model("qwen4exp")
    shards = sorted(copy.named(r"ngram_embedding\.shard_"), key=lambda name: int(re.findall(r"shard_(\d+)", name)[0]))
    assert len(shards) == 16
    old = [copy.tensors.pop(name) for name in shards]
    shape = (sum(t.shape[0] for t in old), old[0].shape[1])
    whole = shards[0].replace("shard_0.", "")
    copy.tensors[whole] = old[0]._replace(shape=shape, data=b"".join(t.data for t in old))
    assert written(copy.write(tmp_path)) == originals("qwen4exp")[1]


def test_glm_shapes_of_other_savers(tmp_path: Path, originals: Originals) -> None:
    """Kernels [D, K] and A_log [1, 1, heads, 1]."""
    copy = model("glm5-next")
    for name in copy.named(r"_conv1d\.weight$"):
        channels, _, kernel = copy.tensors[name].shape
        copy.tensors[name] = copy.tensors[name]._replace(shape=(channels, kernel))
    for name in copy.named(r"A_log$"):
        copy.tensors[name] = copy.tensors[name]._replace(shape=(1, 1, 4, 1))
    assert written(copy.write(tmp_path)) == originals("glm5-next")[1]


@pytest.mark.parametrize("shape", [(6,), (1, 8)])
def test_a_longer_a_log_gives_its_first_values(shape: tuple[int, ...], tmp_path: Path, originals: Originals) -> None:
    copy = model("glm5-next")
    for name in copy.named(r"A_log$"):
        old = copy.tensors[name]
        copy.tensors[name] = old._replace(shape=shape, data=(old.data + b"\x12\x34\x56\x78" * 2)[: prod(shape) * 2])
    assert written(copy.write(tmp_path)) == originals("glm5-next")[1]


# --- files


@EACH_FAMILY
def test_one_file_without_an_index(family: str, tmp_path: Path, originals: Originals) -> None:
    copy = model(family)
    copy.tensors = {name: tensor._replace(part="model.safetensors") for name, tensor in copy.tensors.items()}
    copy.index = False
    assert written(copy.write(tmp_path)) == originals(family)[1]


@EACH_FAMILY
def test_a_plan_needs_only_headers_and_constants(family: str, tmp_path: Path) -> None:
    """Case C05: with all data but the small constants gone (sparse), the whole plan stands."""
    folder = model(family).write(tmp_path)
    before = as_planned(folder)
    for path in folder.glob("*.safetensors"):
        size, raw = path.stat().st_size, path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        kept = {n: t for n, t in model(family).tensors.items() if t.part == path.name and t.dtype == "I64"}
        with path.open("wb") as file:
            file.write(raw[: 8 + length])
            file.truncate(size)
            for tensor in kept.values():
                file.seek(raw.index(tensor.data, 8 + length))
                file.write(tensor.data)
    assert as_planned(folder) == before
    assert [f.role for f in plan(folder, Options(tuple(Role))).files] == list(Role)
