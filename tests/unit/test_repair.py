"""Repair: keys become what the tensors prove, each change with its reason; what two repairs would fit is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from edited_contents import (
    COMBINED,
    GLM,
    HEADS_KV,
    MTP,
    MTP_SHARED,
    PATTERN,
    QWEN,
    RATIOS,
    RECURRENT,
    STEP,
    TRUNK,
    TYPES,
    generic,
    items,
    planned,
    taking,
    with_array,
    with_key,
    with_number,
    without,
    without_keys,
)
from edited_contents import renamed as renamed_tensors

from nextn.convert.surgery.repair import repair
from nextn.convert.surgery.repair_arrays import PROOFS_OF, proofs
from nextn.gguf_schema.architecture import Role, Rule
from nextn.gguf_schema.contents import Contents, Value, array, i32, string, u32
from nextn.gguf_schema.edit import Edit, taken
from nextn.gguf_schema.errors import VerdictError
from nextn.gguf_schema.nextn_architectures import NEXTN_ARCHITECTURES, array_keys
from nextn.gguf_schema.reading import ARCHITECTURES
from nextn.gguf_schema.shards import open_gguf
from nextn.gguf_schema.types import ValueType
from nextn.validators.examine import examine_contents
from nextn.validators.findings import Severity

FAMILIES = (STEP, QWEN, GLM)
COUNTS = {STEP: (5, 3), QWEN: (8, 1), GLM: (6, 1)}
COUNT, NEXTN, ARCHITECTURE = "block_count", "nextn_predict_layers", "general.architecture"
EACH = pytest.mark.parametrize("family", FAMILIES)
MARKED = sorted(name for name, known in NEXTN_ARCHITECTURES.items() if not known.whole)
CLAMPS = ("swiglu_clamp_exp", "swiglu_clamp_shexp")


def heads_of(family: str) -> tuple[str, ...]:
    trunk, heads = COUNTS[family]
    return tuple(f"blk.{trunk + k}." for k in range(heads))


def mended(contents: Contents, shards: int = 1) -> Edit:
    """The repair; it leaves the tensors, is a fixed point, and no error that a file may have."""
    edit = repair(contents, shards)
    assert edit.tensors == tuple(map(taken, contents))
    assert not edit.dropped
    again = edit.contents(contents.name)
    assert not repair(again, shards).changes
    errors = [finding for finding in examine_contents(again).findings if finding.severity is Severity.ERROR]
    assert not errors
    return edit


def told(keys: Mapping[str, Value]) -> dict[str, Value]:
    """The keys, without the one that repeats the number of parameters for people."""
    return {key: value for key, value in keys.items() if key != "general.size_label"}


def doubts(contents: Contents, shards: int = 1) -> str:
    with pytest.raises(VerdictError) as caught:
        repair(contents, shards)
    assert caught.value.code == "ambiguous-repair"
    assert caught.value.subject == contents.name
    return caught.value.message


def with_arrays(contents: Contents, length: int, *keys: str) -> Contents:
    for key in keys:
        contents = with_array(contents, key, (items(contents, key) * 2)[:length])
    return contents


# Healthy files


@EACH
@pytest.mark.parametrize("role", Role)
def test_a_healthy_file_is_unchanged(family: str, role: Role, converted: Callable[[str], dict[Role, Path]]) -> None:
    contents = open_gguf(converted(family)[role]).contents
    edit = repair(contents)
    assert edit.keys is contents.keys
    assert not edit.changes


@pytest.mark.parametrize("architecture", MARKED)
def test_a_healthy_file_of_any_architecture_is_unchanged(architecture: str) -> None:
    numbers = {COUNT: 4, NEXTN: 1, "attention.key_length": 8}
    for trunk, heads, values in ((range(3), (3,), numbers), ((), (3,), numbers), (range(4), (), {COUNT: 4})):
        contents = generic(architecture, trunk, heads, **values)
        assert repair(contents).keys is contents.keys


@pytest.mark.parametrize("architecture", ["llama", "nobody"])
def test_files_without_nextn_blocks_are_not_judged(architecture: str) -> None:
    contents = generic(architecture, range(3), (), **{COUNT: 5})
    assert repair(contents).keys is contents.keys


def test_a_head_count_of_zero_and_an_old_spelling_are_no_faults() -> None:
    contents = with_number(planned(STEP, TRUNK), NEXTN, 0)
    assert repair(contents).keys is contents.keys
    old = respelt(planned(GLM), "glm5next")
    assert repair(old).keys is old.keys


def test_no_blocks_at_all_are_nothing_to_judge_by() -> None:
    contents = replace(planned(STEP), tensors={})
    assert repair(contents).keys is contents.keys


# Numbers of blocks


@EACH
def test_c02_a_head_is_declared_and_not_there(family: str) -> None:
    """Cases C02 to C05, C10: two keys and the arrays over blocks become those of the trunk that the file is."""
    trunk, heads = COUNTS[family]
    contents = without(planned(family), *heads_of(family))
    edit = mended(contents)
    assert told(edit.keys) == told(planned(family, TRUNK).keys)
    gone = f"blk.{trunk}" if heads == 1 else f"blk.{trunk}-{trunk + heads - 1}"
    assert edit.changes[:2] == (
        f"{family}.{COUNT} {trunk + heads} → {trunk}: no tensor of {gone} is there, the blocks are blk.0-{trunk - 1}",
        f"{family}.{NEXTN} {heads} → (removed): no tensor is named blk.N.nextn.*, and the blocks are blk.0-{trunk - 1}",
    )
    arrays = [line for line in edit.changes[2:] if f"{trunk + heads} → {trunk} entries" in line]
    assert len(arrays) == len(edit.changes) - 2 == {STEP: 5, QWEN: 2, GLM: 3}[family]


@pytest.mark.parametrize("architecture", MARKED)
def test_c02_in_any_architecture(architecture: str) -> None:
    contents = generic(architecture, range(3), (), **{COUNT: 4, NEXTN: 1})
    contents = with_key(contents, "attention.head_count", array(ValueType.INT32, [2, 3, 2, 9]))
    edit = repair(contents)
    assert edit.keys[f"{architecture}.{COUNT}"] == u32(3)
    assert f"{architecture}.{NEXTN}" not in edit.keys
    assert edit.keys[f"{architecture}.attention.head_count"].items == (2, 3, 2)


def test_billions_of_heads_that_are_not_there() -> None:
    contents = planned(QWEN, TRUNK)
    edit = mended(with_number(with_number(contents, COUNT, 2**32 - 1), NEXTN, 2**32 - 9))
    assert dict(edit.keys) == dict(contents.keys)


@EACH
@pytest.mark.parametrize("role", [COMBINED, MTP, MTP_SHARED])
def test_c06_a_head_is_there_and_not_declared(family: str, role: Role) -> None:
    contents = planned(family, role)
    for spoilt in (without_keys(contents, NEXTN), with_number(contents, NEXTN, 0)):
        edit = mended(spoilt)
        assert dict(edit.keys) == dict(contents.keys)
        assert len(edit.changes) == 1
        assert "nextn tensors are in blk." in edit.changes[0]


@EACH
@pytest.mark.parametrize("name", [COUNT, NEXTN])
def test_a_missing_key_stands_where_the_table_has_it(family: str, name: str) -> None:
    contents = planned(family)
    edit = mended(without_keys(contents, name))
    assert list(edit.keys) == list(contents.keys)


@pytest.mark.parametrize("architecture", MARKED)
def test_c06_in_any_architecture(architecture: str) -> None:
    for trunk in (range(3), ()):
        contents = generic(architecture, trunk, (3,))
        for spoilt in (contents, with_number(contents, COUNT, 3), with_number(contents, NEXTN, 9)):
            edit = repair(spoilt)
            assert edit.keys[f"{architecture}.{COUNT}"] == u32(4)
            assert edit.keys[f"{architecture}.{NEXTN}"] == u32(1)
            assert not repair(edit.contents("again")).changes


@pytest.mark.parametrize("role", [COMBINED, MTP])
@pytest.mark.parametrize("count", [None, 0, 5, 6, 7, 9, 600])
@pytest.mark.parametrize("heads", [None, 0, 1, 2, 4, 9, 700])
def test_any_numbers_become_those_of_the_tensors_or_are_refused(
    role: Role, count: int | None, heads: int | None
) -> None:
    contents = without_keys(planned(STEP, role), COUNT, NEXTN)
    contents = contents if count is None else with_number(contents, COUNT, count)
    contents = contents if heads is None else with_number(contents, NEXTN, heads)
    # Without a trunk, keys that begin the heads earlier say that a head is missing.
    if role is MTP and count is not None and heads and 0 < count - heads < 5:
        assert "is there, of the heads" in doubts(contents)
    else:
        assert dict(mended(contents).keys) == dict(planned(STEP, role).keys)


def test_block_count_of_another_type_is_set_right() -> None:
    edit = mended(with_key(planned(GLM), COUNT, i32(7)))
    assert edit.changes == ("glm5-next.block_count 7 (INT32) → 7: loaders read it as UINT32 only",)


def test_the_last_of_three_heads_is_not_there() -> None:
    """Heads are chained: the first two work without the third."""
    edit = mended(without(planned(STEP), "blk.7."))
    assert [edit.keys[f"{STEP}.{name}"].value for name in (COUNT, NEXTN)] == [7, 2]
    assert len(edit.keys[f"{STEP}.attention.head_count"].items) == 7


@pytest.mark.parametrize("block", [5, 6])
@pytest.mark.parametrize("role", [COMBINED, MTP])
def test_another_of_three_heads_is_not_there(role: Role, block: int) -> None:
    text = doubts(without(planned(STEP, role), f"blk.{block}."))
    assert f"no tensor of blk.{block} is there" in text
    assert f"only blk.{'5' if block == 6 else '6-7'} stays" in text


def test_a_head_that_lost_its_own_tensors_is_not_taken_for_a_trunk_block() -> None:
    """Keys of three heads; the last has no nextn tensor, so that either it is broken or a trunk block stands wrong."""
    contents = planned(STEP)
    bare = without(contents, *(name for name in contents.tensors if name.startswith("blk.7.nextn.")))
    assert repair(bare).keys is bare.keys, "tensors that are missing are nobody's to repair"
    assert "blk.7 stands behind the first head, without a nextn tensor" in doubts(with_number(bare, NEXTN, 2))


@EACH
def test_heads_that_lost_all_their_own_tensors_are_not_run_in_the_trunk(family: str) -> None:
    """The block is then like one of the trunk's, but for what the family shows: hyper-connections, experts, kinds."""
    contents = planned(family)
    bare = without(contents, *(name for name in contents.tensors if ".nextn." in name))
    assert "has no nextn tensor, and is not like the blocks of the trunk before it" in doubts(bare)


