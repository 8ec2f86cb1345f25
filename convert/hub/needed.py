"""Which bytes of files on the hub the tensors of a plan are made of, and fetching them before they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from nextn.convert.hub.ranges import HubFile, Range, fetch_all, total, worth_asking
from nextn.convert.plan import Payload
from nextn.convert.source_tensor import SourceTensor


def needed(payloads: Iterable[Payload]) -> dict[HubFile, list[Range]]:
    """The ranges of files on the hub that tensors are made of: rows that are used, and whole scales."""
    ranges: dict[HubFile, list[Range]] = {}

    def add(tensor: SourceTensor, start: int, count: int) -> None:
        if isinstance(tensor.source, HubFile):
            offset, length = tensor.span(start, count)
            ranges.setdefault(tensor.source, []).append((offset, offset + length))

    for payload in payloads:
        width = payload.recipe.width
        for run in payload.recipe.runs:
            for source in run.sources:
                add(source, run.start * width, run.rows * width)
                if source.scale:
                    add(source.scale, 0, source.scale.elements)
    return ranges


def bytes_to_ask(payloads: Iterable[Payload]) -> int:
    """Bytes of the ranges that are asked for, those that are on disk already included."""
    return sum(total(worth_asking(ranges)) for ranges in needed(payloads).values())


def gather(payloads: Sequence[Payload], progress: Callable[[int], None] = lambda _: None) -> int:
    """Fetch what tensors are made of, several ranges at a time; how many bytes were not on disk before.

    InputError when there is no space, HubError when something does not come.
    """
    return fetch_all(needed(payloads), progress)
