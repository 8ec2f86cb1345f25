"""Plans whose sources are GGUF files: edits become plans, which the writer executes like those of a conversion."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from nextn.convert.metadata import file_name
from nextn.convert.plan import Dropped, Payload, Plan, PlannedFile, hash_placeholder
from nextn.convert.source_tensor import stored
from nextn.convert.splitting import Split, grouped, plan_groups
from nextn.convert.transforms import Recipe, copy, fuse_columns, rows_of, select_rows
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import LocalFile, TensorInfo, Value, string, u32
from nextn.gguf_schema.edit import Edit, Taken, taken
from nextn.gguf_schema.errors import listed
from nextn.gguf_schema.nextn_generic import EMBEDDING, role_of
from nextn.gguf_schema.placement import layout_problems
from nextn.gguf_schema.shards import SPLIT_KEYS, GGUFFile, open_gguf, shard_stem
from nextn.gguf_schema.types import ValueType
from nextn.validators.examine import examine_contents
from nextn.validators.findings import Finding, Findings, Severity

# What publishers put between the name of a model and `.gguf`: a type, perhaps with the maker's prefix.
OUTTYPE = re.compile(r"-((?:UD-)?(?:B?F16|F32|I?Q[0-9]\w*|TQ[0-9]\w*|MXFP4\w*|NVFP4))$", re.IGNORECASE)
# Keys about the files that a file was made of.
SOURCE = "nextn.source."
ROLE_MARKS = re.compile(r"^mtp-|-(?:trunk|shared)$")


@dataclass(frozen=True)
class Target:
    """A file to make: its path below the output folder, what it becomes, and what is cut when it is too large."""

    path: PurePosixPath
    edit: Edit
    split: Split | None = None


def open_input(path: Path, findings: Findings, tolerated: Collection[str] = ()) -> GGUFFile:
    """The whole model that `path` belongs to; what is doubtful about its files is added to the findings.

    Raises InputError when it cannot be read, is incomplete, or has data in places that no loader takes; but for faults
    of the set whose code is among the `tolerated`.
    """
    file = open_gguf(path, strict=False, tolerated=tolerated)
    for header in file.headers:
        for problem in layout_problems(header):
            if problem.code != "trailing-bytes":
                raise problem
            findings.warn("trailing-bytes", header.source.name, f"{problem.message}: they are not copied")
    for header in file.headers[1:]:
        if lost := [key for key in header.contents.keys if key not in SPLIT_KEYS and key not in file.contents.keys]:
            message = f"has keys that only the first of a set should have, and that are not kept: {listed(lost)}"
            findings.warn("shard-keys", header.source.name, message)
    for shard in file.paths:
        if shard != path and shard.is_symlink():
            findings.warn("symlink", str(shard), f"is a link: {shard.resolve()} is read")
    return file


def plan_edits(
    files: Sequence[GGUFFile],
    targets: Sequence[Target],
    findings: Iterable[Finding] = (),
    provenance: str | None = None,
) -> Plan:
    """The plan of making `targets` from `files`, whose order the edits count by.

    What the validator has against the outputs is among its findings, as warnings. `provenance` names the operation, to
    be written with the files that it took into `nextn.source.*`.
    Raises InputError when a file cannot be made as it is described.
    """
    origin = {} if provenance is None else _provenance(provenance, files)
    planned = [file for target in targets for file in _planned(target, files, origin)]
    every = {tensor.info.name: tensor for target in targets for tensor in target.edit.tensors}
    if EMBEDDING not in every and any(file.hash_fields for file in planned):
        every[EMBEDDING] = taken(files[0].contents.tensors[EMBEDDING])
    payload = tuple(Payload(tensor.info, _recipe(tensor, files)) for tensor in every.values())
    planned = [replace(file, same_as=_same_file(file, files, every)) for file in planned]
    used = {name for target in targets for tensor in target.edit.tensors for name in tensor.sources}
    stored_names = {name for file in files for name in file.contents.tensors}
    dropped = {name: reason for target in targets for name, reason in target.edit.dropped if name not in used}
    return Plan(
        tuple(planned),
        payload,
        tuple(Dropped(name, reason, "tensor" if name in stored_names else "key") for name, reason in dropped.items()),
        tuple(dict.fromkeys((*findings, *(finding for target in targets for finding in _judged(target))))),
        tuple(path for file in files for path in file.paths),
    )


def _judged(target: Target) -> Iterator[Finding]:
    """What is wrong with the file that will be made."""
    for finding in examine_contents(target.edit.contents(str(target.path))).findings:
        if finding.severity is Severity.ERROR:
            message = f"{finding.message} (in {target.path})"
            yield replace(finding, severity=Severity.WARNING, message=message, remedy=None)


def _planned(target: Target, files: Sequence[GGUFFile], origin: Mapping[str, Value]) -> tuple[PlannedFile, ...]:
    edit = target.edit
    # What an input says of its own making is not true of the output.
    keys = {**{key: value for key, value in edit.keys.items() if not key.startswith(SOURCE)}, **origin}
    infos = [replace(tensor.info, shard=0) for tensor in edit.tensors]
    groups = list(grouped(infos, target.split)) if target.split else _stored_groups(edit, files)
    hashed = [EMBEDDING] if any(v.value == hash_placeholder(EMBEDDING) for v in keys.values()) else []
    return plan_groups(role_of(edit.contents(str(target.path))), target.path, keys, groups, hashed)


def _stored_groups(edit: Edit, files: Sequence[GGUFFile]) -> list[list[TensorInfo]]:
    """The tensors of each file: as they are among shards now. A first one without tensors stays so."""
    shards: dict[int, list[TensorInfo]] = {}
    if any(tensor.info.shard for tensor in edit.tensors) and not files[0].headers[0].described:
        shards[0] = []
    for tensor in edit.tensors:
        shards.setdefault(tensor.info.shard, []).append(replace(tensor.info, shard=0))
    return [shards[shard] for shard in sorted(shards)] or [[]]


def _recipe(tensor: Taken, files: Sequence[GGUFFile]) -> Recipe:
    """How the data of a tensor is made of stored ones."""
    sources = [stored(files[tensor.file], name) for name in tensor.sources]
    first, shape = sources[0], tensor.info.ne[::-1]
    if len(sources) > 1:
        return fuse_columns(sources)
    if tensor.parts > 1:
        rows = [(row * tensor.parts + tensor.part, 1) for row in range(rows_of(shape))]
        note = f"part {tensor.part + 1} of {tensor.parts} of each row"
        return replace(select_rows(first, rows, shape[-1]), shape=shape, note=note)
    if not tensor.info.type.known:
        return copy(first)
    note = "copy" if first.dtype == tensor.info.type.name else f"{first.dtype} retyped"
    return replace(copy(first, shape), note=note)


def _same_file(file: PlannedFile, files: Sequence[GGUFFile], every: Mapping[str, Taken]) -> LocalFile | None:
    """The shard of the input that has the very bytes of a planned one: its header, and its own data."""
    stored_names = files[0].contents.tensors
    if file.hash_fields or any(tensor.name not in stored_names for tensor in file.tensors):
        return None
    for header in files[0].headers[1:]:
        source = header.source
        if not isinstance(source, LocalFile) or source.size != file.total_bytes:
            continue
        # Whether types and dimensions changed the header tells.
        copied = all(_is_stored(every[tensor.name]) for tensor in file.tensors)
        if copied and source.read(0, header.data_offset) == file.header:
            return source
    return None


def _is_stored(tensor: Taken) -> bool:
    """Whether it is a tensor of the first input as a whole, under its name."""
    return tensor.is_copy and tensor.file == 0 and tensor.sources == (tensor.info.name,)


def _provenance(operation: str, files: Sequence[GGUFFile]) -> dict[str, Value]:
    """Which files an output was made of, by name, size and the hash of the header: the same for the same inputs."""
    keys = {f"{SOURCE}operation": string(operation), f"{SOURCE}count": u32(len(files))}
    for index, file in enumerate(files):
        header, place = file.headers[0], f"{SOURCE}{index}"
        keys[f"{place}.file"] = string(Path(header.source.name).name)
        keys[f"{place}.bytes"] = Value(ValueType.UINT64, sum(h.source.size for h in file.headers))
        digest = hashlib.sha256(header.source.read(0, header.data_offset)).hexdigest()
        keys[f"{place}.header_sha256"] = string(digest)
        if name := file.contents.keys.get("general.name"):
            keys[f"{place}.name"] = name
    return keys


def path_of(source: Path, role: Role) -> PurePosixPath:
    """Where a file of `role`, made from `source`, goes below an output folder: named as converting names it."""
    stem = shard_stem(source)
    match = OUTTYPE.search(stem)
    outtype = match[1] if match else ""
    name = ROLE_MARKS.sub("", stem[: match.start()] if match else stem)
    path = file_name(role, ROLE_MARKS.sub("", name), outtype)
    return PurePosixPath(path if match else path.replace("-.gguf", ".gguf"))
