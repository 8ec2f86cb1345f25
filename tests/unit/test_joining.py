"""What a joined file says, and each reason against a pair."""

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
    with_key,
    with_number,
    with_tensor,
    with_type,
    without,
    without_keys,
)

from nextn.convert.surgery.joining import join, rehydrate
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, Value, array, boolean, string, u32
from nextn.gguf_schema.edit import Edit
from nextn.gguf_schema.errors import NextnError, UsageError, VerdictError
from nextn.gguf_schema.types import BF16, Q8_0, ValueType

BASE_TRUNK = generic("qwen35moe", (0, 1), (), block_count=2)
BASE_HEAD = generic("qwen35moe", (), (2,), block_count=3, nextn_predict_layers=1)
KV = "attention.head_count_kv"


def number(edit: Edit, key: str) -> object:
    value = edit.contents("joined").get(key)
    return None if value is None else list(value.items) if value.element else value.value


def refusal(trunk: Contents, head: Contents, *, shared: bool = False) -> NextnError:
    operation = rehydrate if shared else join
    with pytest.raises(NextnError) as caught:
        operation(trunk, head)
    return caught.value


def sources(edit: Edit) -> list[tuple[str, int]]:
    """Names of the tensors, and which of the two files each is of."""
    assert all(tensor.is_copy for tensor in edit.tensors)
    return [(tensor.info.name, tensor.file) for tensor in edit.tensors]


# --- what comes out


def test_the_trunk_comes_first_and_the_head_behind() -> None:
    edit = join(BASE_TRUNK, BASE_HEAD)
    heads = [name for name in BASE_HEAD.tensors if name.startswith("blk.2.")]
    assert sources(edit) == [*((name, 0) for name in BASE_TRUNK.tensors), *((name, 1) for name in heads)]
    assert (number(edit, "block_count"), number(edit, "nextn_predict_layers")) == (3, 1)


def test_keys_of_the_head_stand_where_they_stood() -> None:
    whole = planned("step35")
    edit = join(planned("step35", TRUNK), planned("step35", MTP))
    assert list(edit.keys) == list(whole.keys)


@pytest.mark.parametrize(
    ("ours", "theirs", "want"),
    [
        (array(ValueType.INT32, [2, 4]), array(ValueType.INT32, [2, 4, 8]), [2, 4, 8]),
        # One value stands for all blocks.
        (u32(2), array(ValueType.INT32, [2, 2, 8]), [2, 2, 8]),
        (array(ValueType.INT32, [2, 2]), u32(2), [2, 2, 2]),
        (u32(2), u32(2), 2),
    ],
)
def test_arrays_get_the_heads_entries(ours: Value, theirs: Value, want: object) -> None:
    edit = join(with_key(BASE_TRUNK, KV, ours), with_key(BASE_HEAD, KV, theirs))
    assert number(edit, KV) == want


@pytest.mark.parametrize("declared", [0, 1, 3])
def test_what_a_trunk_without_head_declares_is_set_right(declared: int) -> None:
    """Case C09: a merge through transformers lost the head; the key may have stayed, with any number."""
    fine_tune = with_number(BASE_TRUNK, "nextn_predict_layers", declared)
    fine_tune = with_number(fine_tune, "block_count", 2 + declared)
    edit = join(fine_tune, BASE_HEAD)
    assert (number(edit, "block_count"), number(edit, "nextn_predict_layers")) == (3, 1)


def test_a_combined_file_lends_its_head_alone() -> None:
    base = generic("qwen35moe", (0, 1), (2,), block_count=3, nextn_predict_layers=1)
    edit = join(with_type(BASE_TRUNK, "blk.0.attn_q.weight", BF16), base)
    assert {name for name, file in sources(edit) if file == 1} == {n for n in base.tensors if n.startswith("blk.2.")}
    assert edit.tensors[3].info.type is not Q8_0


def test_heads_of_another_quantization() -> None:
    head = with_type(planned("step35", MTP), "blk.5.attn_q.weight", Q8_0)
    edit = join(planned("step35", TRUNK, "bf16"), head)
    assert {t.info.type.name for t in edit.tensors if t.info.name == "blk.5.attn_q.weight"} == {"Q8_0"}
    # The trunk's own type stays what the file says of itself.
    assert edit.keys["general.file_type"].value == 32


def test_a_head_is_replaced_when_asked() -> None:
    edit = join(planned("step35"), planned("step35", MTP, "q8_0"), replace_head=True)
    heads = {tensor.info.name for tensor in edit.tensors if tensor.file == 1}
    assert heads == {n for n in planned("step35", MTP).tensors if n.startswith(("blk.5.", "blk.6.", "blk.7."))}
    assert list(edit.keys) == list(planned("step35").keys)
    assert "3 heads replaced" in edit.changes[0]


