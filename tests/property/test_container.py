"""The GGUF container against itself, against gguf-py, and against damage."""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nextn.gguf_schema.container import Header, encode_header, lay_out, read_header
from nextn.gguf_schema.contents import Contents, LocalFile, MemoryFile, TensorInfo, Value, string, u32
from nextn.gguf_schema.errors import InputError, NextnError
from nextn.gguf_schema.placement import layout_problems
from nextn.gguf_schema.types import TENSOR_TYPES, ValueType

if TYPE_CHECKING:
    from pathlib import Path

INTEGER_BITS = {
    ValueType.UINT8: (0, 8), ValueType.INT8: (1, 8), ValueType.UINT16: (0, 16), ValueType.INT16: (1, 16),
    ValueType.UINT32: (0, 32), ValueType.INT32: (1, 32), ValueType.UINT64: (0, 64), ValueType.INT64: (1, 64),
}  # fmt: skip
SCALARS: dict[ValueType, st.SearchStrategy[int | float | bool | str]] = {
    **{
        type_: st.integers(-(2 ** (bits - 1)) * signed, 2 ** (bits - signed) - 1)
        for type_, (signed, bits) in INTEGER_BITS.items()
    },
    ValueType.FLOAT32: st.floats(width=32, allow_nan=False),
    ValueType.FLOAT64: st.floats(allow_nan=False),
    ValueType.BOOL: st.booleans(),
    ValueType.STRING: st.text("az 0é漢😀\0", max_size=12),
}
# Keys, laid out tensors, alignment.
Model = tuple[dict[str, Value], tuple[TensorInfo, ...], int]
NAMES = st.text("abc.é", min_size=1, max_size=12)


def values(least: int) -> st.SearchStrategy[Value]:
    """Values of every type; arrays of `least` elements or more, some too long to be kept in memory."""
    short = st.sampled_from(list(SCALARS)).flatmap(
        lambda type_: st.lists(SCALARS[type_], min_size=least, max_size=5).map(
            lambda items: Value(ValueType.ARRAY, tuple(items), type_)
        )
    )
    long = st.builds(
        lambda value, times: Value(value.type, tuple(value.items) * times, value.element), short, st.integers(1, 300)
    )
    scalars = [items.map(partial(Value, type_)) for type_, items in SCALARS.items()]
    return st.one_of(*scalars, short, long)


@st.composite
def tensors(draw: st.DrawFn) -> TensorInfo:
    type_ = draw(st.sampled_from([TENSOR_TYPES[name] for name in ("F32", "F16", "I8", "I64", "Q8_0", "Q4_0", "Q6_K")]))
    ne = (draw(st.integers(1, 3)) * type_.block, *draw(st.lists(st.integers(1, 3), max_size=3)))
    return TensorInfo(draw(NAMES), ne, type_, type_.tensor_bytes(ne))


@st.composite
def models(draw: st.DrawFn, least: int = 0) -> Model:
    alignment = draw(st.sampled_from([8, 32, 64]))
    keys = {"general.architecture": string("toy")}
    if alignment != 32:
        keys["general.alignment"] = u32(alignment)
    keys |= draw(st.dictionaries(NAMES, values(least), max_size=4))
    infos = draw(st.lists(tensors(), max_size=4, unique_by=lambda info: info.name))
    return keys, lay_out(infos, alignment)[0], alignment


def payload(info: TensorInfo) -> bytes:
    """Bytes that depend on the tensor's name, and never all zero."""
    return bytes((len(info.name) + i) % 251 + 1 for i in range(info.nbytes))


def whole(keys: dict[str, Value], infos: tuple[TensorInfo, ...], alignment: int) -> bytes:
    data = b"".join(payload(info) + bytes(-info.nbytes % alignment) for info in infos)
    return encode_header(keys, infos, alignment) + data


