"""Pieces of the messages of findings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nextn.gguf_schema.contents import Value
    from nextn.validators.findings import Finding

# Characters of a value; those of a hostile file may be long.
MOST_SHOWN = 60
# Reasons of findings: pages of this project.
FORMATS = "docs/formats.md"
PROBES = "docs/formats.md, What llama.cpp b11549 does with them"
SIDECARS = "docs/formats.md, Files"
VALUES = "docs/deviations.md, Values"
BUILDS = "validators/runtimes.py, the builds whose loaders were read"


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


def typed(value: Value) -> str:
    """A value with its type: `UINT32 8`; of an array or a long text, how long it is or how it begins."""
    if value.element is not None:
        return f"{value.type_name} of {len(value.items)}"
    shown = repr(value.value)
    return f"{value.type_name} {shown if len(shown) <= MOST_SHOWN else f'{shown[:MOST_SHOWN]}…'}"


def loader_of(architecture: str) -> str:
    """The file of llama.cpp that loads an architecture; a reason of findings."""
    return f"loader of {architecture} in src/models of llama.cpp b11549"


def with_names(findings: Iterable[Finding], names: Mapping[str, str]) -> tuple[Finding, ...]:
    """The findings with the files' names in place of words like FILE in their remedies, as a shell takes them.

    Contents of plans, whose names are in angle brackets, have none.
    """
    quoted = {word: shlex.quote(name) for word, name in names.items() if name and not name.startswith("<")}
    if not quoted:
        return tuple(findings)
    words = re.compile(rf"\b({'|'.join(quoted)})\b")
    return tuple(
        replace(finding, remedy=words.sub(lambda found: quoted[found[0]], finding.remedy))
        if finding.remedy
        else finding
        for finding in findings
    )
