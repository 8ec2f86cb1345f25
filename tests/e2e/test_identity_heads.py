"""Faults of the head alone: greedy text cannot change, so they are identical, and show as acceptance (real weights)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
from families import FAMILIES
from torch import Tensor

from nextn.gguf_schema.contents import Contents
from nextn.runtime.engines.reference import Reference
from nextn.runtime.identity.check import check
from nextn.runtime.identity.observe import Settings
from nextn.runtime.identity.prompts import Prompt
from nextn.runtime.load import Pair, load_pair, use_threads
from nextn.runtime.model import Chunk, Heads
from nextn.runtime.state import State

# With tiny models a second thread is only waited for.
use_threads(1)

Converted = Callable[[str], dict[str, Path]]
AHEAD = 20
CHOSEN = (2, 4, 5, 7)  # golden prompts of step35 whose texts are long


@dataclass
class Wrapped:
    """Heads as they are; a fault is planted in what they are asked."""

    heads: Heads
    contents: Contents = field(init=False)
    hidden_width: int = field(init=False)
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.contents, self.hidden_width, self.count = self.heads.contents, self.heads.hidden_width, self.heads.count

    def new_state(self) -> State:
        return self.heads.new_state()

    def catch_up(self, chunks: Sequence[Chunk]) -> None:
        self.heads.catch_up(chunks)

    def forward(self, chunks: Sequence[Chunk], head: int) -> Tensor:
        return self.heads.forward(chunks, head)

    def logits(self, hidden: Tensor, head: int) -> Tensor:
        return self.heads.logits(hidden, head)


@dataclass
class Stale(Wrapped):
    """The hidden row that a draft begins with is that of the draft before."""

    last: Tensor | None = None

    def forward(self, chunks: Sequence[Chunk], head: int) -> Tensor:
        (chunk,) = chunks
        hidden = chunk.hidden
        assert hidden is not None
        if len(chunk) == 1:
            stale = hidden if self.last is None else self.last
            self.last, chunk = hidden, replace(chunk, hidden=stale)
        return super().forward([chunk], head)


class WrongHead(Wrapped):
    """The last of the chained heads drafts first."""

    def forward(self, chunks: Sequence[Chunk], head: int) -> Tensor:
        return super().forward(chunks, self.count - 1 - head)


class Shifted(Wrapped):
    """Drafted rows stand farther on than they belong: beyond the window of the head's attention."""

    def forward(self, chunks: Sequence[Chunk], head: int) -> Tensor:
        return super().forward([replace(c, positions=[at + AHEAD for at in c.places()]) for c in chunks], head)


@cache
def loaded(path: Path) -> Pair:
    return load_pair(path)


def asked() -> list[Prompt]:
    golden = FAMILIES["step35"].prompts
    return [Prompt(golden[i]["name"], "golden", tuple(golden[i]["ids"])) for i in CHOSEN]


def test_a_right_head_is_not_blamed(converted: Converted) -> None:
    pair = loaded(converted("step35")["combined"])
    good = Reference(pair.trunk, pair.heads, (1, 503))
    certificate = check([good], asked(), Settings((3,), 40), yardstick=good)
    assert not {finding.rule for finding in certificate.findings} & {"acceptance-low", "acceptance-gate"}


@pytest.mark.parametrize("fault", [Stale, WrongHead, Shifted])
def test_a_fault_of_the_head_alone_keeps_the_text_and_is_found_by_acceptance(
    converted: Converted, fault: type[Wrapped]
) -> None:
    pair = loaded(converted("step35")["combined"])
    assert pair.heads is not None
    good = Reference(pair.trunk, pair.heads, (1, 503))
    bad = Reference(pair.trunk, fault(pair.heads), (1, 503), name="faulty")
    certificate = check([bad], asked(), Settings((3,), 40), yardstick=good)
    assert (certificate.verdict, certificate.cause) == ("identical", None)
    found = [finding for finding in certificate.findings if finding.rule in ("acceptance-low", "acceptance-gate")]
    assert [finding.subject for finding in found] == ["faulty, n_max 3"]
