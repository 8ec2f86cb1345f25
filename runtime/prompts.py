"""Prompts from the command line or a file: one JSON object a line, `{"name"?, "text" | "tokens"}`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nextn.gguf_schema.errors import InputError, NextnError, reason


@dataclass(frozen=True)
class Prompt:
    """A prompt with its name; token ids are fed as they are, no BOS is added to them."""

    name: str
    tokens: tuple[int, ...]


def read_prompts(path: Path, encode: Callable[[str], list[int]], vocab_size: int) -> list[Prompt]:
    """The prompts of a file, blank lines left out; one without a name is named by the number of its line.

    InputError for a file that cannot be read or holds none, and for a line that is no prompt, or has ids beyond
    `vocab_size`; it names the line.
    """
    try:
        # Other ends of lines than these may stand within a text.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("unreadable", f"cannot be read: {reason(error)}", subject=str(path)) from error
    prompts = list(_prompts(path, lines, encode, vocab_size))
    if not prompts:
        raise InputError("no-prompts", "holds no prompt", subject=str(path))
    return prompts


def _prompts(path: Path, lines: list[str], encode: Callable[[str], list[int]], vocab_size: int) -> Iterator[Prompt]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _bad(path, number, f"is not JSON: {error}") from error
        match told:
            case {"text": str(text), **rest} if "tokens" not in rest:
                tokens = _encoded(path, number, text, encode)
            case {"tokens": [*given], **rest} if "text" not in rest and all(type(t) is int for t in given):
                tokens = given
            case _:
                raise _bad(path, number, 'is not {"name"?, "text" | "tokens"}')
        name = told.get("name", str(number))
        if not isinstance(name, str):
            raise _bad(path, number, f"has a name that is no text: {name!r}")
        yield Prompt(name, checked(tokens, vocab_size, f"{path}, line {number}"))


def _encoded(path: Path, number: int, text: str, encode: Callable[[str], list[int]]) -> list[int]:
    """The ids of a text; an error about the text names its line."""
    try:
        return encode(text)
    except InputError as error:
        if error.subject is None:
            error.subject = f"{path}, line {number}"
        raise


def checked(tokens: list[int], vocab_size: int, subject: str, error: type[NextnError] = InputError) -> tuple[int, ...]:
    """Token ids that the model has, at least one; else the error: of a file's content, or of an option."""
    wrong = [token for token in tokens if not 0 <= token < vocab_size]
    if wrong:
        raise error("no-such-token", f"has id {wrong[0]}; ids are 0 to {vocab_size - 1}", subject=subject)
    if not tokens:
        raise error("empty-prompt", "is empty, and the model adds no token of its own", subject=subject)
    return tuple(tokens)


def _bad(path: Path, number: int, what: str) -> InputError:
    return InputError("bad-prompt", what, subject=f"{path}, line {number}")
