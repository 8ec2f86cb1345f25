"""Carrying out a plan: what every command that writes GGUF files has in common, and how plans and results read."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextn.cli.report import Report
from nextn.gguf_schema.errors import UsageError, counted, size

if TYPE_CHECKING:
    from nextn.convert.pipeline import Conversion
    from nextn.convert.plan import Plan, PlannedFile


def carry_out(
    planned: Plan, folder: Path, nearest: Path, asked: dict[str, Any], start: float, changes: tuple[str, ...] = ()
) -> None:
    """Print a plan, or execute it and print what was done; `changes` are lines about what becomes different.

    `nearest` is the folder that exists now, at or above `folder`; `start` is in monotonic seconds.
    """
    from nextn.convert.hub.needed import bytes_to_ask
    from nextn.convert.pipeline import execute
    from nextn.convert.preflight import check_names

    report = Report(asked["as_json"], asked["quiet"])
    more = {"changes": list(changes)} if changes else {}
    for line in (*changes, *map(str, planned.findings)):
        report.note(line)
    if asked["dry_run"]:
        check_names(planned, folder, [asked["manifest"]] if asked["manifest"] else [])
        free = shutil.disk_usage(nearest).free
        report.result(plan_text(planned, folder, free), plan_as_json(planned, folder, free, start) | more)
        return
    fetched = bytes_to_ask(planned.payload)
    what = "fetching and writing" if fetched else "writing"
    with report.progress(what, fetched + sum(file.data_bytes for file in planned.files)) as progress:
        done = execute(
            planned,
            folder,
            start,
            overwrite=asked["overwrite"],
            jobs=asked["jobs"],
            manifest_file=asked["manifest"],
            progress=progress,
            notice=report.note,
        )
    report.result(done_text(done), done.as_json() | more)


def nearest_folder(folder: Path) -> Path:
    """The folder, or the closest one above it that exists; UsageError when a file is in the way."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise UsageError("output-not-folder", "is a file; -o takes a folder", subject=str(nearest))
    return nearest


def plan_as_json(plan: Plan, folder: Path, free: int, start: float) -> dict[str, Any]:
    """What `--dry-run --json` prints: the keys of a conversion, and each file's tensors with types and sources."""
    from nextn.convert.pipeline import peak_rss_bytes

    return {
        "dry_run": True,
        "outputs": [_planned_output(plan, file, folder / file.path) for file in plan.files],
        **plan.as_json(),
        "seconds": round(time.monotonic() - start, 3),
        "bytes_read": 0,
        "bytes_to_read": plan.source_bytes,
        "bytes_to_write": plan.total_bytes,
        "bytes_free": free,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def _planned_output(plan: Plan, file: PlannedFile, path: Path) -> dict[str, Any]:
    from nextn.convert.manifest import tensors

    return {
        "path": str(path),
        "role": file.role,
        "tensors": len(file.tensors),
        "bytes": file.total_bytes,
        "sha256": None,
        "exists": path.exists(),
        "plan": tensors(file, plan.recipes),
    }


def plan_text(plan: Plan, folder: Path, free: int) -> str:
    """A line for each file to write, then what is left out and the bytes to move."""
    lines = []
    for file in plan.files:
        types: dict[str, int] = {}
        for tensor in file.tensors:
            types[tensor.type.name] = types.get(tensor.type.name, 0) + 1
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(types.items()))
        count = f"{len(file.tensors):>5} tensors ({kinds})"
        path = folder / file.path
        there = "  (exists)" if path.exists() else ""
        lines.append(f"{file.role or '-':<10}  {count}  {size(file.total_bytes):>8}  {path}{there}")
    lines += _dropped_text(plan)
    lines.append(f"to read {size(plan.source_bytes)}, to write {size(plan.total_bytes)}, free {size(free)}")
    return "\n".join(lines)


def _dropped_text(plan: Plan) -> list[str]:
    """Dropped tensors and keys by reason, a line each."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for dropped in plan.dropped:
        reasons.setdefault((dropped.kind, dropped.reason), []).append(dropped.name)
    return [
        f"left out: {counted(len(names), kind)}, {reason} ({names[0]}{', …' if len(names) > 1 else ''})"
        for (kind, reason), names in reasons.items()
    ]


def done_text(done: Conversion) -> str:
    """A line for each file that was written, then what was left out and the bytes that were read."""
    lines = [
        f"{output.role or '-':<10}  {output.tensors:>5} tensors  {size(output.bytes):>8}  {output.path}"
        for output in done.outputs
    ]
    lines += _dropped_text(done.plan)
    fetched = f", fetched {size(done.bytes_fetched)}" if done.bytes_fetched else ""
    lines.append(f"read {size(done.bytes_read)}{fetched} in {done.seconds:.1f} s")
    return "\n".join(lines)
