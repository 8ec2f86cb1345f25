"""Whatever the header of a file says, generating ends soon: with tokens, or with an error that says what is wrong.

Files used to crash with messages of torch, to fill the memory, or to compute for hours.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
import torch
from hostile import Edited, hostile_keys, hostile_tensors

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.errors import NextnError
from nextn.gguf_schema.shards import GGUFFile, open_gguf
from nextn.runtime import load
from nextn.runtime.drafting import Options
from nextn.runtime.speculative import Speculator

torch.set_num_threads(1)
Converted = Callable[[str], dict[Role, Path]]
Edits = Callable[[Contents], Iterator[Edited]]

SECONDS = 20  # a hundred times what two tokens take
EVERY = 61  # of the edits, in the tests that always run


class TooLong(BaseException):
    """Not to be counted as an error of a head."""


def stop(_: int, __: FrameType | None) -> None:
    raise TooLong


def outcome(file: GGUFFile, draft: GGUFFile | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """How generating with a file ends: "refused", or the error of a head if there was one, else ""."""
    names = {"model": file, "draft": draft}
    monkeypatch.setattr(load, "open_gguf", lambda path: names[str(path)])
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        pair = load.load_pair(Path("model"), Path("draft") if draft else None)
        [run] = Speculator(pair.trunk, pair.heads, Options(n_max=2)).generate([[5, 6, 7, 8, 9, 10]], 3)
    except NextnError:
        return "refused"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return run.draft_errors[0] if run.draft_errors else ""


def ends(path: Path, edits: Edits, part: slice, monkeypatch: pytest.MonkeyPatch, trunk: Path | None = None) -> None:
    """Each of some edits of a file ends well; as a draft for a trunk if there is one."""
    before = signal.signal(signal.SIGALRM, stop)
    file, ended = open_gguf(path), []
    try:
        for told, contents in [*edits(file.contents)][part]:
            edited = replace(file, contents=contents)
            ended.append(outcome(*((open_gguf(trunk), edited) if trunk else (edited, None)), monkeypatch))
            # Weights of another type may be no numbers; anything else that a head fails at is a fault of ours.
            assert ended[-1] in ("", "refused") or "the logits are not numbers" in ended[-1], told
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "refused" in ended


FAMILIES = ["step35", "qwen4exp", "glm5-next"]
LONG = pytest.param(slice(None), marks=pytest.mark.long, id="all")


@pytest.mark.parametrize("part", [pytest.param(slice(None, None, EVERY), id="some"), LONG])
@pytest.mark.parametrize("family", FAMILIES)
def test_keys(converted: Converted, family: str, part: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(converted(family)[Role.COMBINED], hostile_keys, part, monkeypatch)


@pytest.mark.parametrize("part", [pytest.param(slice(None, None, 7 * EVERY), id="some"), LONG])
@pytest.mark.parametrize("family", FAMILIES)
def test_tensors(converted: Converted, family: str, part: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(converted(family)[Role.COMBINED], hostile_tensors, part, monkeypatch)


@pytest.mark.parametrize("part", [pytest.param(slice(None, None, EVERY), id="some"), LONG])
@pytest.mark.parametrize("role", [Role.MTP, Role.MTP_SHARED])
@pytest.mark.parametrize("family", FAMILIES)
def test_heads(converted: Converted, family: str, role: Role, part: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    files = converted(family)
    ends(files[role], hostile_keys, part, monkeypatch, files[Role.TRUNK])


@pytest.mark.parametrize("family", FAMILIES)
def test_ones_at_the_end_of_dimensions_are_nothing(
    converted: Converted, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp reads them so: a file may have them, or leave them out."""
    file = open_gguf(converted(family)[Role.COMBINED])
    monkeypatch.setattr(load, "open_gguf", lambda _: file)
    plain = load.load_pair(Path("model")).trunk
    most = {t.name: replace(t, ne=(*t.ne, *[1] * (4 - len(t.ne)))) for t in file.contents}
    least = {t.name: replace(t, ne=t.ne[:1] if t.elements == t.ne[0] else t.ne) for t in file.contents}
    for tensors in (most, least):
        file = replace(file, contents=replace(file.contents, tensors=tensors))
        trunk = load.load_pair(Path("model")).trunk
        tokens = Speculator(trunk).generate([[5, 6, 7]], 4)[0].tokens
        assert tokens == Speculator(plain).generate([[5, 6, 7]], 4)[0].tokens
