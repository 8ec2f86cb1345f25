from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from nextn.gguf_schema.pretokenizers import PRETOKENIZERS, recognise, split_patterns

ROOT = Path(__file__).parents[2]
FILES = {
    "deepseek-v3": ROOT / "nextn" / "demo" / "step35-tiny" / "tokenizer.json",
    "qwen35": ROOT / "tests" / "fixtures" / "qwen4exp-tiny" / "checkpoint" / "tokenizer.json",
    "glm4": ROOT / "tests" / "fixtures" / "glm5-next-tiny" / "checkpoint" / "tokenizer.json",
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(regex: str, **changes: object) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False, **changes}


def sequence(*parts: object) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


@pytest.mark.parametrize(("name", "path"), FILES.items(), ids=FILES)
def test_fixture_is_recognised(name: str, path: Path) -> None:
    assert recognise(json.loads(path.read_text(encoding="utf-8"))["pre_tokenizer"]) == name


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen35", "glm4"])
def test_literal_line_ends_in_a_pattern_make_no_difference(name: str) -> None:
    regexes = [regex.replace(r"\r", "\r").replace(r"\n", "\n") for regex in PRETOKENIZERS[name].regexes]
    assert recognise(sequence(*map(split, regexes), BYTE_LEVEL)) == name


QWEN = PRETOKENIZERS["qwen35"].regexes[0]
DEEPSEEK = PRETOKENIZERS["deepseek-v3"].regexes


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        None,
        "Sequence",
        BYTE_LEVEL,
        sequence(),
        sequence(BYTE_LEVEL),
        sequence(split(QWEN)),
        split(QWEN),
        sequence(BYTE_LEVEL, split(QWEN)),
        sequence(split(QWEN, behavior="Removed"), BYTE_LEVEL),
        sequence(split(QWEN, invert=True), BYTE_LEVEL),
        sequence(split(QWEN, pattern={"String": QWEN}), BYTE_LEVEL),
        sequence(split(QWEN), {**BYTE_LEVEL, "use_regex": True}),
        sequence(split(QWEN), {**BYTE_LEVEL, "add_prefix_space": True}),
        sequence(split(QWEN), {"type": "ByteLevel", "add_prefix_space": False}),
        sequence({"type": "Digits", "individual_digits": True}, split(QWEN), BYTE_LEVEL),
        sequence(split(QWEN), split(QWEN), BYTE_LEVEL),
        sequence(split(QWEN + "?"), BYTE_LEVEL),
        sequence(*map(split, DEEPSEEK[:2]), BYTE_LEVEL),
        sequence(*map(split, (DEEPSEEK[1], DEEPSEEK[0], DEEPSEEK[2])), BYTE_LEVEL),
    ],
)
def test_anything_else_is_unknown(pre_tokenizer: object) -> None:
    assert recognise(pre_tokenizer) is None


def test_patterns_are_shown_for_an_unknown_sequence_of_splits() -> None:
    assert split_patterns(sequence(split("x\r"), split(r"\d"), BYTE_LEVEL)) == (r"x\r", r"\d")
    assert split_patterns(sequence(split("x"), {"type": "Whitespace"}, BYTE_LEVEL)) is None


@pytest.mark.parametrize(
    ("name", "ignore_merges", "default_bos"),
    [
        ("deepseek-v3", False, True),
        ("qwen35", False, True),
        ("glm4", True, False),
        ("glm5", True, False),
        ("chatglm-bpe", False, False),
    ],
)
def test_what_a_reader_does_with_a_type(name: str, ignore_merges: bool, default_bos: bool) -> None:
    assert (PRETOKENIZERS[name].ignore_merges, PRETOKENIZERS[name].default_bos) == (ignore_merges, default_bos)


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        # Digits: by threes from the left, or one by one.
        ("deepseek-v3", "12345", ["123", "45"]),
        ("qwen35", "12345", ["1", "2", "3", "4", "5"]),
        ("glm4", "12345", ["123", "45"]),
        # A word takes the character before it; only two types know contractions.
        ("deepseek-v3", "I'LL go", ["I", "'LL", " go"]),
        ("qwen35", "I'LL go", ["I", "'LL", " go"]),
        ("deepseek-v3", "x'dx", ["x", "'dx"]),
        ("qwen35", "x'dx", ["x", "'d", "x"]),
        ("glm4", "x'dx", ["x", "'d", "x"]),
        # Chinese characters and kana are cut from what surrounds them by one type only.
        ("deepseek-v3", "ab文字cd", ["ab", "文字", "cd"]),
        ("qwen35", "ab文字cd", ["ab文字cd"]),
        # A combining mark belongs to its word, except for glm.
        ("qwen35", "e\u0301a", ["e\u0301a"]),
        ("glm4", "e\u0301a", ["e", "\u0301a"]),
        # Of several spaces the last goes to the word; line ends stay with what is before them.
        ("deepseek-v3", "a  b", ["a", " ", " b"]),
        ("qwen35", "a!\n\n b", ["a", "!\n\n", " b"]),
        ("glm4", "a \r\n b ", ["a", " \r\n", " b", " "]),
    ],
)
def test_pieces_of_a_text(name: str, text: str, pieces: list[str]) -> None:
    splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in PRETOKENIZERS[name].regexes]
    assert [piece for piece, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)] == pieces
