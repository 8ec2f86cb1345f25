"""Whatever is done to the keys, a repair gives back what they were, or is refused: nothing is guessed."""

from __future__ import annotations

from dataclasses import replace

from edited_contents import planned
from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.convert.surgery.repair import repair
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, Value, array, string, u32
from nextn.gguf_schema.edit import Edit, taken
from nextn.gguf_schema.errors import VerdictError
from nextn.gguf_schema.nextn_architectures import array_keys
from nextn.gguf_schema.nextn_generic import block_indices
from nextn.gguf_schema.types import ValueType

FAMILIES = ("step35", "qwen4exp", "glm5-next")
BLOCKS = ("block_count", "nextn_predict_layers")
NUMBERS = st.sampled_from([None, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 512, 513, 2**32 - 1])
PREFIXES = ("llama", "tokenizer.ggml", "Step_35", "glm5next", "clef.text")
SPELLINGS = ("Step35", "step-3.5", "qwen4exp", "Qwen4-Exp", "GLM5_Next", "glm5next", "llama", "nobody", "")


def arrays_of(contents: Contents) -> list[str]:
    """The arrays over blocks that are in a file."""
    return [key for key in array_keys(contents.architecture) if (held := contents.get(key)) and held.element]


def lengthened(draw: st.DrawFn, contents: Contents) -> dict[str, Value]:
    """Some arrays, cut at the end or with other entries behind."""
    changed: dict[str, Value] = {}
    for name in draw(st.lists(st.sampled_from(arrays_of(contents)), max_size=2, unique=True)):
        key = f"{contents.architecture}.{name}"
        held = contents.keys[key]
        assert held.element is not None
        items = (*held.items, *draw(st.lists(st.sampled_from([*held.items]), max_size=4)))
        changed[key] = array(held.element, items[: draw(st.sampled_from([5, 6, 8]) | st.integers(0, len(items)))])
    return changed


@st.composite
def numbered(draw: st.DrawFn) -> tuple[Contents, Contents]:
    """A file, and the same with other numbers of blocks, or none, and arrays of other lengths."""
    contents = planned(draw(st.sampled_from(FAMILIES)), draw(st.sampled_from(Role)))
    keys = {**contents.keys, **lengthened(draw, contents)}
    for name in draw(st.sampled_from([(), BLOCKS[:1], BLOCKS[1:], BLOCKS])):
        key, number = f"{contents.architecture}.{name}", draw(NUMBERS)
        keys.pop(key, None)
        if number is not None:
            keys[key] = u32(number)
    return contents, replace(contents, keys=keys)


@st.composite
def broken(draw: st.DrawFn) -> Contents:
    """Blocks or tensors lost or of other numbers, keys under other prefixes, other architectures, split keys."""
    _, contents = draw(numbered())
    blocks = sorted(block_indices(contents))
    keys, tensors = dict(contents.keys), dict(contents.tensors)
    for block in draw(st.lists(st.sampled_from(blocks), max_size=3)):
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"blk.{block}.")}
    for name in draw(st.lists(st.sampled_from(list(contents.tensors)), max_size=3)):
        tensor = tensors.pop(name, None)
        other = draw(st.sampled_from([None, name.replace("blk.", "blk.1"), name.replace("blk.8.nextn.", "mtp.")]))
        if tensor and other:
            tensors[other] = replace(tensor, name=other)
    for key in draw(st.lists(st.sampled_from(list(keys)), max_size=3, unique=True)):
        moved = draw(st.sampled_from(PREFIXES)) + key.removeprefix(contents.architecture)
        keys[moved] = keys[key] if draw(st.booleans()) else keys.pop(key)
    if draw(st.booleans()):
        keys["general.architecture"] = string(draw(st.sampled_from(SPELLINGS)))
    for name in draw(st.lists(st.sampled_from(["split.no", "split.count", "split.tensors.count"]))):
        keys[name] = Value(draw(st.sampled_from([ValueType.UINT16, ValueType.INT32])), draw(NUMBERS) or 0)
    return replace(contents, keys=keys, tensors=tensors)


def repaired(contents: Contents, shards: int = 1) -> Edit | None:
    """The repair, after which there is none; None when it is refused."""
    try:
        edit = repair(contents, shards)
    except VerdictError as error:
        if error.code != "ambiguous-repair":
            raise
        return None
    assert edit.tensors == tuple(map(taken, contents))
    assert bool(edit.changes) is (edit.keys is not contents.keys)
    assert not repair(edit.contents("again"), shards).changes
    return edit


@settings(max_examples=300, deadline=None)
@given(numbered())
def test_numbers_and_lengths_become_what_they_were_or_the_repair_is_refused(files: tuple[Contents, Contents]) -> None:
    contents, spoilt = files
    edit = repaired(spoilt)
    if edit is None:
        return
    keys, nextn = dict(edit.keys), f"{contents.architecture}.{BLOCKS[1]}"
    if nextn not in contents.keys and keys.get(nextn) == u32(0):
        del keys[nextn]  # A trunk may say that it has no head.
    pattern = f"{contents.architecture}.attention.sliding_window_pattern"
    if pattern in keys:  # Loaders do not look at its length, so that entries that are too many may stay.
        keys[pattern] = array(ValueType.BOOL, keys[pattern].items[: len(contents.keys[pattern].items)])
    assert keys == contents.keys


@settings(max_examples=300, deadline=None)
@given(broken(), st.integers(1, 3))
def test_a_repair_is_its_own_fixed_point(contents: Contents, shards: int) -> None:
    repaired(contents, shards)
