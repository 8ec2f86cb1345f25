"""What is wrong with numba's cache costs time and nothing else: files that are cut, a disk that is full."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

numba = pytest.importorskip("numba")

from numba.core.caching import IndexDataCacheFile  # noqa: E402

from nextn.kernels.cpu.memory import _compiled, compiled  # noqa: E402

# A function without a loop has nothing for threads to do.
pytestmark = pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPerformanceWarning")
Forms = pytest.mark.parametrize("form", [compiled, partial(_compiled, parallel=True)], ids=["alone", "for threads"])
Form = Callable[[Callable[[int], int]], Callable[[int], int]]


def triple(x: int) -> int:
    return 3 * x


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def hits(function: Callable[[int], int]) -> int:
    return sum(function.stats.cache_hits.values())  # type: ignore[attr-defined]


@Forms
@pytest.mark.parametrize("ending", ["nbc", "nbi"])
@pytest.mark.parametrize("size", [0, 20])
def test_files_that_are_cut_are_made_anew(folder: Path, form: Form, ending: str, size: int) -> None:
    assert form(triple)(2) == 6
    damaged = list(folder.rglob(f"*.{ending}"))
    assert damaged
    for path in damaged:
        os.truncate(path, size)
    again = form(triple)
    assert (again(5), hits(again)) == (15, 0)
    healed = form(triple)
    assert (healed(7), hits(healed)) == (21, 1)


@Forms
def test_a_full_disk_is_no_error(folder: Path, form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(IndexDataCacheFile, "save", full)
    assert form(triple)(2) == 6
    assert not list(folder.rglob("*.nb?"))
