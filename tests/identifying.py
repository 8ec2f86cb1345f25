"""`nextn identity` in this process, on files of the tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES

from nextn.cli import main
from nextn.runtime.load import use_threads

# The matrices are small: threads that wait for each other on busy cores make the tests ten times slower.
use_threads(1)


class Identity:
    """Runs the command: exit status, stdout, stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["identity", *map(str, arguments)])
        printed = self.capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    def certificate(self, *arguments: object, status: int = 0) -> dict[str, Any]:
        got, out, err = self(*arguments, "--json")
        assert got == status, (out, err)
        told: dict[str, Any] = json.loads(out)
        return told

    def error(self, *arguments: object, status: int) -> dict[str, Any]:
        got, out, err = self(*arguments, "--json")
        assert got == status, (out, err)
        assert "Traceback" not in err
        told: dict[str, Any] = json.loads(out)["error"]
        assert err.splitlines()[-1].strip()
        return told


def write_prompts(path: Path, family: str, first: int, last: int) -> Path:
    """Golden prompts of a family as a file of prompts."""
    chosen = FAMILIES[family].prompts[first:last]
    lines = [json.dumps({"name": prompt["name"], "tokens": prompt["ids"]}) for prompt in chosen]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
