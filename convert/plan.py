"""A plan: every key and tensor of the files to write, with source, transform, type and offset. Made from headers alone.

A plan is printed by `--dry-run`, judged by the validator through `Contents`, and executed by the writer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from nextn.convert.source_tensor import SourceTensor
from nextn.convert.transforms import Recipe
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.container import alignment_of, encode_header, lay_out
from nextn.gguf_schema.contents import ByteSource, Contents, LocalFile, TensorInfo, Value
from nextn.gguf_schema.errors import InputError
from nextn.validators.findings import Finding


@dataclass(frozen=True)
class PlannedFile:
    """One file to write: its role, its path under the output folder, its keys and its tensors with offsets.

    `hash_fields` maps the names of tensors, of this file or another, to the offset in `header` of the 64 characters
    where the sha256 of their data belongs; it is known only when the data has been streamed. `same_as` is a file with
    the very same bytes. The role is None when the file has no blocks.
    """

    role: Role | None
    path: PurePosixPath
    keys: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    header: bytes
    data_bytes: int
    hash_fields: Mapping[str, int] = field(default_factory=dict)
    same_as: LocalFile | None = None

    @property
    def total_bytes(self) -> int:
        """Size of the file."""
        return len(self.header) + self.data_bytes

    @property
    def contents(self) -> Contents:
        """What the file will say."""
        return Contents(self.keys, {tensor.name: tensor for tensor in self.tensors}, str(self.path))


def hash_placeholder(tensor: str) -> str:
    """Stands for the sha256 of a tensor's data until it is known: 64 characters that no other value contains."""
    return f"<sha256 of {tensor}>".ljust(64, "-")


def plan_file(
    role: Role | None,
    path: PurePosixPath,
    keys: Mapping[str, Value],
    tensors: Iterable[TensorInfo],
    hashed: Iterable[str] = (),
) -> PlannedFile:
    """Lay out one file: offsets, header and size; `hashed` names the tensors with a placeholder among the keys.

    Raises InputError when the header cannot be written.
    """
    laid_out, data_bytes = lay_out(tensors, alignment := alignment_of(keys))
    header = encode_header(keys, laid_out, alignment)
    fields = {name: _only_place(hash_placeholder(name), header) for name in hashed}
    return PlannedFile(role, path, keys, laid_out, header, data_bytes, fields)


def _only_place(placeholder: str, header: bytes) -> int:
    """The offset of a placeholder; a name or other text of the model may not look like one."""
    if header.count(placeholder.encode()) != 1:
        raise InputError("bad-value", "stands for a hash, and must not be among the metadata", subject=placeholder)
    return header.index(placeholder.encode())


# A file must not be made by two versions of these.
ENCODING_PACKAGES = ("nextn", "numpy", "ml_dtypes", "gguf")


@dataclass(frozen=True)
class Payload:
    """How the data of one tensor is made; every file that holds the tensor gets the same bytes."""

    info: TensorInfo
    recipe: Recipe

    def __post_init__(self) -> None:
        """Refuse a recipe that does not give as many values as the tensor has: what is missing would be zeros."""
        made = sum(run.rows * len(run.sources) for run in self.recipe.runs) * self.recipe.width
        if self.info.type.known and made != self.info.elements:
            raise ValueError(f"{self.info.name}: {made} values for {self.info.elements}")

    @cached_property
    def verbatim(self) -> SourceTensor | None:
        """The source whose bytes, from the first to the last, are the data; None when it is made otherwise."""
        recipe = self.recipe
        if recipe.function is not None or len(recipe.runs) > 1 or len(recipe.runs[0].sources) > 1:
            return None
        run, (source,) = recipe.runs[0], recipe.runs[0].sources
        whole = run.start == 0 and run.rows * recipe.width == source.elements
        alike = source.dtype == self.info.type.name and source.nbytes == self.info.nbytes and source.scale is None
        return source if whole and alike else None


@dataclass(frozen=True)
class Dropped:
    """A source tensor, or another `kind` of thing, that no file of the plan holds, and why."""

    name: str
    reason: str
    kind: str = "tensor"


@dataclass(frozen=True)
class Plan:
    """Files to write, the data they are made of in writing order, and what was noticed on the way.

    `inputs` are the files that were or will be read; none of them is ever written.
    """

    files: tuple[PlannedFile, ...]
    payload: tuple[Payload, ...]
    dropped: tuple[Dropped, ...] = ()
    findings: tuple[Finding, ...] = ()
    inputs: tuple[Path, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(file.total_bytes for file in self.files)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with anything that changes the files' bytes: headers, recipes, sources, and the code that encodes."""
        digest = hashlib.sha256(" ".join(version(package) for package in ENCODING_PACKAGES).encode())
        for file in self.files:
            digest.update(_encoded(f"{file.path}\n") + file.header)
        for payload in self.payload:
            recipe = payload.recipe
            digest.update(_encoded(f"{payload.info} {recipe.shape} {recipe.width} {recipe.group} {recipe.note}\n"))
            for run in recipe.runs:
                sources = " ".join(source.identity for source in run.sources)
                digest.update(_encoded(f"{run.start} {run.rows} {sources}\n"))
        return digest.hexdigest()

    @cached_property
    def recipes(self) -> Mapping[str, Recipe]:
        """How each tensor is made, by its name."""
        return {payload.info.name: payload.recipe for payload in self.payload}

    @cached_property
    def sources(self) -> frozenset[ByteSource]:
        """The files of all source tensors that are read, and of their scales."""
        tensors = {source for payload in self.payload for source in payload.recipe.sources}
        return frozenset(t.source for source in tensors for t in (source, source.scale) if t)

    @property
    def protected(self) -> frozenset[Path]:
        """Files that must not be written: the inputs, and whatever their names are the sources."""
        return frozenset(self.inputs) | {source.path for source in self.sources if isinstance(source, LocalFile)}

    @property
    def source_bytes(self) -> int:
        """Bytes of all source tensors that are read."""
        return self.bytes_of_sources()

    def bytes_of_sources(self, without: Collection[str] = ()) -> int:
        """Bytes of the source tensors that the data is made of, except that of the named tensors."""
        read = (payload.recipe.sources for payload in self.payload if payload.info.name not in without)
        sources = {source for of_one in read for source in of_one}
        return sum(source.nbytes + (source.scale.nbytes if source.scale else 0) for source in sources)

    def as_json(self) -> dict[str, Any]:
        """What was left out and what was noticed, as `--json` prints it."""
        return {
            "dropped": [{"name": dropped.name, "reason": dropped.reason} for dropped in self.dropped],
            "warnings": [finding.as_json() for finding in self.findings],
        }


def _encoded(text: str) -> bytes:
    """A text in bytes; names of files and tensors need not be valid Unicode."""
    return text.encode("utf-8", "surrogatepass")
