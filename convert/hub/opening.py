"""Opening a checkpoint wherever it is."""

from __future__ import annotations

from pathlib import Path

from nextn.convert.checkpoint import CheckpointFiles, LocalFiles
from nextn.convert.hub.checkpoint import HubFiles
from nextn.convert.hub.locations import Location
from nextn.convert.hub.repository import open_repository
from nextn.gguf_schema.errors import InputError, UsageError


def checkpoint_files(source: Path | Location) -> CheckpointFiles:
    """The files of the checkpoint at `source`.

    InputError when a path is no folder, UsageError for one file of a repository, HubError when there is no repository.
    """
    if isinstance(source, Location):
        if source.path or source.tag:
            raise UsageError("not-a-repository", "names a file; give the repository alone", subject=str(source))
        return HubFiles(open_repository(source))
    if not source.is_dir():
        raise InputError(
            "no-checkpoint",
            "is not a folder" if source.exists() else "does not exist",
            subject=str(source),
            remedy="give the folder of a checkpoint in Hugging Face format, or its name on the hub (org/name)",
        )
    return LocalFiles(source)
