"""Ranges of remote files: joining them, and what of them is on disk after whatever happened to it."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from nextn.convert.hub.ranges import Range, merged, minus, pieces_of, total, worth_asking
from nextn.convert.hub.store import RANGES, UNIT, RangeStore


@pytest.mark.parametrize(
    ("ranges", "gap", "expected"),
    [
        ([], 0, []),
        ([(0, 10)], 0, [(0, 10)]),
        ([(5, 5)], 0, []),
        ([(10, 20), (0, 10)], 0, [(0, 20)]),
        ([(0, 10), (11, 20)], 0, [(0, 10), (11, 20)]),
        ([(0, 10), (11, 20)], 1, [(0, 20)]),
        ([(0, 100), (10, 20), (90, 120)], 0, [(0, 120)]),
        ([(0, 10), (15, 20), (40, 50)], 5, [(0, 20), (40, 50)]),
    ],
)
def test_ranges_are_joined(ranges: list[Range], gap: int, expected: list[Range]) -> None:
    assert merged(ranges, gap) == expected


def test_what_lies_between_is_asked_for_only_where_it_is_little() -> None:
    """A gap of 10 kB is less than a hundredth of 2 MB, and more than that of 200 kB."""
    large = [(0, 1_000_000), (1_010_000, 2_010_000)]
    small = [(0, 100_000), (110_000, 210_000)]
    assert worth_asking(large) == [(0, 2_010_000)]
    assert worth_asking(small) == small
    assert worth_asking([(0, 10_000_000), (10_020_000, 20_000_000)]) == [(0, 10_000_000), (10_020_000, 20_000_000)]


def bytes_of(ranges: Sequence[Range]) -> set[int]:
    return {byte for start, end in ranges for byte in range(start, end)}


def test_differences_and_pieces_are_those_of_sets_of_bytes() -> None:
    chance = random.Random(9)  # noqa: S311 - no secrets
    for _ in range(300):
        ranges, others = (
            merged([(start := chance.randrange(60), start + chance.randrange(12)) for _ in range(4)], 0)
            for _ in range(2)
        )
        left = list(minus(ranges, others))
        assert bytes_of(left) == bytes_of(ranges) - bytes_of(others)
        assert left == merged(left, 0)
        pieces = list(pieces_of(ranges, 5))
        assert bytes_of(pieces) == bytes_of(ranges)
        assert total(pieces) == len(bytes_of(ranges))
        assert all(0 < end - start <= 5 for start, end in pieces)


def store(tmp_path: Path, identity: str = "one", size: int = 1000) -> RangeStore:
    return RangeStore(tmp_path / "part", size, identity).open()


def test_what_was_put_is_there_for_the_next_process(tmp_path: Path) -> None:
    first = store(tmp_path)
    assert list(first.missing(0, 1000)) == [(0, 1000)]
    first.put(100, b"a" * 50)
    first.put(150, b"b" * 50)
    first.put(900, b"c" * 100)
    second = store(tmp_path)
    assert list(second.missing(0, 1000)) == [(0, 100), (200, 900)]
    assert list(second.missing(120, 180)) == []
    assert list(second.missing(199, 201)) == [(200, 201)]
    assert second.read(149, 2) == b"ab"
    assert second.read(0, 0) == b""


def test_ranges_may_overlap_as_those_of_two_processes_do(tmp_path: Path) -> None:
    one, other = store(tmp_path), store(tmp_path)
    one.put(0, b"x" * 500)
    other.put(250, b"x" * 500)
    assert list(store(tmp_path).missing(0, 1000)) == [(750, 1000)]


@pytest.mark.parametrize(
    "left", [b"100 2", b"\n100 200 zzzzzzzz\n", b"\n100 99999999999 00000000\n", b"\n5 5 00000000\n"]
)
def test_lines_that_are_none_count_for_nothing(left: bytes, tmp_path: Path) -> None:
    """Among them one that a process left unfinished when it died: what is appended behind it counts."""
    store(tmp_path).put(0, b"x" * 10)
    with (tmp_path / f"part{RANGES}").open("ab") as file:
        file.write(left)
    store(tmp_path).put(20, b"y" * 10)
    assert list(store(tmp_path).missing(0, 40)) == [(10, 20), (30, 40)]


def test_bytes_that_never_reached_the_disk_are_fetched_again(tmp_path: Path) -> None:
    """After a crash of the machine the list may tell of bytes that are not there: their checksum does not fit."""
    first = store(tmp_path)
    first.put(0, b"x" * 100)
    first.put(100, b"y" * 100)
    with (tmp_path / "part").open("r+b") as file:
        file.seek(150)
        file.write(b"\0")
    again = store(tmp_path)
    assert list(again.missing(0, 200)) == [(100, 200)]
    assert list(again.missing(0, 200)) == [(100, 200)]


@pytest.mark.parametrize(("identity", "size"), [("other", 1000), ("one", 999)])
def test_another_content_is_not_taken_for_this_one(identity: str, size: int, tmp_path: Path) -> None:
    store(tmp_path).put(0, b"x" * 100)
    assert list(store(tmp_path, identity, size).missing(0, 100)) == [(0, 100)]
    assert list(store(tmp_path).missing(0, 100)) == [(0, 100)]


def test_a_file_that_was_cut_counts_for_nothing(tmp_path: Path) -> None:
    store(tmp_path).put(0, b"x" * 100)
    os.truncate(tmp_path / "part", 50)
    assert list(store(tmp_path).missing(0, 100)) == [(0, 100)]


def test_forgetting_and_removing(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.put(0, b"x" * 100)
    assert not kept.is_empty
    kept.forget()
    assert kept.is_empty
    assert list(kept.missing(0, 1000)) == list(store(tmp_path).missing(0, 1000)) == [(0, 1000)]
    kept.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_range_of_the_largest_unit_is_found_from_its_end(tmp_path: Path) -> None:
    size = 3 * UNIT
    store(tmp_path, size=size).put(UNIT, b"z" * UNIT)
    assert list(store(tmp_path, size=size).missing(2 * UNIT - 1, 2 * UNIT + 1)) == [(2 * UNIT, 2 * UNIT + 1)]
