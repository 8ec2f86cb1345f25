"""Findings about the container: each fault has a rule and a message of its own, with file, place, have and want."""

from __future__ import annotations

import struct
from itertools import accumulate

import pytest
from examined import examine, only
from gguf_bytes import STRING, UINT8, UINT16, UINT32, header, key, tensor, text

from nextn.gguf_schema.errors import InputError
from nextn.validators.container import RULES
from nextn.validators.findings import Finding, Severity

# 24 bytes of counts and twice 33 of descriptions: the data begins at byte 96.
TWO = [tensor("a", [8]), tensor("b", [4], offset=32)]
DATA = bytes(64)


def alignment(value: int, type_: int = UINT32) -> list[bytes]:
    return [key("general.alignment", type_, struct.pack({UINT32: "<I", UINT16: "<H"}[type_], value))]


ONE_FILE = {
    "overlap": (
        header(tensors=[tensor("a", [9]), tensor("b", [8], offset=32)]) + DATA,
        "tensor 'b': data at byte 128 begins before that of 'a' ends at byte 132",
    ),
    "misaligned": (
        header(tensors=[tensor("a", [8]), tensor("b", [4], offset=36)]) + DATA,
        "tensor 'b': data at byte 132 has offset 36, want a multiple of 32",
    ),
    "gap": (
        header(tensors=[tensor("a", [8]), tensor("b", [4], offset=64)]) + bytes(80),
        "tensor 'b': offset 64, want 32: where the one before it in the header ends, padded to 32",
    ),
    "truncated": (
        header(tensors=TWO) + bytes(32 + 15),
        "tensor 'b': data at byte 128 needs 16 bytes, 15 left: 1 missing",
    ),
    "trailing-bytes": (header(tensors=TWO) + DATA + bytes(1000), "1000 bytes from byte 160 on belong to no tensor"),
    "duplicate-tensor": (
        header(tensors=[tensor("a", [8]), tensor("a", [4], offset=32)]) + DATA,
        "tensor 'a': is there twice, again at byte 57",
    ),
    "duplicate-key": (
        header([key("x", UINT8, b"\0"), key("x", UINT8, b"\1")], TWO) + DATA,
        "key 'x': is there twice, again at byte 38",
    ),
    "bad-alignment": (
        header(alignment(33), TWO) + DATA,
        "key 'general.alignment': UINT32 33, want a UINT32 power of two of at least 8",
    ),
    "bad-dimensions": (
        header(tensors=[tensor("a", [4194305, 4194305, 211106198978564])]) + DATA,
        "tensor 'a': dimensions [4194305, 4194305, 211106198978564], want each at least 1 and fewer than 2^63 "
        "elements, at byte 33",
    ),
    "bad-name": (
        header(tensors=[tensor("n" * 64, [8])]) + bytes(32),
        f"tensor '{'n' * 64}': a name of 64 bytes, want 1 to 63",
    ),
    "unknown-type": (
        header(tensors=[tensor("a", [8], 999), tensor("b", [8], 999, offset=32)]) + DATA,
        "2 tensors of type 999, which is not known: 'a', 'b'",
    ),
    # 24 bytes of counts, 33 and 14 of keys, twice 33 of descriptions: 137 bytes, and 7 to a multiple of 8.
    "unaligned-data": (
        header([*alignment(8), key("x", UINT8, b"\0")], TWO, alignment=8) + bytes(48),
        "data begins at byte 144, want a multiple of 32",
    ),
    "old-version": (
        b"GGUF\x02" + (header(tensors=TWO) + DATA)[5:],
        "GGUF version 2, which is read like version 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", ONE_FILE)
def test_a_fault_of_one_file(rule: str) -> None:
    data, message = ONE_FILE[rule]
    finding = only(data)
    assert (finding.rule, finding.subject, finding.message) == (rule, "m", message)
    assert finding.reason
    assert finding.severity is RULES[rule].severity
    assert bool(finding.remedy) is (finding.severity is not Severity.NOTE)


def test_every_rule_has_a_test_here() -> None:
    of_sets = {"missing-shard", "shard-number", "shard-count", "shard-tensors", "shard-keys", "mixed-shards"}
    assert set(ONE_FILE) | of_sets == set(RULES)


def test_messages_are_different() -> None:
    messages = {message for _, message in ONE_FILE.values()}
    assert len(messages) == len(ONE_FILE)


def test_a_healthy_file_has_none() -> None:
    model, findings = examine(header(tensors=TWO) + DATA)
    assert findings == []
    assert model is not None
    assert list(model.contents.tensors) == ["a", "b"]


def test_trailing_bytes_are_a_warning_and_padding_is_none() -> None:
    assert only(ONE_FILE["trailing-bytes"][0]).severity is Severity.WARNING
    assert examine(header(tensors=TWO) + bytes(32 + 16))[1] == []


@pytest.mark.parametrize("value", [0, 1, 4, 33, 2**32 - 32])
def test_alignments(value: int) -> None:
    finding = only(header(alignment(value), TWO) + DATA)
    assert f"UINT32 {value}, want" in finding.message


def test_alignment_of_another_type() -> None:
    assert "UINT16 32, want a UINT32" in only(header(alignment(32, UINT16), TWO) + DATA).message


@pytest.mark.parametrize(
    ("ne", "words"),
    [
        ([], "0 dimensions, want 1 to 4"),
        ([2] * 5, "5 dimensions, want 1 to 4"),
        ([0], "dimensions [0], want each at least 1"),
        ([2**63], "fewer than 2^63 elements"),
    ],
)
def test_dimensions(ne: list[int], words: str) -> None:
    model, findings = examine(header(tensors=[tensor("a", ne), tensor("b", [8], offset=32)]) + DATA)
    assert [finding.rule for finding in findings] == ["bad-dimensions"]
    assert words in findings[0].message
    assert model is not None
    assert model.contents.tensors["a"].nbytes == 32, "as far as the next one"


@pytest.mark.parametrize("tensors", [[tensor("a", [8]), tensor("b", [0], offset=32)], [tensor("a", [0, 4])]])
def test_a_tensor_without_elements_takes_no_place(tensors: list[bytes]) -> None:
    """At the end of a file it was called truncated: nothing is missing."""
    _, findings = examine(header(tensors=tensors) + bytes(32 * (len(tensors) - 1)))
    assert [finding.rule for finding in findings] == ["bad-dimensions"]


def test_keys_about_splitting_are_of_one_type() -> None:
    finding = only(header([key("split.count", UINT32, struct.pack("<I", 1))], TWO) + DATA)
    assert (finding.rule, finding.message) == ("shard-keys", "key 'split.count': UINT32 1, want UINT16")


def test_more_dimensions_than_are_worth_reading() -> None:
    with pytest.raises(InputError, match="tensor 't': 1000000 dimensions"):
        examine(header(tensors=[text("t") + struct.pack("<I", 10**6) + bytes(64)]))


def test_offsets_out_of_the_file() -> None:
    _, findings = examine(header(tensors=[tensor("a", [1], offset=2**64 - 32)]) + bytes(32))
    assert [finding.rule for finding in findings] == ["truncated", "gap"]
    assert "data at byte 18446744073709551648 needs 4 bytes, 0 left" in findings[0].message
    assert "offset 18446744073709551584, want 0" in findings[1].message


def test_the_order_of_the_header_is_the_order_of_the_data() -> None:
    swapped = header(tensors=[tensor("a", [8], offset=32), tensor("b", [8])]) + DATA
    assert only(swapped).message.startswith("tensor 'a': offset 32, want 0")


def test_a_half_file_says_what_is_lost() -> None:
    infos = [tensor(f"t{i}", [8], offset=32 * i) for i in range(8)]
    finding = only(header(tensors=infos) + bytes(4 * 32 + 7))
    assert finding.message.startswith("tensor 't4': data at byte ")
    assert finding.message.endswith(
        "needs 32 bytes, 7 left: 25 missing; with 3 tensors after it ('t5', 't6', 't7'), 121 in all"
    )
    assert finding.remedy == "download or copy the file again"


def test_many_faults_of_a_kind_are_counted() -> None:
    infos = [tensor(f"t{i}", [8]) for i in range(100)]
    _, findings = examine(header(tensors=infos) + bytes(32))
    assert [finding.rule for finding in findings] == ["overlap"] * 5
    assert findings[-1].message.startswith("95 more of these, the last: tensor 't99': ")


def test_cut_at_every_section_boundary() -> None:
    sections = [
        b"GGUF", struct.pack("<I", 3), struct.pack("<Q", 2), struct.pack("<Q", 1),
        text("s"), struct.pack("<I", STRING), text("12345678"),
        text("a"), struct.pack("<IQ", 1, 8), struct.pack("<IQ", 0, 0),
        text("b"), struct.pack("<IQ", 1, 8), struct.pack("<IQ", 0, 32),
        bytes(9), bytes(32), bytes(32),
    ]  # fmt: skip
    whole = b"".join(sections)
    assert examine(whole)[1] == []
    messages = set()
    for cut in list(accumulate(map(len, sections)))[:-1]:
        try:
            found: Finding | InputError = only(whole[:cut])
        except InputError as error:
            found = error
        assert (found.rule if isinstance(found, Finding) else found.code) == "truncated"
        assert found.subject == "m"
        messages.add(found.message)
    assert len(messages) == len(sections) - 1


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (struct.pack("<I", 1), "GGUF version 1 at byte 4, want 2 or 3"),
        (struct.pack("<I", 4), "GGUF version 4 at byte 4, want 2 or 3"),
        (struct.pack(">I", 3), "big-endian GGUF (version 3 at byte 4), want little-endian"),
    ],
)
def test_versions_that_cannot_be_read(version: bytes, words: str) -> None:
    with pytest.raises(InputError) as caught:
        examine(b"GGUF" + version + header(tensors=TWO)[8:] + DATA)
    assert words in caught.value.message
    assert caught.value.exit_status == 3


@pytest.mark.parametrize(
    ("counts", "words"),
    [((2**60, 0), "1152921504606846976 tensors"), ((0, 2**60), "1152921504606846976 keys")],
)
def test_absurd_counts(counts: tuple[int, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        examine(b"GGUF" + struct.pack("<IQQ", 3, *counts) + bytes(64))
