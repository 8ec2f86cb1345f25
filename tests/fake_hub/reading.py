"""The routes that read: information, listings, refs, and the files themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from fake_hub.routing import PATH, REPO, REVISION, Request, Response, json_response, refusal, route
from fake_hub.store import Commit, Repository, StoredFile


def visible(request: Request) -> Repository | Response:
    """The repository that a request is about, or the refusal when it is not there for this user."""
    repository = request.hub.store.repositories.get(request.parts["repo"])
    if request.token is not None and request.user is None:
        return refusal(401, "Invalid credentials in Authorization header")
    if repository is None or (repository.private and request.user not in repository.readers):
        # The hub does not tell what is missing from what is private.
        return refusal(404 if request.user else 401, "Repository not found", "RepoNotFound")
    return repository


def at_revision(answer: Callable[[Request, Repository, Commit], Response]) -> Callable[[Request], Response]:
    """An answer about a commit of a visible repository."""

    def wrapped(request: Request) -> Response:
        repository = visible(request)
        if isinstance(repository, Response):
            return repository
        revision = request.parts.get("revision", "main")
        commit = repository.resolve(revision)
        if commit is None:
            return refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return answer(request, repository, commit)

    return wrapped


def entry(path: str, file: StoredFile) -> dict[str, Any]:
    """A file as listings give it."""
    shown = {"type": "file", "oid": file.blob.git_oid, "size": file.blob.size, "path": path}
    if file.large:
        shown["lfs"] = {"oid": file.blob.sha256, "size": file.blob.size, "pointerSize": 134}
    return shown


def _info(_: Request, repository: Repository, commit: Commit) -> Response:
    return json_response(
        {
            "_id": repository.name,
            "id": repository.name,
            "modelId": repository.name,
            "sha": commit.id,
            "private": repository.private,
            "gated": "manual" if repository.gated else False,
            "tags": [],
            "downloads": 0,
            "siblings": [{"rfilename": path} for path in sorted(commit.files)],
        }
    )


def _tree(request: Request, repository: Repository, commit: Commit) -> Response:
    """Files in pages; with `recursive` those of all folders, which is how nextn asks."""
    paths = sorted(commit.files)
    start = int(request.query.get("cursor", 0))
    page = paths[start : start + request.hub.page_size]
    headers = {}
    if start + len(page) < len(paths):
        query = urlencode({**request.query, "cursor": start + len(page)})
        headers["Link"] = f'<{request.hub.endpoint}{request.path}?{query}>; rel="next"'
    return json_response([entry(path, commit.files[path]) for path in page], headers=headers)


def _paths_info(request: Request, repository: Repository, commit: Commit) -> Response:
    # huggingface_hub sends these as a form.
    paths = [value for name, value in parse_qsl(request.body.decode()) if name == "paths"]
    return json_response([entry(path, commit.files[path]) for path in paths if path in commit.files])


def _refs(request: Request) -> Response:
    repository = visible(request)
    if isinstance(repository, Response):
        return repository
    shown: dict[str, list[dict[str, str]]] = {"branches": [], "converts": [], "tags": [], "pullRequests": []}
    for name, commit in repository.refs.items():
        kind, ref = ("pullRequests", name) if name.startswith("refs/pr/") else ("branches", f"refs/heads/{name}")
        shown[kind].append({"name": name, "ref": ref, "targetCommit": commit})
    return json_response(shown)


def _commits(request: Request, repository: Repository, commit: Commit) -> Response:
    shown = []
    last: Commit | None = commit
    while last is not None:
        what = {"id": last.id, "title": last.message, "message": "", "date": "2026-01-01T00:00:00.000Z", "authors": []}
        shown.append(what)
        last = repository.commits[last.parent] if last.parent else None
    return json_response(shown)


def _resolve(request: Request, repository: Repository, commit: Commit) -> Response:
    """A file: small ones at once, large ones by a redirect to the storage, which knows no users."""
    if repository.gated and request.user not in repository.readers:
        # As the hub: not known who asks, or known and not allowed.
        message = f"Access to model {repository.name} is restricted. You must have access to it and be authenticated."
        return refusal(403 if request.user else 401, message, "GatedRepo")
    file = commit.files.get(request.parts["path"])
    headers = {"X-Repo-Commit": commit.id, "Accept-Ranges": "bytes"}
    if file is None:
        response = refusal(404, "Entry not found", "EntryNotFound")
        return Response(response.status, {**response.headers, **headers}, response.body)
    headers["ETag"] = f'"{file.etag}"'
    if not file.large:
        return ranged(request, file, headers)
    headers |= {"X-Linked-Size": str(file.blob.size), "X-Linked-Etag": f'"{file.blob.sha256}"'}
    request.hub.linked[file.blob.sha256] = file
    location = f"{request.hub.storage}/cdn/{file.blob.sha256}?path={quote(request.parts['path'], safe='')}"
    return Response(302, {**headers, "Location": location})


def _cdn(request: Request) -> Response:
    if request.token is not None:
        return refusal(400, "a token was sent to the storage")
    file = request.hub.linked.get(request.parts["sha"])
    if file is None:
        return refusal(403, "the link is not signed")
    return ranged(request, file, {"ETag": f'"{file.blob.sha256}"', "Accept-Ranges": "bytes"})


def ranged(request: Request, file: StoredFile, headers: dict[str, str]) -> Response:
    """The whole file, or the one range that was asked for."""
    asked = request.headers.get("range")
    if asked is None or request.hub.ignores_ranges:
        return Response(200, headers, file.blob)
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked)
    if match is None or int(match[1]) >= file.blob.size:
        return Response(416, {**headers, "Content-Range": f"bytes */{file.blob.size}"})
    start = int(match[1])
    end = min(int(match[2]) + 1 if match[2] else file.blob.size, file.blob.size)
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.blob.size}"
    return Response(206, headers, file.blob, start, end)


ROUTES = (
    route("GET", f"/api/models/{REPO}", at_revision(_info)),
    route("GET", f"/api/models/{REPO}/revision/{REVISION}", at_revision(_info)),
    route("GET", f"/api/models/{REPO}/tree/{REVISION}", at_revision(_tree)),
    route("POST", f"/api/models/{REPO}/paths-info/{REVISION}", at_revision(_paths_info)),
    route("GET", f"/api/models/{REPO}/refs", _refs),
    route("GET", f"/api/models/{REPO}/commits/{REVISION}", at_revision(_commits)),
    route("HEAD", f"/{REPO}/resolve/{REVISION}/{PATH}", at_revision(_resolve)),
    route("GET", f"/{REPO}/resolve/{REVISION}/{PATH}", at_revision(_resolve)),
    route("HEAD", r"/cdn/(?P<sha>\w+)", _cdn),
    route("GET", r"/cdn/(?P<sha>\w+)", _cdn),
)
