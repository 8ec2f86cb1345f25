"""The numbers of a report: acceptance and speed by engine, from the runs of a certificate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nextn.runtime.identity.certificate import AggregateRecord, Certificate, RunRecord


@dataclass(frozen=True)
class Share:
    """So many of so many drafted tokens were accepted."""

    accepted: int
    drafted: int

    @property
    def part(self) -> float | None:
        """The accepted part, 0 to 1; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True)
class Speed:
    """Decoding in one configuration: tokens behind each first one, and the seconds that they took.

    `ratio` compares with the runs without draft; None when there are none.
    """

    n_max: int
    runs: int
    tokens: int
    seconds: float
    ratio: float | None

    @property
    def per_second(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class EngineFigures:
    """One engine's numbers. Keys of maps are draft lengths (`n_max`), and categories before them."""

    engine: str
    lengths: tuple[int, ...]
    by_category: dict[str, dict[int, Share]]
    by_position: dict[int, tuple[float | None, ...]]
    by_decile: dict[int, tuple[float | None, ...]]
    speeds: tuple[Speed, ...]
    aggregate: tuple[AggregateRecord, ...]


def figures(certificate: Certificate) -> tuple[EngineFigures, ...]:
    """The numbers of each engine, in the certificate's order."""
    return tuple(_of_engine(certificate, name) for name in engines(certificate))


def engines(certificate: Certificate) -> list[str]:
    """The engines of a certificate, in its order."""
    return list(dict.fromkeys([each.name for each in certificate.engines] + [run.engine for run in certificate.runs]))


def _of_engine(certificate: Certificate, name: str) -> EngineFigures:
    finished = [run for run in certificate.runs if run.engine == name and run.status == "ok"]
    # Each prompt alone, as the totals are.
    drafting = [run for run in finished if run.n_drafted and run.together == 1]
    lengths = sorted({run.n_max for run in drafting})
    aggregate = tuple(each for each in certificate.aggregate if each.engine == name)
    return EngineFigures(
        name,
        tuple(lengths),
        {
            category: {n_max: _share(drafting, category, n_max) for n_max in lengths}
            for category in dict.fromkeys(run.category for run in drafting)
        },
        {each.n_max: each.accepted_by_position for each in aggregate if each.accepted_by_position},
        {each.n_max: each.accepted_by_decile for each in aggregate if each.accepted_by_decile},
        tuple(_speeds(finished)),
        aggregate,
    )


def _share(runs: Iterable[RunRecord], category: str, n_max: int) -> Share:
    chosen = [run for run in runs if (run.category, run.n_max) == (category, n_max)]
    return Share(sum(run.n_accepted for run in chosen), sum(run.n_drafted for run in chosen))


def _speeds(runs: list[RunRecord]) -> Iterable[Speed]:
    """The speed at each draft length. Runs of several sequences at once share their seconds and are left out."""
    timed = [run for run in runs if run.together == 1 and run.seconds_decode > 0 and len(run.tokens) > 1]
    plain: float | None = None
    for n_max in sorted({run.n_max for run in timed}):
        chosen = [run for run in timed if run.n_max == n_max]
        # The first token comes with the prompt.
        tokens, seconds = sum(len(run.tokens) - 1 for run in chosen), sum(run.seconds_decode for run in chosen)
        if n_max == 0:
            plain = tokens / seconds
        yield Speed(n_max, len(chosen), tokens, seconds, tokens / seconds / plain if plain else None)