@EACH
def test_a_head_was_declared_in_a_trunk(family: str) -> None:
    """The last trunk block would be taken for the head and never run (qwen4exp-upstream.md 3)."""
    edit = mended(with_number(planned(family, TRUNK), NEXTN, 1))
    assert dict(edit.keys) == dict(planned(family, TRUNK).keys)
    assert "has the tensors of a trunk block" in edit.changes[0]


@EACH
def test_trunk_blocks_that_are_not_there(family: str) -> None:
    trunk, _ = COUNTS[family]
    contents = planned(family, TRUNK)
    last = without(contents, f"blk.{trunk - 1}.")
    assert "fewer than declared" in doubts(last)
    both = without(planned(family), *heads_of(family), f"blk.{trunk - 1}.")
    assert "fewer than declared" in doubts(both)
    gap = without(contents, "blk.1.")
    assert repair(gap).keys is gap.keys, "the keys are right"
    assert "no tensor of blk.1 is there" in doubts(with_number(gap, NEXTN, trunk))


@EACH
def test_a_count_that_tensors_and_arrays_deny(family: str) -> None:
    """The key of the head was removed, and the count left: arrays of the trunk's length tell."""
    trunk, heads = COUNTS[family]
    contents = planned(family, TRUNK)
    edit = mended(with_number(contents, COUNT, trunk + heads))
    assert dict(edit.keys) == dict(contents.keys)
    assert f"the arrays over blocks have {trunk} entries" in edit.changes[0]


