"""Re-scoring: what the reference runtime would have said at each place of a stream, in float32 and in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from nextn.runtime.forced import logits_before
from nextn.runtime.identity.certificate import Margins
from nextn.runtime.model import Trunk

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Tie:
    """A place where two streams part: how far the best token is ahead of the next, and of the farther one said."""

    margins: Margins
    behind: Margins

    def is_near(self, bound: float) -> bool:
        """Whether both tokens are closer to the best than `bound`, in both types."""
        return max(self.behind.float32, self.behind.float64) < bound


@dataclass
class Rescorer:
    """The model of the files, exact to the bit whatever the width; `wide` loads it in float64 when it is needed."""

    trunk: Trunk
    wide: Callable[[], Trunk]
    # Runs of the same configuration part at the same places, and many configurations say the same.
    _scored: dict[tuple[Ids, Ids], list[float]] = field(default_factory=dict)
    _ties: dict[tuple[Ids, Ids], Tie] = field(default_factory=dict)

    @cached_property
    def _wide(self) -> Trunk:
        return self.wide()

    def deficits(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """How far each token is behind the best one in its place, in logits; 0 where it is the best."""
        key = (tuple(prompt), tuple(tokens))
        if key not in self._scored:
            logits = logits_before(self.trunk, prompt, tokens)
            self._scored[key] = [float(row.max() - row[token]) for row, token in zip(logits, tokens, strict=True)]
        return self._scored[key]

    def best(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """The best token in the place of each of these."""
        return [int(token) for token in logits_before(self.trunk, prompt, tokens).argmax(dim=1)]

    def tie(self, prompt: Sequence[int], before: Sequence[int], said: Sequence[int]) -> Tie:
        """How close the tokens `said` in two streams are, behind what both have said before."""
        key = ((*prompt, *before), tuple(said))
        if key not in self._ties:
            rows = [logits_before(trunk, prompt, [*before, said[0]])[-1].double() for trunk in (self.trunk, self._wide)]
            self._ties[key] = Tie(Margins(*map(_margin, rows)), Margins(*(_behind(row, said) for row in rows)))
        return self._ties[key]


def _margin(logits: Tensor) -> float:
    first, second = logits.topk(2).values.tolist()
    return float(first - second)


def _behind(logits: Tensor, tokens: Sequence[int]) -> float:
    return max(float(logits.max() - logits[token]) for token in tokens)
