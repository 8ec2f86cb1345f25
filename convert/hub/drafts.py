"""Where an upload lies until it is visible: a branch of its own, or a pull request, found again by a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nextn.convert.hub.retrying import asking
from nextn.gguf_schema.errors import HubError, counted

if TYPE_CHECKING:
    from huggingface_hub import HfApi

BRANCH = "nextn-upload-"
PULL_REQUEST = "refs/pr/"


@dataclass(frozen=True)
class Draft:
    """A draft: the ref that files are committed to, and for a pull request its number and page."""

    api: HfApi
    repo: str
    ref: str
    number: int | None = None
    url: str | None = None

    def make_ready(self) -> None:
        """Open a pull request that is a draft, for others to look at; HubError when that fails."""
        number = self.number
        if number is None:
            return
        details = asking(self.repo, lambda: self.api.get_discussion_details(self.repo, number))
        if details.status == "draft":
            asking(self.repo, lambda: self.api.change_discussion_status(self.repo, number, "open"))


def branch_name(key: str) -> str:
    """The name of the branch of an upload."""
    return BRANCH + key


def open_branch(api: HfApi, repo: str, key: str, commit: str) -> Draft:
    """The branch of an upload, made from a commit unless it is there; HubError when it cannot be made."""
    name = branch_name(key)
    asking(repo, lambda: api.create_branch(repo, branch=name, revision=commit, exist_ok=True))
    return Draft(api, repo, name)


def remove_branch(api: HfApi, repo: str, name: str, notice: Callable[[str], None]) -> None:
    """Remove the branch of an upload that is visible; when that fails it is only in the way, and is said so."""
    try:
        asking(repo, lambda: api.delete_branch(repo, branch=name))
    except HubError as error:
        # Not there: it was removed, and the answer to that was lost.
        if error.code != "no-revision":
            notice(f"the branch {name} is no longer needed and could not be removed: {error.message}")


def open_pull_request(api: HfApi, repo: str, key: str, number: int) -> Draft:
    """The pull request of an upload, made unless one is open; HubError when it cannot be made.

    Somebody else's is left alone, whatever its title: it may hold more than what is sent there.
    """
    title = f"Upload {counted(number, 'file')} with nextn ({key})"
    author = asking(repo, api.whoami)["name"]

    def find_or_make() -> int:
        # Looked for before each try: the answer to the last one may have been lost.
        for made in api.get_repo_discussions(repo, discussion_type="pull_request"):
            if made.author == author and made.title.endswith(f"({key})") and made.status in ("draft", "open"):
                return made.num
        return api.create_pull_request(repo, title=title).num

    found = asking(repo, find_or_make)
    return Draft(api, repo, f"{PULL_REQUEST}{found}", found, f"{api.endpoint}/{repo}/discussions/{found}")
