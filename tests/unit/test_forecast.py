"""The forecast of every fault of the table, from the headers that a plan gives; and of builds that are not here."""

from __future__ import annotations

from functools import cache

import pytest
from families import FAMILIES
from fault_tables import FAULTS
from faults import LOADS, WRONG, Edit, Fault, edited, entry, every, first

from nextn.convert.pipeline import plan
from nextn.convert.planner import Options
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, array, string, u32
from nextn.gguf_schema.errors import UsageError
from nextn.gguf_schema.types import ValueType
from nextn.validators.forecast import Forecast, forecast

B11549, BEFORE_HEADS, PULL_REQUEST = "llama.cpp@b11549", "llama.cpp@0c1e570", "llama.cpp PR 28243"
COMBINED, TRUNK, MTP, SHARED = Role
RATIOS = "attention.compress_ratios"


@cache
def good(family: str) -> dict[Role, Contents]:
    planned = plan(FAMILIES[family].checkpoint, Options(tuple(Role), "f32"))
    return {file.role: file.contents for file in planned.files}


def rows(contents: Contents, draft: Contents | None = None, runtime: str = B11549) -> dict[str, Forecast]:
    return {row.as_: row for row in forecast(contents, draft, runtime)}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_forecast_as_the_library_takes_it(fault: Fault) -> None:
    found = rows(edited(good(fault.family)[fault.base], fault.edit))
    for use, expected in (("main", fault.main), ("draft", fault.draft)):
        # Headers do not show what is wrong with data.
        outcome = LOADS if fault.edit.data and expected.outcome == WRONG else expected.outcome
        assert (found[use].outcome, expected.text in found[use].message) == (outcome, True), found[use]


@pytest.mark.parametrize("family", FAMILIES)
def test_good_pairs_load(family: str) -> None:
    files = good(family)
    for model in (COMBINED, TRUNK):
        for draft in (COMBINED, MTP):
            assert rows(files[model], files[draft])["paired"].outcome == LOADS


def test_a_pair_ends_where_its_first_file_ends() -> None:
    files = good("qwen4exp")
    no_head = edited(files[COMBINED], drop=r"blk\.8\.ffn_up_exps.weight")
    found = rows(no_head, files[MTP])
    # Drafting makes llama.cpp load the model's own head too, which it does not need.
    assert (found["main"].outcome, found["draft"].outcome, found["paired"].outcome) == ("loads", "loads", "refuses")
    assert "blk.8.ffn_up_exps.weight" in found["paired"].message
    assert rows(files[TRUNK], files[SHARED])["paired"].message == (
        "error loading model: check_tensor_dims: tensor 'token_embd.weight' not found"
    )


def test_a_pair_of_other_widths_aborts_and_one_of_other_vocabularies_drafts_nonsense() -> None:
    step35, glm = good("step35"), good("glm5-next")
    qwen = good("qwen4exp")
    found = rows(glm[TRUNK], qwen[MTP])["paired"]
    assert found.outcome == "aborts"
    assert "MTP input row width must match the target h_nextn width" in found.message
    found = rows(glm[TRUNK], step35[MTP])["paired"]
    assert found.outcome == "loads silently wrong"
    assert "vocabularies differ" in found.message


# qwen4exp.md 7.2, glm5-next.md 7
@pytest.mark.parametrize(
    ("family", "base", "edit", "outcome", "text"),
    [
        ("step35", COMBINED, Edit(), "loads", ""),
        ("step35", MTP, Edit(), "segfaults", ""),
        ("qwen4exp", TRUNK, Edit(), "loads", ""),
        ("qwen4exp", COMBINED, Edit(drop=r"blk\.8\..*"), "loads", ""),
        ("qwen4exp", COMBINED, Edit(), "refuses", "wrong number of tensors; expected 246, got 214"),
        ("qwen4exp", COMBINED, Edit(remove_keys="nextn_predict_layers"), "refuses",
         "wrong number of tensors; expected 246, got 240"),
        ("qwen4exp", MTP, Edit(), "refuses", "tensor 'output_hc_norm.weight' not found"),
        ("qwen4exp", SHARED, Edit(), "refuses", "tensor 'token_embd.weight' not found"),
        ("qwen4exp", COMBINED, Edit(keys={RATIOS: first(8)}), "refuses", "wrong array length; expected 9, got 8"),
        ("qwen4exp", TRUNK, Edit(drop="output_hc_.*"), "refuses", "tensor 'output_hc_norm.weight' not found"),
        ("qwen4exp", TRUNK, Edit(keys={"attention.indexer.top_k": u32(9)}), "loads", ""),
        ("qwen4exp", TRUNK, Edit(keys={RATIOS: entry(3, 2)}), "loads", ""),
        ("glm5-next", COMBINED, Edit(), "loads", ""),
        ("glm5-next", TRUNK, Edit(), "loads", ""),
        ("glm5-next", COMBINED, Edit(drop=r"blk\.6\..*"), "refuses", "tensor 'blk.6.attn_norm.weight' not found"),
        ("glm5-next", MTP, Edit(), "refuses", "tensor 'blk.0.attn_norm.weight' not found"),
        ("glm5-next", COMBINED, Edit(drop=r"blk\.0\.attn_norm.weight"), "refuses",
         "tensor 'blk.0.attn_norm.weight' not found"),
        ("glm5-next", COMBINED, Edit(drop=r".*eh_proj.weight"), "refuses",
         "tensor 'blk.6.nextn.eh_proj.weight' not found"),
    ],
)  # fmt: skip
def test_a_build_before_the_heads_came(family: str, base: Role, edit: Edit, outcome: str, text: str) -> None:
    found = rows(edited(good(family)[base], edit), runtime=BEFORE_HEADS)["main"]
    assert (found.outcome, text in found.message) == (outcome, True), found


