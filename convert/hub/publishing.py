"""What an upload needs before it begins: access to the repository, and what the card is to say of the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nextn.convert.hub.card import read_facts, write_card
from nextn.convert.hub.client import api
from nextn.convert.hub.facts import LOADS, Base, Facts, PairRow, Proof, Row, Target
from nextn.convert.hub.items import Item
from nextn.convert.hub.locations import Location
from nextn.convert.hub.release import Model, Release
from nextn.convert.hub.repository import Repository, open_repository
from nextn.convert.hub.retrying import asking
from nextn.convert.hub.upload import CardOf
from nextn.convert.metadata import CARD
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, MemoryFile
from nextn.gguf_schema.errors import HubError, InputError, UsageError
from nextn.gguf_schema.nextn_generic import TARGET_EMBEDDING_SHA256, TARGET_NAME
from nextn.validators.examine import Report
from nextn.validators.loader_keys import Outcome
from nextn.validators.runtimes import BUNDLED
from nextn.validators.verdicts import deciding

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# Seconds without a byte in either direction; putting the parts of a large file together takes the hub a while.
TIMEOUT = 300.0
UNKNOWN = "not forecast"
SOURCE_URL, LICENSE = "general.source.repo_url", "general.license"
NO_TOKEN = "log in with `hf auth login`, or set HF_TOKEN to a token that can write"  # noqa: S105 - what to do


def writing_api() -> HfApi:
    """A client for sending."""
    return api(TIMEOUT)


def check_token(client: HfApi, *, create_pr: bool) -> None:
    """HubError without a token, with one that the hub does not know, and with one that cannot write."""
    from huggingface_hub import get_token

    if get_token() is None:
        raise HubError("no-token", "the hub takes files only from who has a token", remedy=NO_TOKEN)
    who = asking("token", client.whoami)
    if who.get("auth", {}).get("accessToken", {}).get("role") == "read" and not create_pr:
        raise HubError("read-only-token", "the token can only read", remedy=NO_TOKEN)


def find_repository(client: HfApi, repo: str, *, private: bool) -> Repository | None:
    """The repository, None when it is not there; UsageError when it is to be private and is public."""
    try:
        found = open_repository(Location(repo))
    except HubError as error:
        if error.code == "no-repository":
            return None
        raise
    if private and not asking(repo, lambda: client.model_info(repo)).private:
        remedy = "make it private in its settings first, or leave --private out"
        raise UsageError("public", "is there, and is public", subject=repo, remedy=remedy)
    return found


def make_repository(client: HfApi, repo: str, *, private: bool, create_pr: bool) -> None:
    """Make a repository that is not there; HubError when that is not allowed, or a pull request to it is wanted."""
    if create_pr:
        remedy = "leave --create-pr out to make it"
        raise HubError("no-repository", "is not there: nobody can ask it to pull", subject=repo, remedy=remedy)
    asking(repo, lambda: client.create_repo(repo, private=private or None, exist_ok=True))


def facts_of(release: Release, hashes: Mapping[str, str | None], base: Base | None, proofs: Sequence[Proof]) -> Facts:
    """What the card says of a release; `hashes` are those of its files, by path."""
    rows = tuple(row for model in release.models for row in _rows(model, hashes))
    pairs = tuple(PairRow(pair.model.path, pair.draft.path, _loads(pair.report)) for pair in release.pairs)
    contents = [model.contents for model in release.models]
    licenses = [license for each in contents if (license := _text(each, LICENSE))]
    bases = [made for each in contents if (made := _base(each))]
    return Facts(rows, pairs, tuple(proofs), base or next(iter(bases), None), next(iter(licenses), None))


def card_writer(facts: Facts, repo: str) -> CardOf:
    """The card of a repository, for `facts` and what the card that is there says about other files."""

    def card_of(main: Repository | None) -> Item:
        existing = None
        if main is not None and CARD in main.files:
            file = main.open(CARD)
            try:
                existing = file.read(0, file.size).decode()
            except UnicodeDecodeError as error:
                remedy = "correct it on the hub"
                raise InputError("bad-card", "is not UTF-8", subject=f"{repo}/{CARD}", remedy=remedy) from error
        there = {path: remote.etag for path, remote in main.files.items()} if main else {}
        every = facts.with_earlier(read_facts(existing), there)
        text = MemoryFile(write_card(existing, every, repo).encode(), CARD)
        return Item(CARD, text, text.identity)

    return card_of


def _rows(model: Model, hashes: Mapping[str, str | None]) -> list[Row]:
    target = None
    if model.role is Role.MTP_SHARED and (name := _text(model.contents, TARGET_NAME)):
        target = Target(name, _text(model.contents, TARGET_EMBEDDING_SHA256))
    role, loads = model.report.model.role, _loads(model.report)
    named = (role.name if role else None) or "–"
    return [
        Row(path, file.size, hashes[path] or "–", named, model.type, loads, path == model.path, target)
        for path, file in model.files.items()
    ]


def _loads(report: Report) -> str:
    """What llama.cpp does with a file, or a pair, in its use."""
    rows = [row for row in deciding(report.forecast, report.use) if row.runtime == BUNDLED.name]
    failing = [row for row in rows if row.outcome is not Outcome.LOADS]
    if failing:
        return f"{failing[0].outcome}: {failing[0].message}" if failing[0].message else str(failing[0].outcome)
    return LOADS if rows else UNKNOWN


def _text(contents: Contents, key: str) -> str | None:
    value = contents.keys.get(key)
    return value.value if value and isinstance(value.value, str) and value.value else None


def _base(contents: Contents) -> Base | None:
    """The repository that a file says it was made from: the end of a page's address."""
    parts = (_text(contents, SOURCE_URL) or "").rstrip("/").split("/")
    return Base("/".join(parts[-2:])) if len(parts) >= 4 and all(parts[-2:]) else None
