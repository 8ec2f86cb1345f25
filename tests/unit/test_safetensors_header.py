"""Damaged safetensors headers are refused with file, tensor and numbers; sound ones read as the library reads them."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from nextn.convert.safetensors_header import DTYPE_BYTES, parse_header
from nextn.gguf_schema.contents import LocalFile, MemoryFile
from nextn.gguf_schema.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
B = {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}


def file(header: Any, data: int = 32, length: int | None = None) -> MemoryFile:
    """A file with this header (an object, or raw bytes) and so many bytes of data."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return MemoryFile(struct.pack("<Q", len(raw) if length is None else length) + raw + bytes(data), "part.safetensors")


def refusal(source: MemoryFile) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_header(source)
    assert caught.value.subject == "part.safetensors"
    assert caught.value.remedy
    return caught.value


def test_a_file_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    arrays = {
        "b": np.arange(6, dtype="<f4").reshape(2, 3),
        "a": np.arange(4, dtype="<f2"),
        "c": np.array([7, -1], "<i8"),
        "scalar": np.array(3, "<f8"),
        "empty": np.zeros((0, 4), "<f4"),
    }
    safetensors.numpy.save_file(arrays, path, {"format": "pt"})
    source = LocalFile(path)
    entries = parse_header(source)
    assert {name: entry.shape for name, entry in entries.items()} == {n: a.shape for n, a in arrays.items()}
    assert {name: entry.dtype for name, entry in entries.items()} == {
        "b": "F32", "a": "F16", "c": "I64", "scalar": "F64", "empty": "F32",
    }  # fmt: skip
    for name, entry in entries.items():
        assert source.read(entry.offset, entry.end - entry.offset) == arrays[name].tobytes()


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_element_sizes_are_the_librarys(dtype: str) -> None:
    raw = file(
        {"t": {"dtype": dtype, "shape": [3], "data_offsets": [0, 3 * DTYPE_BYTES[dtype]]}}, 3 * DTYPE_BYTES[dtype]
    )
    safetensors.deserialize(raw.data)
    assert parse_header(raw)["t"].dtype == dtype


def test_tensors_may_stand_in_any_order() -> None:
    entries = parse_header(file({"b": B, "__metadata__": {"format": "pt"}, "a": A}))
    assert list(entries) == ["b", "a"]
    assert entries["b"].offset - entries["a"].offset == 24


def test_no_tensors() -> None:
    assert parse_header(file({}, data=0)) == {}


@pytest.mark.parametrize("size", [0, 7])
def test_shorter_than_a_length(size: int) -> None:
    error = refusal(MemoryFile(bytes(size), "part.safetensors"))
    assert (error.code, error.message) == ("bad-shard", f"is {size} bytes long, too short for a safetensors file")


@pytest.mark.parametrize("length", [2**60, 2**64 - 1, 10**8 + 1])
def test_a_header_beyond_the_file(length: int) -> None:
    error = refusal(file({"a": A}, length=length))
    assert error.code == "bad-shard"
    assert str(length) in error.message


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"a": {}, "a": {}}', "a name occurs twice"),
        (b'{"a": {"dtype": "F32", "dtype": "F16", "shape": [], "data_offsets": [0, 4]}}', "a name occurs twice"),
    ],
)
def test_a_header_that_is_no_object_of_names(header: bytes, message: str) -> None:
    error = refusal(file(header))
    assert error.code == "bad-shard"
    assert message in error.message


@pytest.mark.parametrize(
    "item",
    [
        None,
        [],
        {},
        {**A, "shape": None},
        {**A, "shape": [2.0, 3]},
        {**A, "shape": [-2, -3]},
        {**A, "shape": [True, 6]},
        {**A, "shape": "23"},
        {**A, "dtype": 1},
        {**A, "dtype": ["F32"]},
        {**A, "data_offsets": [0]},
        {**A, "data_offsets": [0, 24, 24]},
        {**A, "data_offsets": [24, 0]},
        {**A, "data_offsets": [-24, 0]},
        {**A, "data_offsets": ["0", "24"]},
    ],
)
def test_a_malformed_entry_names_the_tensor(item: Any) -> None:
    error = refusal(file({"wrong.weight": item}, data=24))
    assert error.code == "bad-shard"
    assert "tensor wrong.weight: " in error.message


def test_an_unknown_dtype_lists_the_known_ones() -> None:
    error = refusal(file({"a": {**A, "dtype": "F4_E2M1"}}, data=24))
    assert error.message == "tensor a: dtype F4_E2M1 is not supported"
    assert str(error.remedy).startswith("supported: F64, F32, F16, BF16")


@pytest.mark.parametrize(("dtype", "shape"), [("F16", [2, 3]), ("F32", [2, 4]), ("F32", [2**40, 2**40])])
def test_a_range_that_is_not_dtype_times_shape(dtype: str, shape: list[int]) -> None:
    error = refusal(file({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, 24]}}, data=24))
    assert "tensor a: " in error.message
    assert f"{dtype} {shape} takes" in error.message
    assert error.message.endswith("its range holds 24")


def test_overlapping_ranges_name_both_tensors() -> None:
    error = refusal(file({"a": A, "b": {**B, "data_offsets": [20, 28]}}, data=28))
    assert (error.code, error.message) == ("bad-shard", "tensors a and b overlap")


def test_a_gap_before_a_tensor() -> None:
    error = refusal(file({"a": A, "b": {**B, "data_offsets": [29, 37]}}, data=37))
    assert error.message == "no tensor owns the 5 bytes before b"


def test_a_gap_before_the_first_tensor() -> None:
    assert refusal(file({"b": B})).message == "no tensor owns the 24 bytes before b"


def test_trailing_bytes() -> None:
    assert refusal(file({"a": A, "b": B}, data=33)).message == "no tensor owns the last 1 byte"


@pytest.mark.parametrize(
    ("lost", "missing", "tensors", "first"),
    [
        (1, "1 byte", "1 tensor", "b"),
        (8, "8 bytes", "1 tensor", "b"),
        (9, "9 bytes", "2 tensors", "a"),
        (32, "32 bytes", "2 tensors", "a"),
    ],
)
def test_a_truncated_file_names_the_first_tensor_and_the_missing_bytes(
    lost: int, missing: str, tensors: str, first: str
) -> None:
    """Case C29: a part that is shorter than its own header says."""
    error = refusal(file({"b": B, "a": A}, data=32 - lost))
    assert error.code == "truncated-shard"
    assert error.message == f"is {missing} short: {tensors} cut off from {first} on"


def test_only_the_header_is_read() -> None:
    """A plan must stand in seconds, whatever the size of the data."""
    whole = file({"a": A, "b": B})
    reads: list[tuple[int, int]] = []

    class Counting(MemoryFile):
        def read(self, offset: int, length: int) -> bytes:
            reads.append((offset, length))
            return super().read(offset, length)

    parse_header(Counting(whole.data, whole.name))
    assert reads == [(0, 8), (8, whole.size - 32 - 8)]
