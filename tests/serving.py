"""Servers to test against: a scripted one in this process, and a real llama.cpp in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from nextn.runtime.engines.engine import Asked
from nextn.runtime.engines.llama_server import LlamaServer, free_port
from nextn.runtime.engines.server_api import ServerError, send

LAUNCHER = f"{sys.executable} {Path(__file__).with_name('llama_server_launcher.py')}"
# Status and body (an object, or bytes as they are) for a path and the object that was sent.
Answer = tuple[int, Any]
Script = Callable[[str, dict[str, Any]], Answer]

PROPS = {
    "build_info": "b1-test",
    "model_path": "/models/m.gguf",
    "total_slots": 2,
    "default_generation_settings": {"n_ctx": 512},
}
MODELS = {"data": [{"meta": {"n_vocab": 512}}]}


def answer(tokens: list[int], drafted: int = 0, accepted: int = 0, **more: Any) -> dict[str, Any]:
    timings = {"prompt_ms": 10.0, "predicted_ms": 20.0}
    if drafted:
        timings |= {"draft_n": drafted, "draft_n_accepted": accepted}
    return {"tokens": tokens, "stop_type": "limit", "timings": timings, **more}


def usual(complete: Callable[[dict[str, Any]], Answer]) -> Script:
    """A server that says what it is, and completes as it is told."""

    def script(path: str, body: dict[str, Any]) -> Answer:
        if path == "/completion":
            return complete(body)
        return 200, {"/props": PROPS, "/v1/models": MODELS, "/health": {"status": "ok"}}[path]

    return script


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """A server on a loopback port; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({})

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body: dict[str, Any]) -> None:
            status, told = script(self.path, body)
            content = told if isinstance(told, bytes) else json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def real(model: Path, n_max: int, context: int = 512, slots: int = 1) -> Iterator[str]:
    """Real llama.cpp, serving a combined file, with drafts of at most `n_max` tokens or without; its address."""
    engine = LlamaServer(LAUNCHER, model, None, context, 0)
    port = free_port()
    words = [*engine.program, *engine.flags(Asked(n_max, 0), slots), "--host", "127.0.0.1", "--port", str(port)]
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 60
        while True:
            try:
                send(url, "/health", timeout_s=5)
                break
            except ServerError:
                assert child.poll() is None
                assert time.monotonic() < end
                time.sleep(0.05)
        yield url
    finally:
        child.terminate()
        child.wait(20)
