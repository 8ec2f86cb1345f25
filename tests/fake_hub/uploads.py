"""The routes that write: repositories, branches, pull requests, large objects and commits."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from fake_hub.reading import visible
from fake_hub.routing import REPO, REVISION, Request, Response, json_response, refusal, route
from fake_hub.store import LARGE, Blob, Commit, Repository, StoredFile

if TYPE_CHECKING:
    from fake_hub.server import FakeHub

# Tokens that begin so can only read.
READ_ONLY = "hf_read"
PULL_REQUEST = "refs/pr/"
BRANCH = r"(?P<branch>[^/]+)"
NUMBER = r"(?P<number>\d+)"
OID = r"(?P<oid>\w+)"
DATE = "2026-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class ClaimedBlob(Blob):
    """Content that is not what its uploader said it is, and a hub that believes the uploader's sha256."""

    claimed: str = ""

    @property
    def sha256(self) -> str:
        """What the uploader said."""
        return self.claimed


@dataclass
class PullRequest:
    """A pull request; its commits are those of its ref."""

    number: int
    title: str
    author: str
    status: str = "draft"


@dataclass
class Uploads:
    """What is under way on a hub, and how it treats what it is sent.

    Objects above `part_size` bytes go in parts. `damage` is done to each object that is stored; a hub that `believes`
    states the hash it was told, else that of what it holds. Objects that it `refuses`, by their sha256, get a message.
    It `warns` of the front matter of cards.
    """

    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    pull_requests: dict[str, list[PullRequest]] = field(default_factory=dict)
    part_size: int = 1 << 22
    damage: Callable[[bytes], bytes] | None = None
    believes: bool = True
    refuses: dict[str, str] = field(default_factory=dict)
    warns: list[str] = field(default_factory=list)


_UPLOADS: WeakKeyDictionary[FakeHub, Uploads] = WeakKeyDictionary()


def uploads_of(hub: FakeHub) -> Uploads:
    """The uploads of a hub."""
    return _UPLOADS.setdefault(hub, Uploads())


def _writer(request: Request, namespace: str) -> Response | None:
    """The refusal for someone who may not write to a namespace, which is the user's own name."""
    if request.user is None:
        return refusal(401, "Invalid username or password.")
    if (request.token or "").startswith(READ_ONLY) or request.user != namespace:
        return refusal(403, f"You don't have the rights to write to {namespace} with this token")
    return None


def writable(request: Request) -> Repository | Response:
    """The repository that a request changes, or the refusal."""
    repository = visible(request)
    if isinstance(repository, Response):
        return repository
    return _writer(request, repository.name.split("/")[0]) or repository


def changing(answer: Callable[[Request, Repository], Response]) -> Callable[[Request], Response]:
    """An answer about a repository that the user may write to, or to a pull request of theirs."""

    def wrapped(request: Request) -> Response:
        repository = _own_pull_request(request) or writable(request)
        return repository if isinstance(repository, Response) else answer(request, repository)

    return wrapped


def _own_pull_request(request: Request) -> Repository | None:
    """The repository, when the request is about the ref of a pull request by the user."""
    # Of large objects, the body says for which ref they are.
    ref = request.parts.get("revision") or (request.json.get("ref", {}).get("name", "") if request.body else "")
    number = ref.removeprefix(PULL_REQUEST)
    repository = visible(request)
    if isinstance(repository, Response) or not number.isdecimal() or (request.token or "").startswith(READ_ONLY):
        return None
    found = _pull_request(request, repository, int(number))
    return repository if found is not None and found.author == request.user else None


def _pull_request(request: Request, repository: Repository, number: int) -> PullRequest | None:
    made = uploads_of(request.hub).pull_requests.get(repository.name, [])
    return made[number - 1] if 1 <= number <= len(made) else None


def _whoami(request: Request) -> Response:
    if request.user is None:
        return refusal(401, "Invalid username or password.")
    role = "read" if (request.token or "").startswith(READ_ONLY) else "write"
    auth = {"type": "access_token", "accessToken": {"displayName": "test", "role": role}}
    return json_response({"type": "user", "id": request.user, "name": request.user, "auth": auth})


def _create(request: Request) -> Response:
    asked = request.json
    namespace: str = asked["organization"] or request.user or ""
    if refused := _writer(request, namespace):
        return refused
    name = f"{namespace}/{asked['name']}"
    url = {"url": f"{request.hub.endpoint}/{name}", "id": name}
    if name in request.hub.store.repositories:
        return json_response({"error": "You already created this model repo", **url}, 409)
    repository = request.hub.store.create(name, private=asked.get("visibility") == "private")
    repository.readers = frozenset({namespace})
    attributes = StoredFile(Blob(b"*.gguf filter=lfs diff=lfs merge=lfs -text\n"), False)
    repository.put({".gitattributes": attributes}, message="initial commit")
    return json_response(url)


