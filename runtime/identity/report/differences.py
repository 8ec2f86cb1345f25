"""Where streams part: both continuations around the first token that differs, and what depends on what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from nextn.runtime.identity.certificate import Certificate, Margins, RunRecord

# What is shown around the first difference; everything is in the certificate.
IDS_SHOWN = 12
TEXT_SHOWN = 600


@dataclass(frozen=True)
class Cut:
    """Something long around one place: what comes before, the place itself, what comes after; and how much is left out.

    Of token ids as well as of text; `at` is None behind the end of a stream.
    """

    left_out_before: int
    before: str
    at: str | None
    after: str
    left_out_after: int


@dataclass(frozen=True)
class Side:
    """One of two streams: what made it, its length, why it ended, its token ids and its text around the difference."""

    title: str
    length: int
    stop: str
    ids: Cut
    text: Cut | None


@dataclass(frozen=True)
class Difference:
    """Two streams of one prompt on one engine that part at a token; `configurations` are all that gave the second."""

    engine: str
    prompt: str
    category: str
    prompt_text: str | None
    index: int
    configurations: tuple[str, ...]
    first: Side
    second: Side
    margin: float | None
    margins: Margins | None


@dataclass(frozen=True)
class Classes:
    """Equal outputs of a prompt on an engine: at each draft length, the numbers of the outputs that came."""

    prompt: str
    engine: str
    by_length: dict[int, tuple[int, ...]]


def configuration(run: RunRecord) -> str:
    """What a run was asked for, in words."""
    told = f"draft of {run.n_max}" if run.n_max else "no draft"
    return told + (f", {run.together} sequences at once" if run.together > 1 else "")


def differences(certificate: Certificate) -> list[Difference]:
    """Every stream that differs from the plain one of its prompt, or from its own repetition; equal ones once."""
    texts = {prompt.name: prompt.text for prompt in certificate.prompts}
    return [
        _difference(first, seconds, texts.get(first.prompt))
        for runs in _by_prompt(certificate.runs)
        for first, seconds in (*_from_plain(runs), *_repeated(runs))
    ]


def classes(certificate: Certificate) -> list[Classes]:
    """The equal outputs of each prompt that had more than one on any engine, by engine and draft length."""
    several: dict[str, set[int]] = {}
    for run in certificate.runs:
        if run.status == "ok":
            several.setdefault(run.prompt, set()).add(run.class_)
    told = []
    for runs in _by_prompt(certificate.runs):
        if len(several[runs[0].prompt]) > 1:
            lengths = sorted({run.n_max for run in runs})
            numbers = {n: tuple(sorted({run.class_ for run in runs if run.n_max == n})) for n in lengths}
            told.append(Classes(runs[0].prompt, runs[0].engine, numbers))
    return sorted(told, key=lambda each: each.prompt)


def _by_prompt(runs: Sequence[RunRecord]) -> Iterator[list[RunRecord]]:
    """The finished runs of each prompt on each engine."""
    found: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        if run.status == "ok":
            found.setdefault((run.engine, run.prompt), []).append(run)
    yield from found.values()


def _from_plain(runs: list[RunRecord]) -> Iterator[tuple[RunRecord, list[RunRecord]]]:
    plain = next((run for run in runs if run.n_max == 0 and run.together == 1), None)
    if plain is not None:
        for group in _by_class(run for run in runs if run.identical is False and run.tokens != plain.tokens):
            yield plain, group


def _repeated(runs: list[RunRecord]) -> Iterator[tuple[RunRecord, list[RunRecord]]]:
    """Runs of the same configuration that differ."""

    def key(run: RunRecord) -> tuple[int, int]:
        return run.n_max, run.together

    for _, repeated in groupby(sorted(runs, key=key), key):
        first, *others = repeated
        for group in _by_class(run for run in others if run.tokens != first.tokens):
            yield first, group


def _by_class(runs: Iterable[RunRecord]) -> Iterable[list[RunRecord]]:
    found: dict[int, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(run.class_, []).append(run)
    return found.values()


def _difference(first: RunRecord, seconds: list[RunRecord], prompt_text: str | None) -> Difference:
    second = seconds[0]
    index = common(first.tokens, second.tokens)
    texts: tuple[Cut | None, Cut | None] = (None, None)
    if first.text is not None and second.text is not None:
        parted = second.divergence if second.divergence and second.divergence.index == index else None
        pieces = (parted.without_text, parted.with_text) if parted else (None, None)
        place = _place(first.text, second.text, pieces)
        texts = (_of_text(first.text, place, pieces[0]), _of_text(second.text, place, pieces[1]))
    repeated = (first.n_max, first.together) == (second.n_max, second.together)
    return Difference(
        first.engine,
        first.prompt,
        first.category,
        prompt_text,
        index,
        tuple(dict.fromkeys(map(configuration, seconds))),
        _side(first, index, texts[0], " (first)" if repeated else ""),
        _side(second, index, texts[1], " (again)" if repeated else ""),
        second.margin,
        second.margins,
    )


def _side(run: RunRecord, index: int, text: Cut | None, which: str) -> Side:
    return Side(configuration(run) + which, len(run.tokens), run.stop, _of_ids(run.tokens, index), text)


def common(first: Sequence[object], second: Sequence[object]) -> int:
    """The length of the common beginning; by halves, for streams are long and comparing parts is quick."""
    known, most = 0, min(len(first), len(second))
    while known < most:
        middle = (known + most + 1) // 2
        if first[known:middle] == second[known:middle]:
            known = middle
        else:
            most = middle - 1
    return known


def _place(first: str, second: str, pieces: tuple[str | None, str | None]) -> int:
    """Where in the texts the token begins that differs: tokens that differ may begin with the same characters."""
    end = common(first, second)
    if pieces[0] is None or pieces[1] is None:
        return end
    for place in range(end, max(-1, end - max(map(len, map(str, pieces)))) - 1, -1):
        if place >= 0 and first.startswith(pieces[0], place) and second.startswith(pieces[1], place):
            return place
    return end


def _of_ids(ids: Sequence[int], index: int) -> Cut:
    start, end = max(0, index - IDS_SHOWN), min(len(ids), index + 1 + IDS_SHOWN)
    at = str(ids[index]) if index < len(ids) else None
    before, after = (" ".join(map(str, part)) for part in (ids[start:index], ids[index + 1 : end]))
    return Cut(start, before, at, after, len(ids) - end if at is not None else 0)


def _of_text(text: str, place: int, piece: str | None) -> Cut:
    """The text around a place; without the token's text, its first character stands for it."""
    start = max(0, place - TEXT_SHOWN)
    behind = place + (len(piece) if piece and text.startswith(piece, place) else 1)
    end = min(len(text), behind + TEXT_SHOWN)
    at = text[place:behind] or None
    return Cut(start, text[start:place], at, text[behind:end], max(0, len(text) - end))
