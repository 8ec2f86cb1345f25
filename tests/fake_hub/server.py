"""The fake hub: an HTTP server on loopback that answers by the table of routes, strikes, and counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from fake_hub import reading, uploads
from fake_hub.faults import Fault, Faults, How
from fake_hub.routing import Request, Response, first_match, refusal
from fake_hub.store import Store, StoredFile

ROUTES = (*reading.ROUTES, *uploads.ROUTES)
SENT_AT_ONCE = 1 << 16
METHODS_WITHOUT_BODY = ("HEAD",)


@dataclass(frozen=True)
class Seen:
    """A request that was answered: bytes of the answer's body that were sent, bytes that were received."""

    method: str
    path: str
    status: int
    sent: int
    received: int
    asked_range: str | None

    @property
    def line(self) -> str:
        """`METHOD path`."""
        return f"{self.method} {self.path}"


class FakeHub:
    """A hub on loopback. `endpoint` is for HF_ENDPOINT; `storage` is another origin, where large files lie."""

    def __init__(self) -> None:
        self.store = Store()
        self.faults = Faults()
        self.seen: list[Seen] = []
        self.linked: dict[str, StoredFile] = {}
        self.page_size = 1000
        self.ignores_ranges = False
        self.answering = 0
        self.idle = threading.Condition()
        self._servers = [_Server(("127.0.0.1", 0), self) for _ in range(2)]
        self.endpoint, self.storage = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)
        self.closing = threading.Event()

    def start(self) -> None:
        """Answer from now on."""
        for server in self._servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        """Answer no more."""
        self.closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def close_storage(self) -> None:
        """Answer no more where large files lie."""
        self._servers[1].server_close()

    def environment(self, home: Path, token: str | None = None) -> dict[str, str]:
        """What a command needs to use this hub and nothing of the user's: put it over the environment."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_TOKEN": token or "",
            "NO_PROXY": "127.0.0.1",
        }

    def answer(self, request: Request) -> Response:
        """What the routes answer."""
        found = first_match(ROUTES, request.method, request.path)
        if found is None:
            return refusal(404, f"the fake hub has no {request.method} {request.path}")
        route, parts = found
        unescaped = {name: unquote(part) for name, part in parts.items() if part is not None}
        with self.store.lock:
            try:
                return route.answer(replace(request, parts=unescaped))
            except Exception as error:
                # Else the client would only see a broken connection.
                return refusal(500, f"the fake hub failed: {error!r}")

    def requests(self, part: str = "") -> list[Seen]:
        """The requests so far whose `METHOD path` contains a text."""
        return [seen for seen in list(self.seen) if part in seen.line]

    def bytes_sent(self, part: str = "") -> int:
        """Bytes of bodies sent so far in answer to such requests."""
        return sum(seen.sent for seen in self.requests(part))

    def forget(self) -> None:
        """Count from zero, when nothing is being answered any more: clients that died leave answers behind."""
        with self.idle:
            self.idle.wait_for(lambda: self.answering == 0, timeout=10)
            self.seen.clear()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count a request as being answered."""
        with self.idle:
            self.answering += 1
        try:
            yield
        finally:
            with self.idle:
                self.answering -= 1
                self.idle.notify_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # More connections than the default's five may come at once.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], hub: FakeHub) -> None:
        self.hub = hub
        super().__init__(address, _Handler)

    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that died."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two writes: the second would wait 40 ms for the client's system to confirm the first.
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def _handle(self) -> None:
        with self.server.hub.busy():
            self._answer()

    def _answer(self) -> None:
        hub = self.server.hub
        url = urlsplit(self.path)
        body = self._body()
        if body is None:
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, url.path, dict(parse_qsl(url.query)), headers, body, hub)
        fault = hub.faults.striking(self.command, self.path)
        response, sent = Response(0), 0
        try:
            if fault is None or fault.how not in (How.STATUS, How.DISCONNECT, How.REDIRECT, How.STALL):
                response = hub.answer(request)
            if fault is not None and fault.how is How.STATUS:
                refused = refusal(fault.status, fault.message, fault.code)
                response = Response(fault.status, {**refused.headers, **fault.headers}, refused.body)
            if fault is not None and fault.how is How.REDIRECT:
                response = Response(302, {"Location": self.path})
            if fault is not None and fault.how is How.STALL:
                hub.closing.wait(fault.seconds)
            if fault is not None and fault.how in (How.STALL, How.DISCONNECT, How.DISCONNECT_AFTER):
                self.close_connection = True
                return
            for done in self._send(response, fault):
                sent = done
        finally:
            # Whatever became of the client, what was sent counts.
            asked = self.headers.get("Range")
            hub.seen.append(Seen(self.command, unquote(self.path), response.status, sent, len(body), asked))

    def _body(self) -> bytes | None:
        """The body of the request; None when the client went away within it."""
        length = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return b"".join(iter(self._chunk, b""))
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return None
        return body

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline(), 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    def _send(self, response: Response, fault: Fault | None) -> Iterator[int]:
        """Send a response; yields how much of the body was handed on so far."""
        self.send_response_only(response.status)
        for name, value in {"Content-Length": str(response.length), **response.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command in METHODS_WITHOUT_BODY:
            return
        end = response.start + response.length
        if fault is not None and fault.how is How.TRUNCATE:
            end = min(end, response.start + fault.after_bytes)
            self.close_connection = True
        sent = 0
        for start in range(response.start, end, SENT_AT_ONCE):
            data = response.body.read(start, min(start + SENT_AT_ONCE, end))
            if fault is not None and fault.how is How.CORRUPT and start == response.start and data:
                data = data[:-1] + bytes([data[-1] ^ 1])
            self.wfile.write(data)
            sent += len(data)
            yield sent

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _handle  # noqa: N815 - names that the library wants


@contextmanager
def running() -> Iterator[FakeHub]:
    """A hub that answers for as long as the context lasts."""
    hub = FakeHub()
    hub.start()
    try:
        yield hub
    finally:
        hub.stop()
