"""What is asked again, after how long, and how failures of the hub read: errors of huggingface_hub's own making."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

import pytest
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import hf_raise_for_status

from nextn.convert.hub.errors import hub_error, is_transient
from nextn.convert.hub.retrying import Patience, asking
from nextn.gguf_schema.errors import HubError

# The library beneath huggingface_hub, whichever it is.
http = importlib.import_module(HfHubHTTPError.__mro__[1].__module__.partition(".")[0])
URL = "https://hub.test/api/models/org/name"


def refused(status: int, headers: dict[str, str] | None = None) -> Exception:
    """What huggingface_hub raises for an answer."""
    response = http.Response(status, headers=headers or {}, request=http.Request("GET", URL))
    try:
        hf_raise_for_status(response)
    except HfHubHTTPError as error:
        return error
    raise AssertionError(status)


class Clock:
    """Notes for how long somebody would have slept."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def patience(self, **options: Any) -> Patience:
        return Patience(sleep=self.slept.append, **options)


def failing(errors: list[Exception]) -> Callable[[], str]:
    """A call that raises these errors one after the other, and then succeeds."""
    left = iter(errors)

    def call() -> str:
        for error in left:
            raise error
        return "done"

    return call


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_asked_again_after_waits_that_double(status: int) -> None:
    clock = Clock()
    assert asking("it", failing([refused(status)] * 4), clock.patience()) == "done"
    assert clock.slept == [0.5, 1, 2, 4]


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 410, 416, 422, 451])
def test_every_other_refusal_is_final(status: int) -> None:
    clock = Clock()
    with pytest.raises(HubError) as caught:
        asking("it", failing([refused(status)]), clock.patience())
    assert clock.slept == []
    assert (caught.value.subject, caught.value.exit_status) == ("it", 4)


@pytest.mark.parametrize(
    "broken",
    [
        http.ConnectError("refused"),
        http.ReadTimeout("slow"),
        http.ReadError("reset"),
        http.RemoteProtocolError("peer closed connection without sending complete message body"),
    ],
)
def test_broken_connections_are_tried_again(broken: Exception) -> None:
    clock = Clock()
    assert asking("it", failing([broken, broken]), clock.patience()) == "done"
    assert clock.slept == [0.5, 1]


def test_a_circle_of_redirects_is_final() -> None:
    with pytest.raises(HubError) as caught:
        asking("it", failing([http.TooManyRedirects("20")]), Clock().patience())
    assert caught.value.code == "redirects"


def test_the_server_says_how_long_to_wait() -> None:
    clock = Clock()
    errors = [refused(429, {"Retry-After": after}) for after in ("7", "0", "100000", "Wed, 21 Oct 2026 07:28:00 GMT")]
    assert asking("it", failing(errors), clock.patience(longest_asked=60)) == "done"
    assert clock.slept == [7, 1, 60, 4]


def test_long_waits_are_told(caplog: pytest.LogCaptureFixture) -> None:
    errors = [refused(503)] * 3 + [refused(429, {"Retry-After": "120"})]
    with caplog.at_level(logging.WARNING, "nextn"):
        assert asking("Org/Name", failing(errors), Clock().patience()) == "done"
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("Org/Name: ")
    assert told.endswith("asked again in 120 s")
    assert "429" in told


def test_patience_ends_and_progress_renews_it() -> None:
    clock = Clock()
    with pytest.raises(HubError) as caught:
        asking("it", failing([refused(503)] * 9), clock.patience(failures_allowed=3))
    assert clock.slept == [0.5, 1, 2]
    assert "503" in caught.value.message
    patience = clock.patience(failures_allowed=1)
    for _ in range(5):
        patience.wait_after(refused(503), "it")
        patience.progressed()
    assert clock.slept[3:] == [0.5] * 5


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (refused(401, {"X-Error-Code": "GatedRepo"}), "gated"),
        (refused(403, {"X-Error-Code": "GatedRepo"}), "gated"),
        (refused(404, {"X-Error-Code": "RepoNotFound"}), "no-repository"),
        (refused(401), "no-repository"),
        (refused(401, {"X-Error-Message": "Invalid credentials in Authorization header"}), "bad-token"),
        (refused(404, {"X-Error-Code": "RevisionNotFound"}), "no-revision"),
        (refused(404, {"X-Error-Code": "EntryNotFound"}), "no-file"),
        (refused(403, {"X-Error-Message": "Access to this resource is disabled."}), "disabled"),
        (refused(403, {"X-Error-Message": "no"}), "refused"),
        (http.ConnectError("refused"), "unreachable"),
        (http.ConnectTimeout("slow"), "timeout"),
        (http.ReadError("reset"), "broken-connection"),
    ],
)
def test_each_failure_has_a_code(error: Exception, code: str) -> None:
    assert hub_error(error, "org/name").code == code


def test_the_servers_own_words_are_shown_and_a_token_never_is() -> None:
    error = refused(403, {"X-Error-Message": "hf_abcdefghijkl may not\r\nread this"})
    shown = hub_error(error, "org/name")
    assert "may not read this" in " ".join(str(shown).split())
    assert "hf_abc" not in str(shown)
    assert len(str(shown).splitlines()) <= 2


def test_the_cause_of_an_error_counts() -> None:
    """huggingface_hub says of a file that it is not in the cache when the hub refused it."""
    wrapper = FileNotFoundError("cannot find the requested files in the local cache")
    wrapper.__cause__ = refused(503)
    assert is_transient(wrapper)
    wrapper.__cause__ = refused(404, {"X-Error-Code": "EntryNotFound"})
    assert not is_transient(wrapper)
    assert hub_error(wrapper, "it").code == "no-file"
