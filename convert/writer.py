"""Executes a plan: every source byte is read once and goes to all files that need it.

A file is written as `<name>.partial` beside its final name, synced, and renamed when all files are complete; an
interrupted run leaves no file under a final name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from nextn.convert.plan import Payload, Plan, PlannedFile
from nextn.convert.quantize import Bytes, decode, encode
from nextn.convert.transforms import Run
from nextn.gguf_schema.errors import InputError, UsageError

# Elements per chunk: a few tens of MB with its float32 intermediates.
CHUNK_ELEMENTS = 4 * 1024 * 1024
PARTIAL = ".partial"
# Called with the number of bytes written since the last call.
Progress = Callable[[int], None]


def write_plan(
    plan: Plan, folder: Path, *, inputs: Sequence[Path] = (), overwrite: bool = False, progress: Progress | None = None
) -> list[Path]:
    """Write all files of the plan under `folder` and return their paths.

    Raises UsageError when an output exists (without `overwrite`) or is one of the inputs, InputError when space is
    short, a source cannot be read or a value does not fit its type. After an error no new file has a final name.
    """
    paths = [folder / file.path for file in plan.files]
    check_outputs(paths, inputs, overwrite)
    _make_room(plan, folder, paths)
    with ExitStack() as cleanup:
        outputs = [cleanup.enter_context(_Output(file, path)) for file, path in zip(plan.files, paths, strict=True)]
        for payload in plan.payload:
            _write_payload(payload, outputs, progress)
        for output in outputs:
            output.sync()
        for output in outputs:
            output.rename()
    return paths


def _write_payload(payload: Payload, outputs: Sequence[_Output], progress: Progress | None) -> None:
    name = payload.info.name
    holders = [output for output in outputs if name in output.offsets]
    named = [output for output in outputs if name in output.file.hash_fields]
    digest = hashlib.sha256()
    for position, data in payload_bytes(payload):
        for output in holders:
            output.write(name, position, data)
        if named:
            digest.update(data)
        if progress:
            progress(len(data) * len(holders))
    for output in named:
        output.write_hash(name, digest.hexdigest())


def check_outputs(paths: Sequence[Path], inputs: Sequence[Path], overwrite: bool) -> None:
    """Raise UsageError when a path is among the inputs, is given twice, or exists and `overwrite` is false."""
    protected = {path.resolve() for path in inputs}
    for path in paths:
        if path.resolve() in protected:
            raise UsageError("output-is-input", "is an input; an input is never opened for writing", subject=str(path))
        if path.exists() and not overwrite:
            raise UsageError(
                "output-exists", "exists", subject=str(path), remedy="choose another place or give --overwrite"
            )
    if len(set(paths)) < len(paths):
        raise UsageError("same-output", "two files would get the same name", subject=str(paths[0]))


def _make_room(plan: Plan, folder: Path, paths: Sequence[Path]) -> None:
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise InputError("no-folder", f"cannot be made: {error.strerror}", subject=str(folder)) from error
    if free < plan.total_bytes:
        raise InputError(
            "no-space",
            f"needs {plan.total_bytes:,} bytes, {free:,} are free",
            subject=str(folder),
            remedy="free some space, choose another disk, or emit fewer roles at a time",
        )


def payload_bytes(payload: Payload) -> Iterator[tuple[int, memoryview]]:
    """The data of a tensor in order: pairs of byte position and bytes.

    Raises InputError when a source cannot be read or a value does not fit the type.
    """
    position = 0
    for runs in payload.recipe.chunks(CHUNK_ELEMENTS):
        try:
            data = _chunk(payload, runs)
        except OverflowError as error:
            raise InputError(
                "overflow",
                f"{error} (source {runs[0].sources[0].name})",
                subject=payload.info.name,
                remedy="choose bf16 or f32 for it with --outtype",
            ) from error
        view = memoryview(data) if isinstance(data, bytes) else data.reshape(-1).data
        yield position, view
        position += len(view)


def _chunk(payload: Payload, runs: Sequence[Run]) -> Bytes | bytes:
    recipe, type_ = payload.recipe, payload.info.type
    dtypes = {source.dtype for run in runs for source in run.sources}
    if recipe.function is None and dtypes == {type_.name} and all(len(run.sources) == 1 for run in runs):
        return b"".join(_read(run, recipe.width) for run in runs)
    rows = np.concatenate([_values(run, recipe.width) for run in runs])
    if recipe.function is not None:
        rows = recipe.function(rows)
    return encode(rows.reshape(-1, payload.info.ne[0]), type_)


def _read(run: Run, width: int, source: int = 0) -> bytes:
    return run.sources[source].read(run.start * width, run.rows * width)


def _values(run: Run, width: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    parts = [
        decode(_read(run, width, k), source.dtype).reshape(run.rows, width) for k, source in enumerate(run.sources)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


class _Output:
    """A file being written; leaving the context without `rename` removes the partial file."""

    def __init__(self, file: PlannedFile, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(path.name + PARTIAL)
        self.offsets = {tensor.name: len(file.header) + tensor.offset for tensor in file.tensors}
        self.file = file
        self._descriptor = -1

    def __enter__(self) -> _Output:
        try:
            self._descriptor = os.open(
                self.partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o666
            )
            os.ftruncate(self._descriptor, self.file.total_bytes)
        except OSError as error:
            raise self._failed(error) from error
        self._write(memoryview(self.file.header), 0)
        return self

    def write(self, name: str, position: int, data: memoryview) -> None:
        """Put bytes of a tensor at their place."""
        self._write(data, self.offsets[name] + position)

    def write_hash(self, name: str, digest: str) -> None:
        """Put the sha256 of a tensor's data, in hexadecimal, where the header has room for it."""
        self._write(memoryview(digest.encode()), self.file.hash_fields[name])

    def _write(self, data: memoryview, offset: int) -> None:
        try:
            while data:
                written = os.pwrite(self._descriptor, data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> InputError:
        return InputError("write-error", f"cannot be written: {error.strerror}", subject=str(self.path))

    def sync(self) -> None:
        """Force the bytes to the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._failed(error) from error

    def rename(self) -> None:
        """Give the complete file its final name."""
        try:
            self.partial.replace(self.path)
        except OSError as error:
            raise self._failed(error) from error
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self.partial.unlink(missing_ok=True)
