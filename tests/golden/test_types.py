"""Matrices in every output type are what gguf-py makes of the golden float32 values; floors, fallbacks and rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import finding, model, planned
from command import STEP, result, run
from families import FAMILIES

from nextn.convert.pipeline import convert
from nextn.convert.planner import Options
from nextn.convert.tensor_types import parse_rule
from nextn.gguf_schema.architecture import Role
from nextn.runtime.engines import llama_cpp

Converted = Callable[[str], dict[Role, Path]]

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)
FOUR_OR_FIVE_BITS = ("q4_0", "q4_1", "q5_0", "q5_1")

# Tensors that stay Q8_0 when less is asked for: by family, names without their blocks.
FLOORS = {
    "step35": "",
    "qwen4exp": r"per_layer_token_embd|hc_(attn|ffn)_inject|ssm_(alpha|beta)|indexer\.[qk]_proj",
    "glm5-next": r"ssm_[fg]_[ab]\.|ssm_beta|attn_(q_[ab]|kv_a_mqa|k_b|v_b)\.|indexer\.attn_(q_b|k)\.|eh_proj",
}


def readers(paths: dict[Role, Path]) -> dict[str, Any]:
    """Every tensor of the combined file, by name, through the library's reader."""
    return {tensor.name: tensor for tensor in gguf.GGUFReader(paths[Role.COMBINED]).tensors}


def wanted(name: str, rows: int, outtype: str, family: str) -> str:
    """The type of a matrix by hand: F16 where rows are not whole blocks, floors, or what was asked for."""
    type_ = outtype.upper()
    if FLOORS[family] and re.search(FLOORS[family], name):
        type_ = "Q8_0"
    return "F16" if rows % 32 else type_


@pytest.fixture(scope="module", params=[(f, t) for f in FAMILIES for t in FOUR_OR_FIVE_BITS], ids="-".join)
def quantized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Any, Any]:
    family, outtype = request.param
    done = convert(FAMILIES[family].checkpoint, tmp_path_factory.mktemp("types"), outtype=outtype)
    return family, outtype, gguf.GGUFReader(done.outputs[0].path), done.plan


def test_every_matrix_equals_the_library(quantized: tuple[str, str, Any, Any], converted: Converted) -> None:
    family, outtype, file, _ = quantized
    values = readers(converted(family))
    golden = {t["name"]: t["type"] for t in FAMILIES[family].read("gguf/combined-q8_0.json")["tensors"]}
    seen = set()
    for tensor in file.tensors:
        rows = int(tensor.shape[0])
        # What upstream keeps in F32 whatever is asked for, this keeps too.
        type_ = "F32" if golden[tensor.name] == "F32" else wanted(tensor.name, rows, outtype, family)
        assert tensor.tensor_type.name == type_, tensor.name
        source = values[tensor.name].data.reshape(-1, rows)
        expected = gguf.quants.quantize(source, gguf.GGMLQuantizationType[type_])
        assert tensor.data.tobytes() == expected.tobytes(), tensor.name
        seen.add(type_)
    assert {"F32", outtype.upper()} <= seen
    assert ("Q8_0" in seen) == bool(FLOORS[family])
    assert file.fields["general.file_type"].contents() == gguf.LlamaFileType[f"MOSTLY_{outtype.upper()}"]


def test_what_was_kept_wider_is_told_once(quantized: tuple[str, str, Any, Any]) -> None:
    family, outtype, file, plan = quantized
    kept = [str(found) for found in plan.findings if found.rule == "type-floor"]
    assert len(kept) == bool(FLOORS[family])
    assert all(f"suffers in {outtype.upper()}" in line for line in kept)
    fallbacks = [found for found in plan.findings if found.rule == "type-fallback"]
    narrow = [t.name for t in file.tensors if t.tensor_type.name == "F16"]
    others = [re.search(r"\(and (\d+) more tensors?\)", found.message) for found in fallbacks]
    assert len(fallbacks) + sum(int(more[1]) for more in others if more) == len(narrow)
    lengths = {int(t.shape[0]) for t in file.tensors if t.name in narrow}
    assert len(fallbacks) <= 2 * len(lengths)


