"""How llama.cpp reads keys, as data: in which order, of which type, what it says about those it does not take.

Source: src/llama-model-loader.cpp of llama.cpp b11549, as bundled with xllamacpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

from nextn.gguf_schema.contents import Contents, Value
from nextn.gguf_schema.nextn_architectures import MAX_BLOCKS
from nextn.gguf_schema.types import ValueType


class Outcome(StrEnum):
    """What becomes of a file in a runtime."""

    LOADS = "loads"
    WRONG = "loads silently wrong"
    HANGS = "hangs"
    REFUSES = "refuses"
    ABORTS = "aborts"
    SEGFAULTS = "segfaults"


@dataclass(frozen=True)
class Stop:
    """Where a runtime stops, and its words."""

    outcome: Outcome
    message: str


Values = dict[str, Any]


class Form(Enum):
    """What a loader takes for a key."""

    ONE = "one value"
    EACH = "one value, or an array over all blocks"
    TRUNK = "one value, or an array over the trunk's blocks"
    FOUR = "one value, or an array of four"
    FLAGS = "an array, filled up with zeros to the number of blocks"
    LIST = "an array of any length"


@dataclass(frozen=True)
class Read:
    """A key that is read: its type and form, whether it must be there, what is assumed otherwise.

    `default` may be a function of the values read so far. A key whose `when` does not hold, or beside the key `unless`,
    is not looked at, and 0.
    """

    key: str
    type: ValueType = ValueType.UINT32
    required: bool = False
    form: Form = Form.ONE
    default: Any = 0
    when: Callable[[Values], bool] = lambda _: True
    unless: str = ""


@dataclass(frozen=True)
class Check:
    """A condition on the values read so far, and what happens when it does not hold.

    `message` is a text, or a function of the values.
    """

    holds: Callable[[Values], bool]
    message: str | Callable[[Values], str]
    outcome: Outcome = Outcome.ABORTS


_NAMES = {ValueType.FLOAT32: "f32", ValueType.BOOL: "bool", ValueType.STRING: "str", ValueType.ARRAY: "arr"}
NAME = "general.name"
# Keys that are read of every file, and their types; the name with the hyper-parameters.
GENERAL = {"general.file_type": ValueType.UINT32, NAME: ValueType.STRING}
_FLAGS = frozenset({ValueType.BOOL, ValueType.UINT32, ValueType.INT32})
_ARRAYS = _FLAGS | {ValueType.UINT64, ValueType.FLOAT32, ValueType.STRING}


def type_name(type_: ValueType) -> str:
    """A type of a value as llama.cpp writes it."""
    return _NAMES.get(type_) or type_.name[0].lower() + "".join(filter(str.isdigit, type_.name))


def refuse(text: str) -> Stop:
    """A refusal in the loader's words."""
    return Stop(Outcome.REFUSES, f"error loading model: {text}")


def read_keys(contents: Contents, steps: tuple[Read | Check, ...], values: Values) -> Stop | None:
    """Read keys into `values`, by name without the architecture; the first that is refused ends it."""
    for step in steps:
        if isinstance(step, Check):
            if not step.holds(values):
                text = step.message if isinstance(step.message, str) else step.message(values)
                return _bad_key(text) if step.outcome is Outcome.REFUSES else Stop(step.outcome, text)
        elif not step.when(values) or (step.unless and contents.get(step.unless) is not None):
            values[step.key] = () if step.form is Form.LIST else 0
        else:
            try:
                values[step.key] = _read(contents, step, values)
            except ValueError as error:
                return _bad_key(str(error))
    return None


def _bad_key(text: str) -> Stop:
    return refuse(f"error loading model hyperparameters: {text}")


def _read(contents: Contents, step: Read, values: Values) -> Any:
    key = f"{contents.architecture}.{step.key}"
    value = contents.keys.get(key)
    counts = {Form.EACH: values.get("block_count", 0), Form.FOUR: 4, Form.TRUNK: 0}
    if step.form is Form.TRUNK:
        counts[Form.TRUNK] = values["block_count"] - values["nextn_predict_layers"]
    if step.form in (Form.FLAGS, Form.LIST):
        return _array(key, value, step, values)
    if value is None:
        if step.required:
            raise ValueError(f"key not found in model: {key}")
        default = step.default(values) if callable(step.default) else step.default
        return (default,) * counts[step.form] if step.form in counts and not isinstance(default, tuple) else default
    if step.form in counts and value.type is ValueType.ARRAY:
        if len(value.items) != counts[step.form]:
            raise ValueError(f"key {key} has wrong array length; expected {counts[step.form]}, got {len(value.items)}")
        return _elements(key, value, step)
    if value.type is not step.type:
        raise ValueError(f"key {key} has wrong type {type_name(value.type)} but expected type {type_name(step.type)}")
    return (value.value,) * counts[step.form] if step.form in counts else value.value


def _array(key: str, value: Value | None, step: Read, values: Values) -> Sequence[Any]:
    if value is None or value.type is not ValueType.ARRAY:
        if value is not None and step.form is Form.LIST:
            raise ValueError(f"key {key} has wrong type {type_name(value.type)} but expected type arr")
        if step.required:
            raise ValueError(f"{'array ' if step.form is Form.FLAGS else ''}key not found in model: {key}")
        return ()
    if step.form is Form.LIST:
        _check_elements(key, value, step)
        return value.items  # However many there are: who looks at them decodes them.
    if len(value.items) > MAX_BLOCKS:
        raise ValueError(f"array length {len(value.items)} for key {key} exceeds max {MAX_BLOCKS}")
    found, blocks = _elements(key, value, step), int(values["block_count"])
    return found + (0,) * (blocks - len(found))


def _elements(key: str, value: Value, step: Read) -> tuple[Any, ...]:
    _check_elements(key, value, step)
    return tuple(value.items)


def _check_elements(key: str, value: Value, step: Read) -> None:
    assert value.element is not None  # noqa: S101  # an array has one
    if value.element not in _ARRAYS:
        raise ValueError(f"{key} is not a string/float32/uint32/int32/uint64 array")
    if value.element is not step.type and not (value.element in _FLAGS and step.type in _FLAGS):
        raise ValueError(f"{key} has wrong array element type {type_name(value.element)}")


def read_general(contents: Contents) -> Stop | None:
    """Where a key that says what the file is ends the loading, because of its type."""
    for key, type_ in GENERAL.items():
        value = contents.keys.get(key)
        if value and value.type is not type_:
            text = f"key {key} has wrong type {type_name(value.type)} but expected type {type_name(type_)}"
            return _bad_key(text) if key == NAME else refuse(text)
    return None
