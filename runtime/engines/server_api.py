"""The HTTP of llama-server, as far as identity needs it: token ids in, token ids, counts and log-probabilities out.

Source: tools/server/README.md and server-task.cpp of llama.cpp b11549. Only the standard library is imported: the
child process that llama.cpp lives in uses this too.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from nextn.runtime.engines.engine import Asked, Continuation, Prompts

STOPS = {"eos": "eos", "word": "eos", "limit": "limit"}
LONGEST = 256 << 20  # bytes of an answer: some thousand tokens, each with log-probabilities
SHOWN = 200  # characters of an answer that an error shows
# Of each draft: how many rows there were, and later how many tokens were said and verified.
DRAFT = re.compile(
    r"id +(\d+) \| task (-?\d+) \| "
    r"(?:generate_draft: .*#tokens=(\d+)|add accepted tokens: .*ids\.size=(\d+), n_draft=(\d+))"
)


class ServerError(Exception):
    """What a server said instead of an answer, or that it said nothing."""


def send(url: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float) -> Any:
    """The JSON that a server at `http://host:port` answers, by POST if there is a body; ServerError without one."""
    try:
        place = urlsplit(url)
        # Not urllib: it would send the request to a proxy named in the environment.
        kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        with closing(kind(place.netloc, timeout=timeout_s)) as connection:
            headers = {"Content-Type": "application/json"} if body else {}
            content = json.dumps(body) if body else None
            connection.request("POST" if body else "GET", place.path.rstrip("/") + path, content, headers)
            answer = connection.getresponse()
            told, status = _read(answer, time.monotonic() + timeout_s), answer.status
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServerError(f"does not answer {path}: {type(error).__name__}: {error}") from error
    try:
        parsed = json.loads(told)
    except (ValueError, RecursionError) as error:
        raise ServerError(f"answers {path} with no JSON (status {status}): {told[:SHOWN]!r}") from error
    if status >= http.client.BAD_REQUEST or (isinstance(parsed, dict) and "error" in parsed):
        raise ServerError(f"{_said(parsed)} (status {status})" if status != http.client.OK else _said(parsed))
    return parsed


def _read(answer: http.client.HTTPResponse, end: float) -> bytes:
    """All of an answer; OSError when it does not end in time, or is longer than any answer to a prompt."""
    told = bytearray()
    while part := answer.read1(1 << 16):
        told += part
        if len(told) > LONGEST:
            raise OSError(f"more than {LONGEST} bytes")
        if time.monotonic() > end:
            raise TimeoutError("the answer does not end")
    return bytes(told)


def _said(parsed: Any) -> str:
    """The message of an error, wherever it stands."""
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:SHOWN]


def request(prompt: Sequence[int], asked: Asked, **more: Any) -> dict[str, Any]:
    """What to send to /completion for a greedy continuation that uses nothing of earlier requests."""
    body = {
        "prompt": list(prompt),
        "n_predict": asked.n_predict,
        "temperature": 0.0,
        "top_k": 1,
        "return_tokens": True,
        "cache_prompt": False,
        "stream": False,
        **more,
    }
    return body | ({"n_probs": asked.top} if asked.top else {})


def continuation(answer: Any, asked: Asked) -> Continuation:
    """What a server answered; ServerError, which names the field, when something is missing or is of another kind."""
    try:
        tokens = tuple(_number(token) for token in answer["tokens"])
        timings = answer.get("timings", {})
        told: dict[str, Any] = {
            "tokens": tokens,
            "stop": STOPS[answer["stop_type"]],
            "n_drafted": _number(timings.get("draft_n", 0)),
            "n_accepted": _number(timings.get("draft_n_accepted", 0)),
            "seconds_prefill": float(timings.get("prompt_ms", 0)) / 1000,
            "seconds_decode": float(timings.get("predicted_ms", 0)) / 1000,
        }
        top = _top(answer["completion_probabilities"]) if asked.top and "completion_probabilities" in answer else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ServerError(f"answers /completion with something else ({what}): {str(answer)[:SHOWN]}") from error
    return Continuation(**told, top=top)


def together(url: str, prompts: Prompts, asked: Asked, *, timeout_s: float, **more: Any) -> list[Continuation]:
    """Continue all prompts at once, each in the slot of its number; ServerError if one of them fails."""

    def ask(slot: int) -> Continuation:
        body = request(prompts[slot], asked, id_slot=slot, **more)
        return continuation(send(url, "/completion", body, timeout_s=timeout_s), asked)

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(ask, range(len(prompts))))


def with_rounds(found: Sequence[Continuation], log: str, *, slots: bool) -> tuple[Continuation, ...]:
    """The continuations with the rounds that a log of llama.cpp at verbosity 5 tells of them.

    With `slots` each is of the slot of its number, else they are of tasks one after the other. A log that tells of more
    or fewer tokens than the server counted is of another build: then nothing is known.
    """
    tasks = _rounds(log)
    if slots:
        told = [next((rounds for at, rounds in tasks if at == slot), ()) for slot in range(len(found))]
    else:
        left = iter(rounds for _, rounds in tasks)
        told = [next(left, ()) if each.n_drafted else () for each in found]
    return tuple(
        replace(each, rounds=rounds) if sum(m for _, m, _ in rounds) == each.n_drafted else each
        for each, rounds in zip(found, told, strict=True)
    )


def _rounds(log: str) -> list[tuple[int, tuple[tuple[int, int, int], ...]]]:
    """The slot of each task that drafted, in order, and (rows before, submitted, accepted) of its drafts."""
    rows: dict[tuple[str, str], int] = {}
    found: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for slot, task, before, said, submitted in DRAFT.findall(log):
        if before:
            rows[slot, task] = int(before)
        else:
            found.setdefault((slot, task), []).append((rows.get((slot, task), 0), int(submitted), int(said) - 1))
    return [(int(slot), tuple(rounds)) for (slot, _), rounds in found.items()]


def _number(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no whole number")
    return value


def _top(places: Any) -> tuple[tuple[tuple[int, float], ...], ...]:
    """The best tokens at each place; none where the server does not tell, as behind the first token of a draft."""
    return tuple(
        tuple((_number(one["id"]), float(one["logprob"])) for one in place.get("top_logprobs", ())) for place in places
    )
