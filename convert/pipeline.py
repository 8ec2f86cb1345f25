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
from nextn.convert.hub.locations import Location
from nextn.convert.hub.needed import gather
from nextn.convert.hub.opening import checkpoint_files
from nextn.convert.manifest import hash_files, manifest, write_manifest
from nextn.convert.plan import Plan
from nextn.convert.planner import Options, plan_conversion
from nextn.convert.writer import Notice, Progress, default_jobs, write_plan
from nextn.gguf_schema.architecture import Role


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
    """What a conversion did; `bytes_fetched` are those of weights that came from the hub for it."""

    outputs: tuple[WrittenFile, ...]
    plan: Plan
    seconds: float
    bytes_read: int
    bytes_fetched: int = 0

    def as_json(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        return {
            "outputs": [output.as_json() for output in self.outputs],
            **self.plan.as_json(),
            "seconds": round(self.seconds, 3),
            "bytes_read": self.bytes_read,
            "bytes_fetched": self.bytes_fetched,
            "peak_rss_bytes": peak_rss_bytes(),
        }


def plan(source: Path | Location, options: Options) -> Plan:
    """The plan of converting the checkpoint in a folder, or in a repository on the hub; reads no payload.

    Raises InputError when it cannot be read or converted, HubError when the hub does not give it.
    """
    files = checkpoint_files(source)
    # Tens of thousands of objects are made and kept: looking for garbage among them takes a third of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return plan_conversion(open_checkpoint(files), options)
    finally:
        if collecting:
            gc.enable()


def convert(
    source: Path | Location,
    folder: Path,
    roles: Sequence[Role] = (Role.COMBINED,),
    outtype: str = "auto",
    *,
    overwrite: bool = False,
    progress: Progress = lambda _: None,
    options: Options | None = None,
) -> Conversion:
    """Convert the checkpoint at `source` to one file for each role under `folder`.

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
    fetched: list[int] = []

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
        gather=lambda payloads: fetched.append(gather(payloads, progress)),
        beside=beside,
        finish=finish,
    )
    outputs = tuple(
        WrittenFile(path, file.role, len(file.tensors), file.total_bytes, hashes.get(path))
        for file, path in zip(planned.files, written.paths, strict=True)
    )
    seconds = time.monotonic() - start
    return Conversion(outputs, planned, seconds, planned.bytes_of_sources(written.kept), sum(fetched))


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
