"""Configurations that contradict the tensors, or say what no file can express."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checkpoints import Model, finding, model, planned, refusal, rules, stored
from families import FAMILIES

from nextn.convert import families
from nextn.convert.mapping import To
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from nextn.convert.plan import Plan

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)


# --- configuration against tensors


@pytest.mark.parametrize(
    ("family", "index", "kind", "subject"),
    [
        ("step35", 1, "full_attention", "layer_types"),
        ("step35", 7, "full_attention", "layer_types"),
        ("qwen4exp", 3, "linear_attention", "model.language_model.layers.3.self_attn."),
        ("qwen4exp", 0, "full_attention", "model.language_model.layers.0.linear_attn."),
        ("glm5-next", 3, "linear_attention", "linear_attn_config.kda_layers"),
    ],
)
def test_layer_types_against_tensors(family: str, index: int, kind: str, subject: str, tmp_path: Path) -> None:
    copy = model(family)
    copy.text["layer_types"][index] = kind
    error = refusal(copy.write(tmp_path))
    assert error.code in ("config-contradicts-tensors", "unsupported-config")
    assert str(error.subject).startswith(subject)
    assert str(index) in f"{error.message} {error.remedy}"


@EACH_FAMILY
@pytest.mark.parametrize("role", [Role.COMBINED, Role.TRUNK])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_number_of_layers(family: str, role: Role, change: int, tmp_path: Path) -> None:
    """Never a trunk cut short because the configuration counts too few layers."""
    copy = model(family)
    copy.text["num_hidden_layers"] += change
    for lists in ("layer_types", "mlp_layer_types", "indexer_types"):
        if lists in copy.text and family != "step35":
            copy.text[lists] = [*copy.text[lists], *copy.text[lists][-1:]][: copy.text["num_hidden_layers"]]
    if family == "glm5-next":
        copy.text["linear_attn_config"].pop("kda_layers"), copy.text["linear_attn_config"].pop("full_attn_layers")
    error = refusal(copy.write(tmp_path), role)
    assert error.code in ("config-contradicts-tensors", "missing-tensors", "same-target")
    if change < 0:
        assert "num_hidden_layers" in f"{error.subject} {error.remedy}"


def test_step35_lists_cut_to_the_trunk(tmp_path: Path) -> None:
    """Case V20: the kinds of the heads come from their q_proj, and that is said."""
    copy = model("step35")
    copy.text["layer_types"] = copy.text["layer_types"][:5]
    whole = planned(model("step35").write(tmp_path / "whole"))
    cut = planned(copy.write(tmp_path))
    assert [file.header for file in cut.files] == [file.header for file in whole.files]
    assert [f.message for f in cut.findings if f.rule == "layer-kind-from-tensors"] == [
        f"has no entry for layer {i}; its q_proj shows sliding_attention" for i in (5, 6, 7)
    ]


def test_step35_lists_cut_within_the_trunk(tmp_path: Path) -> None:
    copy = model("step35")
    copy.text["layer_types"] = copy.text["layer_types"][:2]
    plan_ = planned(copy.write(tmp_path), Role.COMBINED)
    pattern = plan_.files[0].keys["step35.attention.sliding_window_pattern"].value
    assert pattern == (False, True, True, True, False, True, True, True)


def test_step35_kinds_that_tensors_do_not_settle(tmp_path: Path) -> None:
    """With equal head counts both kinds fit: an error, never a guess."""
    copy = model("step35")
    copy.text["layer_types"] = copy.text["layer_types"][:5]
    copy.text["num_attention_heads"] = copy.text["attention_other_setting"]["num_attention_heads"] = 6
    for i in (0, 4):
        copy.reshape(rf"layers\.{i}\.self_attn\.q_proj", 192, 128)
        copy.reshape(rf"layers\.{i}\.self_attn\.o_proj", 128, 192)
        copy.reshape(rf"layers\.{i}\.self_attn\.g_proj", 6, 128)
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("layer-kind-unknown", "layer_types")
    assert error.message == "has 5 entries for 8 layers, and the tensors do not settle layer 5"
    assert error.remedy == "give layer_types an entry for layer 5"


def test_step35_experts_where_the_configuration_has_none(tmp_path: Path) -> None:
    copy = model("step35")
    copy.text["moe_layers_enum"] = "3,4"
    plan_ = planned(copy.write(tmp_path))
    assert "disagrees with the tensors on the experts of layers [2]" in finding(plan_, "expert-layers")
    assert plan_.files[0].keys["step35.leading_dense_block_count"].value == 2


def test_ngram_constants_that_differ_from_the_rule_are_kept_and_noted(tmp_path: Path) -> None:
    copy = model("qwen4exp")
    (name,) = copy.named("layer_multipliers")
    exact = np.array([2**62 + 1, 3, 5], "<i8")
    copy.tensors[name] = stored(exact, copy.tensors[name].part)
    plan_ = planned(copy.write(tmp_path), Role.COMBINED)
    assert plan_.files[0].keys["qwen4exp.ple.layer_multipliers"].value == (2**62 + 1, 3, 5)
    assert "ple_layer_multipliers are not those of the model's rule" in finding(plan_, "ngram-constants")


@pytest.mark.parametrize(("dtype", "shape"), [("BF16", (3,)), ("F64", (3,)), ("I64", (4,)), ("I64", (9000,))])
def test_ngram_constants_of_a_wrong_kind(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    copy = model("qwen4exp")
    (name,) = copy.named("layer_multipliers")
    size = 2 if dtype == "BF16" else 8
    copy.tensors[name] = copy.tensors[name]._replace(dtype=dtype, shape=shape, data=bytes(size * shape[0]))
    error = refusal(copy.write(tmp_path))
    assert error.code in ("bad-constant", "unsupported-config")
    assert str(error.subject).startswith("layers.1.ple.ple_embedding.")


# --- configuration alone

UNSUPPORTED: dict[str, list[tuple[str, Any]]] = {
    "step35": [
        ("moe_router_activation", "relu"),
        ("partial_rotary_factors", [0.25] * 8),
        ("rope_theta", [5e6, 1e4, 1e4, 1e4, 1e6, 1e4, 1e4, 1e4]),
        ("rope_scaling", {"rope_type": "yarn"}),
        ("swiglu_limits", [0.0] * 4),
        ("layer_types", ["full_attention", "chunked_attention", *["sliding_attention"] * 6]),
        ("moe_layers_enum", "2,three"),
        ("moe_layers_enum", "2,3,²"),
        ("moe_layers_enum", "2,3," + "9" * 5000),
        ("zero_centered", False),
        ("use_qk_norm", False),
        ("use_head_wise_attn_gate", False),
        ("sink", True),
        ("hidden_act", "gelu"),
        ("yarn_only_types", ["full_attention", "sliding_attention"]),
        ("moe_top_k", 9),
    ],
    "qwen4exp": [
        ("output_gate_type", "silu"),
        ("norm_topk_prob", False),
        ("linear_value_head_dim", 64),
        ("indexer_compress_ratio", 1),
        ("indexer_budget", 33),
        ("indexer_kv_heads", 2),
        ("indexer_head_dim", 8),
        ("ple_layer_ids", [2, 3]),
        ("ple_layer_ids", [4]),
        ("ple_layer_ids", [0]),
        ("ple_layer_ids", [9]),
        ("ple_embed_dim", 64),
        ("attention_bias", True),
        ("layer_types", ["linear_attention"] * 7),
        ("layer_types", ["linear_attention"] * 7 + ["mamba"]),
        ("hidden_act", "gelu"),
        ("mtp_use_dedicated_embeddings", True),
        ("num_experts_per_tok", 9),
    ],
    "glm5-next": [
        ("qk_rope_head_dim", 64),
        ("hc_mult", 2),
        ("index_kpool", 1),
        ("index_topk", 33),
        ("mhc", False),
        ("attention_bias", True),
        ("scoring_func", "relu"),
        ("mlp_layer_types", ["sparse", "dense", *["sparse"] * 4]),
        ("indexer_types", ["full"] * 5),
        ("layer_types", ["linear_attention"] * 5),
        ("layer_types", [*["linear_attention"] * 3, "sliding_attention", "linear_attention", "full_attention"]),
        ("indexer_types", ["full", "FULL", *["shared"] * 4]),
        ("hidden_act", "gelu"),
        ("index_kpool_compress", False),
        ("mla_use_nope", False),
        ("topk_method", "greedy"),
        ("mhc", 1),
        ("num_experts_per_tok", 9),
    ],
}


@pytest.mark.parametrize(
    ("family", "key", "value"), [(family, *case) for family, cases in UNSUPPORTED.items() for case in cases]
)
def test_what_no_file_can_express(family: str, key: str, value: object, tmp_path: Path) -> None:
    copy = model(family)
    copy.text[key] = value
    error = refusal(copy.write(tmp_path))
    assert error.code == "unsupported-config"
    beside = {"indexer_budget": "indexer_compress_ratio", "index_topk": "index_kpool"}
    assert error.subject == beside.get(key, key)


@pytest.mark.parametrize(
    ("family", "group", "key", "value"),
    [
        ("qwen4exp", "rope_parameters", "rope_type", "yarn"),
        ("qwen4exp", "rope_parameters", "type", "linear"),
        ("qwen4exp", "rope_scaling", "rope_type", "yarn"),
        ("qwen4exp", "rope_scaling", "type", "yarn"),
        ("qwen4exp", "rope_parameters", "mrope_interleaved", False),
        ("qwen4exp", "rope_parameters", "mrope_section", [1, 2, 3, 4, 5]),
        ("qwen4exp", "rope_parameters", "mrope_section", [3, -1]),
        ("qwen4exp", "mtp", "rope_theta", 5),
        ("qwen4exp", "mtp", "mtp_use_hidden_state_from_layer", 3),
        ("step35", "rope_parameters", "rope_type", "llama3"),
        ("step35", "rope_parameters", "sliding_attention", {"rope_type": "yarn"}),
    ],
)
def test_what_no_file_can_express_within_a_group(
    family: str, group: str, key: str, value: object, tmp_path: Path
) -> None:
    """A scaled rotation, a head with positions of its own: the files would compute another model."""
    copy = model(family)
    copy.text.setdefault(group, {})[key] = value
    error = refusal(copy.write(tmp_path))
    assert error.code == "unsupported-config"
    assert str(error.subject).startswith(f"{group}.{key}")


NAN, INFINITE = float("nan"), float("inf")
UNFIT: dict[str, list[tuple[str, Any]]] = {
    "step35": [
        *(("swiglu_limits", [value] * 8) for value in (NAN, INFINITE, -1.0, 10**400, True, "1")),
        *(("rms_norm_eps", value) for value in (NAN, INFINITE, -1, 0, 1e308, 10**400)),
        ("rope_theta", [INFINITE] * 8),
        ("rope_theta", [NAN] * 8),
        ("moe_top_k", 0),
        ("sliding_window", 0),
        ("max_position_embeddings", 0),
    ],
    "qwen4exp": [("num_experts_per_tok", 0), ("rms_norm_eps", -1e-6), ("max_position_embeddings", 0)],
    "glm5-next": [
        *(("swiglu_limit", value) for value in (NAN, INFINITE, -3)),
        *((key, "false") for key in ("norm_topk_prob", "index_kpool_always_select_tail")),
        ("hc_eps", -1),
        ("max_position_embeddings", 0),
        ("num_experts_per_tok", 0),
    ],
}


@pytest.mark.parametrize(
    ("family", "key", "value"), [(family, *case) for family, cases in UNFIT.items() for case in cases]
)
def test_values_that_are_no_sizes(family: str, key: str, value: object, tmp_path: Path) -> None:
    copy = model(family)
    copy.text[key] = value
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("config-value", key)
    assert len(error.message) < 200


def test_an_empty_object_does_not_hide_the_other_spelling(tmp_path: Path) -> None:
    copy = model("step35")
    scaling = copy.text["rope_scaling"]
    copy.text.update({"rope_scaling": {}, "rope_parameters": {"full_attention": scaling}})
    plan_ = planned(copy.write(tmp_path))
    assert rules(plan_) == []
    assert [file.header for file in plan_.files] == [
        file.header for file in planned(model("step35").write(tmp_path / "original")).files
    ]


def test_two_spellings_of_a_key_that_differ(tmp_path: Path) -> None:
    copy = model("step35")
    copy.text.update({"num_key_value_heads": 1, "n_routed_experts": 8})
    plan_ = planned(copy.write(tmp_path))
    assert "num_attention_groups: is 2, but num_key_value_heads is 1; the former counts" in finding(
        plan_, "config-spellings"
    )


@EACH_FAMILY
def test_parts_of_one_tensor_share_a_transform(family: str) -> None:
    """Guards the tables: parts with different ones are taken for two spellings."""
    table = next(f for f in families.FAMILIES if f.architecture.name == family).names.rules.values()
    ways: dict[str, set[int]] = {}
    for rule in table:
        for to in rule if isinstance(rule, tuple) else (rule,):
            if isinstance(to, To) and to.part:
                ways.setdefault(to.target, set()).add(id(to.transform))
    for rule in table:
        if isinstance(rule, To) and rule.target in ways:
            assert ways[rule.target] == {id(rule.transform)}


@EACH_FAMILY
def test_a_missing_key_is_named(family: str, tmp_path: Path) -> None:
    copy = model(family)
    for key in ("hidden_size", "num_hidden_layers", "rms_norm_eps"):
        held = copy.text.pop(key)
        error = refusal(copy.write(tmp_path / key))
        assert (error.code, error.subject) == ("config-key", key)
        copy.text[key] = held


def test_the_pool_size_of_glm_is_never_a_default(tmp_path: Path) -> None:
    copy = model("glm5-next")
    del copy.text["index_kpool"]
    assert refusal(copy.write(tmp_path)).subject == "index_kpool"


JUNK: tuple[Any, ...] = ("many", -1, [[None]], {"a": 1}, 10**30)


def outcome(folder: Path, copy: Model) -> Plan | InputError:
    """What planning comes to with the copy's configuration in the folder."""
    (folder / "config.json").write_text(json.dumps(copy.config))
    try:
        return planned(folder, Role.COMBINED)
    except InputError as error:
        return error


