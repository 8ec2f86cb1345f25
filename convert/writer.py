"""Executes a plan: every source byte is read once and goes to all files that need it.

A file is written as `<name>.partial` beside its final name, synced, and renamed when all files are complete. An
interrupted run leaves no incomplete file under a final name, and the same command continues from its journal.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nextn.convert.draining import Drain
from nextn.convert.journal import Journal, journal_of
from nextn.convert.linked import output_of
from nextn.convert.output import Output, refuse_foreign, sync_folder
from nextn.convert.payload import COPY_BYTES, READ_BYTES, Extent, Piece, extents, piece_bytes, pieces
from nextn.convert.plan import Payload, Plan
from nextn.convert.preflight import allow_open_files, check_names, check_space, make_folders, make_way, try_beside
from nextn.gguf_schema.contents import LocalFile
from nextn.gguf_schema.errors import InputError, NextnError

# So much data at most is lost when the machine (not the process) crashes.
SYNC_BYTES = 16 << 30
# Called with the number of bytes written since the last call.
Progress = Callable[[int], None]
# Called with a line for the user.
Notice = Callable[[str], None]
# Called with the tensors that are to be made, before the first is.
Gather = Callable[[Sequence[Payload]], None]
KEPT = "the same command continues what it left unfinished"


class Written(NamedTuple):
    """What a run wrote: the paths of the plan's files, and the tensors whose data it did not read.

    An earlier run had written that, or the files that hold it got links.
    """

    paths: list[Path]
    kept: frozenset[str]


def write_plan(
    plan: Plan,
    folder: Path,
    *,
    overwrite: bool = False,
    jobs: int | None = None,
    progress: Progress = lambda _: None,
    notice: Notice = lambda _: None,
    gather: Gather = lambda _: None,
    beside: Sequence[Path] = (),
    finish: Callable[[list[Path]], None] = lambda _: None,
) -> Written:
    """Write all files of the plan under `folder` with `jobs` threads, or continue doing so.

    `finish` is called with the paths when the files are in place, before the run counts as over; the files that it
    writes are named by `beside`. `gather` is called before the first tensor is made, with those still to be written.
    `notice` is told when a run continues, and when it replaces the unfinished work of another plan, which is no use to
    this one.

    Raises UsageError when an output exists (without `overwrite`), is one of the inputs, or is being written by another
    process; InputError when space is short, a source cannot be read or changes, or a value does not fit its type. After
    an error no incomplete file has a final name; finished data is kept for the same call, unless it cannot succeed.
    An error or interrupt after which data is kept says so in a note (`__notes__`).
    """
    paths = [folder / file.path for file in plan.files]
    check_names(plan, folder, beside)
    allow_open_files(len(paths) + len(plan.sources))
    make_folders(paths[:1])
    if not overwrite:
        refuse_foreign([journal_of(paths[0])])
    with ExitStack() as cleanup:
        journal = cleanup.enter_context(Journal(plan, paths[0]))
        outputs = [
            cleanup.enter_context(output_of(file, path, plan.fingerprint))
            for file, path in zip(plan.files, paths, strict=True)
        ]
        kept = frozenset(journal.found.tensors)
        try:
            written = journal.found.complete and all(
                output.is_begun or output.is_finished(journal.found.published.get(str(output.file.path)))
                for output in outputs
            )
            make_way(beside if written else [*paths, *beside], overwrite)
            if not (overwrite or journal.is_ours):
                refuse_foreign(output.partial for output in outputs)
            try_beside(beside, overwrite)
            if not written:
                _prepare(plan, outputs, journal, notice)
                kept = frozenset(journal.found.tensors)
                _stream(plan, outputs, journal, jobs or default_jobs(), progress, gather)
            for output in outputs:
                output.finish(journal.found.tensors)
            _publish(outputs, journal, overwrite)
            finish(paths)
        except BaseException as error:
            hopeless = isinstance(error, NextnError) and error.code in HOPELESS
            if hopeless or not journal.tells:
                for output in outputs:
                    output.discard()
                journal.remove()
            else:
                error.add_note(KEPT)
            raise
        journal.remove()
    read = {payload.info.name for payload in _wanted(plan, outputs)}
    return Written(paths, kept | (plan.recipes.keys() - read))


# The same call would meet these errors again, so nothing is kept for it.
HOPELESS = ("overflow", "not-finite", "bad-scale", "not-as-planned", "source-changed")
# More threads than this only take memory: one thread writes.
MOST_JOBS = 16


def default_jobs() -> int:
    """One thread a processor that this process may use."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, MOST_JOBS)


def _prepare(plan: Plan, outputs: Sequence[Output], journal: Journal, notice: Notice) -> None:
    """Make sure of the space, and open the partial files: as they are when a run is continued, else anew."""
    if not all(output.is_begun for output in outputs):
        journal.found.tensors.clear()
    if journal.found.tensors:
        notice(f"continuing: {len(journal.found.tensors)} of {len(plan.payload)} tensors are there")
    elif journal.tells or any(output.is_stale for output in outputs):
        notice(f"starting over: the unfinished work at {outputs[0].partial} is of other options or sources, or damaged")
    check_space(outputs, continued=bool(journal.found.tensors))
    # The journal comes first: it must not tell of data that a partial file no longer holds.
    journal.start()
    for output in outputs:
        output.open(anew=not journal.found.tensors)


