"""Converting from end to end: open the checkpoint, plan, write, and look at what was written."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextn.convert.checkpoint import open_checkpoint
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

    def as_json(self) -> dict[str, Any]:
        """The file as `--json` prints it; hashes belong to the manifest."""
        return {"path": str(self.path), "role": self.role, "tensors": self.tensors, "bytes": self.bytes, "sha256": None}


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
    progress: Progress | None = None,
) -> Conversion:
    """Write a plan and check each file by reading it back; `start` is when the work began, in monotonic seconds."""
    inputs = sorted(path for path in source.iterdir() if path.is_file())
    paths = write_plan(planned, folder, inputs=inputs, overwrite=overwrite, progress=progress)
    outputs = tuple(_look_back(file, path) for file, path in zip(planned.files, paths, strict=True))
    return Conversion(outputs, planned, time.monotonic() - start, planned.source_bytes)


def _look_back(file: PlannedFile, path: Path) -> WrittenFile:
    contents = open_gguf(path).contents
    if (role := role_of(contents)) is not file.role or contents.tensors != file.contents.tensors:
        raise VerdictError(
            "not-as-planned", f"was written as {file.role} but reads as {role}", subject=str(path), remedy="report this"
        )
    return WrittenFile(path, role, len(contents.tensors), file.total_bytes)


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
