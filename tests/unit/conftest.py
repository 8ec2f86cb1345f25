"""What tests of the writer share: a tiny plan, what it should become, and a look at what is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_plan
from interrupted import hashes
from tiny_plan import write_source

from nextn.convert.output import Output
from nextn.convert.plan import Plan
from nextn.convert.writer import write_plan


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    write_source(tmp_path / "source")
    return tiny_plan.tiny_plan(tmp_path / "source")


@pytest.fixture
def whole(plan: Plan, tmp_path: Path) -> dict[str, str]:
    write_plan(plan, tmp_path / "whole")
    return hashes(tmp_path / "whole")


Written = Callable[[], list[str]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    """Names of the tensors written since the last call."""
    names: dict[str, None] = {}
    for method in ("write", "copy"):
        function = getattr(Output, method)

        def noting(self: Output, name: str, *arguments: Any, function: Any = function) -> int:
            names[name] = None
            count: int = function(self, name, *arguments)
            return count

        monkeypatch.setattr(Output, method, noting)

    def taken() -> list[str]:
        found = list(names)
        names.clear()
        return found

    return taken
