"""Whatever keys and tensors say, there is a forecast and a judgement of the pair, never an exception."""

from __future__ import annotations

from functools import cache

from families import FAMILIES
from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.convert.pipeline import plan
from nextn.convert.planner import Options
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, TensorInfo, Value
from nextn.gguf_schema.types import F32, ValueType
from nextn.validators.findings import Findings
from nextn.validators.forecast import forecast
from nextn.validators.pair import examine_pair

INTEGERS = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 512, 513, 2**31 - 1])
SCALARS: dict[ValueType, st.SearchStrategy[int | float | bool | str]] = {
    ValueType.UINT32: INTEGERS,
    ValueType.INT32: INTEGERS | st.just(-1),
    ValueType.UINT64: INTEGERS,
    ValueType.UINT8: st.integers(0, 9),
    ValueType.FLOAT32: st.floats(width=32),
    ValueType.BOOL: st.booleans(),
    ValueType.STRING: st.sampled_from(["", "gpt2", "none", "llama", "step35", "qwen35"]),
}
CHANGES_OF_TENSORS = ("drop", "reshape", "move")


@cache
def files() -> list[Contents]:
    plans = (plan(family.checkpoint, Options(tuple(Role), "f32")) for family in FAMILIES.values())
    return [file.contents for each in plans for file in each.files]


@st.composite
def values(draw: st.DrawFn) -> Value:
    element = draw(st.sampled_from(list(SCALARS)))
    if draw(st.booleans()):
        return Value(element, draw(SCALARS[element]))
    count = draw(st.sampled_from([0, 1, 2, 5, 8, 9, 600]))
    return Value(ValueType.ARRAY, (draw(SCALARS[element]),) * count, element)


@st.composite
def spoilt(draw: st.DrawFn) -> Contents:
    file = draw(st.sampled_from(files()))
    keys, tensors = dict(file.keys), dict(file.tensors)
    for key in draw(st.lists(st.sampled_from(list(keys)), max_size=4)):
        changed = draw(st.none() | values())
        if changed:
            keys[key] = changed
        else:
            keys.pop(key, None)
    for name in draw(st.lists(st.sampled_from(list(tensors)), max_size=3, unique=True)):
        change = draw(st.sampled_from(CHANGES_OF_TENSORS))
        old = tensors.pop(name)
        if change == "reshape":
            ne = tuple(draw(st.lists(st.sampled_from([1, 4, 64, 128]), min_size=1, max_size=4)))
            tensors[name] = TensorInfo(name, ne, F32, 4)
        elif change == "move":
            other = name.replace("blk.", "blk.9999999")
            tensors[other] = TensorInfo(other, old.ne, F32, old.nbytes)
    return Contents(keys, tensors, "spoilt")


@settings(max_examples=100, deadline=None)
@given(spoilt(), spoilt(), st.none() | st.integers(0, 9))
def test_every_pair_is_judged(trunk: Contents, draft: Contents, n_max: int | None) -> None:
    assert all(row.outcome == "loads" or row.message for row in forecast(trunk, draft))
    assert all(row.outcome == "loads" or row.message for row in forecast(draft))
    findings = Findings()
    examine_pair(trunk, draft, findings, n_max=n_max)
    assert all(found.message for found in findings)