def test_a_head_at_the_beginning_has_lost_its_number() -> None:
    contents = renamed_tensors(planned(QWEN, MTP), "blk.8.", "blk.0.")
    assert "heads keep the numbers behind the trunk" in doubts(contents)


@EACH
def test_a_head_with_another_number_than_keys_and_arrays_say(family: str) -> None:
    trunk, _ = COUNTS[family]
    contents = planned(family, MTP)
    for block in heads_of(family):
        contents = renamed_tensors(contents, block, f"blk.{int(block.split('.')[1]) - 1}.")
    text = doubts(contents)
    assert f"the head stands at blk.{trunk - 1}" in text
    assert f"renumbered from {trunk}" in text


def test_the_last_trunk_block_before_heads_that_are_not_declared() -> None:
    contents = without_keys(without(planned(STEP), "blk.4."), NEXTN)
    assert "no tensor of blk.4 is there: either it was the trunk's, or it was a head" in doubts(contents)


@pytest.mark.parametrize(("keys", "says"), [((9, 1), ""), ((8, 1), "mtp.*"), ((9, 0), "mtp.*"), ((12, 1), "mtp.*")])
def test_names_of_forks_do_not_tell_which_block_is_the_head(keys: tuple[int, int], says: str) -> None:
    contents = planned(QWEN)
    for name in [name for name in contents.tensors if ".nextn." in name]:
        contents = renamed_tensors(contents, name, name.replace("blk.8.nextn.", "mtp."))
    contents = with_number(with_number(contents, COUNT, keys[0]), NEXTN, keys[1])
    if says:
        assert says in doubts(contents)
    else:
        assert repair(contents).keys is contents.keys