def test_rows_that_are_not_whole_blocks(tmp_path: Path) -> None:
    """Latent rank and key width of the tiny GLM are no multiples of 32: a warning for all tensors of such rows."""
    done = run("convert", FAMILIES["glm5-next"].checkpoint, "-o", tmp_path, "--outtype", "q4_0")
    lines = [line for line in done.stderr.splitlines() if "not whole blocks" in line]
    assert lines == [
        "warning: blk.3.indexer.attn_q_b.weight: rows of 48 are not whole blocks of Q8_0: stored as F16"
        " (and 5 more tensors)",
        "warning: blk.3.attn_k_b.weight: rows of 24 are not whole blocks of Q8_0: stored as F16 (and 2 more tensors)",
    ]


# --- rules


def types(
    family: str, *texts: str, outtype: str = "bf16", roles: tuple[Role, ...] = (Role.COMBINED,)
) -> dict[str, str]:
    rules = tuple(parse_rule(text) for text in texts)
    plan = planned(FAMILIES[family].checkpoint, *roles, outtype=outtype, type_rules=rules)
    return {tensor.name: tensor.type.name for tensor in plan.files[0].tensors}


def test_the_first_rule_that_is_found_in_a_name_counts() -> None:
    plain = types("step35")
    ruled = types("step35", r"blk\.1\.ffn=q5_1", "ffn_(up|gate)=q8_0", r"^output=f16")
    changed = {name: type_ for name, type_ in ruled.items() if type_ != plain[name]}
    assert {changed.pop(f"blk.1.ffn_{part}.weight") for part in ("up", "gate", "down")} == {"Q5_1"}
    assert changed.pop("output.weight") == "F16"
    assert ruled["output_norm.weight"] == "F32"
    assert changed
    assert all(type_ == "Q8_0" and re.search("ffn_(up|gate)", name) for name, type_ in changed.items())
    assert ruled["blk.1.ffn_norm.weight"] == "F32"


@EACH_FAMILY
def test_a_broad_rule_leaves_what_runtimes_need_in_float32(family: str, tmp_path: Path) -> None:
    """llama.cpp aborts when a norm, a convolution or a decay is of another type."""
    plain, ruled = types(family), types(family, "=f16".join(("blk", "")))
    assert {name for name in plain if plain[name] == "F32"} == {name for name in ruled if ruled[name] == "F32"}
    assert {type_ for name, type_ in ruled.items() if name.startswith("blk.")} == {"F16", "F32"}
    pytest.importorskip("xllamacpp")
    options = Options((Role.COMBINED,), "bf16", type_rules=(parse_rule(r"blk\.0=q8_0"),))
    (output,) = convert(FAMILIES[family].checkpoint, tmp_path, options=options).outputs
    outcome = llama_cpp.run(output.path, [FAMILIES[family].prompts[0]["ids"]], n_predict=4)
    assert outcome.status == "ok", outcome.message


def test_a_rule_beats_a_floor_with_a_warning() -> None:
    rules = (parse_rule("ssm_f_a=q4_0"),)
    plan = planned(FAMILIES["glm5-next"].checkpoint, Role.COMBINED, outtype="q8_0", type_rules=rules)
    found = {t.name: t.type.name for t in plan.files[0].tensors if "ssm_f" in t.name}
    assert {type_ for name, type_ in found.items() if "ssm_f_a" in name} == {"Q4_0"}
    assert {type_ for name, type_ in found.items() if "ssm_f_b" in name} == {"Q8_0"}
    told = finding(plan, "below-floor")
    assert told.startswith("warning: blk.0.ssm_f_a.weight: ")
    assert "Q4_0" in told
    assert "Q8_0" in told


