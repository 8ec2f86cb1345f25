"""How things on the hub are named, and what llama.cpp makes of names of files there.

What is picked was worked out by hand from common/download.cpp of llama.cpp b11549.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nextn.convert.hub.locations import Location, location_of
from nextn.convert.hub.picks import Named, Picks, is_model, named, picks
from nextn.gguf_schema.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", Location("org/name")),
        ("org/Name-3.7_x", Location("org/Name-3.7_x")),
        ("org/name@v1.0", Location("org/name", "v1.0")),
        ("org/name@refs/pr/12", Location("org/name", "refs/pr/12")),
        ("org/name:Q4_K_M", Location("org/name", None, "Q4_K_M")),
        ("org/name@dev:q8_0", Location("org/name", "dev", "q8_0")),
        ("hf://org/name", Location("org/name")),
        ("hf://org/name@dev", Location("org/name", "dev")),
        ("hf://org/name@refs/pr/3", Location("org/name", "refs/pr/3")),
        ("org/name@feature/x", Location("org/name", "feature/x")),
        ("hf://org/name/a.gguf", Location("org/name", None, None, "a.gguf")),
        ("hf://org/name@dev/sub/a.gguf", Location("org/name", "dev", None, "sub/a.gguf")),
        ("hf://org/name@refs/pr/3/a.gguf", Location("org/name", "refs/pr/3", None, "a.gguf")),
    ],
)
def test_names_of_things_on_the_hub(text: str, expected: Location) -> None:
    found = location_of(text)
    assert found == expected
    assert str(found).removeprefix("hf://") == text.removeprefix("hf://")


@pytest.mark.parametrize(
    "text", ["name", "a/b/c", "/org/name", "./org", "../name", "org/", "org/.name", "org/model.gguf", "a b/c", "~/x"]
)
def test_what_names_nothing_on_the_hub(text: str) -> None:
    assert location_of(text) is None


def test_a_local_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    assert location_of("org/name") == Location("org/name")
    (tmp_path / "org" / "name").symlink_to("nowhere")
    assert location_of("org/name") is None
    assert location_of("hf://org/name") == Location("org/name")


@pytest.mark.parametrize("text", ["hf://name", "hf://", "hf://org/name/", "hf:///org/name/x"])
def test_what_says_hub_and_is_none(text: str) -> None:
    with pytest.raises(UsageError):
        location_of(text)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("M-Q8_0.gguf", Named("M-Q8_0", "Q8_0")),
        ("sub/M.q4_k_m.gguf", Named("sub/M.q4_k_m", "Q4_K_M")),
        ("M-Q8_0-00002-of-00003.gguf", Named("M-Q8_0", "Q8_0", 2, 3)),
        ("M-Q8_0-00002-OF-00003.gguf", Named("M-Q8_0", "Q8_0", 2, 3)),
        ("model.gguf", Named("model", "")),
        ("M-Q8_0.GGUF", Named("", "", 0, 0)),
        ("M-UD-Q2_K_XL.gguf", Named("M-UD-Q2_K_XL", "Q2_K_XL")),
    ],
)
def test_what_a_name_says(path: str, expected: Named) -> None:
    assert named(path) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("M-Q8_0.gguf", True),
        ("mtp-heads/M-Q8_0.gguf", True),
        ("mtp-M-Q8_0.gguf", False),
        ("M-mtp-Q8_0.gguf", False),
        ("MTP-M-Q8_0.gguf", True),
        ("mmproj-F16.gguf", False),
        ("M.imatrix.gguf", False),
        ("config.json", False),
    ],
)
def test_which_files_may_be_models(path: str, expected: bool) -> None:
    assert is_model(path) is expected


OURS = (
    "README.md",
    "M-BF16.gguf",
    "M-Q8_0.gguf",
    "M-trunk-Q8_0.gguf",
    "mtp-M-BF16.gguf",
    "mtp-M-Q8_0.gguf",
    "shared/mtp-M-shared-Q8_0.gguf",
)
SHARDED = ("Q4_K_M/M-Q4_K_M-00001-of-00002.gguf", "Q4_K_M/M-Q4_K_M-00002-of-00002.gguf", "mtp-M-Q8_0.gguf")
PICKED: list[tuple[str, tuple[str, ...], str | None, Picks]] = [
    ("Q8_0 before the first", OURS, None, Picks(None, ("M-Q8_0.gguf",), "mtp-M-Q8_0.gguf")),
    ("a tag in any case", OURS, "bf16", Picks("bf16", ("M-BF16.gguf",), "mtp-M-BF16.gguf")),
    ("no such tag: a head alone, the nearest in bits", OURS, "Q4_0", Picks("Q4_0", (), "mtp-M-Q8_0.gguf")),
    ("Q4_K_M before Q8_0", ("M-Q8_0.gguf", "M-Q4_K_M.gguf"), None, Picks(None, ("M-Q4_K_M.gguf",))),
    ("else the first", ("M-BF16.gguf", "M-F16.gguf"), None, Picks(None, ("M-BF16.gguf",))),
    ("all shards, a head one folder up", SHARDED, None, Picks(None, SHARDED[:2], "mtp-M-Q8_0.gguf")),
    (
        "a folder that has the tag counts, too",
        ("Q4_K_M-old/M.gguf", "M-Q4_K_M.gguf"),
        "Q4_K_M",
        Picks("Q4_K_M", ("Q4_K_M-old/M.gguf",)),
    ),
    (
        "the deeper head wins over the exact one",
        ("a/M-Q8_0.gguf", "a/mtp-M-BF16.gguf", "mtp-M-Q8_0.gguf"),
        "Q8_0",
        Picks("Q8_0", ("a/M-Q8_0.gguf",), "a/mtp-M-BF16.gguf"),
    ),
    (
        "a head in a folder beside is never taken",
        ("a/M-Q8_0.gguf", "b/mtp-M-Q8_0.gguf"),
        None,
        Picks(None, ("a/M-Q8_0.gguf",)),
    ),
    (
        "without a tag the nearest in bits, of equals the first",
        ("M-Q8_0.gguf", "mtp-M-BF16.gguf", "mtp-M-Q4_0.gguf", "mtp-M-F16.gguf"),
        None,
        Picks(None, ("M-Q8_0.gguf",), "mtp-M-Q4_0.gguf"),
    ),
    (
        "of a head in shards the first alone",
        ("M-Q8_0.gguf", "mtp-M-Q8_0-00001-of-00002.gguf", "mtp-M-Q8_0-00002-of-00002.gguf"),
        None,
        Picks(None, ("M-Q8_0.gguf",), "mtp-M-Q8_0-00001-of-00002.gguf"),
    ),
    (
        "for images by the bits of the model, whatever the tag",
        ("M-Q8_0.gguf", "mmproj-F32.gguf", "mmproj-BF16.gguf"),
        "Q8_0",
        Picks("Q8_0", ("M-Q8_0.gguf",), None, "mmproj-BF16.gguf"),
    ),
    ("a preset", ("preset.ini", "M-Q8_0.gguf"), None, Picks(None, preset=True)),
    ("a preset below the root is none", ("a/preset.ini", "M-Q8_0.gguf"), None, Picks(None, ("M-Q8_0.gguf",))),
    ("later shards are no models", ("M-Q8_0-00002-of-00002.gguf",), None, Picks(None)),
    ("nothing", ("README.md",), None, Picks(None)),
]


@pytest.mark.parametrize(("paths", "tag", "expected"), [row[1:] for row in PICKED], ids=[row[0] for row in PICKED])
def test_what_llama_cpp_picks(paths: tuple[str, ...], tag: str | None, expected: Picks) -> None:
    assert picks(paths, tag) == expected