@EACH_FAMILY
def test_values_of_a_wrong_type_are_errors_that_say_where(family: str, tmp_path: Path) -> None:
    """Whatever stands in the configuration: a message with a subject comes out, not a traceback."""
    folder = model(family).write(tmp_path)
    outcomes = []
    for key, held in model(family).text.items():
        for junk in JUNK:
            copy = model(family)
            copy.text[key] = junk
            outcomes += [] if type(junk) is type(held) else [outcome(folder, copy)]
    errors = [error for error in outcomes if isinstance(error, InputError)]
    assert len(errors) > 50
    assert all(error.subject for error in errors)


@EACH_FAMILY
def test_null_is_as_good_as_absent(family: str, tmp_path: Path) -> None:
    folder = model(family).write(tmp_path)
    for key in model(family).text:
        absent, null = model(family), model(family)
        del absent.text[key]
        null.text[key] = None
        a, b = outcome(folder, absent), outcome(folder, null)
        if isinstance(a, InputError) or isinstance(b, InputError):
            assert str(a) == str(b), key
        else:
            assert (a.files, rules(a)) == (b.files, rules(b)), key


# --- what auto chooses


def as_f16(copy: Model, pattern: str) -> int:
    names = [name for name in copy.named(pattern) if copy.tensors[name].dtype == "BF16"]
    for name in names:
        words = np.frombuffer(copy.tensors[name].data, "<u2").astype("<u4") << 16
        copy.tensors[name] = copy.tensors[name]._replace(dtype="F16", data=words.view("<f4").astype("<f2").tobytes())
    return len(names)


