"""Publishing files as a transaction: sent to a draft, checked there, and made visible by one commit.

A draft is a branch of its own or a pull request. Each file is committed to it when it is sent, so the hub itself keeps
what is done: after an interruption at any point the same upload finds its draft and sends what is missing there. The
main branch changes once, by a commit of pointers to the data that was checked, which the hub has by then; it names its
parent, so that it is refused when somebody else committed meanwhile, and is made anew then.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nextn.convert.hub.committing import commit_pointers, content, pointer
from nextn.convert.hub.drafts import Draft, branch_name, open_branch, open_pull_request, remove_branch
from nextn.convert.hub.errors import one_line, status_of
from nextn.convert.hub.hashes import assert_unchanged
from nextn.convert.hub.items import Item, Outcome, Result, Uploaded
from nextn.convert.hub.locations import Location
from nextn.convert.hub.ranges import HubFile, Remote
from nextn.convert.hub.repository import Repository, open_repository
from nextn.convert.hub.retrying import Patience, asking
from nextn.convert.hub.store import RangeStore
from nextn.gguf_schema.container import read_header
from nextn.gguf_schema.contents import LocalFile, MemoryFile
from nextn.gguf_schema.errors import HubError, NextnError, counted
from nextn.gguf_schema.placement import layout_problems

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

# The hub's answer to a commit whose parent is not the last one any more.
PARENT_CHANGED = 412
COMMIT_TRIES = 6
# After these nothing can be sent, whichever file it is.
HOPELESS = frozenset({"unreachable", "timeout", "offline", "bad-token"})
# Bytes at the end of a file that are compared with those on the hub; the header is, too.
TAIL = 1 << 16
GGUF = ".gguf"


class CardOf(Protocol):
    """The model card as a file to publish, given what the main branch holds, None for a repository to be made."""

    def __call__(self, main: Repository | None) -> Item:
        """Raises InputError when the card that is there cannot be continued."""
        ...


@dataclass
class Transaction:
    """The upload of `items` to a repository that exists; `whole` are well-formed, and must be so on the hub too.

    With `bars`, huggingface_hub shows its own on stderr while it sends.
    """

    api: HfApi
    repo: str
    items: Sequence[Item]
    card_of: CardOf
    notice: Callable[[str], None]
    whole: bool = True
    bars: bool = False
    results: dict[str, Result] = field(default_factory=dict)

    def run(self, *, create_pr: bool) -> Uploaded:
        """Send, check and publish; with `create_pr` up to a pull request. HubError when the hub refuses as a whole."""
        main = open_repository(Location(self.repo))
        wanted = self._wanted(main)
        if not (missing := self._missing(main, wanted)):
            self._remove_leftover()
            return self._done(wanted, main.commit)
        draft = self._opened(create_pr, main, len(missing))
        self._send_all(draft.ref, wanted, {item.path for item in missing})
        if self._failed():
            return self._done(wanted, None, draft)
        checked = self._check(draft.ref, wanted)
        if self._failed():
            return self._done(wanted, None, draft)
        if create_pr:
            draft.make_ready()
            return self._done(wanted, None, draft)
        commit = self._publish(checked)
        remove_branch(self.api, self.repo, draft.ref, self.notice)
        return self._done(wanted, commit)

    def _wanted(self, main: Repository) -> list[Item]:
        return [*self.items, self.card_of(main)]

    def _missing(self, place: Repository, wanted: Sequence[Item]) -> list[Item]:
        return [item for item in wanted if not item.is_at(place.files.get(item.path))]

    def _failed(self) -> bool:
        return any(result.error for result in self.results.values())

    def _done(self, wanted: Sequence[Item], commit: str | None, draft: Draft | None = None) -> Uploaded:
        published = {item.path: Result(item, Outcome.PUBLISHED) for item in wanted}
        return Uploaded(tuple({**published, **self.results}.values()), commit, draft)

    @property
    def _key(self) -> str:
        """What the draft is found again by: the paths alone, so that a file that was made anew replaces its draft."""
        return hashlib.sha256("\0".join(sorted(item.path for item in self.items)).encode()).hexdigest()[:10]

    def _opened(self, create_pr: bool, main: Repository, number: int) -> Draft:
        if create_pr:
            return open_pull_request(self.api, self.repo, self._key, number)
        return open_branch(self.api, self.repo, self._key, main.commit)

    def _remove_leftover(self) -> None:
        """The branch of an upload that was interrupted when everything was visible."""
        refs = asking(self.repo, lambda: self.api.list_repo_refs(self.repo))
        for branch in refs.branches:
            if branch.name == branch_name(self._key):
                remove_branch(self.api, self.repo, branch.name, self.notice)

    def _send_all(self, ref: str, wanted: Sequence[Item], missing: set[str]) -> None:
        """Send what the draft lacks, one file after the other; one that fails does not keep the others."""
        draft = open_repository(Location(self.repo, ref))
        hopeless = False
        for number, item in enumerate(wanted, 1):
            if item.is_at(draft.files.get(item.path)):
                outcome = Outcome.FOUND if item.path in missing else Outcome.PUBLISHED
                self.results[item.path] = Result(item, outcome)
                continue
            if hopeless:
                self.results[item.path] = Result(item, Outcome.NOT_TRIED)
                continue
            self.notice(f"{number} of {len(wanted)}: {item.path}")
            try:
                self._send(item, ref)
            except NextnError as error:
                hopeless = error.code in HOPELESS
                self._fail(item, error)
            else:
                self.results[item.path] = Result(item, Outcome.SENT)

    def _fail(self, item: Item, error: NextnError) -> None:
        self.results[item.path] = Result(item, Outcome.FAILED, error)
        self.notice(f"{item.path}: {error.message}")

    def _send(self, item: Item, ref: str) -> None:
        """Send a file and commit it to the draft; InputError when it is not what it was, HubError when it fails."""
        operation = _addition(item)
        _assert_same(item)
        # huggingface_hub itself tries each request several times.
        asking(item.path, lambda: self._preupload(operation, ref), Patience(failures_allowed=2))
        _assert_same(item)
        # When it was done and the answer was lost, a second one changes nothing.
        asking(item.path, lambda: self._commit(operation, ref))

    def _preupload(self, operation: CommitOperationAdd, ref: str) -> None:
        with self._bars(), _refusals(operation.path_in_repo):
            self.api.preupload_lfs_files(self.repo, [operation], revision=ref, free_memory=False)

    def _commit(self, operation: CommitOperationAdd, ref: str) -> None:
        path = operation.path_in_repo
        # What the hub has against the front matter of a card comes as warnings.
        with _refusals(path), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", UserWarning)
            self.api.create_commit(self.repo, [operation], commit_message=f"Upload {path}", revision=ref)
        for warning in said:
            self.notice(f"{path}: {one_line(warning.message)}")

    @contextmanager
    def _bars(self) -> Iterator[None]:
        from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

        if self.bars:
            enable_progress_bars()
        try:
            yield
        finally:
            disable_progress_bars()

    def _check(self, ref: str, wanted: Sequence[Item]) -> Repository:
        """Compare what the hub states and gives with what was sent; the draft at the commit that was looked at."""
        draft = open_repository(Location(self.repo, ref))
        with tempfile.TemporaryDirectory(prefix="nextn-check-") as folder:
            for item in wanted:
                if problem := self._problem(item, draft.files.get(item.path), Path(folder)):
                    message = f"is not on the hub as it is here: {problem}"
                    remedy = "nothing is visible; run the same command again, and if that does not help, make it again"
                    self._fail(item, HubError("check-failed", message, subject=item.path, remedy=remedy))
        return draft

    def _problem(self, item: Item, remote: Remote | None, folder: Path) -> str | None:
        """How a file on the hub is not the one here."""
        if remote is None:
            return "it is not in the listing, perhaps left out by the repository's .gitignore"
        if (difference := item.difference(remote)) or not item.path.endswith(GGUF):
            return difference
        # Not from what was kept of earlier reading: the hub is asked for these bytes.
        there = HubFile(remote, RangeStore(folder / remote.etag, remote.size, remote.etag))
        try:
            return self._other_bytes(item, there)
        except NextnError as error:
            return error.message

    def _other_bytes(self, item: Item, there: HubFile) -> str | None:
        """Whether header or end are others, or not those of a whole file; read by range."""
        begin = read_header(item.source).data_offset
        tail = max(begin, item.source.size - TAIL)
        for start, end in ((0, begin), (tail, item.source.size)):
            if there.read(start, end - start) != item.source.read(start, end - start):
                return f"bytes {start} to {end} are others"
        problems = layout_problems(read_header(there)) if self.whole else ()
        return next((problem.message for problem in problems), None)

    def _publish(self, checked: Repository) -> str:
        """Make everything visible with one commit, whatever becomes of answers; the commit of the main branch."""
        number = len(self.items)
        message = f"Upload {counted(number, 'file')} with nextn"
        for _ in range(COMMIT_TRIES):
            main = open_repository(Location(self.repo))
            wanted = self._wanted(main)
            if not (missing := self._missing(main, wanted)):
                return main.commit
            lines = [_line(item, checked) for item in missing]
            try:
                # When the first try was done and its answer was lost, the second one has the wrong parent.
                asking(self.repo, partial(commit_pointers, self.api, self.repo, message, main.commit, lines))
            except HubError as error:
                if error.__cause__ is None or status_of(error.__cause__) != PARENT_CHANGED:
                    raise
        raise HubError("no-commit", "the main branch changes faster than it can be added to", subject=self.repo)


def _line(item: Item, checked: Repository) -> dict[str, Any]:
    """A file of a commit: a pointer to data that the hub has, or the content of what it keeps in git."""
    if checked.files[item.path].has_sha256:
        return pointer(item.path, item.source.size, item.sha256)
    return content(item.path, item.source.read(0, item.source.size))


def _addition(item: Item) -> CommitOperationAdd:
    from huggingface_hub import CommitOperationAdd

    if isinstance(item.source, MemoryFile):
        return CommitOperationAdd(item.path, item.source.data)
    operation = CommitOperationAdd(item.path, str(item.source.path))
    if item.sha256 is not None:
        # Else huggingface_hub would read the file once more to compute it.
        operation.upload_info.sha256 = bytes.fromhex(item.sha256)
    return operation


@contextmanager
def _refusals(subject: str) -> Iterator[None]:
    """What huggingface_hub raises as ValueError of an answer that refuses is final: HubError with the hub's words."""
    try:
        yield
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise HubError("refused", one_line(error)[:300], subject=subject) from error


def _assert_same(item: Item) -> None:
    if isinstance(item.source, LocalFile):
        assert_unchanged(item.source)
