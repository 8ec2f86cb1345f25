"""What the tests of `nextn validate` and `nextn inspect` share: runs with an expected status, and what they print."""

from __future__ import annotations

import json
from typing import Any

import pytest
from command import run
from families import FAMILIES

from nextn.gguf_schema.architecture import Role

# Lines of a terminal that a healthy file may take.
SCREEN = 40
KEYS = {
    "files", "architecture", "role", "flags", "layout", "trunk_blocks", "nextn_blocks", "declared", "parameters",
    "findings", "forecast", "estimate", "ok",
}  # fmt: skip
FINDING = {"severity", "rule", "subject", "message", "remedy"}
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)
EACH_ROLE = pytest.mark.parametrize("role", Role)
# Blocks of the tiny models: trunk, heads.
BLOCKS = {"step35": (5, 3), "qwen4exp": (8, 1), "glm5-next": (6, 1)}


def verdict(*arguments: object, status: int) -> dict[str, Any]:
    """The JSON of a run that ends with a status; nothing else is printed."""
    done = run(*arguments, "--json")
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stderr == ""
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def error(*arguments: object, status: int) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    printed: dict[str, Any] = json.loads(done.stdout)["error"]
    return printed


def rules(shown: dict[str, Any], severity: str = "error") -> set[str]:
    return {finding["rule"] for finding in shown["findings"] if finding["severity"] == severity}
