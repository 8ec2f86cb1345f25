"""Converting from end to end: open the checkpoint, plan, write, and look at what was written."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nextn.convert.checkpoint import open_checkpoint
from nextn.convert.manifest import hash_files, manifest, write_manifest
from nextn.convert.plan import Plan, PlannedFile
from nextn.convert.planner import Options, plan_conversion
from nextn.convert.writer import Progress, write_plan
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError, VerdictError
from nextn.gguf_schema.nextn_generic import role_of
from nextn.gguf_schema.shards import open_gguf


@dataclass(frozen=True)
class WrittenFile:
    """One file that was written: its place, role, number of tensors and size."""

    path: Path
    role: Role
    tensors: int
    bytes: int
    sha256: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The file as `--json` prints it; it has a hash only when a manifest was asked for."""
        return asdict(self) | {"path": str(self.path)}


@dataclass(frozen=True)
class Conversion:
    """What a conversion did."""

    outputs: tuple[WrittenFile, ...]
    plan: Plan
    seconds: float
    bytes_read: int

    def as_json(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        return {
            "outputs": [output.as_json() for output in self.outputs],
            **self.plan.as_json(),
            "seconds": round(self.seconds, 3),
            "bytes_read": self.bytes_read,
            "peak_rss_bytes": peak_rss_bytes(),
        }


def plan(source: Path, options: Options) -> Plan:
    """The plan of converting the checkpoint in `source`; reads no payload.

    Raises InputError when it cannot be read or converted.
    """
    if not source.is_dir():
        raise InputError(
            "no-checkpoint",
            "is not a folder" if source.exists() else "does not exist",
            subject=str(source),
            remedy="give the folder of a checkpoint in Hugging Face format",
        )
    return plan_conversion(open_checkpoint(source), options)


def convert(
    source: Path,
    folder: Path,
    roles: Sequence[Role] = (Role.COMBINED,),
    outtype: str = "auto",
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    options: Options | None = None,
) -> Conversion:
    """Convert the checkpoint in `source` to one file for each role under `folder`.

    `options` replaces `roles` and `outtype` when more is wanted. Raises InputError for a bad checkpoint or a full disk,
    UsageError when an output exists, VerdictError when a written file is not what was planned.
    """
    start = time.monotonic()
    options = options or Options(tuple(roles), outtype)
    planned = plan(source, options)
    return execute(planned, source, folder, start, overwrite=overwrite, progress=progress)


def execute(
    planned: Plan,
    source: Path,
    folder: Path,
    start: float,
    *,
    overwrite: bool = False,
    jobs: int | None = None,
    manifest_file: Path | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Write a plan and check each file by reading it back; `start` is when the work began, in monotonic seconds.

    With `manifest_file` the files are hashed, and what they are made of is written there.
    """
    # A GGUF file is never read here, and one of an earlier run into the checkpoint's folder may be replaced.
    inputs = sorted(path for path in source.iterdir() if path.is_file() and path.suffix != ".gguf")
    paths = write_plan(planned, folder, inputs=inputs, overwrite=overwrite, jobs=jobs, progress=progress)
    _look_back(planned, paths)
    hashes = hash_files(paths, jobs or os.cpu_count() or 1) if manifest_file else {}
    if manifest_file:
        write_manifest(manifest_file, manifest(planned, hashes))
    outputs = tuple(
        WrittenFile(path, file.role, len(file.tensors), file.total_bytes, hashes.get(path))
        for file, path in zip(planned.files, paths, strict=True)
    )
    return Conversion(outputs, planned, time.monotonic() - start, planned.source_bytes)


def _look_back(plan: Plan, paths: Sequence[Path]) -> None:
    """Every file (or set of shards) reads as the role and the tensors that were planned."""
    sets: dict[Role, list[tuple[PlannedFile, Path]]] = {}
    for file, path in zip(plan.files, paths, strict=True):
        sets.setdefault(file.role, []).append((file, path))
    for role, members in sets.items():
        contents = open_gguf(members[0][1]).contents
        planned = {tensor.name: tensor for file, _ in members for tensor in file.tensors}
        if role_of(contents) is not role or contents.tensors != planned:
            message = f"was written as {role} but reads as {role_of(contents)}"
            raise VerdictError("not-as-planned", message, subject=str(members[0][1]), remedy="report this")


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