def test_a_file_that_is_a_head_as_a_whole() -> None:
    contents = generic("gemma4-assistant", range(3), (), **{COUNT: 4})
    edit = repair(contents)
    assert [edit.keys[f"gemma4-assistant.{name}"] for name in (COUNT, NEXTN)] == [u32(3), u32(3)]
    assert not repair(edit.contents("again")).changes
    assert "no tensor of blk.1 is there" in doubts(without(contents, "blk.1."))


# Arrays


ARRAYS = pytest.mark.parametrize(
    ("family", "key"),
    [
        (STEP, "attention.head_count"),
        (STEP, HEADS_KV),
        (STEP, PATTERN),
        (QWEN, RECURRENT),
        (QWEN, RATIOS),
        (GLM, HEADS_KV),
    ],
)


@ARRAYS
def test_an_array_of_the_trunks_length_is_continued_by_what_tensors_prove(family: str, key: str) -> None:
    """Case C14."""
    contents, (trunk, heads) = planned(family), COUNTS[family]
    edit = mended(with_arrays(contents, trunk, key))
    assert dict(edit.keys) == dict(contents.keys)
    (line,) = edit.changes
    assert line.startswith(f"{family}.{key} {trunk} → {trunk + heads} entries: ")


@ARRAYS
def test_without_the_trunk_nothing_shows_which_entry_is_missing(family: str, key: str) -> None:
    """One entry less in a file with one head may be the head's, or one of the trunk's: all behind it would be wrong."""
    contents, (trunk, _) = planned(family, MTP), COUNTS[family]
    short = with_arrays(contents, trunk, key)
    value = short.get(key)
    if value is not None and len(set(value.items)) == 1:
        assert dict(mended(short).keys) == dict(contents.keys)
    else:
        assert "no block of the trunk" in doubts(short)


@pytest.mark.parametrize("place", range(8))
def test_an_entry_that_is_missing_in_between_is_no_entry_of_the_head(place: int) -> None:
    """The blocks with an indexer are those with a ratio: another place of the gap is seen."""
    contents = planned(QWEN)
    value = contents.get(RATIOS)
    assert value is not None
    items = [*value.items]
    del items[place]
    contents = with_array(contents, RATIOS, items, value.element)
    if items == [*value.items][:-1]:
        assert mended(contents).changes
    else:
        assert doubts(contents)


def test_an_old_spelling_over_keys_and_tensors_of_another_family() -> None:
    contents = with_key(planned(STEP), "general.architecture", string("glm5next"))
    edit = repair(contents)
    assert edit.keys["general.architecture"] == string("step35")
    assert {key for key in edit.keys if key.startswith("glm5next.")} == set()


def test_only_the_heads_whose_entries_are_missing() -> None:
    contents = planned(STEP)
    assert dict(mended(with_arrays(contents, 6, "attention.head_count", PATTERN)).keys) == dict(contents.keys)


@pytest.mark.parametrize("family", [STEP, GLM])
@pytest.mark.parametrize("key", CLAMPS)
def test_clamps_cannot_be_proven(family: str, key: str) -> None:
    """Not even where all entries are equal: those of a head have nothing to do with them (step35.md 6.7)."""
    text = doubts(with_arrays(planned(family), COUNTS[family][0], key))
    assert f"{family}.{key} has {COUNTS[family][0]} entries" in text
    assert "no tensor proves" in text
    assert "nextn convert" in text
    assert "--emit trunk" in text


