"""What an interrupted run has finished, so that the same command continues instead of starting over.

The journal lies beside the first output, as `<output>.journal`, one JSON object a line. A tensor gets its line when its
bytes have been handed to the operating system, so the line outlives the death of the process. After a crash of the
machine only what stands before the last `synced` line counts. The journal goes when every file has its final name.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nextn.convert.plan import Plan
from nextn.gguf_schema.errors import InputError, UsageError

SUFFIX = ".journal"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass
class Finished:
    """Tensors whose data is written, with the hashes of those that need one; and whether all data is on the disk."""

    tensors: dict[str, str | None] = field(default_factory=dict)
    complete: bool = False


class Journal:
    """The journal of one plan; it is locked, so that two processes never write the same files.

    `found` is what an earlier run of the same plan finished; `started` says whether anything was written yet.
    """

    def __init__(self, plan: Plan, first_output: Path) -> None:
        self.path = first_output.with_name(first_output.name + SUFFIX)
        self._head = {"fingerprint": plan.fingerprint, "boot": _boot_id()}
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise InputError("write-error", f"cannot be written: {error.strerror}", subject=str(self.path)) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise UsageError("in-use", "another process is writing this file", subject=str(first_output)) from error
        self.found = self._read()
        self.started = self.found != Finished()

    def _read(self) -> Finished:
        """A torn, foreign or outdated journal counts for nothing."""
        lines = list(_objects(os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)))
        if not lines or lines[0].get("fingerprint") != self._head["fingerprint"]:
            return Finished()
        if lines[0].get("boot") != self._head["boot"]:
            lines = lines[: max((number + 1 for number, line in enumerate(lines) if "synced" in line), default=0)]
        tensors = {line["done"]: line.get("sha256") for line in lines if "done" in line}
        return Finished(tensors, any("complete" in line for line in lines))

    def start(self) -> None:
        """Begin anew with what is taken over from an earlier run."""
        os.ftruncate(self._descriptor, 0)
        self._append(self._head)
        for name, digest in self.found.tensors.items():
            self.done(name, digest)
        self.started = True

    def done(self, tensor: str, digest: str | None = None) -> None:
        """The data of a tensor is written, in every file that holds it."""
        self._append({"done": tensor, "sha256": digest} if digest else {"done": tensor})

    def synced(self, *, complete: bool = False) -> None:
        """What was written so far is on the disk, and with `complete` that is everything."""
        self._append({"synced": True, "complete": True} if complete else {"synced": True})
        os.fsync(self._descriptor)

    def _append(self, line: dict[str, Any]) -> None:
        try:
            os.write(self._descriptor, (json.dumps(line) + "\n").encode())
        except OSError as error:
            raise InputError("no-space", f"cannot be written: {error.strerror}", subject=str(self.path)) from error

    def remove(self) -> None:
        """Delete the journal: the work is done, or not worth continuing."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _boot_id() -> str:
    """Changes when the machine starts; where that is not known, nothing of another process is trusted unsynced."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return f"process {os.getpid()}"


def _objects(data: bytes) -> Iterator[dict[str, Any]]:
    """The objects of whole lines, up to the first line that is none."""
    for line in data.split(b"\n")[:-1]:
        try:
            parsed = json.loads(line)
        except ValueError:
            return
        if not isinstance(parsed, dict):
            return
        yield parsed
