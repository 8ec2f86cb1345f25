"""Requests, responses, and the table of routes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fake_hub.store import Blob

if TYPE_CHECKING:
    from fake_hub.server import FakeHub


@dataclass(frozen=True)
class Request:
    """A request: `path` is without the query and with escapes undone in `parts`, the groups of the route's pattern."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    hub: FakeHub
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def user(self) -> str | None:
        """The name of the user whose token the request bears; None without a token or with an unknown one."""
        return self.hub.store.users.get(self.token or "")

    @property
    def token(self) -> str | None:
        """The token that the request bears."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token if scheme == "Bearer" else None


@dataclass(frozen=True)
class Response:
    """A response; of a blob the bytes from `start` up to `end` are sent."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Blob = field(default_factory=lambda: Blob(b""))
    start: int = 0
    end: int | None = None

    @property
    def length(self) -> int:
        """Bytes of the body."""
        return (self.body.size if self.end is None else self.end) - self.start


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with a JSON body."""
    body = Blob(json.dumps(content).encode())
    return Response(status, {"Content-Type": "application/json", **(headers or {})}, body)


def refusal(status: int, message: str, code: str | None = None) -> Response:
    """An error as the hub words it: the message in the body and in a header, a code for some."""
    headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
    return json_response({"error": message}, status, headers)


@dataclass(frozen=True)
class Route:
    """What answers a method at the paths that match a pattern."""

    method: str
    pattern: re.Pattern[str]
    answer: Callable[[Request], Response]


# Pieces of patterns: a repository's name, a revision (its slashes are escaped), a path to the end.
REPO = r"(?P<repo>[^/]+/[^/]+)"
REVISION = r"(?P<revision>[^/]+)"
PATH = r"(?P<path>.+)"


def route(method: str, pattern: str, answer: Callable[[Request], Response]) -> Route:
    """A route; the pattern is one of a whole path."""
    return Route(method, re.compile(pattern), answer)


def first_match(routes: Iterable[Route], method: str, path: str) -> tuple[Route, Mapping[str, str]] | None:
    """The first route for a method and a path that is still escaped, and the groups of its pattern."""
    for candidate in routes:
        if candidate.method == method and (match := candidate.pattern.fullmatch(path)):
            return candidate, match.groupdict()
    return None
