"""A running server that speaks llama-server's HTTP, as an engine.

llama.cpp b11549 drafts as it was started, whatever a request asks: then the plain text comes from a second server, and
one draft length can be judged. Builds that take `speculative.n_max` from a request tell so in their answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nextn.gguf_schema.errors import InputError
from nextn.runtime.engines.engine import Asked, Continuation, Outcome, Prompts
from nextn.runtime.engines.server_api import ServerError, continuation, request, send, together

N_MAX = "speculative.n_max"
NOT_TOLD = "not told by the server"
OPENING_S = 10.0  # seconds that a server may take to say what it is


@dataclass(frozen=True)
class Properties:
    """What a server says of itself; None where it does not."""

    version: str | None
    model: str | None
    vocabulary: int | None
    context: int | None
    slots: int


class Server:
    """A server at `url`; runs without draft go to `plain`, by default to the same one.

    `n_max` are the draft lengths that will be asked for. Raises InputError when a server does not answer, has no model
    or one of another `vocabulary`.
    """

    def __init__(
        self, url: str, plain: str | None, n_max: tuple[int, ...], vocabulary: int, timeout_s: float = 300.0
    ) -> None:
        self.name = url if plain is None else f"{plain},{url}"
        self.url, self.plain, self.n_max, self.timeout_s = url, plain or url, n_max, timeout_s
        self.properties = properties(url, vocabulary)
        others = [self.properties] if plain is None else [self.properties, properties(plain, vocabulary)]
        self.slots = min(each.slots for each in others)
        self.context = min((each.context for each in others if each.context is not None), default=None)
        self.obeys: bool | None = None

    def describe(self) -> dict[str, str]:
        """What the servers say of themselves, and whether they draft as a request asks."""
        told = self.properties
        drafts = {None: "not asked yet", True: "as each request asks", False: "as the server was started"}
        return {
            "version": told.version or NOT_TOLD,
            "model": told.model or NOT_TOLD,
            "vocabulary": str(told.vocabulary or NOT_TOLD),
            "context": str(self.context or NOT_TOLD),
            "kv_type": NOT_TOLD,
            "slots": str(self.slots),
            "drafts": drafts[self.obeys],
        }

    def run(self, prompts: Prompts, asked: Asked) -> Outcome:
        """Continue each prompt; nothing of one is reused for the next."""
        found: list[Continuation] = []
        for prompt in prompts:
            try:
                body = request(prompt, asked, **self._more(asked))
                answer = send(self._place(asked), "/completion", body, timeout_s=self.timeout_s)
                made = continuation(answer, asked)
                self._check(answer, made, asked)
            except ServerError as error:
                return Outcome("error", str(error), tuple(found))
            found.append(made)
        return Outcome("ok", "", tuple(found))

    def run_together(self, prompts: Prompts, asked: Asked) -> Outcome | None:
        """Continue all prompts at once, each in a slot of its own; None when there are too few."""
        if len(prompts) > self.slots:
            return None
        try:
            found = together(self._place(asked), prompts, asked, timeout_s=self.timeout_s, **self._more(asked))
        except ServerError as error:
            return Outcome("error", str(error), ())
        return Outcome("ok", "", tuple(found))

    def close(self) -> None:
        """Nothing: the server goes on."""

    def _place(self, asked: Asked) -> str:
        return self.url if asked.n_max else self.plain

    def _more(self, asked: Asked) -> dict[str, Any]:
        """A server that cannot tell the key from others leaves it out."""
        return {} if self.plain != self.url and not asked.n_max else {N_MAX: asked.n_max}

    def _check(self, answer: Any, made: Continuation, asked: Asked) -> None:
        """Raise ServerError unless the server drafted as it was asked to."""
        if not asked.n_max:
            if made.n_drafted:
                raise ServerError(
                    f"drafted {made.n_drafted} tokens when it was asked for no draft: serve the model without a draft "
                    "as well, and give --engine PLAIN_URL,DRAFT_URL"
                )
            return
        settings = answer.get("generation_settings")
        self.obeys = isinstance(settings, dict) and settings.get(N_MAX) == asked.n_max
        if not self.obeys and len(self.n_max) > 1:
            raise ServerError(
                "drafts as it was started, whatever a request asks: "
                "give --n-max the one length that it was started with"
            )
        # Each round gives one token that was not drafted, but for the last, which may be cut.
        if made.n_drafted > asked.n_max * (len(made.tokens) - made.n_accepted + asked.n_max):
            raise ServerError(f"drafted {made.n_drafted} tokens, too many for drafts of at most {asked.n_max}")


def properties(url: str, vocabulary: int) -> Properties:
    """What a server says of itself; InputError when it has no model, or one with another vocabulary."""
    try:
        props = send(url, "/props", timeout_s=OPENING_S)
    except ServerError as error:
        remedy = "start llama-server with the model, and give its address: --engine http://127.0.0.1:8080"
        raise InputError("server", str(error), subject=url, remedy=remedy) from error
    try:
        models = send(url, "/v1/models", timeout_s=OPENING_S)
    except ServerError:
        models = None
    found = Properties(
        _text(props, "build_info"),
        _text(props, "model_path"),
        _count(models, "data", 0, "meta", "n_vocab"),
        _count(props, "default_generation_settings", "n_ctx"),
        _count(props, "total_slots") or 1,
    )
    if found.vocabulary not in (None, vocabulary):
        message = f"serves a model with {found.vocabulary} tokens, the file has {vocabulary}"
        raise InputError("other-model", message, subject=url, remedy="give -m the file that the server has loaded")
    return found


def _at(value: Any, *path: str | int) -> Any:
    """What stands at a path in JSON; None where there is nothing of the kind."""
    for step in path:
        if isinstance(step, int) and isinstance(value, list) and step < len(value):
            value = value[step]
        elif isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        else:
            return None
    return value


def _text(value: Any, *path: str | int) -> str | None:
    found = _at(value, *path)
    return found if isinstance(found, str) else None


def _count(value: Any, *path: str | int) -> int | None:
    found = _at(value, *path)
    return found if type(found) is int and found > 0 else None
