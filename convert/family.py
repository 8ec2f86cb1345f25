"""What converting a family takes beside its tables: how to read its configuration, and its names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from types import UnionType
from typing import Any, Literal

import numpy as np

from nextn.convert.checkpoint import shown
from nextn.convert.mapping import Names
from nextn.convert.source_tensor import SourceTensor
from nextn.convert.special_tokens import Style
from nextn.convert.transforms import Recipe
from nextn.gguf_schema.architecture import Architecture, Hyperparameters
from nextn.gguf_schema.errors import InputError
from nextn.validators.findings import Findings

# Only tensors up to this size are read before the plan stands.
SMALL_TENSOR_BYTES = 64 * 1024

INTEGER_DTYPES = {"I64": "<i8", "I32": "<i4"}

# `expert_gating_func` by the names that configurations use.
GATING = {"softmax": 1, "sigmoid": 2}

# Files hold numbers as float32.
FLOAT32_MAX = float(np.finfo(np.float32).max)

# Keys that no file holds, with the values that runtimes compute with; another value is another model.
Fixed = Mapping[str, tuple[Any, ...]]

_REQUIRED = object()


@dataclass
class Facts:
    """What is known of a checkpoint when its hyper-parameters are worked out.

    `config` is the text configuration; `tensors` maps canonical names (see mapping.canonical) to tensors; `names` also
    holds those of missing shards, and `missing` says which file each of them should be in. `trunk_wanted` is false when
    only heads are written. Doubtful things are added to `findings`.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor] = field(default_factory=dict)
    names: Collection[str] = ()
    trunk_blocks: int = 0
    nextn_blocks: int = 0
    missing: Mapping[str, str] = field(default_factory=dict)
    trunk_wanted: bool = True
    findings: Findings = field(default_factory=Findings)

    @property
    def blocks(self) -> range:
        """All blocks, trunk first."""
        return range(self.trunk_blocks + self.nextn_blocks)

    def get(self, *keys: str, default: Any = _REQUIRED) -> Any:
        """The first of these spellings of a key that is neither absent, null nor `{}`; dots descend into objects.

        A warning tells when another spelling says something else. Raises InputError naming the first key when none is
        there and no default is given.
        """
        values = {key: value for key in keys if (value := self._held(key)) not in (None, {})}
        if not values:
            if default is _REQUIRED:
                raise InputError("config-key", f"config.json lacks {' or '.join(keys)}", subject=keys[0])
            return default
        (first, value), *others = values.items()
        for key, other in others:
            if not _agree(value, other):
                message = f"is {shown(value)}, but {key} is {shown(other)}; the former counts"
                self.findings.warn("config-spellings", first, message)
        return value

    def _held(self, key: str) -> Any:
        held: Any = self.config
        for step in key.split("."):
            held = held.get(step) if isinstance(held, Mapping) else None
        return held

    def integer(self, *keys: str, default: Any = _REQUIRED, least: int = 0) -> Any:
        """As `get`, for a whole number from `least` on that fits 32 bits (or the default)."""
        value = self.get(*keys, default=default)
        if value is not default and (type(value) is not int or not least <= value < 1 << 32):
            raise _unfit(keys[0], value, f"a whole number from {least} on")
        return value

    def number(self, *keys: str, default: Any = _REQUIRED, above: float = -inf) -> Any:
        """As `get`, for a number greater than `above` that fits 32 bits (or the default)."""
        value = self.get(*keys, default=default)
        if value is default:
            return value
        if not _is_number(value) or not above < value:
            raise _unfit(keys[0], value, "a number" + (f" above {above:g}" if above > -inf else ""))
        return float(value)

    def numbers(self, *keys: str) -> list[float]:
        """As `get`, for a list of numbers from 0 on that fit 32 bits; null is 0."""
        values = [0 if value is None else value for value in self.sequence(*keys)]
        if odd := [value for value in values if not _is_number(value) or value < 0]:
            raise _unfit(keys[0], odd[0], "numbers from 0 on")
        return [float(value) for value in values]

    def flag(self, *keys: str, default: bool) -> bool:
        """As `get`, for true or false."""
        value = self.get(*keys, default=default)
        if not isinstance(value, bool):
            raise _unfit(keys[0], value, "true or false")
        return value

    def used_experts(self, *keys: str, of: int) -> int:
        """As `integer`, for the number of experts that a token goes through."""
        used = self.integer(*keys, least=1)
        self.require(used <= of, keys[0], f"is {used}, but there are {of} experts")
        return int(used)

    def word(self, *keys: str, default: str) -> str:
        """As `get`, for a string."""
        value = self.get(*keys, default=default)
        if not isinstance(value, str):
            raise _unfit(keys[0], value, "a string")
        return value

    def sequence(self, *keys: str, default: Any = _REQUIRED, of: type | UnionType = object) -> list[Any]:
        """As `get`, for a list of values of one type."""
        value = self.get(*keys, default=default)
        if not isinstance(value, list | tuple) or not all(isinstance(item, of) for item in value):
            raise _unfit(keys[0], value, f"a list of {getattr(of, '__name__', of)}" if of is not object else "a list")
        return list(value)

    def mapping(self, *keys: str) -> Mapping[str, Any]:
        """As `get`, for an object; an absent one is empty."""
        value = self.get(*keys, default={})
        if not isinstance(value, Mapping):
            raise _unfit(keys[0], value, "an object")
        return value

    def require(self, holds: bool, subject: str, message: str) -> None:
        """Raise InputError when the configuration is something that GGUF or its runtimes cannot express."""
        if not holds:
            raise InputError("unsupported-config", message, subject=subject)

    def require_fixed(self, table: Fixed) -> None:
        """Raise InputError when a key is there, with a value that its row does not allow."""
        for key, allowed in table.items():
            value = self.get(key, default=None)
            fits = value is None or any(type(value) is type(want) and value == want for want in allowed)
            want = f"with {' or '.join(map(repr, allowed))}" if allowed else "without it"
            self.require(fits, key, f"is {shown(value)}; runtimes compute as {want}")

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The torch shape of a tensor, or None when it is not there."""
        tensor = self.tensors.get(name)
        return tensor.shape if tensor else None

    def integers(self, name: str) -> tuple[int, ...]:
        """The values of a small integer tensor; they never pass through floats. InputError when it is missing."""
        tensor = self.tensors.get(name)
        if tensor is None:
            part = self.missing.get(name)
            raise InputError(
                "missing-constant",
                "an integer constant that the trunk needs is not there" + (f": it should be in {part}" if part else ""),
                subject=name,
                remedy=f"download {part or 'the shard that holds it'} again; --emit mtp can do without",
            )
        if tensor.dtype not in INTEGER_DTYPES or tensor.elements * 8 > SMALL_TENSOR_BYTES:
            raise InputError("bad-constant", f"is {tensor.dtype} {list(tensor.shape)}, want a few I64", subject=name)
        return tuple(np.frombuffer(tensor.read(0, tensor.elements), INTEGER_DTYPES[tensor.dtype]).tolist())


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= FLOAT32_MAX  # type: ignore[arg-type]


def _agree(value: object, other: object) -> bool:
    """Whether two spellings say the same: equal values, or objects that are equal where both say something."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return all(value[key] == other[key] for key in value.keys() & other.keys())
    return value == other


def _unfit(key: str, value: object, want: str) -> InputError:
    return InputError("config-value", f"config.json: {key} is {shown(value)}, want {want}", subject=key)


def _nothing(_: Facts, __: Any) -> Iterator[tuple[str, Recipe]]:
    return iter(())


@dataclass(frozen=True)
class Family:
    """A family of checkpoints: the GGUF architecture, how its configuration is read, its names and special tensors.

    `tied_output` says how a model without an own output matrix is written: with a copy of the embeddings, or without.
    `generated` yields tensors that are computed instead of read.
    """

    architecture: Architecture
    hub_architectures: tuple[str, ...]
    names: Names
    hyperparameters: Callable[[Facts], Hyperparameters]
    head_count_keys: tuple[str, ...]
    tokenizer: Style = "gpt2"
    tied_output: Literal["copy", "absent"] = "copy"
    generated: Callable[[Facts, Any], Iterator[tuple[str, Recipe]]] = _nothing
