from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizer_files import Folder, added, model, pre_tokenizer, rules

from nextn.convert.tokenizer import tokenizer_keys
from nextn.gguf_schema.errors import InputError, UsageError
from nextn.gguf_schema.pretokenizers import PRETOKENIZERS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# --- tokens, types, merges


def test_every_kind_of_token(folder: Folder) -> None:
    folder.tokenizer["added_tokens"] = [
        added(0, "a", special=False),
        added(4, "<s>"),
        added(5, "<|spelled|>", special=False),
        added(6, "<｜wide｜>", special=False),
        added(7, "<unused7>", special=False),
        added(8, "[@BOS@]", special=False),
        added(9, "<tool>", special=False),
        added(11, "\u2581two\u2581words", special=False),
        added(12, "\u2581kept", special=True),
    ]
    keys = folder.convert(vocab_size=14).keys
    assert keys["tokenizer.ggml.tokens"].value == (
        "a", "b", "ab", "Ġ", "<s>", "<|spelled|>", "<｜wide｜>", "<unused7>", "[@BOS@]", "<tool>", "[PAD10]",
        " two words", "\u2581kept", "[PAD13]",
    )  # fmt: skip
    assert keys["tokenizer.ggml.token_type"].value == (4, 1, 1, 1, 3, 3, 3, 3, 3, 4, 5, 4, 3, 5)
    assert keys["tokenizer.ggml.token_type"].type_name == "ARRAY[INT32]"
    assert list(keys)[:5] == [f"tokenizer.ggml.{k}" for k in ("model", "pre", "tokens", "token_type", "merges")]


@pytest.mark.parametrize(
    ("text", "normalized", "written"),
    [
        ("Ġx", False, " x"),  # the byte-level decoder reads Ġ as a space
        ("Ġx", True, "Ġx"),
        ("<｜x｜>", False, "<｜x｜>"),  # a character outside the alphabet: taken as it stands
        ("a b", False, "a b"),
    ],
)
@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
def test_added_token_that_is_not_normalized_is_written_as_it_decodes(
    folder: Folder, text: str, normalized: bool, written: str, normalizer: object
) -> None:
    folder.tokenizer |= {"added_tokens": [added(4, text, normalized=normalized)], "normalizer": normalizer}
    assert folder.convert(vocab_size=5).keys["tokenizer.ggml.tokens"].items[4] == written


def test_added_token_that_does_not_survive_decoding_is_doubtful(folder: Folder) -> None:
    folder.tokenizer["added_tokens"] += [added(7, "é")]  # the byte-level alphabet's spelling of the lone byte E9
    result = folder.convert()
    assert result.keys["tokenizer.ggml.tokens"].items[7] == "\ufffd"
    assert rules(result) == ["added-token-text"]


