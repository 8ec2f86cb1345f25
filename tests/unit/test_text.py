"""A vocabulary in a file makes the ids that its checkpoint's own tokenizer makes, and ends where llama.cpp ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, Value, array, boolean, i32, string, u32
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.shards import open_gguf
from nextn.gguf_schema.types import ValueType
from nextn.runtime.text import Text

Converted = Callable[[str], dict[Role, Path]]
PROMPTS = [(family, prompt["name"]) for family in FAMILIES for prompt in FAMILIES[family].prompts]
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


@pytest.fixture(scope="session")
def texts(converted: Converted) -> Callable[[str], Text]:
    @cache
    def get(family: str) -> Text:
        return Text(open_gguf(converted(family)[Role.COMBINED]).contents)

    return get


@cache
def judge(family: str) -> Tokenizer:
    """The checkpoint's own tokenizer."""
    return Tokenizer.from_file(str(FAMILIES[family].checkpoint / "tokenizer.json"))


@pytest.mark.parametrize(("family", "name"), PROMPTS)
def test_ids_of_golden_prompts(texts: Callable[[str], Text], family: str, name: str) -> None:
    text = texts(family)
    prompt = next(prompt for prompt in FAMILIES[family].prompts if prompt["name"] == name)
    assert text.encode(prompt["text"]) == prompt["ids"]
    assert text.decode(prompt["ids"][text.adds_bos :]) == prompt["text"]


@pytest.mark.parametrize(
    ("family", "bos", "adds_bos", "ends"),
    [("step35", 0, True, {1, 503}), ("qwen4exp", 503, False, {503, 505}), ("glm5-next", 490, False, {488, 495, 497})],
)
def test_special_ids(texts: Callable[[str], Text], family: str, bos: int, adds_bos: bool, ends: set[int]) -> None:
    """step35 does not end at `<|stop|>`, which its config.json lists."""
    text = texts(family)
    assert (text.bos, text.adds_bos, text.adds_eos, text.ends) == (bos, adds_bos, False, ends)


WORDS = (
    "the ",
    "Weather",
    "don't",
    "WE'LL",
    " ",
    "  ",
    "12",
    "3456789",
    "a_b",
    "!?",
    "((",
    "½",
    "é",
    "e\u0301",
    "ﬁ",
    "İ",
)
LINES = ("\t", "\n", "\r\n", "\n\n  ", "\u00a0", "\u2028", "\u200b", "\x00")
OTHERS = ("中文", "カタカナ", "한국", "١٢", "🌧", "\U0001f468\u200d\U0001f469")
any_text = st.lists(st.sampled_from(WORDS + LINES + OTHERS) | st.text(max_size=8), max_size=12).map("".join)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_checkpoint_s_own_tokenizer_agrees(texts: Callable[[str], Text], family: str) -> None:
    text, special = texts(family), sorted(judge(family).get_added_tokens_decoder().values(), key=str)
    literals = st.sampled_from([token.content for token in special])
    pieces = st.lists(any_text | literals, max_size=5).map("".join)

    @settings(max_examples=150, deadline=None)
    @given(pieces)
    def agrees(piece: str) -> None:
        ids = judge(family).encode(piece, add_special_tokens=False).ids
        assert text.encode(piece)[text.adds_bos :] == ids
        assert text.decode(ids) == piece

    agrees()


# Vocabularies made by hand


def vocabulary(
    tokens: dict[str, int], merges: tuple[str, ...] = (), /, pre: str = "qwen35", **keys: Value | None
) -> Contents:
    """Tokens with their types; further keys of the tokenizer, None to leave one out."""
    found: dict[str, Value | None] = {
        "model": string("gpt2"),
        "pre": string(pre),
        "tokens": array(ValueType.STRING, tokens),
        "token_type": array(ValueType.INT32, tokens.values()),
        "merges": array(ValueType.STRING, merges),
        **keys,
    }
    prefix = "tokenizer.ggml."
    return Contents({f"{prefix}{key}": value for key, value in found.items() if value is not None}, {}, "a.gguf")


LETTERS = dict.fromkeys("abcdefghijklm", NORMAL)  # ids 0 … 12


def numbered(*literals: str, kind: int = CONTROL) -> dict[str, int]:
    """The letters, and behind them tokens with ids from 13 on."""
    return {**LETTERS, **dict.fromkeys(literals, kind)}


def test_the_longest_literal_is_cut_out_first() -> None:
    """Not the one that begins first: llama.cpp looks for each of them in the whole text, the longest first."""
    text = Text(vocabulary(numbered("ab", "bcd", "bcde")))
    assert text.encode("abcd") == [0, 14]
    assert text.encode("abcde") == [0, 15]
    assert text.encode("abc") == [13, 2]
    assert text.encode("ababbcdbcd") == [13, 13, 14, 14]
    # By bytes, not by characters.
    assert Text(vocabulary(numbered("abc", "céé"))).encode("abcéé") == [0, 1, 14]


