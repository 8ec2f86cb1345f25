"""The GGUF container: exact bytes, every refusal, and files that lie about their size."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from gguf_bytes import ARRAY, BOOL, INT32, STRING, UINT8, UINT16, UINT32, UINT64, array_key, header, key, tensor, text

from nextn.gguf_schema.container import Header, encode_header, lay_out, read_header
from nextn.gguf_schema.contents import LocalFile, MemoryFile, TensorInfo, Value, array, boolean, f32, i32, string, u32
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.placement import layout_problems
from nextn.gguf_schema.shards import open_gguf
from nextn.gguf_schema.types import BF16, F16, F32, Q8_0, ValueType, tensor_type
from nextn.gguf_schema.values import StoredArray

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SMALL_KEYS = {
    "general.architecture": string("toy"),
    "toy.block_count": u32(3),
    "toy.scale": f32(1.5),
    "toy.tied": boolean(True),
    "toy.kinds": array(ValueType.INT32, [1, -1]),
    "toy.names": array(ValueType.STRING, ["é", ""]),
}
SMALL_TENSORS = (
    TensorInfo("a", (2, 3), F16, 12, offset=0),
    TensorInfo("b", (32,), Q8_0, 34, offset=32),
)
SMALL = bytes.fromhex(
    "47475546 03000000"  # GGUF, version 3
    "0200000000000000 0600000000000000"  # 2 tensors, 6 keys
    "1400000000000000 67656e6572616c2e617263686974656374757265"  # general.architecture
    "08000000 0300000000000000 746f79"  # STRING "toy"
    "0f00000000000000 746f792e626c6f636b5f636f756e74"  # toy.block_count
    "04000000 03000000"  # UINT32 3
    "0900000000000000 746f792e7363616c65"  # toy.scale
    "06000000 0000c03f"  # FLOAT32 1.5
    "0800000000000000 746f792e74696564"  # toy.tied
    "07000000 01"  # BOOL true
    "0900000000000000 746f792e6b696e6473"  # toy.kinds
    "09000000 05000000 0200000000000000 01000000 ffffffff"  # ARRAY of INT32: 1, -1
    "0900000000000000 746f792e6e616d6573"  # toy.names
    "09000000 08000000 0200000000000000 0200000000000000 c3a9 0000000000000000"  # ARRAY of STRING: "é", ""
    "0100000000000000 61 02000000 0200000000000000 0300000000000000 01000000 0000000000000000"  # a: 2 x 3 F16 at 0
    "0100000000000000 62 01000000 2000000000000000 08000000 2000000000000000"  # b: 32 Q8_0 at 32
    "00000000000000000000"  # from 310 bytes to 320, a multiple of 32
)


def read(data: bytes) -> Header:
    return read_header(MemoryFile(data, "m.gguf"))


def refusal(data: bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        read(data)
    assert caught.value.subject == "m.gguf"
    return caught.value


def strict(data: bytes) -> Header:
    opened = read(data)
    for problem in layout_problems(opened):
        raise problem
    return opened


def codes(data: bytes) -> list[str]:
    return [problem.code for problem in layout_problems(read(data))]


class TestExactBytes:
    def test_read(self) -> None:
        small = read(SMALL + bytes(96))
        assert list(small.contents.keys.items()) == list(SMALL_KEYS.items())
        assert tuple(small.contents) == SMALL_TENSORS
        assert (small.version, small.alignment, small.data_offset) == (3, 32, 320)
        assert small.source.size == 416
        assert list(layout_problems(small)) == []

    def test_encode(self) -> None:
        assert encode_header(SMALL_KEYS, SMALL_TENSORS) == SMALL

    def test_version_2_is_the_same(self) -> None:
        small = read(SMALL[:4] + b"\x02" + SMALL[5:])
        assert small.version == 2
        assert small.contents.keys == SMALL_KEYS

    def test_empty(self) -> None:
        assert encode_header({}, ()) == b"GGUF" + b"\x03" + bytes(27)
        assert codes(b"GGUF" + b"\x03" + bytes(19)) == [], "a file without tensors may end at its last key"

    @pytest.mark.parametrize("alignment", [8, 64, 4096])
    def test_alignment(self, alignment: int) -> None:
        keys = {"general.alignment": u32(alignment)}
        tensors, data_bytes = lay_out([TensorInfo("a", (1,), F32, 4), TensorInfo("b", (3,), F32, 12)], alignment)
        offsets = {8: (0, 8, 24), 64: (0, 64, 128), 4096: (0, 4096, 8192)}
        assert (tensors[0].offset, tensors[1].offset, data_bytes) == offsets[alignment]
        encoded = encode_header(keys, tensors, alignment)
        # 24 for counts, 8 + 17 + 4 + 4 for the key, twice 8 + 1 + 4 + 8 + 4 + 8 for the tensors: 123
        assert len(encoded) == {8: 128, 64: 128, 4096: 4096}[alignment]
        opened = read(encoded + bytes(data_bytes))
        assert (opened.alignment, opened.data_offset) == (alignment, len(encoded))
        assert list(layout_problems(opened)) == []

    def test_floats_round_to_nearest(self) -> None:
        # 0.1 is 0x3DCCCCCD as binary32; halfway cases go to the even neighbour.
        values = array(ValueType.FLOAT32, [0.1, 1 + 2**-24, 1 + 3 * 2**-24, float("-inf")])
        encoded = encode_header({"k": values}, ())
        assert bytes.fromhex("cdcccc3d 0000803f 0200803f 000080ff") in encoded


class TestRefusals:
    def test_magic(self) -> None:
        error = refusal(b"version https://git-lfs.github.com/spec/v1\n")
        assert error.code == "not-gguf"
        assert "Git LFS" in (error.remedy or "")

    @pytest.mark.parametrize(
        ("raw", "code", "words"),
        [
            ((1).to_bytes(4, "little"), "unsupported-version", "GGUF version 1 "),
            ((4).to_bytes(4, "little"), "unsupported-version", "GGUF version 4 "),
            ((0).to_bytes(4, "little"), "unsupported-version", "GGUF version 0 "),
            ((3).to_bytes(4, "big"), "big-endian", "big-endian GGUF"),
            ((2).to_bytes(4, "big"), "big-endian", "big-endian GGUF"),
        ],
    )
    def test_version(self, raw: bytes, code: str, words: str) -> None:
        error = refusal(b"GGUF" + raw + bytes(16))
        assert error.code == code
        assert words in error.message

    @pytest.mark.parametrize(
        ("n_tensors", "n_keys", "words"),
        [
            (0, 2**60, "1152921504606846976 keys at byte 24 needs 14987979559889010688 bytes, 8 left"),
            (2**60, 0, "1152921504606846976 tensors at byte 16 needs 36893488147419103232 bytes, 16 left"),
            (0, 1, "1 keys at byte 24 needs 13 bytes, 8 left"),
        ],
    )
    def test_counts_beyond_the_file(self, n_tensors: int, n_keys: int, words: str) -> None:
        error = refusal(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys) + bytes(8))
        assert error.code == "truncated"
        assert words in error.message

    def test_more_entries_than_any_model_has(self) -> None:
        many = b"GGUF" + struct.pack("<IQQ", 3, 0, 5000) + b"".join(key(f"k{i}", UINT8, b"\0") for i in range(5000))
        assert refusal(many).code == "too-long"

    @pytest.mark.parametrize(
        ("keys", "code", "words"),
        [
            ([key("a", 13, bytes(8))], "unknown-value-type", "key 'a': value type at byte 33 is 13, want 0 to 12"),
            ([array_key("a", 77, 1, bytes(8))], "unknown-value-type", "key 'a': element type at byte 37 is 77"),
            ([array_key("a", ARRAY, 1, bytes(12))], "nested-array", "key 'a': array of arrays"),
            ([array_key("a", UINT8, 2**60, b"")], "truncated", "room for 1152921504606846976 UINT8 elements"),
            ([array_key("a", STRING, 2**60, b"")], "truncated", "STRING elements at byte 49 needs 9223372036854775808"),
            ([array_key("a", STRING, 2, text("x") + text("y")[:8])], "truncated", "string 1 at byte 66 needs 1 bytes"),
            ([array_key("a", STRING, 2, text("12345678"))], "truncated", "length of string 1 at byte 65 needs 8"),
            ([key("a", STRING, struct.pack("<Q", 2**60))], "truncated", "string at byte 45 needs 11529215046068"),
            ([key(b"\xff", UINT8, b"\0")], "bad-value", "key 1 of 1: name at byte 32 is not UTF-8 from byte 0"),
            ([key("a", STRING, text(b"ab\x80"))], "bad-value", "string at byte 45 is not UTF-8 from byte 2 on"),
            ([array_key("a", STRING, 1, text(b"\xc3"))], "bad-value", "key 'a': value at byte 49 is not UTF-8"),
            ([key("a", BOOL, b"\x02")], "bad-value", "value at byte 37 has a BOOL that is neither 0 nor 1"),
            ([array_key("a", BOOL, 3, b"\x01\x02\x00")], "bad-value", "neither 0 nor 1"),
            ([key("", UINT8, b"\0")], "bad-value", "key 1 of 1: has no name at byte 24"),
            ([key("k" * 65536, UINT8, b"\0")], "too-long", "name at byte 32 has 65536 bytes, want at most 65535"),
            ([key("a", UINT8, b"\0"), key("a", UINT8, b"\0")], "duplicate-key", "twice, again at byte 38"),
        ],
    )  # fmt: skip
    def test_key(self, keys: Sequence[bytes], code: str, words: str) -> None:
        error = refusal(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys))
        assert error.code == code
        assert error.message.startswith("key ")
        assert words in error.message

    def test_bool_and_text_of_a_long_array_are_checked_when_looked_at(self) -> None:
        opened = read(header([array_key("a", BOOL, 2000, 1999 * b"\1" + b"\3")]))
        with pytest.raises(InputError, match="key 'a': value at byte 49 has a BOOL") as caught:
            list(opened.contents.keys["a"].items)
        assert caught.value.subject == "m.gguf"
        opened = read(header([array_key("a", STRING, 500, 499 * text("ok") + text(b"\xff"))]))
        with pytest.raises(InputError, match="is not UTF-8 in string 499"):
            opened.contents.keys["a"].items[0]

    @pytest.mark.parametrize(
        ("type_", "payload"),
        [
            (UINT32, struct.pack("<I", 0)),
            (UINT32, struct.pack("<I", 4)),
            (UINT32, struct.pack("<I", 33)),
            (UINT32, struct.pack("<I", 2**32 - 32)),
            (INT32, struct.pack("<i", -32)),
            (INT32, struct.pack("<i", 32)),
            (UINT64, struct.pack("<Q", 2**40)),
            (STRING, text("32")),
        ],
    )
    def test_alignment(self, type_: int, payload: bytes) -> None:
        error = refusal(header([key("general.alignment", type_, payload)]))
        assert error.code == "bad-alignment"
        assert "general.alignment" in error.message

    @pytest.mark.parametrize(
        ("ne", "type_", "words"),
        [
            ([4194305, 4194305, 211106198978564], 0, "dimensions [4194305, 4194305, 211106198978564], want"),
            ([2**62, 2], 0, "fewer than 2^63 elements"),
            ([2**63], 0, "fewer than 2^63 elements"),
            ([4, 0], 0, "dimensions [4, 0], want each at least 1"),
            ([], 0, "0 dimensions, want 1 to 4, at byte 33"),
            ([1, 1, 1, 1, 1], 0, "5 dimensions, want 1 to 4, at byte 33"),
            ([33, 32], 8, "rows of 33 elements, want a multiple of 32, the block of Q8_0"),
        ],
    )
    def test_dimensions(self, ne: Sequence[int], type_: int, words: str) -> None:
        error = refusal(header(tensors=[tensor("t", ne, type_)]) + bytes(64))
        assert error.code == "bad-dimensions"
        assert error.message.startswith("tensor 't': ")
        assert words in error.message

    def test_a_million_dimensions(self) -> None:
        error = refusal(header(tensors=[text("t") + struct.pack("<I", 10**6) + bytes(64)]))
        assert error.code == "bad-dimensions"
        assert "1000000 dimensions" in error.message

    def test_duplicate_tensor(self) -> None:
        error = refusal(header(tensors=[tensor("t", [1]), tensor("t", [1], offset=32)]) + bytes(64))
        assert error.code == "duplicate-tensor"
        assert "tensor 't': is there twice, again at byte 57" in error.message

    def test_long_garbled_names_are_cut_in_messages(self) -> None:
        error = refusal(header([key("k" * 60000, 99, b"")]))
        assert error.code == "unknown-value-type"
        assert len(error.message) < 200

    def test_cut_at_every_section_boundary(self) -> None:
        sections = [
            b"GGUF", struct.pack("<I", 3), struct.pack("<Q", 1), struct.pack("<Q", 2),
            text("s")[:8], b"s", struct.pack("<I", STRING), text("12345678")[:8], b"12345678",
            text("a")[:8], b"a", struct.pack("<I", ARRAY), struct.pack("<I", UINT16), struct.pack("<Q", 9), bytes(18),
            text("t")[:8], b"t", struct.pack("<I", 2), struct.pack("<Q", 4), struct.pack("<Q", 2),
            struct.pack("<I", 0), struct.pack("<Q", 0), bytes(23), bytes(32),
        ]  # fmt: skip
        whole = b"".join(sections)
        assert codes(whole) == []
        boundaries = [0, *accumulate(map(len, sections))][:-1]
        cuts = {*boundaries, *(end - 1 for end in boundaries if end), len(whole) - 1}
        messages = set()
        for cut in cuts:
            with pytest.raises(InputError) as caught:
                strict(whole[:cut])
            assert caught.value.code == "truncated"
            assert caught.value.remedy
            messages.add(caught.value.message)
        assert len(messages) == len(cuts) == 45


class TestLayout:
    TWO = header(tensors=[tensor("a", [8]), tensor("b", [4], offset=32)])

    def test_fine_with_and_without_the_last_padding(self) -> None:
        assert codes(self.TWO + bytes(32 + 16)) == []
        assert codes(self.TWO + bytes(32 + 32)) == []

    def test_cut(self) -> None:
        problems = list(layout_problems(read(self.TWO + bytes(32 + 15))))
        assert [problem.code for problem in problems] == ["truncated"]
        begin = len(self.TWO) + 32
        assert problems[0].message == f"tensor 'b': data at byte {begin} needs 16 bytes, 15 left: 1 missing"
        assert [problem.subject for problem in problems] == ["m.gguf"]

    def test_every_tensor_that_is_cut_is_named_in_one_error(self) -> None:
        begin = len(self.TWO)
        problems = list(layout_problems(read(self.TWO + bytes(31))))
        assert [(problem.code, problem.message) for problem in problems] == [
            (
                "truncated",
                f"tensor 'a': data at byte {begin} needs 32 bytes, 31 left: 1 missing; "
                "with 1 tensor after it ('b'), 17 in all",
            )
        ]

    def test_trailing_bytes(self) -> None:
        problems = list(layout_problems(read(self.TWO + bytes(64 + 1000))))
        assert [problem.code for problem in problems] == ["trailing-bytes"]
        assert problems[0].message == f"1000 bytes from byte {len(self.TWO) + 64} on belong to no tensor"
        assert codes(header() + bytes(5)) == ["trailing-bytes"]

    def test_misaligned(self) -> None:
        data = header(tensors=[tensor("a", [8]), tensor("b", [4], offset=36)]) + bytes(64)
        problems = list(layout_problems(read(data)))
        assert [problem.code for problem in problems] == ["misaligned"]
        assert "tensor 'b': " in problems[0].message
        assert "has offset 36, want a multiple of 32" in problems[0].message

    def test_overlap_whatever_the_order(self) -> None:
        data = header(tensors=[tensor("b", [8], offset=32), tensor("a", [9])]) + bytes(64)
        problems = list(layout_problems(read(data)))
        assert [problem.code for problem in problems] == ["overlap"]
        assert problems[0].message.startswith("tensor 'b': ")
        assert "that of 'a' ends" in problems[0].message

    def test_overlap_with_an_earlier_tensor_that_reaches_far(self) -> None:
        infos = [tensor("long", [100]), tensor("x", [1], offset=32), tensor("y", [1], offset=64)]
        assert codes(header(tensors=infos) + bytes(400)) == ["overlap", "overlap"]

    def test_offset_beyond_everything(self, tmp_path: Path) -> None:
        path = tmp_path / "m.gguf"
        path.write_bytes(header(tensors=[tensor("a", [1], offset=2**64 - 32)]) + bytes(32))
        with pytest.raises(InputError, match="tensor 'a': data at byte 18446744073709551648 needs 4 bytes, 0 left"):
            open_gguf(path)
        with pytest.raises(InputError, match="bytes early"):
            open_gguf(path, strict=False).read_tensor("a")

    def test_opaque_type_reaches_to_the_next_tensor_or_the_end(self) -> None:
        infos = [tensor("last", [7], 999, offset=128), tensor("first", [7, 3], 999), tensor("mid", [8], 0, offset=96)]
        opened = read(header(tensors=infos) + bytes(200))
        first, last = opened.contents.tensors["first"], opened.contents.tensors["last"]
        assert (first.nbytes, last.nbytes) == (96, 72)
        assert not first.type.known
        assert first.type.id == 999
        assert [info.name for info in opened.contents] == ["last", "first", "mid"]
        assert list(layout_problems(opened)) == []

    @pytest.mark.parametrize("types", [(999, 999), (999, 0), (0, 999)])
    def test_opaque_at_the_place_of_another(self, types: tuple[int, int]) -> None:
        infos = [tensor("a", [8], types[0]), tensor("b", [8], types[1])]
        assert codes(header(tensors=infos) + bytes(32)) == ["overlap"]

    def test_opaque_past_the_end(self) -> None:
        assert codes(header(tensors=[tensor("a", [8], 999, offset=64)]) + bytes(64)) == ["truncated"]

    def test_five_gibibytes(self, tmp_path: Path) -> None:
        path = tmp_path / "m.gguf"
        infos = [tensor("big", [32768, 40960]), tensor("after", [4], 0, offset=5 * 2**30)]
        with path.open("wb") as file:
            begin = file.write(header(tensors=infos))
            file.seek(begin + 5 * 2**30)
            file.write(b"0123456789abcdef")
        opened = open_gguf(path)
        source, offset, nbytes = opened.tensor_bytes("big")
        assert (source.name, offset, nbytes) == (str(path), begin, 5368709120)
        assert opened.read_tensor("after") == b"0123456789abcdef"
        with path.open("r+b") as file:
            file.truncate(begin + 5 * 2**30 - 1)
        with pytest.raises(InputError, match=r"'big': .* needs 5368709120 bytes, 5368709119 left: 1 missing"):
            open_gguf(path)


class TestStoredArrays:
    NUMBERS = tuple(range(70000, 71000))
    RAW = struct.pack("<1000I", *NUMBERS)

    def stored(self) -> Value:
        return read(header([array_key("n", UINT32, 1000, self.RAW), key("z", UINT8, b"\7")])).contents.keys["n"]

    def test_values_on_demand(self) -> None:
        value = self.stored()
        items = value.items
        assert isinstance(items, StoredArray)
        assert value.type_name == "ARRAY[UINT32]"
        assert items.raw() == self.RAW
        assert len(items) == 1000
        assert (items[0], items[-1], items[1:3]) == (70000, 70999, (70001, 70002))
        assert tuple(items) == self.NUMBERS
        assert 70500 in items
        assert repr(items) == "<1000 × UINT32 at byte 49 of m.gguf>"

    def test_equal_by_value(self) -> None:
        value = self.stored()
        assert value == array(ValueType.UINT32, self.NUMBERS) == value == self.stored()
        assert hash(value) == hash(array(ValueType.UINT32, self.NUMBERS))
        assert value != array(ValueType.UINT32, self.NUMBERS[1:])
        assert value.value != list(self.NUMBERS)

    def test_what_follows_is_found(self) -> None:
        keys = [
            array_key("s", STRING, 3, text("x" * 3_000_000) + text("") + text("y" * 1_048_570)),
            key("after", UINT8, b"\7"),
            array_key("n", UINT8, 2_500_000, bytes(2_500_000)),
            array_key("small", STRING, 2, text("p") + text("q")),
        ]
        contents = read(header(keys)).contents
        assert contents.keys["after"].value == 7
        assert [len(str(item)) for item in contents.keys["s"].items] == [3_000_000, 0, 1_048_570]
        assert contents.keys["small"].value == ("p", "q")

    @pytest.mark.parametrize("filler", range(1024 * 1024 - 160, 1024 * 1024 + 40, 7))
    def test_small_values_across_the_edge_of_the_window(self, filler: int) -> None:
        keys = [
            key("filler", STRING, text("f" * filler)),
            array_key("small", STRING, 2, text("pqr") + text("s")),
            key("u", UINT16, b"\x01\x02"),
        ]
        contents = read(header(keys)).contents
        assert contents.keys["small"].value == ("pqr", "s")
        assert contents.keys["u"].value == 0x0201

    def test_a_small_array_is_a_tuple(self) -> None:
        contents = read(header([array_key("n", UINT8, 1024, bytes(1024)), array_key("m", UINT8, 1025, bytes(1025))]))
        assert isinstance(contents.contents.keys["n"].value, tuple)
        assert isinstance(contents.contents.keys["m"].value, StoredArray)

    def test_written_as_it_was_read(self) -> None:
        # Not UTF-8, so decoding it on the way would fail.
        words = [array_key("w", STRING, 200, 200 * text(b"\xff\xfe"))]
        contents = read(header(words)).contents
        assert encode_header(contents.keys, ()) == header(words)

    def test_under_another_type_it_is_encoded_anew(self) -> None:
        items = self.stored().items
        assert struct.pack("<1000Q", *self.NUMBERS) in encode_header({"n": array(ValueType.UINT64, items)}, ())
        retyped = Value(ValueType.ARRAY, items, ValueType.UINT64)
        assert struct.pack("<1000Q", *self.NUMBERS) in encode_header({"n": retyped}, ())

    def test_file_changed_after_opening(self, tmp_path: Path) -> None:
        path = tmp_path / "m.gguf"
        data = header([array_key("w", STRING, 200, 200 * text("word"))])
        path.write_bytes(data)
        items = read_header(LocalFile(path)).contents.keys["w"].items
        path.write_bytes(data[:49] + b"\xff" * 8 + data[57:])
        with pytest.raises(InputError, match="ends within string 0"):
            list(items)


class TestCost:
    def test_a_vocabulary_is_not_held(self, tmp_path: Path) -> None:
        words = b"".join(text(f"word number {i}, rather long: {'x' * 60}") for i in range(60_000))
        path = tmp_path / "m.gguf"
        path.write_bytes(header([array_key("tokens", STRING, 60_000, words)]))
        tracemalloc.start()
        opened = read_header(LocalFile(path))
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(opened.contents.keys["tokens"].items) == 60_000
        assert peak < 2.5 * 2**20 < len(words) / 2
        assert kept < 100_000

    @pytest.mark.parametrize(
        "claim",
        [
            b"GGUF" + struct.pack("<IQQ", 3, 0, 2**36),
            b"GGUF" + struct.pack("<IQQ", 3, 2**34, 0),
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**38),
            header([key("a", STRING, struct.pack("<Q", 2**38))])[:45],
            header([array_key("a", UINT8, 2**38, b"")])[:49],
            header([array_key("a", STRING, 2**36, b"")])[:49],
            header([array_key("a", STRING, 2, struct.pack("<Q", 2**38))])[:57],
        ],
    )
    def test_a_sparse_file_cannot_claim_much(self, tmp_path: Path, claim: bytes) -> None:
        path = tmp_path / "m.gguf"
        path.write_bytes(claim)
        with path.open("r+b") as file:
            file.truncate(1 << 40)
        tracemalloc.start()
        with pytest.raises(InputError) as caught:
            read_header(LocalFile(path))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert caught.value.code == "too-long"
        assert peak < 3 << 20


class TestEncodingRefusals:
    @pytest.mark.parametrize(
        ("value", "words"),
        [
            (u32(2**32), "key 'k': 4294967296 does not fit UINT32"),
            (u32(-1), "key 'k': -1 does not fit UINT32"),
            (i32(2**31), "key 'k': 2147483648 does not fit INT32"),
            (u32(True), "key 'k': True does not fit UINT32"),
            (Value(ValueType.UINT32, 1.0), "key 'k': 1.0 does not fit UINT32"),
            (Value(ValueType.UINT8, 256), "key 'k': 256 does not fit UINT8"),
            (Value(ValueType.INT8, -129), "key 'k': -129 does not fit INT8"),
            (Value(ValueType.UINT16, 65536), "key 'k': 65536 does not fit UINT16"),
            (Value(ValueType.INT16, 32768), "key 'k': 32768 does not fit INT16"),
            (Value(ValueType.UINT64, 2**64), "key 'k': 18446744073709551616 does not fit UINT64"),
            (Value(ValueType.INT64, 2**63), "key 'k': 9223372036854775808 does not fit INT64"),
            (Value(ValueType.BOOL, 1), "key 'k': 1 does not fit BOOL"),
            (Value(ValueType.STRING, 1), "key 'k': 1 does not fit STRING"),
            (string("\ud800"), r"key 'k': '\ud800' does not fit STRING"),
            (f32(1e39), "key 'k': 1e+39 does not fit FLOAT32"),
            (array(ValueType.INT8, [1, 2, 300, 4]), "key 'k': element 2 of 4: 300 does not fit INT8"),
            (array(ValueType.STRING, ["a", 5]), "key 'k': element 1 of 2: 5 does not fit STRING"),
            (array(ValueType.ARRAY, []), "key 'k': ARRAY[ARRAY], want an array of scalars"),
        ],
    )
    def test_value(self, value: Value, words: str) -> None:
        with pytest.raises(InputError) as caught:
            encode_header({"k": value}, ())
        assert caught.value.message == words

    @pytest.mark.parametrize(
        ("info", "words"),
        [
            (TensorInfo("x" * 64, (1,), F32, 4), "a name of 64 bytes, want 1 to 63"),
            (TensorInfo("é" * 32, (1,), F32, 4), "a name of 64 bytes, want 1 to 63"),
            (TensorInfo("", (1,), F32, 4), "a name of 0 bytes"),
            (TensorInfo("t", (1, 1, 1, 1, 1), F32, 4), "5 dimensions"),
            (TensorInfo("t", (31,), Q8_0, 34), "rows of 31 elements"),
            (TensorInfo("t", (0,), BF16, 0), "dimensions [0]"),
        ],
    )
    def test_tensor(self, info: TensorInfo, words: str) -> None:
        with pytest.raises(InputError) as caught:
            encode_header({}, [info])
        assert words in caught.value.message
        assert repr(info.name) in caught.value.message

    def test_names(self) -> None:
        info = TensorInfo("t", (1,), F32, 4)
        with pytest.raises(InputError, match="tensor 't': is there twice"):
            encode_header({}, [info, info])
        with pytest.raises(InputError, match="a name of 0 bytes"):
            encode_header({"": u32(1)}, [])

    @pytest.mark.parametrize("keys", [{}, {"general.alignment": u32(64)}, {"general.alignment": u32(33)}])
    def test_alignment_other_than_the_keys_say(self, keys: dict[str, Value]) -> None:
        with pytest.raises(InputError) as caught:
            encode_header(keys, (), 128)
        assert caught.value.code == "bad-alignment"

    def test_opaque_tensors_are_written_back(self) -> None:
        info = TensorInfo("t", (7,), tensor_type(999), 96)
        assert encode_header({}, [info]) == header(tensors=[tensor("t", [7], 999)])