def test_a_build_before_the_heads_came_does_not_draft() -> None:
    found = rows(good("glm5-next")[COMBINED], runtime=BEFORE_HEADS)["draft"]
    assert (found.outcome, found.message) == ("refuses", "NextN graph not implemented")
    assert rows(good("qwen4exp")[COMBINED], runtime=BEFORE_HEADS)["draft"].outcome == "refuses"


# qwen4exp.md 7.3 and 7.5
@pytest.mark.parametrize(
    ("base", "edit", "use", "outcome", "text"),
    [
        (COMBINED, Edit(), "main", "loads", ""),
        (COMBINED, Edit(), "draft", "loads", ""),
        (SHARED, Edit(), "draft", "loads", ""),
        (SHARED, Edit(), "main", "refuses", "no token embedding to build an ordinary graph from"),
        (MTP, Edit(), "main", "loads silently wrong", "no trunk"),
        (MTP, Edit(keys={RATIOS: entry(-1, 0)}), "draft", "loads", ""),
        (MTP, Edit(keys={"ple.layers": array(ValueType.INT32, [1])}), "draft", "refuses", "ple.ngram_size"),
        (COMBINED, Edit(drop=r"blk\.0\.hc_attn_norm.weight"), "main", "refuses",
         "tensor 'blk.0.hc_attn_norm.weight' not found"),
    ],
)  # fmt: skip
def test_the_pull_request_that_forks_carry(base: Role, edit: Edit, use: str, outcome: str, text: str) -> None:
    found = rows(edited(good("qwen4exp")[base], edit), runtime=PULL_REQUEST)[use]
    assert (found.outcome, text in found.message) == (outcome, True), found


def test_the_pull_request_is_of_no_account_for_other_families() -> None:
    assert not rows(good("step35")[COMBINED], runtime=PULL_REQUEST)


def test_an_older_build_does_not_know_the_family() -> None:
    (found,) = forecast(good("glm5-next")[TRUNK], runtime="llama.cpp@older")
    assert (found.as_, found.outcome) == ("main", "refuses")
    assert found.message == "error loading model: unknown model architecture: 'glm5-next'"


def test_every_runtime_is_forecast_with_its_source() -> None:
    found = forecast(good("qwen4exp")[COMBINED])
    assert {row.runtime for row in found} == {B11549, BEFORE_HEADS, PULL_REQUEST, "llama.cpp@older"}
    assert all(row.source for row in found)
    assert set(found[0].as_json()) >= {"runtime", "as", "outcome", "message"}


def test_an_unknown_runtime_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="no such runtime"):
        forecast(good("step35")[TRUNK], runtime="llama.cpp@b1")


def other(edit: Edit, architecture: str = "glm4moe") -> Contents:
    """A file of an architecture without tables, made from a step35 one."""
    renamed = edited(good("step35")[COMBINED], edit)
    keys = {key.replace("step35.", f"{architecture}."): value for key, value in renamed.keys.items()}
    return Contents({**keys, "general.architecture": string(architecture)}, renamed.tensors)


@pytest.mark.parametrize(
    ("edit", "use", "outcome", "text"),
    [
        (Edit(remove_keys="nextn_predict_layers"), "main", "refuses",
         "wrong number of tensors; expected 130, got fewer"),
        (Edit(remove_keys="nextn_predict_layers", drop=r"blk\.[567]\..*"), "draft", "refuses", "context type MTP"),
        (Edit(keys={"nextn_predict_layers": u32(9)}), "main", "aborts", "hparams.n_layer_nextn <= hparams.n_layer_all"),
        (Edit(keep=r"blk\.[567]\..*|output.*|token_embd.*"), "main", "segfaults", "trunk"),
        (Edit(drop=r"blk\.0\.attn_norm.weight"), "main", "loads silently wrong", "counts as absent"),
        (Edit(remove_keys="tokenizer.ggml.model"), "main", "refuses", "tokenizer.ggml.model"),
    ],
)  # fmt: skip
def test_an_architecture_without_tables(edit: Edit, use: str, outcome: str, text: str) -> None:
    found = rows(other(edit))[use]
    assert (found.outcome, text in found.message) == (outcome, True), found


def test_nothing_is_claimed_of_a_good_file_without_tables() -> None:
    assert not rows(other(Edit()))
    trunk = Edit(drop=r"blk\.[567]\..*", remove_keys="nextn_predict_layers")
    assert "main" not in rows(other(trunk, "llama"))


def test_hostile_keys_are_forecast_too() -> None:
    files = good("step35")
    for edit in (
        Edit(keys={"block_count": u32(4_000_000_000)}),
        Edit(keys={"attention.head_count": u32(0), "attention.head_count_kv": u32(0)}),
        Edit(keys={"attention.sliding_window_pattern": array(ValueType.BOOL, [True] * 513)}),
        Edit(keys={"attention.head_count": every(0)}),
        Edit(keys={"swiglu_clamp_exp": array(ValueType.STRING, ["x"] * 8)}),
        Edit(remove_keys="general.architecture"),
        Edit(remove_keys=".*"),
        Edit(drop=".*"),
    ):
        assert all(row.message for row in forecast(edited(files[COMBINED], edit)))