@pytest.mark.parametrize(
    ("kind", "ids", "decoded"),
    [
        (NORMAL, [0, 1], "ab"),
        (UNKNOWN, [13], "ab"),
        (CONTROL, [13], "ab"),
        (USER, [13], "ab"),
        (UNUSED, [0, 1], ""),
        (0, [0, 1], ""),
    ],
)
def test_what_types_are_literal(kind: int, ids: list[int], decoded: str) -> None:
    text = Text(vocabulary(numbered("ab", kind=kind)))
    assert text.encode("ab") == ids
    assert text.decode([13]) == decoded


def test_literals_are_no_bytes() -> None:
    """`é` as a literal is that letter; in an ordinary token it stands for the byte E9, and `Ġ` for a space."""
    text = Text(vocabulary({**numbered("é", "Ġx"), "Ġy": NORMAL, "Ã©": NORMAL, "Ã": NORMAL}))
    assert text.decode([13, 14, 15, 16, 17]) == "éĠx yé\ufffd"
    assert text.encode("é") == [13]


def test_ids_that_are_none_are_shown_as_such() -> None:
    assert Text(vocabulary(LETTERS)).decode([0, 99, -1, 1]) == "a\ufffd\ufffdb"


def test_tokens_without_types_are_ordinary() -> None:
    assert Text(vocabulary(numbered("ab"), token_type=None)).encode("ab") == [0, 1]


def test_an_empty_token_has_a_name() -> None:
    assert Text(vocabulary({"a": NORMAL, "": NORMAL})).tokens == ["a", "[EMPTY_1]"]


def test_merges() -> None:
    """A merge is cut at the first space behind its first character; of equal ones the first counts."""
    tokens = {**numbered("ab", "bc", "abc", kind=NORMAL), " ": NORMAL}
    assert Text(vocabulary(tokens, ("b c", "a bc", "a b"))).encode("abc") == [15]
    assert Text(vocabulary(tokens, ("a b", "b c"))).encode("abc") == [13, 2]
    assert Text(vocabulary(tokens, ("a b", "b c", "a b", "ab"))).encode("abc") == [13, 2]
    # Whole words go without merges where the type says so.
    assert Text(vocabulary(tokens, ("a b",), pre="glm4")).encode("abc") == [15]
    assert Text(vocabulary(tokens, ("a b",), pre="chatglm-bpe")).encode("abc") == [13, 2]


@pytest.mark.parametrize(
    ("keys", "pre", "bos", "encoded"),
    [
        ({}, "qwen35", 11, [0]),
        ({"add_bos_token": boolean(True)}, "qwen35", 11, [11, 0]),
        ({"add_bos_token": boolean(True)}, "glm4", None, [0]),
        ({"add_bos_token": boolean(True), "bos_token_id": u32(3)}, "glm4", 3, [3, 0]),
        ({"add_bos_token": boolean(False), "bos_token_id": u32(3)}, "qwen35", 3, [0]),
        ({"add_bos_token": boolean(True), "bos_token_id": u32(13)}, "qwen35", 11, [11, 0]),
        ({"add_bos_token": boolean(True), "bos_token_id": u32(2**32 - 1)}, "chatglm-bpe", None, [0]),
        ({"add_eos_token": boolean(True)}, "qwen35", 11, [0, 11]),
        (
            {"add_bos_token": boolean(True), "add_eos_token": boolean(True), "eos_token_id": i32(4)},
            "glm5",
            None,
            [0, 4],
        ),
    ],
)
def test_what_stands_around_a_prompt(keys: dict[str, Value], pre: str, bos: int | None, encoded: list[int]) -> None:
    """An absent or impossible id is 11, but for BOS of the GLM types."""
    text = Text(vocabulary(LETTERS, pre=pre, **keys))
    assert (text.bos, text.encode("a")) == (bos, encoded)


def test_a_default_beyond_a_small_vocabulary_is_none() -> None:
    text = Text(vocabulary({"a": NORMAL, "b": NORMAL}, add_bos_token=boolean(True)))
    assert (text.bos, text.eos, text.ends, text.encode("a")) == (None, None, frozenset(), [0])


def test_a_prompt_of_nothing() -> None:
    assert Text(vocabulary(LETTERS)).encode("") == []
    assert Text(vocabulary(LETTERS, add_bos_token=boolean(True))).encode("") == [11]


