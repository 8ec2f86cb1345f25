"""What a cut keeps of keys and tensors, and what is not cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from edited_contents import (
    COMBINED,
    MTP,
    MTP_SHARED,
    TRUNK,
    generic,
    items,
    planned,
    renamed,
    with_array,
    with_key,
    with_number,
    without,
    without_keys,
)

from nextn.convert.surgery.cut import cut
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, Value, array, string, u32
from nextn.gguf_schema.errors import NextnError, UsageError, VerdictError
from nextn.gguf_schema.types import ValueType

# Two trunk blocks, one head.
SMALL = generic("qwen35moe", (0, 1), (2,), block_count=3, nextn_predict_layers=1)
CHAINED = generic("mimo2", (0, 1), (2, 3, 4), block_count=5, nextn_predict_layers=3)


def keys_of(contents: Contents, role: Role, heads: int | None = None) -> dict[str, object]:
    """The keys of a cut without their prefix: values."""
    prefix = f"{contents.architecture}."
    edit = cut(contents, role, heads)
    return {key.removeprefix(prefix): list(v.items) if v.element else v.value for key, v in edit.keys.items()}


def names(contents: Contents, role: Role, heads: int | None = None) -> set[str]:
    return {tensor.info.name for tensor in cut(contents, role, heads).tensors}


def refusal(contents: Contents, role: Role, heads: int | None = None) -> NextnError:
    with pytest.raises(NextnError) as caught:
        cut(contents, role, heads)
    return caught.value


# --- architectures without tables


def test_a_trunk_loses_the_head_and_the_keys_about_it() -> None:
    keys = keys_of(SMALL, TRUNK)
    assert (keys["block_count"], "nextn_predict_layers" in keys) == (2, False)
    assert names(SMALL, TRUNK) == {name for name in SMALL.tensors if not name.startswith("blk.2.")}


def test_a_draft_keeps_its_number_and_what_lies_outside_blocks() -> None:
    keys = keys_of(SMALL, MTP)
    assert (keys["block_count"], keys["nextn_predict_layers"]) == (3, 1)
    assert names(SMALL, MTP) == {
        "token_embd.weight",
        "output_norm.weight",
        *(name for name in SMALL.tensors if name.startswith("blk.2.")),
    }


def test_a_sidecar_is_marked() -> None:
    contents = with_key(SMALL, "general.name", string("Base"))
    keys = keys_of(contents, MTP_SHARED)
    assert keys["nextn.shared"] is True
    assert keys["nextn.target.name"] == "Base"
    # Replaced when the embedding was read: see the goldens.
    assert keys["nextn.target.token_embd_sha256"] == "<sha256 of token_embd.weight>".ljust(64, "-")
    assert names(contents, MTP) - names(contents, MTP_SHARED) == {"token_embd.weight"}


def test_the_order_stays() -> None:
    backwards = replace(SMALL, tensors=dict(reversed(SMALL.tensors.items())), keys=dict(reversed(SMALL.keys.items())))
    edit = cut(backwards, TRUNK)
    assert [t.info.name for t in edit.tensors] == [n for n in backwards.tensors if not n.startswith("blk.2.")]
    assert list(edit.keys) == [key for key in backwards.keys if not key.endswith("nextn_predict_layers")]


@pytest.mark.parametrize("type_", [ValueType.INT32, ValueType.UINT64])
def test_numbers_keep_their_type(type_: ValueType) -> None:
    contents = with_key(SMALL, "block_count", Value(type_, 3))
    assert cut(contents, TRUNK).keys["qwen35moe.block_count"] == Value(type_, 2)


def test_arrays_over_blocks_are_cut_and_others_are_not() -> None:
    contents = with_key(SMALL, "attention.head_count_kv", array(ValueType.INT32, [2, 4, 8]))
    contents = with_key(contents, "rope.dimension_sections", array(ValueType.INT32, [1, 2, 3, 4]))
    contents = with_key(contents, "attention.head_count", u32(8))
    keys = keys_of(contents, TRUNK)
    assert keys["attention.head_count_kv"] == [2, 4]
    assert keys["rope.dimension_sections"] == [1, 2, 3, 4]
    assert keys["attention.head_count"] == 8
    assert keys_of(contents, MTP)["attention.head_count_kv"] == [2, 4, 8]


def test_an_array_longer_than_the_file_stays_where_no_block_goes() -> None:
    """The loader of deepseek4 takes longer arrays of ratios."""
    contents = generic("deepseek4", (0, 1), (2,), block_count=3, nextn_predict_layers=1)
    contents = with_key(contents, "attention.compress_ratios", array(ValueType.INT32, [1, 2, 3, 4]))
    assert keys_of(contents, MTP)["attention.compress_ratios"] == [1, 2, 3, 4]
    assert keys_of(contents, TRUNK)["attention.compress_ratios"] == [1, 2]


def test_fewer_heads() -> None:
    contents = with_key(CHAINED, "attention.head_count_kv", array(ValueType.INT32, [1, 2, 3, 4, 5]))
    for role in (COMBINED, MTP):
        keys = keys_of(contents, role, 2)
        assert (keys["block_count"], keys["nextn_predict_layers"]) == (4, 2)
        assert keys["attention.head_count_kv"] == [1, 2, 3, 4]
        assert not any(name.startswith("blk.4.") for name in names(contents, role, 2))
        assert {name for name in names(contents, role, 2) if name.startswith("blk.3.")}
    # A trunk has none, however many are asked for.
    assert names(contents, TRUNK, 2) == names(contents, TRUNK)


def test_all_that_goes_has_a_reason() -> None:
    edit = cut(CHAINED, MTP, 1)
    kept = {tensor.info.name for tensor in edit.tensors}
    reasons = dict(edit.dropped)
    assert reasons.keys() == CHAINED.tensors.keys() - kept
    assert reasons["blk.0.attn_q.weight"] == "belongs to the trunk"
    assert reasons["blk.3.attn_q.weight"] == "belongs to a head, and no asked file has blk.3"
    assert ("token_embd.weight", "no asked file has it") in cut(CHAINED, MTP_SHARED).dropped


@pytest.mark.parametrize(("label", "wanted"), [("1.0K", True), ("70B", False)])
def test_a_size_label_follows_unless_it_was_chosen(label: str, wanted: bool) -> None:
    """By hand: 256 of the embedding, 8 of the norm, and blocks of 208, the head's with 144 more."""
    contents = with_key(SMALL, "general.size_label", string(label))
    # 256 + 8 + 3 · 208 + 144 = 1032; 256 + 8 + 2 · 208 = 680; 256 + 8 + 208 + 144 = 616.
    assert keys_of(contents, TRUNK)["general.size_label"] == ("0.7K" if wanted else "70B")
    assert keys_of(contents, MTP)["general.size_label"] == ("0.6K" if wanted else "70B")