def _create_branch(request: Request, repository: Repository) -> Response:
    branch = request.parts["branch"]
    if branch in repository.refs:
        return refusal(409, f"Reference already exists: refs/heads/{branch}")
    start = repository.resolve((request.json or {}).get("startingPoint") or "main")
    if start is None:
        return refusal(404, "Invalid rev id", "RevisionNotFound")
    repository.refs[branch] = start.id
    return json_response({})


def _delete_branch(request: Request, repository: Repository) -> Response:
    if request.parts["branch"] == "main" or repository.refs.pop(request.parts["branch"], None) is None:
        return refusal(404, "Invalid rev id", "RevisionNotFound")
    return json_response({})


def _preupload(request: Request, repository: Repository) -> Response:
    commit = repository.resolve(request.parts["revision"])
    if commit is None:
        return refusal(404, f"Invalid rev id: {request.parts['revision']}", "RevisionNotFound")
    answers = []
    for asked in request.json["files"]:
        there = commit.files.get(asked["path"])
        mode = "lfs" if asked["path"].endswith(LARGE) else "regular"
        answer = {"path": asked["path"], "uploadMode": mode, "shouldIgnore": False}
        answers.append(answer | ({"oid": there.etag} if there else {}))
    return json_response({"files": answers})


def _lfs_batch(request: Request, repository: Repository) -> Response:
    hub, size = request.hub, uploads_of(request.hub).part_size
    answers: list[dict[str, Any]] = []
    for asked in request.json["objects"]:
        answer = {"oid": asked["oid"], "size": asked["size"]}
        answers.append(answer)
        if message := uploads_of(hub).refuses.get(asked["oid"]):
            answer["error"] = {"code": 422, "message": message}
            continue
        if asked["oid"] in hub.store.objects:
            continue
        upload: dict[str, Any] = {"href": f"{hub.storage}/upload/{asked['oid']}"}
        if asked["size"] > size:
            count = -(-asked["size"] // size)
            places = {f"{part:05}": f"{hub.storage}/part/{asked['oid']}/{part}" for part in range(1, count + 1)}
            upload = {"href": f"{hub.endpoint}/complete/{asked['oid']}", "header": {"chunk_size": str(size), **places}}
        verify = {"href": f"{hub.endpoint}/{repository.name}.git/info/lfs/objects/verify"}
        answer["actions"] = {"upload": upload, "verify": verify}
    return json_response({"transfer": "basic", "objects": answers})


def _store(request: Request, oid: str, data: bytes) -> None:
    uploads = uploads_of(request.hub)
    kept = uploads.damage(data) if uploads.damage else data
    request.hub.store.objects[oid] = ClaimedBlob(kept, oid) if uploads.believes else Blob(kept)


def _upload(request: Request) -> Response:
    if request.token is not None:
        return refusal(400, "a token was sent to the storage")
    _store(request, request.parts["oid"], request.body)
    return Response(200, {"ETag": '"whole"'})


def _part(request: Request) -> Response:
    if request.token is not None:
        return refusal(400, "a token was sent to the storage")
    number = int(request.parts["number"])
    uploads_of(request.hub).parts.setdefault(request.parts["oid"], {})[number] = request.body
    return Response(200, {"ETag": f'"{number}"'})


def _complete(request: Request) -> Response:
    oid = request.parts["oid"]
    parts = uploads_of(request.hub).parts.get(oid, {})
    asked = [(part["partNumber"], part["etag"]) for part in request.json["parts"]]
    if asked != [(number, f'"{number}"') for number in sorted(parts)]:
        return refusal(400, "these are not the parts that were sent")
    _store(request, oid, b"".join(data for _, data in sorted(parts.items())))
    return json_response({})


def _verify(request: Request) -> Response:
    if request.user is None:
        return refusal(401, "Invalid username or password.")
    return json_response({}) if request.json["oid"] in request.hub.store.objects else refusal(404, "no such object")


def _commit(request: Request, repository: Repository) -> Response:
    ref, hub = request.parts["revision"], request.hub
    if ref not in repository.refs:
        return refusal(404, f"Invalid rev id: {ref}", "RevisionNotFound")
    header, *operations = (json.loads(line) for line in request.body.splitlines())
    parent = header["value"].get("parentCommit")
    if parent is not None and parent != repository.refs[ref]:
        return refusal(412, "A commit has happened since. Please refresh and try again.")
    changed: dict[str, StoredFile | None] = {}
    for operation in operations:
        value = operation["value"]
        match operation["key"]:
            case "file":
                changed[value["path"]] = StoredFile(Blob(base64.b64decode(value["content"])), False)
            case "lfsFile" if value["oid"] in hub.store.objects:
                changed[value["path"]] = StoredFile(hub.store.objects[value["oid"]], True)
            case "lfsFile":
                return refusal(400, f"an LFS pointer points to a file that does not exist: {value['path']}")
            case "deletedFile":
                changed[value["path"]] = None
            case other:
                return refusal(400, f"the fake hub does not know the operation {other}")
    commit = repository.put(changed, ref, header["value"]["summary"])
    url = f"{hub.endpoint}/{repository.name}/commit/{commit.id}"
    return json_response({"success": True, "commitOid": commit.id, "commitUrl": url, "hookOutput": ""})


def _validate_yaml(request: Request) -> Response:
    warns = [{"message": message} for message in uploads_of(request.hub).warns]
    return json_response({"errors": [], "warnings": warns})


def _shown(repository: Repository, made: PullRequest) -> dict[str, Any]:
    return {
        "num": made.number,
        "title": made.title,
        "status": made.status,
        "author": {"name": made.author},
        "isPullRequest": True,
        "createdAt": DATE,
        "repo": {"name": repository.name, "type": "model"},
        "events": [],
        "changes": {"base": "refs/heads/main"},
        "filesWithConflicts": [],
    }


def _discussions(request: Request) -> Response:
    repository = visible(request)
    if isinstance(repository, Response):
        return repository
    wanted = request.query.get("status")
    shown = [
        _shown(repository, made)
        for made in uploads_of(request.hub).pull_requests.get(repository.name, [])
        if wanted in (None, made.status) or (wanted == "open" and made.status == "draft")
    ]
    return json_response({"discussions": shown, "count": len(shown), "start": 0})


def _create_discussion(request: Request) -> Response:
    repository = visible(request)
    if isinstance(repository, Response):
        return repository
    if request.user is None or (request.token or "").startswith(READ_ONLY):
        return refusal(403, "You don't have the rights to open pull requests with this token")
    made = uploads_of(request.hub).pull_requests.setdefault(repository.name, [])
    made.append(PullRequest(len(made) + 1, request.json["title"], request.user))
    repository.refs[f"{PULL_REQUEST}{len(made)}"] = repository.refs["main"]
    return json_response({"num": len(made), "pullRequest": True})


def about_discussion(answer: Callable[[Request, Repository, PullRequest], Response]) -> Callable[[Request], Response]:
    """An answer about a pull request of a visible repository."""

    def wrapped(request: Request) -> Response:
        repository = visible(request)
        if isinstance(repository, Response):
            return repository
        found = _pull_request(request, repository, int(request.parts["number"]))
        return answer(request, repository, found) if found else refusal(404, "Discussion not found")

    return wrapped


def _details(request: Request, repository: Repository, made: PullRequest) -> Response:
    return json_response(_shown(repository, made))


def _status(request: Request, repository: Repository, made: PullRequest) -> Response:
    if request.user not in (made.author, repository.name.split("/")[0]):
        return refusal(403, "You don't have the rights to change this pull request")
    made.status = request.json["status"]
    event = {"id": "1", "type": "status-change", "createdAt": DATE, "data": {"status": made.status}}
    return json_response({"newStatus": event})


def _merge(request: Request, repository: Repository, made: PullRequest) -> Response:
    refused = writable(request)
    if isinstance(refused, Response):
        return refused
    if made.status != "open":
        return refusal(400, f"This pull request is {made.status}")
    files = repository.head(f"{PULL_REQUEST}{made.number}").files
    repository.add(Commit(files, repository.refs["main"], made.title), "main")
    made.status = "merged"
    return json_response({})


API = f"/api/models/{REPO}"
ROUTES = (
    route("GET", "/api/whoami-v2", _whoami),
    route("POST", "/api/validate-yaml", _validate_yaml),
    route("POST", "/api/repos/create", _create),
    route("POST", f"{API}/branch/{BRANCH}", changing(_create_branch)),
    route("DELETE", f"{API}/branch/{BRANCH}", changing(_delete_branch)),
    route("POST", f"{API}/preupload/{REVISION}", changing(_preupload)),
    route("POST", f"{API}/commit/{REVISION}", changing(_commit)),
    route("POST", f"/{REPO}\\.git/info/lfs/objects/batch", changing(_lfs_batch)),
    route("POST", f"/{REPO}\\.git/info/lfs/objects/verify", _verify),
    route("PUT", f"/upload/{OID}", _upload),
    route("PUT", f"/part/{OID}/{NUMBER}", _part),
    route("POST", f"/complete/{OID}", _complete),
    route("GET", f"{API}/discussions", _discussions),
    route("POST", f"{API}/discussions", _create_discussion),
    route("GET", f"{API}/discussions/{NUMBER}", about_discussion(_details)),
    route("POST", f"{API}/discussions/{NUMBER}/status", about_discussion(_status)),
    route("POST", f"{API}/discussions/{NUMBER}/merge", about_discussion(_merge)),
)