@pytest.mark.parametrize(
    ("literals", "keys", "ends"),
    [
        ((), {}, {11}),
        ((), {"eos_token_id": 2, "eot_token_id": 3, "eom_token_id": 4, "unknown_token_id": 5}, {2, 3, 4}),
        ((), {"eos_token_id": 99, "eot_token_id": 99}, {11}),
        (("<|im_end|>", "<|endoftext|>", "<|im_start|>"), {"eos_token_id": 2}, {2, 13, 14}),
        (("[e~[", "<｜end▁of▁sentence｜>", "<|ifm|im_end|>"), {"eos_token_id": 2}, {2, 13, 14, 15}),
        # Fill-in-the-middle: by key, else one by its text.
        (("<PAD>", "<|fim_pad|>", "<|file_sep|>", "<REPO>"), {"eos_token_id": 2}, {2, 14, 15, 16}),
        (("<|fim_pad|>",), {"eos_token_id": 2, "fim_pad_token_id": 5, "fim_sep_token_id": 6}, {2, 5, 6}),
        (("<|fim_pad|>",), {"eos_token_id": 2, "fim_pad_token_id": 99}, {2, 13}),
        # The first exception.
        (("<|end|>", "<|return|>"), {"eos_token_id": 2}, {2, 13, 14}),
        (("<|end|>", "<|call|>"), {"eos_token_id": 2}, {2, 13, 14}),
        (("<|end|>", "<|return|>", "<|call|>"), {"eos_token_id": 2}, {2, 14, 15}),
        (("<|end|>", "<|flush|>", "<|calls|>"), {"eos_token_id": 2}, {2, 14, 15}),
        (("<|end|>", "<|return|>", "<|call|>"), {"eos_token_id": 13}, {14, 15}),
        # The second one.
        (("</s>",), {"eos_token_id": 2}, {2, 13}),
        (("</s>", "<|tool_response>"), {"eos_token_id": 2}, {2, 14}),
        (("</s>", "<|tool_response>"), {"eos_token_id": 13}, {14}),
        (("</s>", "<|plamo:eos|>"), {"eos_token_id": 14}, {14}),
        (("</s>", "<|plamo:eos|>"), {"eos_token_id": 2}, {2, 13}),
    ],
)
def test_what_ends_a_generation(literals: tuple[str, ...], keys: dict[str, int], ends: set[int]) -> None:
    text = Text(vocabulary(numbered(*literals), **{key: u32(value) for key, value in keys.items()}))
    assert text.ends == ends


def test_ends_are_literal_whatever_their_type_is() -> None:
    text = Text(vocabulary(numbered("<|im_end|>", "<|fim_pad|>", kind=NORMAL)))
    assert text.encode("a<|im_end|><|fim_pad|>b") == [0, 13, 14, 1]


def test_an_end_that_is_none_is_ordinary_text() -> None:
    text = Text(vocabulary(numbered("</s>", "<|tool_response>")))
    assert 13 not in text.encode("</s>")
    assert text.decode([13, 14]) == "</s><|tool_response>"


# Refusals


@pytest.mark.parametrize(("model", "pre"), [("llama", "qwen35"), ("gpt2", "llama-bpe"), ("gpt2", ""), ("", "glm4")])
def test_a_tokenizer_that_is_not_known_is_refused(model: str, pre: str) -> None:
    contents = vocabulary(LETTERS, model=string(model), pre=pre)
    with pytest.raises(InputError, match="cannot be read here") as caught:
        Text(contents)
    assert (caught.value.code, caught.value.subject) == ("unknown-tokenizer", "a.gguf")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"tokens": None}, "no-vocabulary"),
        ({"merges": None}, "no-vocabulary"),
        ({"model": None}, "unknown-tokenizer"),
        ({"tokens": array(ValueType.STRING, ["a", "b", "a"])}, "bad-vocabulary"),
        ({"token_type": array(ValueType.INT32, [1, 1])}, "bad-vocabulary"),
        ({"merges": array(ValueType.STRING, ["a z"])}, "bad-vocabulary"),
        ({"merges": array(ValueType.STRING, ["a b"])}, "bad-vocabulary"),  # ab is no token
        ({"eos_token_id": string("a")}, "bad-vocabulary"),
        ({"bos_token_id": array(ValueType.UINT32, [1]), "add_bos_token": boolean(True)}, "bad-vocabulary"),
    ],
    ids=str,
)
def test_a_vocabulary_that_makes_no_sense_is_refused(changes: dict[str, Any], code: str) -> None:
    contents = vocabulary(LETTERS, **changes)
    with pytest.raises(InputError) as caught:
        (lambda text: (text.encode("a"), text.ends))(Text(contents))
    assert caught.value.code == code
    assert caught.value.subject == "a.gguf"


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(InputError, match=r"U\+D83D"):
        Text(vocabulary(LETTERS)).encode("a\ud83d")
