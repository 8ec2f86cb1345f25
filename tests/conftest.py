"""Fixtures that several layers of tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from families import FAMILIES

from nextn.convert.pipeline import convert
from nextn.gguf_schema.architecture import Role

# Before torch is imported, here or in a command: with tiny models a second thread is only waited for.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before triton is imported, by whatever: its kernels run on the CPU then, one program after the other.
os.environ.setdefault("TRITON_INTERPRET", "1")
# There is none for other systems than Linux.
collect_ignore_glob = [] if find_spec("triton") else ["*/test_triton_*.py"]


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[Role, Path]]:
    """Converts a family's checkpoint to all four files in f32, once a session."""
    done: dict[str, dict[Role, Path]] = {}

    def get(family: str) -> dict[Role, Path]:
        if family not in done:
            result = convert(FAMILIES[family].checkpoint, tmp_path_factory.mktemp(family), tuple(Role), "f32")
            done[family] = {output.role: output.path for output in result.outputs}
        return done[family]

    return get
