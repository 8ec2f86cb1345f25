"""Executes a plan: every source byte is read once and goes to all files that need it.

A file is written as `<name>.partial` beside its final name, synced, and renamed when all files are complete. An
interrupted run leaves no incomplete file under a final name, and the same command continues from its journal.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from nextn.convert.journal import Journal
from nextn.convert.output import PARTIAL, Output, sync_folder
from nextn.convert.payload import Piece, piece_bytes, pieces
from nextn.convert.plan import Payload, Plan
from nextn.gguf_schema.errors import InputError, NextnError, UsageError

# So much data at most is lost when the machine (not the process) crashes.
SYNC_BYTES = 16 << 30
# Called with the number of bytes written since the last call.
Progress = Callable[[int], None]


def write_plan(
    plan: Plan,
    folder: Path,
    *,
    inputs: Sequence[Path] = (),
    overwrite: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write all files of the plan under `folder` with `jobs` threads and return their paths, or continue doing so.

    Raises UsageError when an output exists (without `overwrite`), is one of the inputs, or is being written by another
    process; InputError when space is short, a source cannot be read or a value does not fit its type. After an error
    no incomplete file has a final name; finished data is kept for the same call, unless the call can never succeed.
    """
    paths = [folder / file.path for file in plan.files]
    _check_names(paths, inputs)
    _make_folders(paths[:1])
    with ExitStack() as cleanup:
        journal = cleanup.enter_context(Journal(plan, paths[0]))
        try:
            if not journal.found.complete:
                _refuse_existing(paths, overwrite)
                _make_folders(paths)
                outputs = [
                    cleanup.enter_context(Output(file, path)) for file, path in zip(plan.files, paths, strict=True)
                ]
                _prepare(plan, outputs, journal)
                _stream(plan, outputs, journal, jobs or os.cpu_count() or 1, progress or (lambda _: None))
            _rename(paths)
        except NextnError as error:
            if error.code in HOPELESS:
                for path in paths:
                    path.with_name(path.name + PARTIAL).unlink(missing_ok=True)
            if error.code in HOPELESS or not journal.started:
                journal.remove()
            raise
        journal.remove()
    return paths


# The same call would meet these errors again, so nothing is kept for it.
HOPELESS = ("overflow",)


def _check_names(paths: Sequence[Path], inputs: Sequence[Path]) -> None:
    protected = {path.resolve() for path in inputs}
    for path in paths:
        if path.resolve() in protected:
            raise UsageError("output-is-input", "is an input; an input is never opened for writing", subject=str(path))
    if len(set(paths)) < len(paths):
        remedy = "put {role} into the template"
        raise UsageError("same-output", "several files would get this name", subject=str(paths[0]), remedy=remedy)


def _refuse_existing(paths: Sequence[Path], overwrite: bool) -> None:
    for path in paths:
        if path.exists() and not overwrite:
            remedy = "choose another place or give --overwrite"
            raise UsageError("output-exists", "exists", subject=str(path), remedy=remedy)


def _make_folders(paths: Iterable[Path]) -> None:
    for folder in {path.parent for path in paths}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError("no-folder", f"cannot be made: {error.strerror}", subject=str(folder)) from error


def _prepare(plan: Plan, outputs: Sequence[Output], journal: Journal) -> None:
    """Make sure of the space, and open the partial files: as they are when a run is continued, else anew."""
    if not all(output.is_whole for output in outputs):
        journal.found.tensors.clear()
    kept = sum(output.allocated for output in outputs) if journal.found.tensors else 0
    folder = outputs[0].partial.parent
    free = shutil.disk_usage(folder).free
    if free < plan.total_bytes - kept:
        raise InputError(
            "no-space",
            f"{plan.total_bytes - kept:,} bytes are needed, {free:,} are free",
            subject=str(folder),
            remedy="free some space, choose another disk, or emit fewer roles at a time",
        )
    for output in outputs:
        output.open(anew=not journal.found.tensors)
    journal.start()


def _stream(plan: Plan, outputs: Sequence[Output], journal: Journal, jobs: int, progress: Progress) -> None:
    """Write all data that an earlier run has not, and force it to the disk.

    Threads read and encode; this one alone writes, in order, since writers to one file only wait for each other.
    """
    done = journal.found.tensors
    digests = {name: digest for name, digest in done.items() if digest}
    hashed = {name for output in outputs for name in output.file.hash_fields}
    todo = (payload for payload in plan.payload if payload.info.name not in done)
    digest, unsynced = hashlib.sha256(), 0
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for piece, data in _in_order(pool, todo, 2 * jobs):
                name = piece.payload.info.name
                written = sum(output.write(name, piece.offset, data) for output in outputs)
                progress(written)
                unsynced += written
                if name in hashed:
                    digest.update(data)
                if piece.last:
                    if name in hashed:
                        digests[name], digest = digest.hexdigest(), hashlib.sha256()
                    journal.done(name, digests.get(name))
                    if unsynced > SYNC_BYTES:
                        _sync(pool, outputs)
                        journal.synced()
                        unsynced = 0
            for output in outputs:
                output.write_hashes(digests)
            _sync(pool, outputs)
            journal.synced(complete=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _in_order(pool: ThreadPoolExecutor, payloads: Iterable[Payload], ahead: int) -> Iterator[tuple[Piece, memoryview]]:
    """The data of all pieces in order, at most `ahead` of them made before they are asked for."""
    waiting: deque[tuple[Piece, Future[memoryview]]] = deque()
    for payload in payloads:
        for piece in pieces(payload):
            waiting.append((piece, pool.submit(piece_bytes, piece)))
            if len(waiting) >= ahead:
                first, future = waiting.popleft()
                yield first, future.result()
    for first, future in waiting:
        yield first, future.result()


def _sync(pool: ThreadPoolExecutor, outputs: Sequence[Output]) -> None:
    for _ in pool.map(Output.sync, outputs):
        pass


def _rename(paths: Sequence[Path]) -> None:
    """Give complete files their final names; those that already have them stay."""
    for path in paths:
        partial = path.with_name(path.name + PARTIAL)
        try:
            if partial.exists():
                partial.replace(path)
        except OSError as error:
            raise InputError("write-error", f"cannot be renamed: {error.strerror}", subject=str(partial)) from error
        if not path.exists():
            raise InputError(
                "lost-output", "was complete but is gone", subject=str(path), remedy="run the same command again"
            )
    for folder in {path.parent for path in paths}:
        sync_folder(folder)