def test_all_doubts_at_once() -> None:
    text = doubts(with_arrays(planned(STEP), 5, *CLAMPS))
    assert text.startswith("2 faults with more than one repair: ")
    assert all(key in text for key in CLAMPS)


def test_windows_that_the_number_of_heads_does_not_tell() -> None:
    """Where full and sliding layers have as many heads, or no trunk block has as many as the head."""
    contents = with_arrays(planned(STEP), 5, PATTERN)
    assert "no tensor proves" in doubts(with_array(contents, PATTERN, [0, 1, 1, 0, 1]))
    assert "no tensor proves" in doubts(with_array(contents, "attention.head_count", [4, 5, 5, 5, 4, 6, 6, 6]))
    assert "no tensor proves" in doubts(with_number(contents, "attention.head_count", 4))


@pytest.mark.parametrize("ratios", [[0] * 8, [0, 0, 0, 2, 0, 0, 0, 4]])
def test_a_ratio_that_the_trunk_does_not_tell(ratios: Sequence[int]) -> None:
    assert "no tensor proves" in doubts(with_array(planned(QWEN), RATIOS, ratios))


def test_entries_that_the_tensors_deny() -> None:
    contents = with_array(planned(GLM), HEADS_KV, [0, 0, 1, 0, 0, 1])
    assert "those of blk.2-3 are not what the tensors show" in doubts(contents)
    longer = with_array(planned(GLM, TRUNK), HEADS_KV, [0, 0, 0, 0, 1, 0, 1])
    assert "those of blk.3-5 are not what the tensors show" in doubts(longer)


@EACH
def test_arrays_that_end_within_the_trunk(family: str) -> None:
    key = {STEP: PATTERN, QWEN: RATIOS, GLM: TYPES}[family]
    text = doubts(with_arrays(planned(family), COUNTS[family][0] - 1, key))
    assert "are the trunk's" in text


@EACH
def test_c14_a_trunk_with_an_array_of_the_combined_file(family: str) -> None:
    """The header was rewritten and one array, or all of them, forgotten."""
    trunk, heads = COUNTS[family]
    names = [name for name in array_keys(family) if (v := planned(family).get(name)) and v.element is not None]
    whole, contents = planned(family), planned(family, TRUNK)
    longer = {f"{family}.{name}": whole.keys[f"{family}.{name}"] for name in names}
    assert dict(mended(replace(contents, keys={**contents.keys, **longer})).keys) == dict(contents.keys)
    key = {STEP: "attention.head_count", QWEN: RECURRENT, GLM: HEADS_KV}[family]
    edit = mended(with_key(contents, key, longer[f"{family}.{key}"]))
    assert edit.changes == (
        f"{family}.{key} {trunk + heads} → {trunk} entries: an entry for each of the trunk's {trunk} blocks, "
        f"none for blk.{trunk}{f'-{trunk + heads - 1}' if heads > 1 else ''}",
    )


def test_an_array_over_the_trunk_with_entries_for_the_head() -> None:
    edit = mended(with_array(planned(GLM), TYPES, [True] * 7))
    assert dict(edit.keys) == dict(planned(GLM).keys)


def test_an_array_that_is_longer_for_no_known_reason() -> None:
    text = doubts(with_arrays(planned(GLM), 10, CLAMPS[0]))
    assert "nothing shows whose the others are" in text


def test_without_tables_entries_that_are_there_must_show_what_sizes_mean() -> None:
    """attn_q of some architectures holds a gate beside each head, or there is no trunk to compare with."""
    numbers = {COUNT: 4, NEXTN: 1, "attention.key_length": 4}
    key, combined = "attention.head_count", generic("glm4moe", range(3), (3,), **numbers)
    short = with_key(combined, key, array(ValueType.INT32, [2, 2, 2]))
    assert repair(short).keys[f"glm4moe.{key}"].items == (2, 2, 2, 2)
    assert "not what the tensors show" in doubts(with_key(combined, key, array(ValueType.INT32, [1, 1, 1])))
    head = generic("glm4moe", (), (3,), **numbers)
    assert "no tensor proves" in doubts(with_key(head, key, array(ValueType.INT32, [2, 2, 2])))


