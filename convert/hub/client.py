"""Talking to the hub: calls through huggingface_hub, and bytes of a file by range through its session."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nextn.convert.hub.retrying import Patience
from nextn.convert.hub.store import UNIT
from nextn.gguf_schema.errors import HubError, UsageError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# Called with the offset of bytes in the file, and the bytes.
Sink = Callable[[int, bytes], None]
KINDS_OF_WAIT = ("connect", "read", "write", "pool")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class NothingCame(ConnectionError):  # noqa: N818 - what happened
    """An answer without a body, which would be asked for again for ever."""


def api(seconds: float | None = None) -> HfApi:
    """huggingface_hub's client, which keeps quiet: what the user should know is said in our words.

    `seconds` is how long it waits for a sign of life, HF_HUB_DOWNLOAD_TIMEOUT where it is not given; the longest that
    was ever asked for counts. UsageError for a setting that makes no sense.
    """
    try:
        # Before anything else of it, which would print what is wrong with them on stdout.
        from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT
    except ValueError as error:
        remedy = "correct the variables HF_… of the environment"
        raise UsageError("bad-setting", f"a setting of huggingface_hub is no number: {error}", remedy=remedy) from error
    from huggingface_hub import HfApi
    from huggingface_hub.utils.logging import set_verbosity
    from huggingface_hub.utils.tqdm import disable_progress_bars

    set_verbosity(logging.ERROR)
    disable_progress_bars()
    _wait_at_most(max(seconds or 0.0, HF_HUB_DOWNLOAD_TIMEOUT))
    return HfApi(library_name="nextn")


_longest_wait = 0.0


def _wait_at_most(seconds: float) -> None:
    """Let requests of huggingface_hub that would wait for ever, as most do, give up after so many seconds."""
    global _longest_wait
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    def limit(request: Any) -> None:
        given = request.extensions.get("timeout") or {}
        request.extensions["timeout"] = {kind: given.get(kind) or seconds for kind in KINDS_OF_WAIT}

    def limited() -> Any:
        client = default_client_factory()
        client.event_hooks = {**client.event_hooks, "request": [*client.event_hooks["request"], limit]}
        return client

    if seconds > _longest_wait:
        _longest_wait = seconds
        set_client_factory(limited)


def fetch_range(url: str, name: str, size: int, start: int, end: int, sink: Sink, patience: Patience) -> None:
    """Fetch the bytes of a file from `start` up to `end` and hand them on in parts of at most a UNIT.

    `size` is that of the whole file. What came before a connection broke is handed on, and only the rest is asked for
    again. HubError, about `name`, when it fails for good.
    """
    at = start

    def received(data: bytes) -> None:
        nonlocal at
        sink(at, data)
        at += len(data)
        patience.progressed()

    while at < end:
        before = at
        try:
            _stream(url, name, size, at, end, received)
            if at == before:
                raise NothingCame("the answer is empty")
        except HubError:
            raise
        except Exception as error:
            patience.wait_after(error, name)


def _stream(url: str, name: str, size: int, start: int, end: int, received: Callable[[bytes], None]) -> None:
    """One request; what came of it is handed on even when it breaks off."""
    from huggingface_hub import constants
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import get_session, hf_raise_for_status

    headers = {
        **build_hf_headers(library_name="nextn"),
        "Range": f"bytes={start}-{end - 1}",
        "Accept-Encoding": "identity",
    }
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    # The token goes to the hub alone: at a redirect to another origin the session leaves it out.
    with get_session().stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
        if response.status_code >= 400:
            response.read()
        hf_raise_for_status(response)
        _check_range(response, name, size, start, end)
        buffer = bytearray()
        left = end - start
        try:
            for chunk in response.iter_raw():
                # A server may send more than it was asked for, but nobody waits for that.
                part = chunk[:left]
                buffer += part
                left -= len(part)
                while len(buffer) >= UNIT:
                    received(bytes(buffer[:UNIT]))
                    del buffer[:UNIT]
                if not left:
                    break
        finally:
            if buffer:
                received(bytes(buffer))


def _check_range(response: Any, name: str, size: int, start: int, end: int) -> None:
    """HubError when the answer is not the range that was asked for, of a file of the size that the hub stated.

    A whole file will do for its beginning. What has another size is another file, such as the page of a proxy, and what
    is compressed on the way has other bytes.
    """
    status, headers = response.status_code, response.headers
    match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    if headers.get("Content-Encoding", "identity") == "identity":
        if status == 206 and match and int(match[1]) == start and int(match[2]) < end and match[3] in (str(size), "*"):
            return
        if status == 200 and start == 0 and headers.get("Content-Length") == str(size):
            return
    asked = f"bytes {start}-{end - 1} of {size}"
    remedy = "a proxy or mirror may not pass ranges on; check HF_ENDPOINT"
    raise HubError("no-range", f"{asked} were asked for, and something else came", subject=name, remedy=remedy)
