"""Converting from end to end: open the checkpoint, plan, write, and look at what was written."""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nextn.convert.checkpoint import open_checkpoint
from nextn.convert.manifest import hash_files, manifest, write_manifest
from nextn.convert.plan import Plan
from nextn.convert.planner import Options, plan_conversion
from nextn.convert.writer import Notice, Progress, default_jobs, write_plan
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError


@dataclass(frozen=True)
class WrittenFile:
    """One file that was written: its place, role, number of tensors and size."""

    path: Path
    role: Role | None
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
    # Tens of thousands of objects are made and kept: looking for garbage among them takes a third of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return plan_conversion(open_checkpoint(source), options)
    finally:
        if collecting:
            gc.enable()


def convert(
    source: Path,
    folder: Path,
    roles: Sequence[Role] = (Role.COMBINED,),
    outtype: str = "auto",
    *,
    overwrite: bool = False,
    progress: Progress = lambda _: None,
    options: Options | None = None,
) -> Conversion:
    """Convert the checkpoint in `source` to one file for each role under `folder`.

    `options` replaces `roles` and `outtype` when more is wanted. Raises InputError for a bad checkpoint or a full disk,
    UsageError when an output exists, VerdictError when a written file is not what was planned.
    """
    start = time.monotonic()
    options = options or Options(tuple(roles), outtype)
    planned = plan(source, options)
    return execute(planned, folder, start, overwrite=overwrite, progress=progress)


def execute(
    planned: Plan,
    folder: Path,
    start: float,
    *,
    overwrite: bool = False,
    jobs: int | None = None,
    manifest_file: Path | None = None,
    progress: Progress = lambda _: None,
    notice: Notice = lambda _: None,
) -> Conversion:
    """Write a plan; `start` is when the work began, in monotonic seconds.

    With `manifest_file` the files are hashed, and what they are made of is written there.
    """
    hashes: dict[Path, str] = {}

    def finish(paths: Sequence[Path]) -> None:
        if manifest_file:
            hashes.update(hash_files(paths, jobs or default_jobs()))
            write_manifest(manifest_file, manifest(planned, hashes))

    beside = [manifest_file] if manifest_file else []
    written = write_plan(
        planned,
        folder,
        overwrite=overwrite,
        jobs=jobs,
        progress=progress,
        notice=notice,
        beside=beside,
        finish=finish,
    )
    outputs = tuple(
        WrittenFile(path, file.role, len(file.tensors), file.total_bytes, hashes.get(path))
        for file, path in zip(planned.files, written.paths, strict=True)
    )
    return Conversion(outputs, planned, time.monotonic() - start, planned.bytes_of_sources(written.kept))


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
