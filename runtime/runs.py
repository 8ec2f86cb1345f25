"""What was said behind a prompt, and how the drafts fared: counted as llama.cpp's server does.

Source: tools/server/server-context.cpp of llama.cpp b11549 (`draft_n`, `draft_n_accepted`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Round:
    """One verified draft: what the heads drafted, how many tokens of it were verified, and how many accepted.

    `probability` is that of each drafted token among the head's ten best. `rows` were in the trunk's state before.
    """

    drafted: tuple[int, ...]
    probability: tuple[float, ...]
    submitted: int
    accepted: int
    rows: int = 0


def parts_accepted(drafts: Sequence[tuple[int, int]]) -> list[float]:
    """The part of the verified tokens at each position that was accepted, of (verified, accepted) of each draft."""
    longest = max((verified for verified, _ in drafts), default=0)
    tried = [sum(verified > place for verified, _ in drafts) for place in range(longest)]
    return [sum(accepted > place for _, accepted in drafts) / tried[place] for place in range(longest)]


@dataclass
class Run:
    """What was said behind one prompt of so many rows. `tokens` has the end token, if one came (`stop` is "eos")."""

    name: str
    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    draft_errors: list[str] = field(default_factory=list)
    stop: str = "limit"
    seconds_prefill: float = 0.0
    seconds_decode: float = 0.0

    @property
    def n_drafted(self) -> int:
        """Tokens that were verified."""
        return sum(round_.submitted for round_ in self.rounds)

    @property
    def n_accepted(self) -> int:
        """Tokens that were accepted, also those behind an end token or more than were asked for."""
        return sum(round_.accepted for round_ in self.rounds)

    @property
    def accepted_by_position(self) -> list[float]:
        """The part of the verified tokens at each position of a draft that was accepted."""
        return parts_accepted([(round_.submitted, round_.accepted) for round_ in self.rounds])

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens that a round gave: those that were accepted and the trunk's own. None when nothing was drafted."""
        return 1 + self.n_accepted / len(self.rounds) if self.rounds else None

    def as_json(self, text: str | None = None) -> dict[str, Any]:
        """The run as `--json` prints it."""
        mean = self.mean_accepted_length
        return {
            "name": self.name,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "text": text,
            "stop": self.stop,
            "n_drafted": self.n_drafted,
            "n_accepted": self.n_accepted,
            "accepted_by_position": [round(part, 4) for part in self.accepted_by_position],
            "mean_accepted_length": None if mean is None else round(mean, 4),
            "draft_errors": len(self.draft_errors),
            "first_draft_error": self.draft_errors[0] if self.draft_errors else None,
            "rounds": len(self.rounds),
            "seconds_prefill": round(self.seconds_prefill, 4),
            "seconds_decode": round(self.seconds_decode, 4),
        }