def test_a_rule_above_a_floor_needs_no_warning() -> None:
    rules = (parse_rule("ssm_f_a=bf16"), parse_rule("ssm_f_b=q8_0"))
    plan = planned(FAMILIES["glm5-next"].checkpoint, Role.COMBINED, outtype="q4_0", type_rules=rules)
    assert "below-floor" not in {found.rule for found in plan.findings}


@pytest.mark.parametrize(
    ("given", "code", "subject"),
    [
        (["nothing_like_it=q8_0"], "unused-pattern", "nothing_like_it"),
        (["norm=q8_0"], "unused-pattern", "norm"),
        (["ffn_up=q8_0", "ffn_up=q4_0", r"^blk\.99=f16"], "unused-pattern", r"^blk\.99"),
        (["(=q8_0"], "bad-pattern", "("),
        (["ffn_up=q9"], "bad-type-rule", "ffn_up=q9"),
        (["ffn_up"], "bad-type-rule", "ffn_up"),
        (["=q8_0"], "bad-type-rule", "=q8_0"),
        (["ffn_up=auto"], "bad-type-rule", "ffn_up=auto"),
    ],
)
def test_rules_that_are_refused(given: list[str], code: str, subject: str, tmp_path: Path) -> None:
    import json

    options = [word for rule in given for word in ("--tensor-type", rule)]
    done = run("convert", STEP, "-o", tmp_path / "out", *options, "--json")
    assert done.returncode == 2, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["code"] == code
    assert subject in error["subject"]
    assert not (tmp_path / "out").exists()


def test_a_pattern_may_hold_an_equals_sign() -> None:
    pattern, type_ = parse_rule("(?=output).*=Q4_0")
    assert (pattern.pattern, type_.name) == ("(?=output).*", "Q4_0")


def test_a_draft_with_small_embeddings_drafts_in_llama_cpp(tmp_path: Path, converted: Converted) -> None:
    """What maintainers recommend for self-contained drafts."""
    rule = r"^(token_embd|output)\.weight$=q4_0"
    (output,) = result("convert", STEP, "-o", tmp_path, "--mtp", "--outtype", "q8_0", "--tensor-type", rule)["outputs"]
    held = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(output["path"]).tensors}
    assert {name for name, type_ in held.items() if type_ == "Q4_0"} == {"token_embd.weight", "output.weight"}
    assert {type_ for name, type_ in held.items() if "eh_proj" in name} == {"Q8_0"}
    pytest.importorskip("xllamacpp")
    family = FAMILIES["step35"]
    prompts = [prompt["ids"] for prompt in family.prompts]
    trunk = converted("step35")[Role.TRUNK]
    outcome = llama_cpp.run(trunk, prompts, draft=Path(output["path"]), n_max=3)
    assert outcome.status == "ok", outcome.message
    golden = family.read("llama_cpp.json")["prompts"]
    assert [list(each.tokens) for each in outcome.continuations] == [each["tokens"] for each in golden]
    drafted, accepted = (sum(getattr(c, name) for c in outcome.continuations) for name in ("n_drafted", "n_accepted"))
    whole = [each["draft"]["trunk+mtp n_max=3"] for each in golden]
    assert accepted / drafted > 0.8 * sum(each["accepted"] for each in whole) / sum(each["drafted"] for each in whole)


def test_auto_follows_the_first_matrix(tmp_path: Path) -> None:
    copy = model("step35")
    for name, tensor in copy.tensors.items():
        if tensor.dtype == "BF16":
            values = (np.frombuffer(tensor.data, "<u2").astype("<u4") << 16).view("<f4").astype("<f2")
            copy.tensors[name] = tensor._replace(dtype="F16", data=values.tobytes())
    plan = planned(copy.write(tmp_path), Role.COMBINED)
    assert {tensor.type.name for tensor in plan.files[0].tensors} == {"F16", "F32"}
    assert plan.files[0].path.name.endswith("-F16.gguf")