def strict(data: bytes) -> Header:
    """The header, everything it holds looked at; the first problem is raised."""
    header = read_header(MemoryFile(data))
    for problem in layout_problems(header):
        raise problem
    for value in header.contents.keys.values():
        list(value.items)
    return header


@given(models())
def test_round_trip(model: Model) -> None:
    keys, infos, alignment = model
    header = strict(whole(*model))
    assert header.contents == Contents(keys, {info.name: info for info in infos})
    assert list(header.contents.keys) == list(keys)
    assert tuple(header.contents) == infos
    assert header.alignment == alignment
    assert encode_header(header.contents.keys, tuple(header.contents), alignment) == encode_header(*model)
    for info in header.contents:
        assert header.source.read(header.data_offset + info.offset, info.nbytes) == payload(info)


@settings(max_examples=25, deadline=None)
@given(models())
def test_every_prefix_is_refused(model: Model) -> None:
    _, infos, alignment = model
    data = whole(*model)
    # A file is whole without its last padding, and without tensors that of the header is the last.
    end = len(data.rstrip(b"\0")) if infos else len(data) - alignment
    for cut in range(0, end, max(1, end // 500)):
        with pytest.raises(InputError):
            strict(data[:cut])


@settings(max_examples=400)
@given(models(), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8))
def test_damage_is_an_error_or_nothing(model: Model, damage: list[tuple[int, int]]) -> None:
    data = bytearray(whole(*model))
    for place, byte in damage:
        data[place % len(data)] = byte
    with suppress(NextnError):
        strict(bytes(data))


@settings(max_examples=400)
@given(st.integers(0, 9), st.integers(0, 9), st.binary(max_size=200))
def test_noise_is_an_error_or_nothing(n_tensors: int, n_keys: int, noise: bytes) -> None:
    with suppress(NextnError):
        strict(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys) + noise)


def write_with_gguf_py(path: Path, keys: dict[str, Value], infos: tuple[TensorInfo, ...], alignment: int) -> None:
    writer = gguf.GGUFWriter(path, "toy")
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for key, value in keys.items():
        if key not in ("general.architecture", "general.alignment"):
            plain = list(value.items) if value.element is not None else value.value
            element = None if value.element is None else gguf.GGUFValueType(value.element)
            writer.add_key_value(key, plain, gguf.GGUFValueType(value.type), element)
    for info in infos:
        rows = (*reversed(info.ne[1:]), info.type.row_bytes(info.ne[0]))
        array = np.frombuffer(payload(info), np.uint8).reshape(rows)
        writer.add_tensor(info.name, array, raw_dtype=gguf.GGMLQuantizationType(info.type.id))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(models(least=1))
def test_same_bytes_as_gguf_py(tmp_path: Path, model: Model) -> None:
    path = tmp_path / "theirs.gguf"
    write_with_gguf_py(path, *model)
    assert whole(*model) == path.read_bytes()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(models(least=1))
def test_same_view_as_gguf_py(tmp_path: Path, model: Model) -> None:
    path = tmp_path / "ours.gguf"
    path.write_bytes(whole(*model))
    theirs, ours = gguf.GGUFReader(path), read_header(LocalFile(path))
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(fields) == list(ours.contents.keys)
    for name, value in ours.contents.keys.items():
        assert [int(type_) for type_ in fields[name].types] == [
            int(type_) for type_ in (value.type, value.element) if type_ is not None
        ]
        assert fields[name].contents() == (value.value if value.element is None else list(value.items))
    assert (theirs.alignment, theirs.data_offset) == (ours.alignment, ours.data_offset)
    seen = [
        (t.name, tuple(t.shape.tolist()), int(t.tensor_type), t.n_bytes, t.data_offset, t.data.tobytes())
        for t in theirs.tensors
    ]
    expected = [
        (info.name, info.ne, info.type.id, info.nbytes, ours.data_offset + info.offset, payload(info))
        for info in ours.contents
    ]
    assert seen == expected