def test_loaders_that_take_longer_arrays_are_let() -> None:
    contents = generic("deepseek4", range(3), (), **{COUNT: 3})
    contents = with_key(contents, RATIOS, array(ValueType.INT32, [0, 4, 4, 4]))
    assert repair(contents).keys is contents.keys


@EACH
def test_every_array_of_a_family_is_known_to_the_rules(family: str) -> None:
    arrays = {spec.name for spec in ARCHITECTURES[family].keys if spec.rule in (Rule.PER_BLOCK, Rule.PER_TRUNK_BLOCK)}
    assert arrays <= array_keys(family).keys()
    assert all(set(proofs(name)) <= array_keys(name).keys() for name in PROOFS_OF)


# Names


def respelt(contents: Contents, name: str, *, prefix: str | None = None) -> Contents:
    """Another `general.architecture`, and the keys under that prefix, or another."""
    own, new = f"{contents.architecture}.", f"{name if prefix is None else prefix}."
    keys = {new + key.removeprefix(own) if key.startswith(own) else key: v for key, v in contents.keys.items()}
    return replace(contents, keys={**keys, ARCHITECTURE: string(name)})


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    ("family", "spelling"),
    [
        (STEP, "Step35"),
        (STEP, "step-3.5"),
        (STEP, "step3p5"),
        (QWEN, "qwen4-exp"),
        (QWEN, "Qwen4_Exp"),
        (GLM, "glm5_next"),
    ],
)
def test_a_spelling_of_one_family_whose_tensors_these_are(role: Role, family: str, spelling: str) -> None:
    """Case C16, and typing errors; the keys' prefix follows."""
    contents = planned(family, role)
    edit = mended(respelt(contents, spelling))
    assert list(edit.keys.items()) == list(contents.keys.items())
    assert edit.changes[0].startswith(f"{ARCHITECTURE} {spelling!r} → {family!r}: ")
    only = mended(respelt(contents, spelling, prefix=family))
    assert list(only.keys.items()) == list(contents.keys.items())
    assert len(only.changes) == 1


def test_the_keys_tell_what_the_architecture_does_not() -> None:
    for contents in (without_keys(planned(QWEN), ARCHITECTURE), with_key(planned(QWEN), ARCHITECTURE, u32(4))):
        edit = mended(contents)
        assert list(edit.keys.items()) == list(planned(QWEN).keys.items())
    assert dict(mended(respelt(planned(GLM), "glm5next", prefix=GLM)).keys) == dict(planned(GLM).keys)
    assert dict(mended(respelt(planned(STEP), "llama", prefix=STEP)).keys) == dict(planned(STEP).keys)


def test_the_tensors_deny_the_spelling() -> None:
    text = doubts(respelt(planned(QWEN), "Step35"))
    assert "the tensors' names are not those of step35" in text
    assert "either may be wrong" in doubts(respelt(generic("qwen35", range(2), ()), "qwen3next", prefix="qwen35"))


def test_a_spelling_of_an_architecture_without_tables() -> None:
    """Nothing tells its tensors from others', but the keys' prefix is right already."""
    contents = generic("qwen35", range(3), (3,), **{COUNT: 4, NEXTN: 1})
    edit = repair(respelt(contents, "Qwen3.5", prefix="qwen35"))
    assert dict(edit.keys) == dict(contents.keys)
    unknown = respelt(contents, "Qwen3.5")
    assert repair(unknown).keys is unknown.keys


def test_v11_a_key_under_the_tokenizers_prefix() -> None:
    """Case V11."""
    contents = planned(STEP)
    moved = Contents({_tokenizers(key): value for key, value in contents.keys.items()}, contents.tensors)
    edit = mended(moved)
    assert dict(edit.keys) == dict(contents.keys)
    assert edit.changes == (
        "tokenizer.ggml.nextn_predict_layers → step35.nextn_predict_layers (3): "
        "loaders look for it under step35., where there is none",
    )


def _tokenizers(key: str) -> str:
    return "tokenizer.ggml.nextn_predict_layers" if key == "step35.nextn_predict_layers" else key


