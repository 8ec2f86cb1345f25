"""A matrix file: models, types, engines and draft lengths, whose combinations are the cells of a matrix.

    [matrix]
    n_max = [1, 2, 3, [1, 2, 3, 5]]     # a list within is one cell that sweeps
    engines = ["reference", "llama-cpp"]
    types = ["F32", "Q8_0"]
    n_predict = 64                      # may be left out, as may prompts, and a model's draft, types and engines
    prompts = "prompts.jsonl"

    [[models]]
    name = "step"
    model = "step-{type}.gguf"
    draft = "mtp-step-{type}.gguf"

Paths are relative to the file; `{type}` in them is the type of the cell.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextn.gguf_schema.errors import InputError, listed, reason

TYPE = "{type}"
N_PREDICT = 64


@dataclass(frozen=True)
class Cell:
    """One check: files, engine, draft lengths, tokens behind each prompt, and prompts of one's own."""

    name: str
    type: str
    engine: str
    n_max: tuple[int, ...]
    model: Path
    draft: Path | None
    n_predict: int
    prompts: Path | None

    @property
    def title(self) -> str:
        """What people call it."""
        words = (self.name, self.type, self.engine, "n_max", ",".join(map(str, self.n_max)))
        return " ".join(word for word in words if word)


def read_matrix(path: Path) -> list[Cell]:
    """The cells of a matrix file, in its order; InputError, which names the key, for a file that is none."""
    try:
        told = tomllib.loads(path.read_bytes().decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError("unreadable", f"cannot be read as TOML: {reason(error)}", subject=str(path)) from error
    reading = _Reading(path)
    reading.known(told, {"matrix", "models"}, "")
    matrix = reading.get(told, "matrix", _is_table, "a table", "")
    reading.known(matrix, {"n_max", "engines", "types", "n_predict", "prompts"}, "matrix.")
    models = reading.get(told, "models", _is_tables, "one or more tables [[models]]", "")
    cells = [cell for place, model in enumerate(models) for cell in reading.cells(matrix, model, f"models[{place}].")]
    titles = [cell.title for cell in cells]
    if twice := [title for title in dict.fromkeys(titles) if titles.count(title) > 1]:
        raise reading.error("models", f"give the same cell twice: {listed(twice)}")
    return cells


@dataclass(frozen=True)
class _Reading:
    """Takes values out of tables; errors name the file and the key."""

    path: Path

    def error(self, key: str, message: str) -> InputError:
        return InputError("bad-matrix", f"{key} {message}", subject=str(self.path))

    def known(self, table: Mapping[str, Any], keys: set[str], where: str) -> None:
        if strange := [key for key in table if key not in keys]:
            raise self.error(f"{where}{strange[0]}", f"is no key here; there are {', '.join(sorted(keys))}")

    def get(
        self,
        table: Mapping[str, Any],
        key: str,
        accepts: Callable[[Any], bool],
        wanted: str,
        where: str,
        default: Any = None,
    ) -> Any:
        if key not in table and default is not None:
            return default
        if key not in table:
            raise self.error(f"{where}{key}", f"is missing: {wanted}")
        value = table[key]
        if not accepts(value):
            raise self.error(f"{where}{key}", f"is not {wanted}")
        return value

    def file(self, table: Mapping[str, Any], key: str, where: str) -> str | None:
        return self.get(table, key, _is_text, "a path", where) if key in table else None

    def cells(self, matrix: Mapping[str, Any], model: Mapping[str, Any], where: str) -> Iterator[Cell]:
        """The cells of one model, whose own types and engines go before those of all."""
        self.known(model, {"name", "model", "draft", "types", "engines"}, where)
        name = self.get(model, "name", _is_text, "a name", where)
        file = self.get(model, "model", _is_text, "a path", where)
        draft = self.file(model, "draft", where)
        types, engines = (
            self.get(*((model, key) if key in model else (matrix, key)), _is_texts, "a list of texts", where, default)
            for key, default in (("types", [""]), ("engines", ["reference"]))
        )
        lengths = self.get(matrix, "n_max", _is_lengths, "a list of draft lengths, or of lists of them", "matrix.")
        count = self.get(matrix, "n_predict", _is_length, "a number of tokens", "matrix.", N_PREDICT)
        prompts = self.file(matrix, "prompts", "matrix.")
        if TYPE not in file + (draft or ""):
            # The types of all are of models that come in several.
            types = types if "types" in model else [""]
            if len(types) > 1:
                raise self.error(f"{where}model", f"has no {TYPE}, and there are {len(types)} types")
        for type_ in types:
            for engine in engines:
                for n_max in lengths:
                    yield Cell(
                        name,
                        type_,
                        engine,
                        tuple(n_max) if isinstance(n_max, list) else (n_max,),
                        self._place(file, type_),
                        self._place(draft, type_) if draft else None,
                        count,
                        self._place(prompts, type_) if prompts else None,
                    )

    def _place(self, path: str, type_: str) -> Path:
        return self.path.absolute().parent / path.replace(TYPE, type_)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_table, value))


def _is_text(value: Any) -> bool:
    # Names stand in tables, paths in commands: neither may hold what ends a line or a word.
    return isinstance(value, str) and bool(value) and value.isprintable()


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


def _is_length(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_lengths(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(_is_length(each) or (isinstance(each, list) and each and all(map(_is_length, each))) for each in value)