def test_fewer_heads_than_before() -> None:
    head = without(planned("step35", MTP), "blk.6.", "blk.7.")
    head = with_number(with_number(head, "block_count", 6), "nextn_predict_layers", 1)
    for key in (
        "attention.head_count",
        KV,
        "attention.sliding_window_pattern",
        "swiglu_clamp_exp",
        "swiglu_clamp_shexp",
    ):
        value = head.keys[f"step35.{key}"]
        head = with_key(head, key, replace(value, value=value.items[:6]))
    edit = join(planned("step35"), head, replace_head=True)
    assert (number(edit, "block_count"), number(edit, "nextn_predict_layers")) == (6, 1)
    assert number(edit, KV) == items(planned("step35"), KV)[:6]


def test_the_head_goes_into_the_last_shard() -> None:
    tensors = {name: replace(t, shard=1 if name.startswith("blk.1.") else 0) for name, t in BASE_TRUNK.tensors.items()}
    edit = join(replace(BASE_TRUNK, tensors=tensors), BASE_HEAD)
    assert {tensor.info.shard for tensor in edit.tensors if tensor.file == 1} == {1}


def test_origins_are_told() -> None:
    edit = join(with_key(BASE_TRUNK, "general.name", string("Tuned")), BASE_HEAD)
    left, *told = edit.changes
    assert left == "<plan>: token_embd.weight, output_norm.weight are left out, the trunk's are taken"
    assert told == ["trunk: <plan>: called Tuned", "head: <plan>: says nothing of its origin"]


def test_a_sidecar_gets_the_matrices_and_loses_the_marks() -> None:
    edit = rehydrate(planned("step35", TRUNK), planned("step35", MTP_SHARED))
    mtp = planned("step35", MTP)
    assert [name for name, _ in sources(edit)] == list(mtp.tensors)
    assert {name for name, file in sources(edit) if file == 0} == {"token_embd.weight", "output.weight"}
    assert edit.keys == mtp.keys
    assert list(edit.keys) == list(mtp.keys)


def test_a_tied_trunk_makes_a_tied_draft() -> None:
    trunk = without(with_key(planned("step35", TRUNK), "nextn.tied_output", boolean(True)), "output.weight")
    edit = rehydrate(trunk, planned("step35", MTP_SHARED))
    assert edit.keys["nextn.tied_output"].value is True
    assert "output.weight" not in {name for name, _ in sources(edit)}


@pytest.mark.parametrize("key", ["padding_token_id", "eos_token_id"])
def test_a_fine_tune_may_have_other_special_tokens(key: str) -> None:
    """They are the trunk's in the joined file, and many fine-tunes change them."""
    trunk = with_key(planned("step35", TRUNK), f"tokenizer.ggml.{key}", u32(3))
    assert join(trunk, planned("step35", MTP)).keys[f"tokenizer.ggml.{key}"] == u32(3)


# --- what is refused


def test_the_two_files_the_other_way_round() -> None:
    for first in (COMBINED, MTP, MTP_SHARED):
        error = refusal(planned("step35", first), planned("step35", TRUNK))
        assert (error.code, "the other way round" in error.message) == ("pair-refused", True)


def test_a_head_with_the_last_ratio_of_a_fork() -> None:
    """Layout A renames nothing; joined as it is, llama.cpp would abort when it drafts."""
    ratios = array(ValueType.INT32, [0, 0, 0, 4, 0, 0, 0, 4, 0])
    head = with_key(planned("qwen4exp", MTP), "attention.compress_ratios", ratios)
    error = refusal(planned("qwen4exp", TRUNK), head)
    assert (error.code, "layout pull-request" in error.message) == ("pair-refused", True)


def test_all_reasons_at_once() -> None:
    head = with_number(planned("step35", MTP), "embedding_length", 64)
    head = with_number(head, "attention.sliding_window", 8)
    head = with_key(head, "tokenizer.ggml.pre", string("qwen35"))
    error = refusal(planned("step35", TRUNK), head)
    assert isinstance(error, VerdictError)
    assert (error.code, error.remedy) == (
        "pair-refused",
        "nextn validate Step35-Tiny-trunk-F32.gguf --draft mtp-Step35-Tiny-F32.gguf says what to do",
    )
    for reason in (
        "takes hidden rows of 64 values, the trunk gives hidden rows of 128",
        "step35.attention.sliding_window is 8 in the head, 16 in the trunk",
        "tokenizer.ggml.pre the head has pre-tokenizer 'qwen35', the trunk 'deepseek-v3'",
    ):
        assert reason in error.message


def test_a_head_of_another_size() -> None:
    """Case C09: a base with another width."""
    error = refusal(BASE_TRUNK, with_number(BASE_HEAD, "embedding_length", 16))
    assert "takes hidden rows of 16 values, the trunk gives hidden rows of 8 values" in error.message