@pytest.mark.parametrize("key", ["llama.block_count", "step3p5.block_count", "Step35.block_count"])
def test_a_key_under_another_prefix_that_is_there_too(key: str) -> None:
    contents = planned(STEP)
    edit = mended(with_raw(contents, key, u32(8)))
    assert dict(edit.keys) == dict(contents.keys)
    assert edit.changes == (f"{key} 8 → (removed): step35.block_count says the same, and only that is read",)
    text = doubts(with_raw(contents, key, u32(7)))
    assert f"step35.block_count 8 and {key} 7: either may be right" in text
    alone = mended(without_keys(with_raw(contents, key, u32(8)), COUNT))
    assert dict(alone.keys) == dict(contents.keys)


def test_two_other_prefixes() -> None:
    contents = without_keys(planned(STEP), COUNT)
    agreeing = with_raw(with_raw(contents, "llama.block_count", u32(8)), "tokenizer.ggml.block_count", u32(8))
    assert dict(mended(agreeing).keys) == dict(planned(STEP).keys)
    differing = with_raw(with_raw(contents, "llama.block_count", u32(8)), "tokenizer.ggml.block_count", u32(9))
    assert "llama.block_count 8 and tokenizer.ggml.block_count 9" in doubts(differing)


def with_raw(contents: Contents, key: str, value: Value) -> Contents:
    return replace(contents, keys={**contents.keys, key: value})


def test_c16_the_old_prefix_under_the_new_architecture() -> None:
    contents = respelt(planned(GLM), GLM, prefix="glm5next")
    edit = mended(contents)
    assert list(edit.keys.items()) == list(planned(GLM).keys.items())
    (line,) = edit.changes
    assert line.startswith("41 keys glm5next.* → glm5-next.* (block_count, context_length, embedding_length, ")


# Keys about splitting


def split(contents: Contents, number: int | None, count: int | None, tensors: int | None) -> Contents:
    values = {"split.no": number, "split.count": count, "split.tensors.count": tensors}
    keys = {key: Value(ValueType.INT32, value) for key, value in values.items() if value is not None}
    return replace(contents, keys={**contents.keys, **keys})


@pytest.mark.parametrize("keys", [(0, 3, 79), (2, 3, 79), (0, 3, 70), (1, None, 79), (1, 1, 79)])
def test_a_merged_file_loses_the_keys_of_the_set(keys: tuple[int, int | None, int]) -> None:
    contents = planned(STEP, TRUNK)
    assert len(contents.tensors) == 79
    edit = mended(split(contents, *keys))
    assert dict(edit.keys) == dict(contents.keys)
    assert all("(removed): it is one file with all 79 tensors" in line for line in edit.changes)


@pytest.mark.parametrize("keys", [(0, 3, 80), (0, 3, None), (1, None, None)])
def test_a_shard_alone_is_no_merged_file(keys: tuple[int, int | None, int | None]) -> None:
    assert "either shards are missing" in doubts(split(planned(STEP, TRUNK), *keys))


@pytest.mark.parametrize("keys", [(0, 1, 79), (0, 0, 79), (None, None, None)])
def test_a_single_file_may_say_so(keys: tuple[int | None, int | None, int | None]) -> None:
    contents = split(planned(STEP, TRUNK), *keys)
    assert repair(contents).keys is contents.keys


def test_numbers_of_a_set_are_counted() -> None:
    contents = planned(STEP, TRUNK)
    good = split(contents, 0, 3, 79)
    assert repair(good, 3).keys is good.keys
    assert dict(mended(split(contents, 0, 3, 60), 3).keys) == dict(good.keys)
    assert dict(mended(split(contents, 1, 4, 79), 3).keys) == dict(good.keys)
    assert "either shards are missing" in doubts(split(contents, 0, 4, 99), 3)


def test_several_repairs_together() -> None:
    """A fine-tune that lost its head, merged from shards, with the old prefix."""
    contents = respelt(without(planned(GLM), "blk.6."), GLM, prefix="glm5next")
    edit = mended(split(contents, 0, 3, len(contents.tensors)))
    assert told(edit.keys) == told(planned(GLM, TRUNK).keys)
    assert len(edit.changes) == 1 + 3 + 2 + 3


def test_a_trunk_that_got_its_head_back() -> None:
    """Tensors of both, and the keys of the trunk: all that tensors prove is written, but clamps are refused."""
    for family in FAMILIES:
        contents = taking(planned(family, TRUNK), planned(family, MTP), "blk.")
        if family == QWEN:
            assert told(mended(contents).keys) == told(planned(family).keys)
        else:
            assert doubts(contents).startswith("2 faults with more than one repair: ")
