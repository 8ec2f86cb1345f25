"""What failures of the hub and the network mean for the user; a token is never part of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from nextn.gguf_schema.errors import HubError

# A token, should a server repeat it.
_TOKEN = re.compile(r"hf_\w+|[Bb]earer\s+\S+")
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


class Meaning(NamedTuple):
    """The code of an error, what is wrong, and what to do."""

    code: str
    message: str
    remedy: str | None


# By the names of huggingface_hub's errors, the special ones first.
_MEANINGS: dict[str, Meaning] = {
    "GatedRepoError": Meaning(
        "gated", "is gated: its owner decides who may read it", f"ask for access on its page, then {_LOG_IN}"
    ),
    "DisabledRepoError": Meaning("disabled", "has been disabled by the hub", None),
    "RepositoryNotFoundError": Meaning(
        "no-repository",
        "is not there, neither here nor on the hub, or private",
        f"check the name; to see a private repository, {_LOG_IN}",
    ),
    "RevisionNotFoundError": Meaning("no-revision", "has no such revision", "check the part behind the @"),
    "RemoteEntryNotFoundError": Meaning("no-file", "is not in the repository", "check the name of the file"),
    "OfflineModeIsEnabled": Meaning(
        "offline", "cannot be read: HF_HUB_OFFLINE is set", "unset it, or give a local folder or file"
    ),
    "TooManyRedirects": Meaning("redirects", "is redirected in a circle", "check HF_ENDPOINT and proxies"),
    "UnsupportedProtocol": Meaning(
        "bad-address", "leads to an address that is neither http nor https", "check HF_ENDPOINT and proxies"
    ),
    "ConnectError": Meaning("unreachable", "the hub cannot be reached", "check the network, HF_ENDPOINT and proxies"),
    "TimeoutException": Meaning(
        "timeout",
        "the hub did not answer in time",
        "run the same command again: what was done is kept; HF_HUB_DOWNLOAD_TIMEOUT gives it more seconds",
    ),
}
_UNCLEAR = Meaning("bad-answer", "asking the hub failed", "check HF_ENDPOINT and proxies")
_BROKEN = Meaning("broken-connection", "the connection broke", "run the same command again: what was done is kept")
_ODD_TOKEN = Meaning("bad-token", "the token has letters that no token has", f"{_LOG_IN} with a valid one")
_BAD_TOKEN = Meaning("bad-token", "the hub does not accept the token", f"{_LOG_IN} with a valid one")


def hub_error(error: BaseException, subject: str) -> HubError:
    """The error to show for one of huggingface_hub's or of the network; `subject` is what was asked for."""
    code, message, remedy = _meaning(error)
    # A traceback, which --debug shows, prints these too.
    for cause in causes(error):
        cause.args = tuple(_without_token(part) if isinstance(part, str) else part for part in cause.args)
    return HubError(code, _without_token(message), subject=subject, remedy=remedy)


def _without_token(text: str) -> str:
    """A text without the user's token, and without anything that looks like one."""
    from huggingface_hub import get_token

    token = get_token()
    return _TOKEN.sub("…", text.replace(token, "…") if token else text)


def _meaning(error: BaseException) -> Meaning:
    for cause in causes(error):
        for name in names_of(cause):
            if name in _MEANINGS:
                return _MEANINGS[name]
        if status_of(cause) is not None:
            return _of_status(cause)
        # Of what is sent in ASCII, all else is ours.
        if isinstance(cause, UnicodeEncodeError):
            return _ODD_TOKEN
    # The HTTP library's errors are none of these: huggingface_hub believes answers and settings, and stumbles.
    stumbled = isinstance(error, (LookupError, TypeError, ValueError, AttributeError, ImportError))
    meaning = _UNCLEAR if stumbled else _BROKEN
    return meaning._replace(message=f"{meaning.message}: {one_line(error)[:200]}")


def _of_status(error: BaseException) -> Meaning:
    """The server's refusal in its own words."""
    status, said = status_of(error), said_by_server(error)
    if status == 401:
        return _BAD_TOKEN
    remedy = "run the same command again later: what was done is kept" if is_transient(error) else None
    if status == 403:
        remedy = "the token may lack a permission, or the repository forbids it"
    return Meaning("refused", f"the hub answered {status}" + (f": {said}" if said else ""), remedy)


def said_by_server(error: BaseException) -> str:
    """The message of a refusal, in one line; empty when there is none."""
    response: Any = getattr(error, "response", None)
    said = getattr(error, "server_message", None) or (response.headers.get("X-Error-Message") if response else None)
    return one_line(said or "")[:300]


def one_line(said: object) -> str:
    """What others say, without line ends and what a terminal would obey."""
    return "".join(part if part.isprintable() else "…" for part in " ".join(str(said).split()))


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from: huggingface_hub wraps some in others that say less."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def names_of(error: BaseException) -> list[str]:
    """The names of an error's class and those above it.

    Names, because the HTTP library beneath huggingface_hub is another package from one release to the next.
    """
    return [class_.__name__ for class_ in type(error).__mro__]


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error is about."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


# Requests that failed so may succeed when they are made again; every other answer is final.
TRANSIENT_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504})
# A proxy's page about an error is no JSON, and huggingface_hub parses some answers before it looks at their status.
_TRANSIENT_FAILURES = frozenset(
    {"TimeoutException", "NetworkError", "RemoteProtocolError", "ProxyError", "JSONDecodeError", "NothingCame"}
)


def is_transient(error: BaseException) -> bool:
    """Whether it is worth asking again."""
    for cause in causes(error):
        if (status := status_of(cause)) is not None:
            return status in TRANSIENT_STATUS
        if _TRANSIENT_FAILURES.intersection(names_of(cause)):
            return True
    return False


def seconds_asked(error: BaseException) -> float | None:
    """How long the server wants to be left alone: `Retry-After` in seconds, or None."""
    for cause in causes(error):
        if status_of(cause) is not None:
            value = str(getattr(cause, "response").headers.get("Retry-After", ""))  # noqa: B009 - of several types
            return float(value) if re.fullmatch(r"\d+(\.\d+)?", value) else None
    return None
