"""What every engine does: continue prompts greedily, with drafts of a given length or without.

An engine is one file beside this one; `choice` has the table of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Status = Literal["ok", "error", "abort", "segfault", "killed", "timeout"]
Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Asked:
    """One configuration: tokens of a draft at most (0: no draft), tokens to say, log-probabilities per token."""

    n_max: int
    n_predict: int
    top: int = 0


@dataclass(frozen=True)
class Continuation:
    """What was said behind one prompt.

    `tokens` has the end token, if one came (`stop` is "eos", else "limit"). `accepted_by_position` is the part of the
    verified tokens at each place of a draft that was accepted; `top` has (id, log-probability) of the best tokens at
    each place, best first; `rounds` has (rows before, submitted, accepted) of each draft. None: it is not told.
    """

    tokens: tuple[int, ...]
    stop: str
    n_drafted: int
    n_accepted: int
    seconds_prefill: float = 0.0
    seconds_decode: float = 0.0
    accepted_by_position: tuple[float, ...] | None = None
    top: tuple[tuple[tuple[int, float], ...], ...] | None = None
    rounds: tuple[tuple[int, int, int], ...] | None = None


@dataclass(frozen=True)
class Outcome:
    """How a run ended, the line that says why, every prompt finished before that, and the end of the engine's log."""

    status: Status
    message: str
    continuations: tuple[Continuation, ...]
    log: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything that was asked for happened."""
        return self.status == "ok"


class Engine(Protocol):
    """Something that runs a model."""

    @property
    def name(self) -> str:
        """What the certificate calls it."""
        ...

    @property
    def context(self) -> int | None:
        """The most rows of a sequence; None when nothing limits them."""
        ...

    def describe(self) -> dict[str, str]:
        """What it is: versions, vocabulary, context, types of the caches and whatever else tells runs apart."""
        ...

    def run(self, prompts: Prompts, asked: Asked) -> Outcome:
        """Continue each prompt by itself, one after the other, from a fresh state."""
        ...

    def run_together(self, prompts: Prompts, asked: Asked) -> Outcome | None:
        """Continue all prompts at once, each a sequence of its own; None when the engine cannot."""
        ...

    def close(self) -> None:
        """Let go of what was started."""
        ...