def test_heavy_libraries_stay_unloaded() -> None:
    code = """
import sys
from pathlib import Path
from nextn.convert.tokenizer import tokenizer_keys
tokenizer_keys(Path("nextn/demo/step35-tiny"), {}, 512, style="gpt2")
print(sorted({"tokenizers", "transformers", "torch", "gguf"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("merges", "written"),
    [
        (["a b", "Ġ a b"], ("a b", "Ġ a b")),
        ([["a", "b"], ["Ġ", "a"]], ("a b", "Ġ a")),
        ([["a b", " "]], ("aĠb Ġ",)),
    ],
)
def test_merges(folder: Folder, merges: list[Any], written: tuple[str, ...]) -> None:
    folder.tokenizer["model"]["merges"] = merges
    assert folder.convert().keys["tokenizer.ggml.merges"].value == written


@pytest.mark.parametrize(
    ("merges", "shown"),
    [
        ([["a", "b"]], None),
        ([["a", "b"], ["zz", "b"]], "'zz b'"),
        (["a b ab"], "'a b ab'"),
        ([["b", "a"]], "'b a'"),
    ],
)
def test_merges_of_what_is_no_token_are_doubtful(folder: Folder, merges: list[Any], shown: str | None) -> None:
    folder.tokenizer["model"]["merges"] = merges
    result = folder.convert()
    assert rules(result) == ([] if shown is None else ["unknown-merge"])
    assert (
        shown is None or f"1 merge of parts, or to a whole, that are no tokens: {shown}" in result.findings[0].message
    )


def test_a_token_without_text_is_doubtful(folder: Folder) -> None:
    folder.tokenizer["model"]["vocab"][""] = 7
    result = folder.convert()
    assert rules(result) == ["empty-token"]
    assert "ids 7" in result.findings[0].message


def test_a_token_that_occurs_twice(folder: Folder) -> None:
    """A parser would keep the later id without a word."""
    folder.convert()
    path = folder.path / "tokenizer.json"
    path.write_text(path.read_text().replace('"a": 0', '"a": 7, "a": 0'))
    with pytest.raises(InputError, match="a name occurs twice: 'a'"):
        tokenizer_keys(folder.path, {}, 8, style="gpt2")


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"model": model(type="WordPiece")}, "unsupported-tokenizer", "WordPiece"),
        ({"model": None}, "unsupported-tokenizer", "None"),
        ({"model": model(end_of_word_suffix="</w>")}, "unsupported-tokenizer", "end_of_word_suffix '</w>'"),
        ({"model": model(vocab=["a"])}, "bad-tokenizer", "model.vocab is not an object"),
        ({"model": model(vocab={"a": "0"})}, "bad-tokenizer", "'a' is not an integer"),
        ({"model": model(vocab={"a": 0, "b": 0})}, "duplicate-id", "'a' and 'b' share id 0"),
        ({"model": model(vocab={"a": 8})}, "token-range", "'a' has id 8, but vocab_size is 8"),
        ({"model": model(vocab={"a": -1})}, "token-range", "'a' has id -1"),
        ({"model": model(vocab={"a": 0, "[PAD7]": 1})}, "duplicate-token", "ids 1, 7 all have the text '[PAD7]'"),
        ({"model": model(merges=[])}, "no-merges", "no merges"),
        ({"model": model(merges={})}, "no-merges", "no merges"),
        ({"model": model(merges="a b")}, "bad-tokenizer", "model.merges is not a list"),
        ({"model": model(merges=["ab"])}, "bad-tokenizer", "'ab'"),
        ({"model": model(merges=[["a", "b", "c"]])}, "bad-tokenizer", "not a merge of two parts"),
        ({"added_tokens": [{"id": 4}]}, "bad-tokenizer", "added_tokens"),
        ({"added_tokens": [added(9, "<s>")]}, "token-range", "'<s>' has id 9"),
        ({"added_tokens": [added(1, "<s>")]}, "duplicate-id", "'b' and '<s>' share id 1"),
        ({"added_tokens": [added(4, "b")]}, "duplicate-token", "'b' has id 1 in model.vocab and 4 in added_tokens"),
        ({"added_tokens": [added(4, "<s>"), added(5, "<s>")]}, "duplicate-token", "ids 4, 5"),
    ],
)
def test_refused_tokenizer(folder: Folder, changes: dict[str, Any], code: str, message: str) -> None:
    folder.tokenizer |= changes
    with pytest.raises(InputError) as caught:
        folder.convert()
    assert caught.value.code == code
    assert message in caught.value.message
    assert caught.value.subject == str(folder.path / "tokenizer.json")


def test_missing_tokenizer_names_file_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.json: is missing") as caught:
        tokenizer_keys(tmp_path, {}, 8, style="gpt2")
    assert caught.value.remedy is not None


def test_damaged_tokenizer_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": ', encoding="utf-8")
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        tokenizer_keys(tmp_path, {}, 8, style="gpt2")


# --- pre-tokenizer


def test_unknown_pre_tokenizer_shows_the_pattern_and_names_the_option(folder: Folder) -> None:
    folder.tokenizer["pre_tokenizer"] = pre_tokenizer(r"\d|\r\n")
    with pytest.raises(InputError) as caught:
        folder.convert()
    assert r"\\d|\\r\\n" in caught.value.message
    assert "--pre" in str(caught.value.remedy)
    assert "deepseek-v3, qwen35, glm4" in str(caught.value.remedy)


def test_unknown_pre_tokenizer_is_written_as_named(folder: Folder) -> None:
    folder.tokenizer["pre_tokenizer"] = pre_tokenizer(r"\d")
    result = folder.convert(pre="deepseek-v3")
    assert result.keys["tokenizer.ggml.pre"].value == "deepseek-v3"
    assert result.findings == ()


def test_unknown_name_lists_the_known_ones(folder: Folder) -> None:
    with pytest.raises(UsageError, match="gpt-5") as caught:
        folder.convert(pre="gpt-5")
    assert "deepseek-v3, qwen35, glm4" in str(caught.value.remedy)


def test_name_against_the_regexes_is_doubtful(folder: Folder) -> None:
    result = folder.convert(pre="deepseek-v3")
    assert result.keys["tokenizer.ggml.pre"].value == "deepseek-v3"
    assert rules(result) == ["pre-tokenizer"]


@pytest.mark.parametrize(
    ("type_", "ignore_merges", "expected"),
    [
        ("qwen35", False, []),
        ("qwen35", True, ["ignore-merges"]),
        ("glm4", True, []),
        ("glm4", False, ["ignore-merges"]),
    ],
)
def test_ignore_merges_that_a_reader_would_not_follow_is_doubtful(
    folder: Folder, type_: str, ignore_merges: bool, expected: list[str]
) -> None:
    folder.tokenizer |= {
        "pre_tokenizer": pre_tokenizer(*PRETOKENIZERS[type_].regexes),
        "model": model(ignore_merges=ignore_merges),
    }
    assert rules(folder.convert()) == expected


@pytest.mark.parametrize(
    ("normalizer", "noted"),
    [
        (None, []),
        ({"type": "Sequence", "normalizers": []}, []),
        ({"type": "NFC"}, ["NFC"]),
        ({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}]}, ["NFD, Lowercase"]),
    ],
)
def test_normalizer_is_noted(folder: Folder, normalizer: object, noted: list[str]) -> None:
    folder.tokenizer["normalizer"] = normalizer
    findings = folder.convert().findings
    assert [f.rule for f in findings] == ["normalizer"] * len(noted)
    assert all(f"({names})" in f.message for names, f in zip(noted, findings, strict=True))