@pytest.mark.parametrize(
    ("trunk", "head", "reason"),
    [
        (BASE_TRUNK, generic("mimo2", (), (2,), block_count=3), "is of architecture 'mimo2', the trunk of 'qwen35moe'"),
        (BASE_TRUNK, BASE_TRUNK, "want a file with a head: nothing in it can draft"),
        (BASE_HEAD, BASE_HEAD, "is mtp, want a file with a trunk: this is a draft head"),
        (
            generic("qwen35moe", (0, 1, 2), (), block_count=3),
            BASE_HEAD,
            "its head begins at blk.2, the trunk has 3 blocks",
        ),
        (
            BASE_TRUNK,
            with_key(BASE_HEAD, "tokenizer.ggml.tokens", array(ValueType.STRING, ["t0", "other"])),
            "ids mean other tokens",
        ),
        (
            BASE_TRUNK,
            with_tensor(BASE_HEAD, "token_embd.weight", (8, 16)),
            "token_embd.weight has dimensions [8, 16] in the head, [8, 32] in the trunk",
        ),
        (
            BASE_TRUNK,
            with_tensor(BASE_HEAD, "output_norm.weight", (4,)),
            "output_norm.weight has dimensions [4] in the head, [8] in the trunk",
        ),
        (
            BASE_TRUNK,
            with_tensor(BASE_HEAD, "output.weight", (8, 32)),
            "output.weight is in the head alone, and would be the trunk's too",
        ),
        # The head was trained with the output matrix of its base.
        (
            BASE_TRUNK,
            with_tensor(
                generic("qwen35moe", (0, 1), (2,), block_count=3, nextn_predict_layers=1), "output.weight", (8, 32)
            ),
            "output.weight is in the head alone, and would be the trunk's too",
        ),
        (
            BASE_TRUNK,
            with_key(BASE_HEAD, KV, array(ValueType.INT32, [2, 2, 2])),
            f"qwen35moe.{KV} is in the head alone, and says something of the trunk's blocks too",
        ),
        (
            with_key(BASE_TRUNK, KV, array(ValueType.INT32, [2, 2])),
            BASE_HEAD,
            f"qwen35moe.{KV} has an entry for each block, and the head's file has none for its own",
        ),
        (
            with_key(BASE_TRUNK, KV, array(ValueType.INT32, [2, 2])),
            with_key(BASE_HEAD, KV, array(ValueType.INT32, [2, 2])),
            f"qwen35moe.{KV} has 2 entries in the head, which should have 3",
        ),
        (
            with_key(BASE_TRUNK, KV, array(ValueType.INT32, [2])),
            with_key(BASE_HEAD, KV, array(ValueType.INT32, [2, 2, 2])),
            f"qwen35moe.{KV} has 1 entries in the trunk, which should have 2",
        ),
    ],
)
def test_reasons(trunk: Contents, head: Contents, reason: str) -> None:
    error = refusal(trunk, head)
    assert (error.code, error.exit_status) == ("pair-refused", 1)
    assert reason in error.message


def test_a_short_pattern_that_loaders_read_as_zero_stays_short() -> None:
    pattern = "attention.sliding_window_pattern"
    trunk = with_key(BASE_TRUNK, pattern, array(ValueType.BOOL, [True]))
    head = with_key(BASE_HEAD, pattern, array(ValueType.BOOL, [True]))
    assert number(join(trunk, head), pattern) == [True]


def test_a_trunk_that_has_a_head() -> None:
    error = refusal(planned("step35"), planned("step35", MTP))
    assert isinstance(error, UsageError)
    assert (error.code, error.remedy) == ("has-head", "--replace-head puts the other in its place")


def test_a_head_that_contradicts_itself() -> None:
    head = with_number(with_number(BASE_HEAD, "nextn_predict_layers", 2), "block_count", 4)
    assert refusal(BASE_TRUNK, head).code == "contradictory"


def test_a_head_in_another_layout() -> None:
    """qwen4exp.md 6.4: joined, its mixer would take the place of the trunk's."""
    head = renamed(planned("qwen4exp", MTP), "blk.8.nextn.hc_head_", "output_hc_")
    error = refusal(planned("qwen4exp", TRUNK), head)
    assert (error.code, error.remedy) == ("layout", "nextn relayout FILE -o OUT --to upstream")


@pytest.mark.parametrize("role", [TRUNK, MTP, COMBINED])
def test_only_a_sidecar_is_rehydrated(role: Role) -> None:
    error = refusal(planned("step35", TRUNK), planned("step35", role), shared=True)
    assert isinstance(error, UsageError)
    assert (error.code, error.message) == ("not-shared", f"is {role}, want mtp-shared")


def test_a_trunk_with_nothing_to_lend() -> None:
    trunk = without(planned("step35", TRUNK), "token_embd.weight", "output.weight")
    error = refusal(trunk, planned("step35", MTP_SHARED), shared=True)
    assert "token_embd.weight" in error.message
    assert "the trunk has none" in error.message


def test_a_sidecar_with_another_vocabulary() -> None:
    head = without_keys(planned("step35", MTP_SHARED), "tokenizer.ggml.tokens")
    error = refusal(planned("step35", TRUNK), head, shared=True)
    assert "has no vocabulary, the trunk has one" in error.message
