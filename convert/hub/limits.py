"""What the hub takes and what llama.cpp makes of names there: checked before the first byte is sent.

Sources: "Storage limits" in the hub's documentation (docs/hub/storage-limits.md of huggingface/hub-docs, November 2025
to 2026) for sizes and numbers; huggingface_hub's `validate_repo_id` and `_validate_path_in_repo` for names;
picks.py for what `-hf` of llama.cpp makes of names.

Codes of the errors: repo-id, hub-file-size, hub-folder-size, hub-path, name-clash, missing-shard.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nextn.convert.hub.paths import path_problem
from nextn.convert.hub.picks import DRAFT_MARK, NO_MODEL_MARKS
from nextn.convert.hub.picks import SOURCE as PICKS
from nextn.convert.metadata import CARD
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError, UsageError, counted
from nextn.validators.findings import Findings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

STORAGE_LIMITS = "hub documentation, Storage limits"
GIGABYTE = 10**9


@dataclass(frozen=True)
class Limit:
    """A number that the hub states; what is above one that is not `hard` works less well."""

    most: int
    hard: bool
    says: str
    remedy: str


SPLIT = "split it: nextn convert --split-max-size 48G"
FILE_SIZE = Limit(500 * GIGABYTE, True, "500GB is the hard limit for a single file", SPLIT)
COMFORTABLE_FILE_SIZE = Limit(200 * GIGABYTE, False, "chunks of less than 200GB each are strongly recommended", SPLIT)
ENTRIES_PER_FOLDER = Limit(10_000, True, "a folder cannot hold more than 10k files", "use subfolders")
FILES = Limit(100_000, False, "fewer than 100k files in all are recommended", "merge files, or use more repositories")

# Folders that huggingface_hub commits nothing to.
FORBIDDEN_FOLDERS = frozenset({".git", ".cache"})

# Sidecars that llama.cpp cannot load lie where `-hf` never looks for the draft of a model: not above it.
SHARED_FOLDER = "shared"


def check_repo_id(repo_id: str) -> None:
    """UsageError for an id that is not `org/name` as the hub wants it."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    remedy = "give org/name, of letters, digits, -, _ and ."
    if repo_id.count("/") != 1:
        raise UsageError("repo-id", "is no repository's id", subject=repo_id, remedy=remedy)
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UsageError("repo-id", str(error).rstrip("."), subject=repo_id, remedy=remedy) from error


def path_in_repo(name: str, role: Role | None) -> str:
    """Where a file with a name goes: shared sidecars into a folder of their own, everything else beside each other."""
    return f"{SHARED_FOLDER}/{name}" if role is Role.MTP_SHARED else name


def check_paths(local_of: Iterable[tuple[str, str]]) -> None:
    """Check where files would go, given as pairs of path in the repository and local path.

    InputError for a path that the hub does not take, UsageError for two files with one name.
    """
    taken = {CARD.casefold(): "the model card"}
    for path, local in local_of:
        if problem := path_problem(path) or _forbidden_folder(path):
            raise InputError("hub-path", f"cannot be {path!r} on the hub: {problem}", subject=local, remedy="rename it")
        # Who downloads to a file system that does not tell small from capital letters gets only one of two.
        if (other := taken.setdefault(path.casefold(), local)) != local:
            message = f"has the same name as {other}: both would be {path} on the hub"
            raise UsageError("name-clash", message, subject=local, remedy="rename one of them")


def _forbidden_folder(path: str) -> str | None:
    forbidden = FORBIDDEN_FOLDERS.intersection(path.split("/"))
    return f"nothing can be sent to a folder {min(forbidden)}" if forbidden else None


def check_sizes(sizes: Mapping[str, int], there: Collection[str], findings: Findings) -> None:
    """Check files, by path in the repository in bytes, to be added to those that are `there`.

    InputError for what is above a hard limit; for what is above a recommended one, a warning.
    """
    for path, size in sizes.items():
        if size > FILE_SIZE.most:
            message = f"has {size / GIGABYTE:.1f} GB: {FILE_SIZE.says}"
            raise InputError("hub-file-size", message, subject=path, remedy=FILE_SIZE.remedy)
        if size > COMFORTABLE_FILE_SIZE.most:
            message = f"has {size / GIGABYTE:.1f} GB: {COMFORTABLE_FILE_SIZE.says}"
            findings.warn("hub-file-size", path, message, COMFORTABLE_FILE_SIZE.remedy, STORAGE_LIMITS)
    after = {*there, *sizes}
    for folder, entries in _entries(after).items():
        if entries > ENTRIES_PER_FOLDER.most and any(_folder(path) == folder for path in sizes):
            message = f"would hold {entries} files: {ENTRIES_PER_FOLDER.says}"
            raise InputError(
                "hub-folder-size", message, subject=folder or "repository", remedy=ENTRIES_PER_FOLDER.remedy
            )
    if len(after) > FILES.most:
        message = f"the repository would hold {counted(len(after), 'file')}: {FILES.says}"
        findings.warn("hub-files", "repository", message, FILES.remedy, STORAGE_LIMITS)


def _entries(paths: Iterable[str]) -> Counter[str]:
    """Number of files and folders directly in each folder; the root is the empty text."""
    entries: set[str] = set()
    for path in paths:
        while path and path not in entries:
            entries.add(path)
            path = _folder(path)
    return Counter(map(_folder, entries))


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def examine_name(path: str, role: Role | None, findings: Findings) -> None:
    """Errors where `-hf` of llama.cpp would take a file, by its name, for something else than it is."""
    name = path.rpartition("/")[2]
    if role is Role.MTP and DRAFT_MARK not in name:
        message = f"is a head, and its name has no {DRAFT_MARK!r}: llama.cpp's -hf would take it for a model"
        findings.error("hub-name", path, message, f"rename it to {DRAFT_MARK}{name}", PICKS)
    if role in (Role.COMBINED, Role.TRUNK):
        marks = [mark for mark in NO_MODEL_MARKS if mark in name]
        if marks:
            message = f"is a model, and its name has {marks[0]!r}: llama.cpp's -hf would never take it for one"
            findings.error("hub-name", path, message, f"rename it without {marks[0]!r}", PICKS)