def test_auto_tells_when_matrices_are_of_several_types(tmp_path: Path) -> None:
    """The first matrix decided for all, without a word about the others."""
    copy = model("step35")
    count = as_f16(copy, r"layers\.0\.mlp\.(up|down)_proj")
    folder = copy.write(tmp_path)
    said = finding(planned(folder, Role.COMBINED), "mixed-dtypes")
    assert f" BF16, {count} F16)" in said
    assert "takes BF16" in said
    assert "mixed-dtypes" not in rules(planned(folder, Role.COMBINED, outtype="bf16"))


@EACH_FAMILY
def test_auto_has_nothing_to_tell_of_one_type(family: str, tmp_path: Path) -> None:
    """Norms and routers are often stored in F32 beside BF16 matrices, and stay so in the file."""
    assert "mixed-dtypes" not in rules(planned(model(family).write(tmp_path)))


@pytest.mark.parametrize("tower", ["audio_tower.proj.weight", "visual.proj.weight"])
def test_auto_does_not_look_at_towers(tower: str, tmp_path: Path) -> None:
    copy = model("step35")
    first = min(tensor.part for tensor in copy.tensors.values())
    copy.tensors["a." + tower] = stored(np.zeros((4, 4), "<f2"), first)
    plan = planned(copy.write(tmp_path), Role.COMBINED)
    assert plan.files[0].path.name.endswith("-BF16.gguf")
    assert "mixed-dtypes" not in rules(plan)
