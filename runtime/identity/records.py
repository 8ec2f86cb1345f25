"""Records as JSON: dataclasses whose fields are the keys, written and read with every value checked."""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import MISSING, Field, field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from nextn.gguf_schema.errors import InputError, reason

T = TypeVar("T")


def named(key: str) -> Any:
    """A field whose key is a word of Python."""
    return field(metadata={"key": key})


def save_json(path: Path, told: dict[str, Any]) -> None:
    """Write an object to a file, which is complete or not there; InputError when it cannot be written."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise InputError("write-error", f"cannot be written: {error}", subject=str(path)) from error


def load_record(kind: type[T], format_: str, path: Path, remedy: str) -> T:
    """Read a record from a file; InputError, which names the key, when it is none of this format, or is damaged."""
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError("unreadable", f"cannot be read as {format_!r}: {reason(error)}", subject=str(path)) from error
    if not isinstance(told, dict) or told.get("format") != format_:
        found = told.get("format") if isinstance(told, dict) else type(told).__name__
        message = f"is no {format_!r}: {str(found)[:80]!r}"
        raise InputError("other-format", message, subject=str(path), remedy=remedy)
    try:
        return decoded(kind, told)
    except ValueError as error:
        raise InputError("damaged", str(error), subject=str(path), remedy=remedy) from error


def _key(each: Field[Any]) -> str:
    return str(each.metadata.get("key", each.name))


def encoded(value: Any) -> Any:
    """A dataclass, and all that is in it, as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {_key(each): encoded(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {str(key): encoded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [encoded(part) for part in value]
    return value.value if isinstance(value, Enum) else value


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def decoded(kind: type[T], value: Any, where: str = "") -> T:
    """A dataclass from a JSON object; keys that it has not are left out. ValueError, which names the key, otherwise."""
    if not isinstance(value, dict):
        raise ValueError(f"{where or 'the whole'} is no object")
    hints = _hints(kind)  # type: ignore[arg-type] # a class is hashable
    made = {}
    for each in fields(kind):  # type: ignore[arg-type] # a dataclass, by the callers
        key = _key(each)
        path = f"{where}.{key}" if where else key
        if key in value:
            made[each.name] = _value(hints[each.name], value[key], path)
        elif each.default is MISSING:
            raise ValueError(f"{path} is missing")
    return kind(**made)


def _value(hint: Any, value: Any, where: str) -> Any:
    """A value of a type hint: a dataclass, a choice, a list of one thing, a map of texts, or a plain value."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _value(next(one for one in inner if one is not type(None)), value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(inner[0], part, f"{where}[{index}]") for index, part in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _value(inner[1], part, f"{where}.{key}") for key, part in value.items()}
    if hint is Any or (origin is Literal and value in inner):
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        return decoded(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, Enum) and value in list(hint):
        return hint(value)
    if hint is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return float(value)
    if isinstance(hint, type) and hint is not float and type(value) is hint:
        return value
    raise ValueError(f"{where} has the value {str(value)[:80]!r}")
