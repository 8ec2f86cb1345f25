"""Pieces of the messages of findings."""

from __future__ import annotations

from collections.abc import Iterable


def in_words(indices: Iterable[int]) -> str:
    """Block numbers as people write them: `blk.0-3, 5`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"blk.{text}" if text else "no blocks"


def dims(ne: Iterable[int]) -> str:
    """Dimensions as people write them, fastest first."""
    return "[" + ", ".join(map(str, ne)) + "]"


def loader_of(architecture: str) -> str:
    """The file of llama.cpp that loads an architecture; a reason of findings."""
    return f"loader of {architecture} in src/models of llama.cpp b11549"
