"""Heads, roles and output matrices: what the tensors say, what the configuration says, and what may be written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from checkpoints import Model, finding, model, planned, refusal
from families import FAMILIES

from nextn.convert.pipeline import convert
from nextn.convert.planner import Options
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.shards import open_gguf

if TYPE_CHECKING:
    from pathlib import Path

    from nextn.convert.plan import Plan

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)
HEAD_KEY = {
    "step35": "num_nextn_predict_layers", "qwen4exp": "mtp_num_hidden_layers", "glm5-next": "num_nextn_predict_layers",
}  # fmt: skip
HEAD = {"step35": r"layers\.[567]\.", "qwen4exp": r"^mtp\.", "glm5-next": r"layers\.6\."}
HEADS = {"step35": 3, "qwen4exp": 1, "glm5-next": 1}
HEAD_PART, SHARED_PART, TRUNK_PART = "mtp.safetensors", "model-00001.safetensors", "model-00002.safetensors"


def in_parts(family: str, *without: str) -> Model:
    """A copy whose head has a file of its own, as have embeddings, output matrix and last norm; some files are lost."""
    copy = model(family)
    for name, tensor in copy.tensors.items():
        shared = re.search(r"^lm_head|embed_tokens|model\.norm\.", name)
        part = HEAD_PART if re.search(HEAD[family], name) else SHARED_PART if shared else TRUNK_PART
        copy.tensors[name] = tensor._replace(part=part)
    copy.without = set(without)
    return copy


def value(plan: Plan, role: Role, key: str) -> object:
    (file,) = [file for file in plan.files if file.role is role]
    held = file.contents.get(key)
    return held and held.value


# --- head or no head


@EACH_FAMILY
@pytest.mark.parametrize("declared", [None, 0])
def test_a_head_that_the_configuration_does_not_declare(family: str, declared: int | None, tmp_path: Path) -> None:
    """Cases C01 and C06: tensors decide, and the disagreement is said."""
    copy = model(family)
    copy.text.pop("mtp", None)
    copy.text[HEAD_KEY[family]] = declared
    plan = planned(copy.write(tmp_path), require_mtp=True)
    heads = HEADS[family]
    assert [file.role for file in plan.files] == list(Role)
    assert value(plan, Role.COMBINED, "nextn_predict_layers") == heads
    said = "does not say so" if declared is None else "says 0"
    tensors = f"the tensors hold {heads} head{'s' * (heads > 1)}"
    assert f"{HEAD_KEY[family]}: {tensors}, config.json {said}; the tensors decide" in finding(plan, "head-count")


@EACH_FAMILY
def test_a_declared_head_that_is_not_there(family: str, tmp_path: Path) -> None:
    """Cases C02 and C10: no file declares a head that the tensors do not back."""
    copy = model(family)
    lost = set(copy.drop(HEAD[family]))
    plan = planned(copy.write(tmp_path), Role.COMBINED)
    (file,) = plan.files
    assert file.role is Role.TRUNK
    whole = planned(model(family).write(tmp_path / "whole"), Role.TRUNK)
    assert file.header == whole.files[0].header
    assert {d.name for d in whole.dropped} - {d.name for d in plan.dropped} == lost
    heads = HEADS[family]
    assert f"the tensors hold 0 heads, config.json says {heads}; the tensors decide" in finding(plan, "head-count")
    assert "a trunk file is written instead of a combined one" in finding(plan, "no-head")


@EACH_FAMILY
@pytest.mark.parametrize("role", [Role.MTP, Role.MTP_SHARED])
def test_no_head_to_write(family: str, role: Role, tmp_path: Path) -> None:
    copy = model(family)
    copy.drop(HEAD[family])
    error = refusal(folder := copy.write(tmp_path), Role.TRUNK, role)
    assert (error.code, error.subject) == ("no-head", str(folder))
    assert error.message == f"holds no head, which --emit {role} needs"
    assert "--emit trunk" in str(error.remedy)


@EACH_FAMILY
def test_require_mtp(family: str, tmp_path: Path) -> None:
    copy = model(family)
    copy.drop(HEAD[family])
    error = refusal(copy.write(tmp_path), Role.TRUNK, require_mtp=True)
    assert (error.code, error.message) == ("no-head", "holds no head, which --require-mtp needs")


@EACH_FAMILY
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("spelling", ["mtp.block.0.", "nextn.0.", "model.mtp_layers.0."])
def test_a_head_in_an_unknown_spelling_stops(family: str, role: Role, spelling: str, tmp_path: Path) -> None:
    """Case C08: neither absent nor present. The list of names is the message, whatever was asked for."""
    copy = model(family)
    first = {"step35": r"^model\.layers\.7\.", "qwen4exp": r"^mtp\.(layers\.0\.)?"}.get(
        family, r"^model\.\w+\.layers\.6\."
    )
    copy.rename(first, spelling)
    renamed = sorted(copy.named(f"^{spelling}"))
    error = refusal(copy.write(tmp_path), role)
    assert error.code == "unknown-tensors"
    assert error.message.startswith(f"{len(renamed)} tensors with names that no rule knows ({len(renamed)} of them ")
    assert all(name in error.message for name in renamed[:8])
    assert f"… {len(renamed) - 8} more" in error.message
    assert "look like a head's" in error.message


def test_an_unknown_name_comes_with_the_nearest_rule(tmp_path: Path) -> None:
    copy = model("step35")
    copy.rename(r"layers\.1\.self_attn\.q_proj\.weight", "layers.1.self_attn.q_projection.weight")
    error = refusal(copy.write(tmp_path))
    assert error.code == "unknown-tensors"
    line = "  model.layers.1.self_attn.q_projection.weight  (nearest rule: layers.{}.self_attn.q_proj.weight)"
    assert line in error.message.splitlines()
    assert "head" not in error.message


def test_a_head_between_others_is_missing(tmp_path: Path) -> None:
    copy = model("step35")
    copy.drop(r"layers\.6\.")
    error = refusal(copy.write(tmp_path))
    assert error.code == "head-gap"
    assert "layers [5, 7] stand behind a trunk of 5" in error.message


@pytest.mark.parametrize("family", ["qwen4exp", "glm5-next"])
def test_a_second_head_that_no_runtime_takes(family: str, tmp_path: Path) -> None:
    copy = model(family)
    layer = {"qwen4exp": r"^mtp\.layers\.0\.", "glm5-next": r"layers\.6\."}[family]
    for name in copy.named(layer):
        copy.tensors[name.replace("layers.0.", "layers.1.").replace("layers.6.", "layers.7.")] = copy.tensors[name]
    if family == "qwen4exp":
        copy.tensors["model.layers.9.fc_hidden.weight"] = copy.tensors["mtp.fc_hidden.weight"]
    error = refusal(copy.write(tmp_path))
    assert (error.code, error.subject) == ("unsupported-config", HEAD_KEY[family])
    assert "2 heads; runtimes take one" in error.message


# --- roles


@EACH_FAMILY
def test_trunk_and_combined_agree_on_the_trunk(family: str, tmp_path: Path) -> None:
    """Case C21: whether a head is there changes nothing in the trunk."""
    folder = model(family).write(tmp_path)
    combined, trunk = planned(folder, Role.COMBINED), planned(folder, Role.TRUNK)
    there = {p.info.name: (p.info.ne, p.info.type, p.recipe.note, p.recipe.sources) for p in combined.payload}
    for payload in trunk.payload:
        note, sources = there[payload.info.name][2:]
        assert (payload.recipe.note, [s.name for s in payload.recipe.sources]) == (note, [s.name for s in sources])
        assert (payload.info.ne, payload.info.type) == there[payload.info.name][:2]


def test_a_qwen_head_has_its_own_mixer_and_no_ngrams(tmp_path: Path) -> None:
    """Cases C11 and C12: 31 hub tensors become 32, and each is accounted for."""
    plan = planned(model("qwen4exp").write(tmp_path), Role.MTP)
    (file,) = plan.files
    names = {tensor.name for tensor in file.tensors}
    assert len(names) == 34
    assert {f"blk.8.nextn.hc_head_{part}.weight" for part in ("norm", "down", "up")} < names
    assert not [key for key in file.keys if ".ple." in key]
    sources = {source.name for payload in plan.payload for source in payload.recipe.sources}
    assert sum(name.startswith("mtp.") for name in sources) == 31
    source_names = set(model("qwen4exp").tensors)
    assert sources | {dropped.name for dropped in plan.dropped} == source_names


@EACH_FAMILY
def test_every_source_is_used_or_listed_as_dropped_once(family: str, tmp_path: Path) -> None:
    for role in Role:
        plan = planned(model(family).write(tmp_path / role), role)
        used = {source.name for payload in plan.payload for source in payload.recipe.sources} - {"rope_freqs"}
        dropped = [dropped.name for dropped in plan.dropped]
        assert len(dropped) == len(set(dropped))
        assert used.isdisjoint(dropped)
        assert used | set(dropped) == set(model(family).tensors)
        assert all(dropped.reason for dropped in plan.dropped)


# --- missing files


@EACH_FAMILY
def test_a_missing_head_file_does_not_stop_a_trunk(family: str, tmp_path: Path) -> None:
    """Case C28."""
    whole = planned(in_parts(family).write(tmp_path / "whole"), Role.TRUNK)
    plan = planned(in_parts(family, HEAD_PART).write(tmp_path), Role.TRUNK)
    assert plan.files[0].header == whole.files[0].header
    assert HEAD_PART in finding(plan, "missing-tensors")


@EACH_FAMILY
@pytest.mark.parametrize("role", [Role.COMBINED, Role.MTP, Role.MTP_SHARED])
def test_a_missing_head_file_stops_the_rest(family: str, role: Role, tmp_path: Path) -> None:
    copy = in_parts(family, HEAD_PART)
    lost = [name for name, tensor in copy.tensors.items() if tensor.part == HEAD_PART]
    error = refusal(copy.write(tmp_path), Role.TRUNK, role)
    assert (error.code, error.subject) == ("missing-tensors", HEAD_PART)
    assert error.message.startswith(f"{len(lost)} tensors needed for {role} not there: ")
    assert error.message.split(": ")[1].split(", ")[0] in lost
    assert error.remedy == f"download {HEAD_PART} again; --emit trunk can proceed"


@EACH_FAMILY
def test_a_head_needs_only_its_own_files(family: str, tmp_path: Path) -> None:
    """Case C11: the index, the file of the head and the one with the embeddings are enough."""
    whole = planned(in_parts(family).write(tmp_path / "whole"), Role.MTP, Role.MTP_SHARED)
    folder = in_parts(family, TRUNK_PART).write(tmp_path)
    alone = planned(folder, Role.MTP, Role.MTP_SHARED)
    assert [file.header for file in alone.files] == [file.header for file in whole.files]
    error = refusal(folder, Role.COMBINED)
    if family == "qwen4exp":
        assert (error.code, error.subject) == ("missing-constant", "layers.1.ple.ple_embedding.layer_multipliers")
        assert error.message.endswith(f"it should be in {TRUNK_PART}")
        assert "--emit mtp" in str(error.remedy)
    else:
        assert (error.code, error.subject) == ("missing-tensors", TRUNK_PART)
        assert str(error.remedy).endswith("; --emit mtp,mtp-shared can proceed")


def test_a_shared_sidecar_without_the_embeddings_carries_no_hash(tmp_path: Path) -> None:
    folder = in_parts("qwen4exp", SHARED_PART, TRUNK_PART).write(tmp_path)
    plan = planned(folder, Role.MTP_SHARED)
    assert "nextn.target.token_embd_sha256" not in plan.files[0].keys
    assert "which target it belongs to" in finding(plan, "no-target-hash")
    (output,) = convert(folder, tmp_path / "out", options=Options((Role.MTP_SHARED,))).outputs
    assert len(open_gguf(output.path).contents.tensors) == 32
