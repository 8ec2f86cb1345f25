"""The operations on GGUF files, carried out; and what files hold, told by gguf-py."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import pytest

from nextn.cli import main
from nextn.convert.pipeline import Conversion, execute
from nextn.convert.splitting import Split
from nextn.convert.surgery.operations import Operation, plan_join, plan_retype, plan_split
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.container import encode_header, lay_out
from nextn.gguf_schema.contents import Contents, TensorInfo
from nextn.gguf_schema.types import TENSOR_TYPES, TensorType


def carried_out(operation: Operation, folder: Path) -> Conversion:
    return execute(operation.plan, folder, time.monotonic(), jobs=1)


def split(
    source: Path, folder: Path, *roles: Role, heads: int | None = None, limits: Split | None = None
) -> dict[Role, Path]:
    """The files, or the first shard of each, by role."""
    done = carried_out(plan_split(source, roles or tuple(Role), heads, limits), folder)
    files: dict[Role, Path] = {}
    for output in done.outputs:
        assert output.role is not None
        files.setdefault(output.role, output.path)
    return files


def joined(trunk: Path, head: Path, output: Path, emit: Role = Role.COMBINED, **options: Any) -> Path:
    """The joined file, or its first shard."""
    done = carried_out(plan_join(trunk, head, output, emit, **options), output.parent)
    return done.outputs[0].path


def retyped(source: Path, output: Path, outtype: str | None, rules: dict[str, str] | None = None) -> Path:
    patterns = tuple((re.compile(pattern), type_of(name)) for pattern, name in (rules or {}).items())
    done = carried_out(plan_retype(source, output, type_of(outtype) if outtype else None, patterns), output.parent)
    return done.outputs[0].path


def command(*arguments: object) -> tuple[int, dict[str, Any], str]:
    """The command in this process, with --json: its exit status, what it prints on stdout, and stderr."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([*map(str, arguments), "--json"])
    assert isinstance(ended.value.code, int)
    return ended.value.code, json.loads(out.getvalue()), err.getvalue()


def refused(*arguments: object, status: int) -> dict[str, Any]:
    """The error of a command, which is the last that it prints, on two lines at most."""
    code, printed, stderr = command(*arguments)
    assert code == status, stderr
    error: dict[str, Any] = printed["error"]
    assert list(error) == ["code", "message", "subject", "remedy"]
    said = stderr[stderr.index("error: ") :].splitlines()
    assert len(said) <= 2
    return error


def shown(*arguments: object) -> dict[str, Any]:
    """What a command that succeeds prints."""
    code, printed, stderr = command(*arguments)
    assert code == 0, stderr
    return printed


def write(contents: Contents, path: Path, salt: bytes = b"") -> Path:
    """A file of contents without sizes; the data repeats the name of each tensor, and `salt`."""
    infos, _ = lay_out(sized(tensor) for tensor in contents)
    with path.open("wb") as file:
        file.write(encode_header(contents.keys, infos))
        for tensor in infos:
            words = tensor.name.encode() + salt
            data = (words * (tensor.nbytes // len(words) + 1))[: tensor.nbytes]
            file.write(data + bytes(-len(data) % 32))
    return path


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """All files of a folder keep their names, bytes and times of change; and none is added."""

    def state() -> dict[Path, tuple[int, str]]:
        found = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {path: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for path in found}

    before = state()
    yield
    assert state() == before


def sized(tensor: TensorInfo) -> TensorInfo:
    """A tensor described without its size, with it."""
    return replace(tensor, nbytes=tensor.type.tensor_bytes(tensor.ne))


def type_of(name: str) -> TensorType:
    return TENSOR_TYPES[name.upper()]


class Seen(NamedTuple):
    """What gguf-py reads of a file or a set: keys with type and value, tensors with dimensions, type and bytes."""

    keys: dict[str, tuple[list[int], Any]]
    tensors: dict[str, tuple[list[int], int, bytes]]

    def number(self, name: str) -> Any:
        """A key of the architecture; None without it."""
        key = f"{self.keys['general.architecture'][1]}.{name}"
        return self.keys[key][1] if key in self.keys else None


def seen(path: Path) -> Seen:
    """A file, or the set of which `path` is the first shard, in file order."""
    keys: dict[str, tuple[list[int], Any]] = {}
    tensors: dict[str, tuple[list[int], int, bytes]] = {}
    for shard in shards_of(path):
        reader = gguf.GGUFReader(shard)
        for name, field in reader.fields.items():
            if not name.startswith(("GGUF.", "split.")):
                assert name not in keys or name == "general.alignment", "a later shard repeats a key"
                keys[name] = ([int(type_) for type_ in field.types], field.contents())
        for tensor in reader.tensors:
            assert tensor.name not in tensors
            tensors[tensor.name] = (tensor.shape.tolist(), int(tensor.tensor_type), tensor.data.tobytes())
    return Seen(keys, tensors)


def shards_of(path: Path) -> Iterator[Path]:
    if match := re.search(r"-00001-of-([0-9]{5})\.gguf$", path.name):
        count = int(match[1])
        for index in range(1, count + 1):
            yield path.with_name(f"{path.name[: match.start()]}-{index:05}-of-{count:05}.gguf")
    else:
        yield path
