"""What is settled before a plan is written: names, folders, files in the way, open files, space."""

from __future__ import annotations

import os
import resource
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from nextn.convert.journal import journal_of
from nextn.convert.linked import Linked
from nextn.convert.output import Output, open_locked, partial_of, refuse_foreign, write_error
from nextn.convert.plan import Plan
from nextn.gguf_schema.errors import InputError, UsageError

# Files that are open for short times, and those of the libraries.
OPEN_BESIDES = 64


def check_names(plan: Plan, folder: Path, beside: Iterable[Path] = ()) -> None:
    """Raise UsageError when a file to write, or one that unfinished work gets, is an input or another such file."""
    finals = [*(folder / file.path for file in plan.files), *beside]
    names = [*finals, *map(partial_of, finals), journal_of(finals[0])]
    targets = [path.resolve() for path in names]
    times = Counter(targets)
    folders = {parent for target in set(targets) for parent in target.parents}
    protected = {path.resolve() for path in plan.protected}
    inodes = {*filter(None, map(_inode, protected))}
    # What an earlier run linked, or was about to when it died, is replaced by the same links.
    linked = [(folder / file.path, _inode(file.same_as.path)) for file in plan.files if file.same_as]
    links = {name: inode for path, inode in linked for name in (path, partial_of(path))}
    for path, target in zip(names, targets, strict=True):
        if target in protected or (_inode(path) in inodes and _inode(path) != links.get(path)):
            raise UsageError("output-is-input", "is an input; an input is never opened for writing", subject=str(path))
        if times[target] > 1 or (target in folders and not path.is_dir()):
            remedy = "put {role} into the template, and give the manifest a name of its own"
            raise UsageError("same-output", "several files would get this name", subject=str(path), remedy=remedy)


def _inode(path: Path) -> tuple[int, int] | None:
    """What the hard links of a file have in common."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def allow_open_files(count: int) -> None:
    """Let this process have so many files open, and a few besides; InputError when the system forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + OPEN_BESIDES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise InputError(
                "too-many-files",
                f"{wanted} files must be open at once, {hard} may be",
                remedy="raise the limit (ulimit -n), or write fewer and larger shards",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def make_way(paths: Sequence[Path], overwrite: bool) -> None:
    """Refuse files that exist, and make the folders of the others."""
    _refuse_existing(paths, overwrite)
    make_folders(paths)


def try_beside(beside: Iterable[Path], overwrite: bool) -> None:
    """Make sure, before the long work, that files can be written that are written after it."""
    for partial in map(partial_of, beside):
        if not overwrite:
            refuse_foreign([partial])
        try:
            os.close(open_locked(partial))
            partial.unlink()
        except OSError as error:
            raise write_error(partial, error) from error


def _refuse_existing(paths: Sequence[Path], overwrite: bool) -> None:
    for path in paths:
        if path.is_dir():
            raise UsageError("output-is-folder", "is a folder", subject=str(path))
        if path.exists() and not path.is_file():
            raise UsageError("output-not-file", "is a pipe or a device, and no file", subject=str(path))
        if os.path.lexists(path) and not overwrite:
            remedy = "choose another place or give --overwrite"
            raise UsageError("output-exists", "exists", subject=str(path), remedy=remedy)


def make_folders(paths: Iterable[Path]) -> None:
    """Make the folders of files; InputError when that fails."""
    for folder in {path.parent for path in paths}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError("no-folder", f"cannot be made: {error.strerror}", subject=str(folder)) from error


def check_space(outputs: Sequence[Output], *, continued: bool) -> None:
    """Raise InputError when a disk has not the space for its files, less what an earlier run took already."""
    needed: dict[int, int] = {}
    folders: dict[int, Path] = {}
    for output in outputs:
        folder = output.partial.parent
        device = folder.stat().st_dev
        folders.setdefault(device, folder)
        taken = output.allocated if continued or isinstance(output, Linked) else 0
        needed[device] = needed.get(device, 0) + output.file.total_bytes - taken
    for device, folder in folders.items():
        if (free := shutil.disk_usage(folder).free) < needed[device]:
            raise InputError(
                "no-space",
                f"{needed[device]:,} bytes are needed, {free:,} are free",
                subject=str(folder),
                remedy="free some space, choose another disk, or emit fewer roles at a time",
            )
