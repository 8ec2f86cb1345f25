"""Files of prompts: each line that is none is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nextn.gguf_schema.errors import InputError
from nextn.runtime.prompts import Prompt, checked, read_prompts


def encode(text: str) -> list[int]:
    """A token for each character; `?` is no text."""
    if "?" in text:
        raise InputError("not-text", "holds a question")
    return [ord(character) % 100 for character in text]


def read(path: Path, content: str | bytes) -> list[Prompt]:
    file = path / "prompts.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_prompts(file, encode, 100)


def test_texts_and_ids_with_and_without_names(tmp_path: Path) -> None:
    content = '{"text": "ab"}\n\n{"name": "ids", "tokens": [3, 99, 0]}\n  \n{"tokens": [1], "note": 7, "name": ""}'
    assert read(tmp_path, content) == [Prompt("1", (97, 98)), Prompt("ids", (3, 99, 0)), Prompt("", (1,))]


@pytest.mark.parametrize("content", ['{"text": "a"}\r\n{"text": "b"}\r\n', '\ufeff{"text": "a"}\n{"text": "b"}'])
def test_files_of_windows(tmp_path: Path, content: str) -> None:
    assert [prompt.tokens for prompt in read(tmp_path, content)] == [(97,), (98,)]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_newlines_end_a_line(tmp_path: Path, separator: str) -> None:
    """JSON leaves some of these in its texts as they are; a prompt with one was cut in two."""
    text = f"a{separator}b"
    assert read(tmp_path, json.dumps({"text": text}, ensure_ascii=False))[0].tokens == tuple(encode(text))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON"),
        ("text", "is not JSON"),
        ('{"text": "a"} {"text": "b"}', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"tokens": [' + "9" * 5000 + "]}", "is not JSON"),
        ("[1, 2]", "is not {"),
        ('"text"', "is not {"),
        ("null", "is not {"),
        ("{}", "is not {"),
        ('{"name": "a"}', "is not {"),
        ('{"text": 1}', "is not {"),
        ('{"text": null, "tokens": [1]}', "is not {"),
        ('{"text": "a", "tokens": [1]}', "is not {"),
        ('{"tokens": "12"}', "is not {"),
        ('{"tokens": 1}', "is not {"),
        ('{"tokens": [1, "2"]}', "is not {"),
        ('{"tokens": [1.0]}', "is not {"),
        ('{"tokens": [true]}', "is not {"),
        ('{"tokens": [[1]]}', "is not {"),
        ('{"tokens": [1], "name": 3}', "name that is no text"),
        ('{"tokens": [1], "name": null}', "name that is no text"),
        ('{"tokens": [5, 100]}', "has id 100; ids are 0 to 99"),
        ('{"tokens": [-1]}', "has id -1"),
        ('{"tokens": []}', "is empty"),
        ('{"text": ""}', "is empty"),
        ('{"text": "a?"}', "holds a question"),
    ],
    ids=lambda value: value[:40],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, '{"text": "a"}\n\n' + line + '\n{"text": "b"}')
    assert caught.value.subject == f"{tmp_path / 'prompts.jsonl'}, line 3"


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_prompts_is_an_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match="holds no prompt"):
        read(tmp_path, content)


def test_what_is_no_text_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path, b'{"text": "\xff"}')
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match="cannot be read"):
            read_prompts(path, encode, 100)


def test_the_last_id_of_a_vocabulary_is_one() -> None:
    assert checked([0, 6], 7, "-p") == (0, 6)
    with pytest.raises(InputError, match="has id 7"):
        checked([0, 7], 7, "-p")
