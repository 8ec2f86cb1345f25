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
from nextn.convert.hub.ranges import HubFile, Remote
from nextn.convert.hub.retrying import Patience, asking
from nextn.convert.hub.store import RangeStore
from nextn.gguf_schema.errors import HubError

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

LIBRARY = "nextn"
_HASH = re.compile(r"[0-9a-f]{40,64}")
# Beside huggingface_hub's own cache, where it has libraries keep theirs: HF_HOME/assets/nextn/ranges.
RANGES = "ranges"


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
            remote = self._remote(path)
            store = RangeStore(self._folder / remote.etag, remote.size, remote.etag)
            self._opened[path] = HubFile(remote, store, self._cached(path))
        return self._opened[path]

    def download(self, paths: Iterable[str]) -> Path:
        """Fetch small files whole into huggingface_hub's cache; the folder of the commit there, which holds them."""
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        for path in paths:
            self._remote(path)
            asking(
                f"{self.name}/{path}",
                partial(api().hf_hub_download, self.location.repo, path, revision=self.commit),
            )
        folder = repo_folder_name(repo_id=self.location.repo, repo_type="model")
        return Path(constants.HF_HUB_CACHE) / folder / "snapshots" / self.commit

    def _remote(self, path: str) -> Remote:
        if path not in self.files:
            raise HubError("no-file", f"has no file {path}", subject=self.name, remedy="check the name of the file")
        return self.files[path]

    @cached_property
    def _folder(self) -> Path:
        from huggingface_hub import cached_assets_path

        return asking(self.name, partial(cached_assets_path, LIBRARY, RANGES, self.location.repo))

    def _cached(self, path: str) -> Path | None:
        """The whole file in huggingface_hub's cache, if somebody fetched it before."""
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.location.repo, path, revision=self.commit)
        size = self.files[path].size
        return Path(found) if isinstance(found, str) and Path(found).stat().st_size == size else None


def open_repository(location: Location) -> Repository:
    """Resolve the revision to a commit and list the files; HubError for what is not there or not to be seen."""
    from huggingface_hub.hf_api import RepoFile

    client = api()
    name = str(Location(location.repo, location.revision))
    # Who has no network, or a wrong endpoint, is told so soon.
    patience = Patience(failures_allowed=3)
    info = asking(name, lambda: client.model_info(location.repo, revision=location.revision), patience)
    if info.sha is None:
        raise HubError("no-commit", "the hub does not say which commit this is", subject=name)
    commit = info.sha
    entries = asking(name, lambda: list(client.list_repo_tree(location.repo, recursive=True, revision=commit)))
    files = (entry for entry in entries if isinstance(entry, RepoFile))
    return Repository(location, commit, {file.path: _remote(location.repo, commit, file) for file in files})


def _remote(repo: str, commit: str, file: RepoFile) -> Remote:
    from huggingface_hub import hf_hub_url

    etag = file.lfs.sha256 if file.lfs else file.blob_id
    # It becomes the name of a file.
    if not _HASH.fullmatch(etag):
        raise HubError("bad-listing", f"the hub states no hash but {etag!r:.80}", subject=f"{repo}/{file.path}")
    url = hf_hub_url(repo, file.path, revision=commit)
    return Remote(repo, commit, file.path, file.size, etag, file.lfs is not None, url)
