"""A repository on the hub at one commit: what it holds, and the way to its files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from nextn.convert.hub.client import api
from nextn.convert.hub.locations import Location
from nextn.convert.hub.paths import path_problem
from nextn.convert.hub.ranges import HubFile, Remote
from nextn.convert.hub.retrying import Patience, asking
from nextn.convert.hub.store import RangeStore
from nextn.gguf_schema.errors import HubError, InputError

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

# Where huggingface_hub has libraries keep theirs: HF_HOME/assets/nextn.
LIBRARY = "nextn"
RANGES = "ranges"
_HASH = re.compile(r"[0-9a-f]{40,64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# File systems have no larger files.
MOST_BYTES = (1 << 63) - 1
# Of a file that is fetched whole to be parsed; the largest vocabularies have some tens of megabytes.
MOST_PARSED = 1 << 29


@dataclass(frozen=True)
class Repository:
    """A repository at the commit that its revision was when it was opened; `files` are in the order of the listing."""

    location: Location
    commit: str
    files: Mapping[str, Remote]

    @property
    def name(self) -> str:
        """The repository for messages, with the revision that was asked for."""
        return str(Location(self.location.repo, self.location.revision))

    @cached_property
    def _opened(self) -> dict[str, HubFile]:
        return {}

    def open(self, path: str) -> HubFile:
        """A file to read by range; HubError when it is not there."""
        if path not in self._opened:
            remote = self.remote(path)
            store = RangeStore(self._folder / remote.etag, remote.size, remote.etag)
            self._opened[path] = HubFile(remote, store, self._cached(path))
        return self._opened[path]

    def download(self, paths: Iterable[str]) -> Path:
        """Fetch small files whole into huggingface_hub's cache; the folder of the commit there, which holds them.

        InputError for one that is not small, HubError when they do not come.
        """
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        for path in paths:
            if (size := self.remote(path).size) > MOST_PARSED:
                message = f"has {size} bytes, and is to be parsed: {MOST_PARSED} are the most"
                raise InputError("too-large", message, subject=f"{self.name}/{path}")
            asking(
                f"{self.name}/{path}",
                partial(api().hf_hub_download, self.location.repo, path, revision=self.commit),
            )
        folder = repo_folder_name(repo_id=self.location.repo, repo_type="model")
        return Path(constants.HF_HUB_CACHE) / folder / "snapshots" / self.commit

    def remote(self, path: str) -> Remote:
        """A file of the listing; HubError when it is not there, or its path cannot be used."""
        if path not in self.files:
            remedy = f"nextn inspect {self.name} lists what is there"
            raise HubError("no-file", f"has no file {path}", subject=self.name, remedy=remedy)
        if problem := path_problem(path):
            message = f"has a file with a path that cannot be used, {path!r:.300}: {problem}"
            raise HubError("bad-path", message, subject=self.name)
        return self.files[path]

    @property
    def _folder(self) -> Path:
        return assets_folder(RANGES) / self.location.repo.replace("/", "--")

    def _cached(self, path: str) -> Path | None:
        """The whole file in huggingface_hub's cache, if somebody fetched it before."""
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.location.repo, path, revision=self.commit)
        size = self.files[path].size
        return Path(found) if isinstance(found, str) and Path(found).stat().st_size == size else None


def assets_folder(kind: str) -> Path:
    """Where things of a kind are kept, beside huggingface_hub's own cache; whoever keeps one makes it."""
    from huggingface_hub import constants

    return Path(constants.HF_ASSETS_CACHE) / LIBRARY / kind


def open_repository(location: Location) -> Repository:
    """Resolve the revision to a commit and list the files; HubError for what is not there or not to be seen."""
    client = api()
    name = str(Location(location.repo, location.revision))
    # Who has no network, or a wrong endpoint, is told so soon.
    patience = Patience(failures_allowed=3)
    info = asking(name, lambda: client.model_info(location.repo, revision=location.revision), patience)
    # It becomes the name of a folder.
    if not isinstance(info.sha, str) or not _COMMIT.fullmatch(info.sha):
        raise HubError("no-commit", "the hub does not say which commit this is", subject=name)
    return Repository(location, info.sha, asking(name, partial(_listed, client, location.repo, info.sha)))


def _listed(client: HfApi, repo: str, commit: str) -> dict[str, Remote]:
    """The files of a commit by their paths; HubError for a listing that makes no sense."""
    from huggingface_hub.hf_api import RepoFile

    files: dict[str, Remote] = {}
    for entry in client.list_repo_tree(repo, recursive=True, revision=commit):
        if isinstance(entry, RepoFile):
            # Pages that lead back to an earlier one would be read for ever.
            if entry.path in files:
                raise HubError("bad-listing", f"the hub lists {entry.path!r:.80} twice", subject=repo)
            files[entry.path] = _remote(repo, commit, entry)
    return files


def _remote(repo: str, commit: str, file: RepoFile) -> Remote:
    path, size, etag = file.path, file.size, file.lfs.sha256 if file.lfs else file.blob_id
    if not isinstance(path, str):
        raise HubError("bad-listing", f"the hub lists a file named {path!r:.80}", subject=repo)
    # It becomes the name of a file.
    if not isinstance(etag, str) or not _HASH.fullmatch(etag):
        raise HubError("bad-listing", f"the hub states no hash of {path!r:.200} but {etag!r:.80}", subject=repo)
    if type(size) is not int or not 0 <= size <= MOST_BYTES:
        raise HubError("bad-listing", f"the hub states no size of {path!r:.200} but {size!r:.80}", subject=repo)
    return Remote(repo, commit, path, size, etag, file.lfs is not None)
