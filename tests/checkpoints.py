"""Copies of the fixtures' checkpoints to edit: configuration and tensors in memory, and written back."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
import struct
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from families import FAMILIES

from nextn.convert.checkpoint import open_checkpoint
from nextn.convert.pipeline import convert
from nextn.convert.planner import Options, plan_conversion
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import NextnError
from nextn.gguf_schema.shards import open_gguf

if TYPE_CHECKING:
    from pathlib import Path

    from nextn.convert.plan import Plan

INDEX = "model.safetensors.index.json"


class Stored(NamedTuple):
    """A tensor as a file holds it, and the name of that file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    part: str


def stored(array: np.ndarray[Any, Any], part: str = "model.safetensors", dtype: str | None = None) -> Stored:
    names = {"<f4": "F32", "<f2": "F16", "<f8": "F64", "<i8": "I64", "<i4": "I32"}
    return Stored(dtype or names[array.dtype.str], array.shape, array.tobytes(), part)


def safetensors_bytes(tensors: dict[str, Stored]) -> bytes:
    """A safetensors file: the length of the header, the header, the data."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"".join(tensor.data for tensor in tensors.values())


@dataclass
class Model:
    """A checkpoint in memory. Names may be changed, added and removed; `without` names files that get lost."""

    source: Path
    config: dict[str, Any]
    tensors: dict[str, Stored]
    without: set[str] = field(default_factory=set)
    index: bool = True

    @property
    def text(self) -> dict[str, Any]:
        text: dict[str, Any] = self.config["text_config"]
        return text

    def named(self, pattern: str) -> list[str]:
        """Names in which the pattern is found."""
        names = [name for name in self.tensors if re.search(pattern, name)]
        assert names, f"the fixture has nothing like {pattern}"
        return names

    def rename(self, pattern: str, replacement: str) -> None:
        for name in self.named(pattern):
            new = re.sub(pattern, replacement, name)
            assert new not in self.tensors
            self.tensors[new] = self.tensors.pop(name)

    def drop(self, pattern: str) -> list[str]:
        names = self.named(pattern)
        for name in names:
            del self.tensors[name]
        return names

    def reshape(self, pattern: str, *shape: int) -> None:
        """Give a tensor another shape; its data is repeated or cut to fit."""
        (name,) = self.named(pattern)
        old = self.tensors[name]
        size = len(old.data) // prod(old.shape)
        data = old.data * (prod(shape) // prod(old.shape) + 1)
        self.tensors[name] = old._replace(shape=shape, data=data[: prod(shape) * size])

    def write(self, folder: Path) -> Path:
        """The checkpoint as files in `folder`/model, so that every copy has the same name."""
        folder = folder / "model"
        folder.mkdir(parents=True)
        for path in self.source.iterdir():
            if path.is_file() and "safetensors" not in path.name:
                shutil.copy(path, folder)
        (folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        weight_map = {name: tensor.part for name, tensor in self.tensors.items()}
        for part in set(weight_map.values()) - self.without:
            held = {name: tensor for name, tensor in self.tensors.items() if tensor.part == part}
            (folder / part).write_bytes(safetensors_bytes(held))
        if self.index:
            (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
        return folder


@cache
def _read(family: str) -> tuple[dict[str, Any], dict[str, Stored]]:
    folder = FAMILIES[family].checkpoint
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        header.pop("__metadata__", None)
        for name, item in header.items():
            begin, end = item["data_offsets"]
            data = raw[8 + length + begin : 8 + length + end]
            tensors[name] = Stored(item["dtype"], tuple(item["shape"]), data, path.name)
    return json.loads((folder / "config.json").read_text(encoding="utf-8")), tensors


def model(family: str) -> Model:
    """A fresh copy of a fixture."""
    config, tensors = _read(family)
    return Model(FAMILIES[family].checkpoint, copy.deepcopy(config), dict(tensors))


def planned(folder: Path, *roles: Role, **options: Any) -> Plan:
    """The plan of a written checkpoint, for all roles unless some are given."""
    return plan_conversion(open_checkpoint(folder), Options(roles or tuple(Role), **options))


def rules(plan: Plan) -> list[str]:
    return [finding.rule for finding in plan.findings]


def finding(plan: Plan, rule: str) -> str:
    """The one finding of a rule, as the command line prints it."""
    (found,) = [str(finding) for finding in plan.findings if finding.rule == rule]
    return found


def refusal(folder: Path, *roles: Role, **options: Any) -> NextnError:
    """The error of converting; nothing was written."""
    out = folder.parent / "out"
    with pytest.raises(NextnError) as caught:
        convert(folder, out, options=Options(roles or (Role.COMBINED,), **options))
    assert not out.exists()
    return caught.value


def written(folder: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and sha256 of every tensor of the combined float32 file that a checkpoint becomes."""
    (output,) = convert(folder, folder.parent / "out", (Role.COMBINED,), "f32").outputs
    file = open_gguf(output.path)
    return {
        tensor.name: (tensor.ne, hashlib.sha256(file.read_tensor(tensor.name)).hexdigest()) for tensor in file.contents
    }
