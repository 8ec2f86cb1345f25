"""What an interrupted run has finished, so that the same command continues instead of starting over.

The journal lies beside the first output, as `<output>.journal`, one JSON object a line, and only ever grows. Each run
begins with a line that names its plan and the start of the machine. A tensor gets its line when its bytes have been
handed to the operating system, so the line outlives the death of the process. Of what was written before the machine
started anew, only what stands before a `synced` line counts. The journal goes when every file has its final name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nextn.convert.output import open_locked, write_error
from nextn.convert.plan import Plan

SUFFIX = ".journal"
# The keys of lines and the types of their values; what does not fit ends the journal.
KEYS = {
    "fingerprint": str,
    "boot": str,
    "done": str,
    "sha256": str,
    "synced": bool,
    "complete": bool,
    "lost": bool,
    "published": dict,
}
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass
class Finished:
    """Tensors whose data is written, with the hashes of those that need one; and whether all data is on the disk.

    `published` gives the files that got, or were about to get, their final names, with the numbers of their inodes.
    """

    tensors: dict[str, str | None] = field(default_factory=dict)
    complete: bool = False
    published: dict[str, int] = field(default_factory=dict)


class Journal:
    """The journal of one plan; it is locked, so that two processes never write the same files.

    `found` is what this and earlier runs of the plan finished; `tells` says whether the journal tells of anything worth
    keeping, be it of another plan; `is_ours` whether a run of this plan began it. Raises UsageError when another
    process has it.
    """

    def __init__(self, plan: Plan, first_output: Path) -> None:
        self.path = journal_of(first_output)
        self._head = {"fingerprint": plan.fingerprint, "boot": _boot_id()}
        try:
            self._descriptor = open_locked(self.path)
            data = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        except OSError as error:
            raise write_error(self.path, error) from error
        self.tells = b'{"done"' in data
        self.found, self._valid = self._read(data)
        self.is_ours = self._valid > 0

    def _read(self, data: bytes) -> tuple[Finished, int]:
        """What counts, and the length of the lines that are whole; a foreign journal counts for nothing."""
        found, unsynced, boot, valid = Finished(), dict[str, str | None](), None, 0
        for line, end in _objects(data):
            if "fingerprint" in line:
                if line["fingerprint"] != self._head["fingerprint"]:
                    return Finished(), 0
                if boot != line["boot"]:
                    unsynced.clear()
                boot = line["boot"]
            elif boot is None:
                return Finished(), 0
            valid = end
            if "done" in line:
                unsynced[line["done"]] = line.get("sha256")
            if "lost" in line:
                unsynced.clear()
            if "synced" in line:
                found.tensors |= unsynced
                found.complete = "complete" in line
            found.published |= line.get("published", {})
        if boot == self._head["boot"]:
            found.tensors |= unsynced
        return found, valid

    def start(self) -> None:
        """Begin a run: behind what was found, or anew when that is nothing (any more)."""
        self.tells = bool(self.found.tensors)
        try:
            os.ftruncate(self._descriptor, self._valid if self.tells else 0)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            raise write_error(self.path, error) from error
        self._append(self._head)

    def done(self, tensor: str, digest: str | None = None) -> None:
        """The data of a tensor is written, in every file that holds it."""
        self._append({"done": tensor, "sha256": digest} if digest else {"done": tensor})
        self.found.tensors[tensor] = digest
        self.tells = True

    def synced(self, *, complete: bool = False) -> None:
        """What was written so far is on the disk, and with `complete` that is everything."""
        self._append({"synced": True, "complete": True} if complete else {"synced": True})
        self._sync()

    def publish(self, files: Mapping[str, int]) -> None:
        """Files, with the numbers of their inodes, are about to get their final names."""
        self._append({"published": dict(files)})
        self._sync()

    def _sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise write_error(self.path, error) from error

    def lost(self) -> None:
        """What was not synced may never reach the disk: the system reports a failed sync only once."""
        self._append({"lost": True})

    def _append(self, line: dict[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        try:
            # What is left of a line that did not fit is no line: the next run cuts it off.
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise write_error(self.path, error) from error

    def remove(self) -> None:
        """Delete the journal: the work is done, or not worth continuing."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise write_error(self.path, error) from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def journal_of(first_output: Path) -> Path:
    """Where the journal lies of a run that writes this file first."""
    return first_output.with_name(first_output.name + SUFFIX)


def _boot_id() -> str:
    """Changes when the machine starts; where that is not known, nothing of another process is trusted unsynced."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return f"process {os.getpid()}"


def _objects(data: bytes) -> Iterator[tuple[dict[str, Any], int]]:
    """The objects of whole lines, each with the place of its end, up to the first line that is none."""
    end = 0
    for line in data.split(b"\n")[:-1]:
        end += len(line) + 1
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(parsed, dict) or ("fingerprint" in parsed) != ("boot" in parsed):
            return
        if not all(isinstance(value, KEYS.get(key, ())) for key, value in parsed.items()):
            return
        yield parsed, end
