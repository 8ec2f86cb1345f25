from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tokenizer_files import Folder, rules

if TYPE_CHECKING:
    from pathlib import Path

    from nextn.convert.tokenizer import TokenizerKeys


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def templates(result: TokenizerKeys) -> list[tuple[str, Any]]:
    return [(key, value.value) for key, value in result.keys.items() if "chat_template" in key]


CHAT = "tokenizer.chat_template"


@pytest.mark.parametrize(
    ("entry", "files", "expected"),
    [
        ({}, {}, []),
        ({"chat_template": "config"}, {}, [(CHAT, "config")]),
        ({"chat_template": "same\n"}, {"chat_template.jinja": "same\n"}, [(CHAT, "same\n")]),
        ({}, {"chat_template.jinja": "file\n"}, [(CHAT, "file\n")]),
        ({}, {"chat_template.json": '{"chat_template": "json"}'}, [(CHAT, "json")]),
        (
            {},
            {"chat_template.jinja": "file", "chat_template.json": '{"chat_template": "json"}'},
            [(CHAT, "file")],
        ),
        ({"chat_template": None}, {"chat_template.json": '{"chat_template": "json"}'}, []),
        (
            {},
            {
                "chat_template.jinja": "file",
                "additional_chat_templates/tool-use.jinja": "tools",
                "additional_chat_templates/rag.jinja": "rag",
            },
            [
                (f"{CHAT}.rag", "rag"),
                (f"{CHAT}.tool_use", "tools"),
                ("tokenizer.chat_templates", ("rag", "tool_use")),
                (CHAT, "file"),
            ],
        ),
        (
            {"chat_template": [{"name": "default", "template": "d"}, {"name": "b.1", "template": "x"}]},
            {},
            [(f"{CHAT}.b_1", "x"), ("tokenizer.chat_templates", ("b_1",)), (CHAT, "d")],
        ),
        (
            {"chat_template": [{"name": "b", "template": "x"}]},
            {},
            [(f"{CHAT}.b", "x"), ("tokenizer.chat_templates", ("b",))],
        ),
    ],
)
def test_chat_template(
    folder: Folder, entry: dict[str, Any], files: dict[str, str], expected: list[tuple[str, Any]]
) -> None:
    assert folder.tokenizer_config is not None
    folder.tokenizer_config |= entry
    folder.files = files
    result = folder.convert()
    assert templates(result) == expected
    assert result.findings == ()
    assert list(result.keys)[len(result.keys) - len(expected) :] == [key for key, _ in expected]


@pytest.mark.parametrize(
    ("entry", "files", "rule", "expected"),
    [
        ({"chat_template": "config"}, {"chat_template.jinja": "file"}, "chat-template-differs", [(CHAT, "config")]),
        ({"chat_template": "x"}, {"chat_template.jinja": "x\n"}, "chat-template-differs", [(CHAT, "x")]),
        ({"chat_template": None}, {"chat_template.jinja": "file"}, "chat-template-differs", []),
        ({"chat_template": 5}, {}, "chat-template", []),
        ({"chat_template": [{"name": "", "template": "x"}]}, {}, "chat-template", []),
        (
            {"chat_template": [{"name": "a-b", "template": "x"}, {"name": "a_b", "template": "y"}]},
            {},
            "chat-template",
            [(f"{CHAT}.a_b", "y"), ("tokenizer.chat_templates", ("a_b",))],
        ),
    ],
)
def test_doubtful_chat_template(
    folder: Folder, entry: dict[str, Any], files: dict[str, str], rule: str, expected: list[tuple[str, Any]]
) -> None:
    assert folder.tokenizer_config is not None
    folder.tokenizer_config |= entry
    folder.files = files
    result = folder.convert()
    assert rules(result) == [rule]
    assert templates(result) == expected


def test_without_tokenizer_config_there_is_no_template(folder: Folder) -> None:
    folder.tokenizer_config = None
    folder.config = {"eos_token_id": 5, "bos_token_id": 4}
    folder.files = {"chat_template.jinja": "file"}
    result = folder.convert()
    assert templates(result) == []
    assert rules(result) == ["chat-template"]