def _publish(outputs: Sequence[Output], journal: Journal, overwrite: bool) -> None:
    """Give all complete files their final names, and tell the journal before which ones they are."""
    inodes = {str(output.file.path): output.partial.stat().st_ino for output in outputs if output.partial.exists()}
    if inodes:
        journal.publish(inodes)
    for output in outputs:
        output.publish(overwrite=overwrite)
    for path in {output.path.parent for output in outputs}:
        sync_folder(path)


def _stream(
    plan: Plan, outputs: Sequence[Output], journal: Journal, jobs: int, progress: Progress, gather: Gather
) -> None:
    """Write all data that an earlier run has not, and force it to the disk.

    Threads read and encode; this one alone writes, in order, since writers to one file only wait for each other.
    """
    done = frozenset(journal.found.tensors)
    for payload in plan.payload:
        if payload.info.name in done:
            progress(payload.info.nbytes * sum(output.holds(payload.info.name) for output in outputs))
    hashed = {name for output in outputs for name in output.file.hash_fields}
    todo = [payload for payload in _wanted(plan, outputs) if payload.info.name not in done]
    gather(todo)
    digest, unsynced = hashlib.sha256(), 0
    with ThreadPoolExecutor(jobs) as pool, Drain(outputs, journal) as drain:
        try:
            for piece, data in _in_order(pool, todo, hashed, 2 * jobs):
                name = piece.payload.info.name
                written = sum(_put(output, piece, data) for output in outputs)
                if data is not None and name in hashed:
                    digest.update(data)
                progress(written)
                drain.wrote(written)
                unsynced += written
                if piece.last:
                    journal.done(name, digest.hexdigest() if name in hashed else None)
                    digest = hashlib.sha256()
                    if unsynced > SYNC_BYTES:
                        _sync(pool, outputs, journal)
                        journal.synced()
                        unsynced = 0
            _refuse_changed(plan)
            drain.finish()
            _sync(pool, outputs, journal)
            journal.synced(complete=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _wanted(plan: Plan, outputs: Sequence[Output]) -> Iterator[Payload]:
    """The tensors whose data is written into a file, or hashed for one."""
    for payload in plan.payload:
        name = payload.info.name
        if any(output.holds(name) or name in output.file.hash_fields for output in outputs):
            yield payload


def _in_order(
    pool: ThreadPoolExecutor, payloads: Iterable[Payload], hashed: Collection[str], ahead: int
) -> Iterator[tuple[Piece | Extent, memoryview | None]]:
    """All pieces in order with their data, at most `ahead` of them made before they are asked for.

    What the system copies from file to file comes without data.
    """
    waiting: deque[tuple[Piece | Extent, Future[memoryview] | None]] = deque()
    for payload in payloads:
        for piece, made in _parts(payload, looked_at=payload.info.name in hashed):
            waiting.append((piece, pool.submit(made) if made else None))
            if len(waiting) >= ahead:
                first, future = waiting.popleft()
                yield first, future.result() if future else None
    for first, future in waiting:
        yield first, future.result() if future else None


def _parts(payload: Payload, *, looked_at: bool) -> Iterator[tuple[Piece | Extent, Callable[[], memoryview] | None]]:
    """The parts of a tensor's data, each with what makes it; None when the system can copy it."""
    source = payload.verbatim
    if source is None:
        for piece in pieces(payload):
            yield piece, partial(piece_bytes, piece)
        return
    copied = isinstance(source.source, LocalFile) and not looked_at
    for extent in extents(payload, source, COPY_BYTES if copied else READ_BYTES):
        yield extent, None if copied else extent.read


def _put(output: Output, piece: Piece | Extent, data: memoryview | None) -> int:
    """Write a part of a tensor to a file, if that holds the tensor; how many bytes were written."""
    name = piece.payload.info.name
    if data is not None:
        return output.write(name, piece.offset, data)
    if isinstance(piece, Extent) and isinstance(piece.source, LocalFile):
        return output.copy(name, piece.offset, piece.source, piece.start, piece.nbytes)
    raise TypeError("only a part of a local file comes without data")


def _sync(pool: ThreadPoolExecutor, outputs: Sequence[Output], journal: Journal) -> None:
    try:
        for _ in pool.map(lambda output: output.sync(), outputs):
            pass
    except InputError:
        journal.lost()
        raise


def _refuse_changed(plan: Plan) -> None:
    """Raise InputError when a source is not what it was when the plan was made."""
    for source in plan.sources:
        if not source.is_unchanged:
            raise InputError(
                "source-changed",
                "was changed while it was read",
                subject=source.name,
                remedy="run the command again when nobody writes to it",
            )
