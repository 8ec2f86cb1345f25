"""Where a checkpoint keeps its chat template, and the keys that carry it.

Source of the rules: gguf-py/gguf/vocab.py (precedence) and gguf_writer.py (`add_chat_template`) of llama.cpp b11549.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nextn.convert.checkpoint import read_json
from nextn.gguf_schema.contents import Value, array, string
from nextn.gguf_schema.errors import InputError, reason
from nextn.gguf_schema.types import ValueType
from nextn.validators.findings import Findings

if TYPE_CHECKING:
    from pathlib import Path

KEY = "tokenizer.chat_template"
NAMES_KEY = "tokenizer.chat_templates"
DEFAULT = "default"
JINJA = "chat_template.jinja"
JSON = "chat_template.json"
ADDITIONAL = "additional_chat_templates"

# By name; None when there is none.
Templates = Mapping[str, str] | None


def chat_template_keys(folder: Path, tokenizer_config: Mapping[str, Any], findings: Findings) -> dict[str, Value]:
    """The chat template keys in file order; what is doubtful is appended to `findings`.

    The key in tokenizer_config.json wins, even when it is null; then the .jinja files; then chat_template.json.
    Without a tokenizer_config.json there is no template.
    """
    in_files = _from_files(folder, findings)
    if not tokenizer_config:
        if in_files:
            findings.warn("chat-template", str(folder), "is not written: there is no tokenizer_config.json")
        return {}
    if "chat_template" not in tokenizer_config:
        return _keys(in_files)
    templates = _from_entry(tokenizer_config["chat_template"], folder / "tokenizer_config.json", findings)
    if (folder / JINJA).is_file() and in_files and (templates or {}).get(DEFAULT) != in_files[DEFAULT]:
        findings.warn(
            "chat-template-differs",
            str(folder / JINJA),
            "differs from chat_template of tokenizer_config.json, which is written; transformers prefers this file",
            "make the two equal, or remove the one that is out of date",
        )
    return _keys(templates)


def _from_files(folder: Path, findings: Findings) -> Templates:
    if (folder / JINJA).is_file():
        # By name, so that the output does not depend on the file system.
        additional = sorted((folder / ADDITIONAL).glob("*.jinja"))
        named = [(DEFAULT, folder / JINJA), *((path.stem, path) for path in additional)]
        return _by_name([{"name": name, "template": _read(path)} for name, path in named], folder, findings)
    if (folder / JSON).is_file():
        return _from_entry(read_json(folder / JSON).get("chat_template"), folder / JSON, findings)
    return None


def _from_entry(entry: object, path: Path, findings: Findings) -> Templates:
    match entry:
        case None:
            return None
        case str(text):
            return {DEFAULT: text}
        case [*choices]:
            return _by_name(choices, path, findings)
    findings.warn("chat-template", str(path), "chat_template is neither a text nor a list and is not written")
    return None


def _by_name(choices: Sequence[object], origin: Path, findings: Findings) -> dict[str, str]:
    templates: dict[str, str] = {}
    for choice in choices:
        match choice:
            case {"name": str(given), "template": str(text)} if given:
                name = re.sub("[^A-Za-z0-9]", "_", given)
                if name in templates:
                    findings.warn("chat-template", str(origin), f"two templates are named {name}; the later is written")
                templates[name] = text
            case _:
                findings.warn("chat-template", str(origin), "a template without name or text is not written")
    return templates


def _keys(templates: Templates) -> dict[str, Value]:
    if templates is None:
        return {}
    named = {name: text for name, text in templates.items() if name != DEFAULT}
    keys = {f"{KEY}.{name}": string(text) for name, text in named.items()}
    if named:
        keys[NAMES_KEY] = array(ValueType.STRING, named)
    if DEFAULT in templates:
        keys[KEY] = string(templates[DEFAULT])
    return keys


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("unreadable", f"cannot be read: {reason(error)}", subject=str(path)) from error