# --- families


def test_qwen4exp_drafts_lose_the_table_of_the_trunk() -> None:
    whole = planned("qwen4exp")
    assert any(key.startswith("qwen4exp.ple.") for key in whole.keys)
    assert not any(key.startswith("ple.") for key in keys_of(whole, MTP))
    assert not any(name.startswith(("per_layer", "output_hc")) for name in names(whole, MTP))
    assert any(name.startswith("output_hc") for name in names(whole, TRUNK))


def test_index_share_of_old_glm_files_goes_with_the_head() -> None:
    """glm5-next.md 6.3."""
    contents = with_number(planned("glm5-next"), "attention.indexer.index_share_mtp", 1)
    assert "attention.indexer.index_share_mtp" not in keys_of(contents, TRUNK)
    assert "attention.indexer.index_share_mtp" in keys_of(contents, MTP)


def test_the_old_spelling_of_glm_is_cut_alike() -> None:
    contents = planned("glm5-next")
    keys = {key.replace("glm5-next.", "glm5next."): value for key, value in contents.keys.items()}
    old = replace(contents, keys=keys | {"general.architecture": string("glm5next")})
    assert names(old, TRUNK) == names(contents, TRUNK)
    assert keys_of(old, TRUNK)["swiglu_clamp_exp"] == items(contents, "swiglu_clamp_exp")[:6]


# --- what is refused


