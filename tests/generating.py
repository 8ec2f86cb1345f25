"""`nextn generate` in this process: a new one loads torch each time."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from families import FAMILIES

from nextn.cli import main

# The matrices are small: threads that wait for each other on busy cores make the tests ten times slower.
torch.set_num_threads(1)

FAMILY = FAMILIES["step35"]
GOLDEN: list[dict[str, Any]] = FAMILY.read("llama_cpp.json")["prompts"]
SHORT = next(index for index, prompt in enumerate(FAMILY.prompts) if prompt["name"] == "short")
PROMPT: dict[str, Any] = FAMILY.prompts[SHORT]
IDS = ",".join(map(str, PROMPT["ids"]))


class Generate:
    """Runs the command: exit status, stdout, stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["generate", *map(str, arguments)])
        printed = self.capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    def runs(self, *arguments: object) -> list[dict[str, Any]]:
        status, out, err = self(*arguments, "--json")
        assert status == 0, err
        runs: list[dict[str, Any]] = json.loads(out)["runs"]
        return runs

    def error(self, *arguments: object, status: int) -> dict[str, Any]:
        got, out, err = self(*arguments, "--json")
        assert got == status, (out, err)
        assert "Traceback" not in err
        told: dict[str, Any] = json.loads(out)["error"]
        assert err.startswith("error: ")
        assert len(err.splitlines()) <= 3
        return told