def test_keys_that_contradict_the_tensors() -> None:
    """Cases C02 to C05: both keys, what is there, and what to do."""
    error = refusal(without(SMALL, "blk.2."), TRUNK)
    assert (error.code, error.exit_status) == ("contradictory", 1)
    assert error.message == (
        "has the keys block_count 3 and nextn_predict_layers 1, and holds 2 trunk blocks and 0 heads"
    )
    assert error.remedy == "nextn repair FILE -o OUT"


@pytest.mark.parametrize(
    "contents",
    [
        without_keys(SMALL, "nextn_predict_layers"),
        without_keys(SMALL, "block_count"),
        with_number(SMALL, "block_count", 2),
        with_number(SMALL, "nextn_predict_layers", 2),
        without(CHAINED, "blk.4."),
    ],
)
@pytest.mark.parametrize("role", Role)
def test_other_contradictions(contents: Contents, role: Role) -> None:
    assert refusal(contents, role).code == "contradictory"


@pytest.mark.parametrize(
    ("have", "role", "message", "remedy"),
    [
        (TRUNK, MTP, "is trunk: it has no head, which mtp needs", "nextn join TRUNK HEAD gives it one"),
        (TRUNK, COMBINED, "is trunk: it has no head, which combined needs", "nextn join TRUNK HEAD gives it one"),
        (MTP, TRUNK, "is mtp: it has no trunk, which trunk needs", None),
        (MTP_SHARED, MTP, "is mtp-shared: it has no embeddings, which mtp needs", "nextn join TRUNK HEAD --emit mtp"),
        (MTP_SHARED, COMBINED, "is mtp-shared: it has no trunk, which combined needs", None),
    ],
)
def test_a_part_that_is_not_there(have: Role, role: Role, message: str, remedy: str | None) -> None:
    error = refusal(planned("step35", have), role)
    assert isinstance(error, VerdictError)
    assert (error.code, error.message, error.remedy) == ("lacks-part", message, remedy)


@pytest.mark.parametrize(("contents", "heads", "most"), [(SMALL, 2, 1), (CHAINED, 4, 3)])
def test_more_heads_than_there_are(contents: Contents, heads: int, most: int) -> None:
    error = refusal(contents, MTP, heads)
    assert isinstance(error, UsageError)
    plural = "" if most == 1 else "s"
    assert (error.code, error.message) == ("no-such-heads", f"has {most} head{plural}: {heads} cannot be kept")


def test_a_head_that_is_missing_between_others() -> None:
    """Step35-Tiny has three, behind five blocks: a draft with a gap would not load, and would not be noticed."""
    contents = without(planned("step35", COMBINED), "blk.6.")
    for role in (MTP, MTP_SHARED, COMBINED):
        error = refusal(contents, role)
        assert (error.code, "blk.6" in error.message) == ("head-missing", True)
    assert names(contents, MTP, 1) == names(planned("step35", COMBINED), MTP, 1)
    assert names(contents, TRUNK) == names(planned("step35", COMBINED), TRUNK)


def test_a_head_as_a_whole() -> None:
    contents = generic("gemma4-assistant", (), (0, 1), block_count=2, nextn_predict_layers=2)
    assert refusal(contents, TRUNK).code == "whole-head"


def test_names_of_another_layout() -> None:
    """qwen4exp.md 6.4: a head's mixer under the trunk's names is not certain to be the head's."""
    contents = renamed(planned("qwen4exp", MTP), "blk.8.nextn.hc_head_", "output_hc_")
    error = refusal(contents, MTP_SHARED)
    assert (error.code, error.remedy) == ("layout", "nextn relayout FILE -o OUT --to upstream")
    assert "rocmfpx" in error.message


def test_a_file_without_blocks() -> None:
    contents = with_number(generic("llama", (), ()), "block_count", 0)
    assert refusal(contents, TRUNK).code == "no-blocks"


def test_heads_of_a_longer_pattern_are_kept_in_order() -> None:
    contents = with_array(planned("step35"), "attention.sliding_window_pattern", [1, 0, 1, 0, 1, 0, 1, 0])
    assert keys_of(contents, TRUNK)["attention.sliding_window_pattern"] == [1, 0, 1, 0, 1]
