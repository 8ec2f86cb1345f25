"""The tokenizer keys of the three fixtures equal what the upstream converter writes, in order, type and value."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nextn.convert.tokenizer import TokenizerKeys, tokenizer_keys

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
CHECKPOINTS = {
    "step35-tiny": ROOT / "nextn" / "demo" / "step35-tiny",
    "qwen4exp-tiny": FIXTURES / "qwen4exp-tiny" / "checkpoint",
    "glm5-next-tiny": FIXTURES / "glm5-next-tiny" / "checkpoint",
}
VOCAB_SIZE = 512
# The hashes of step35's arrays were taken over ASCII-escaped JSON.
ESCAPED = {"step35-tiny"}
GOLDENS = [
    (name, path) for name in CHECKPOINTS for path in sorted((FIXTURES / name / "golden" / "gguf").glob("*.json"))
]


@cache
def converted(name: str) -> TokenizerKeys:
    folder = CHECKPOINTS[name]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return tokenizer_keys(folder, config, VOCAB_SIZE, style="glm" if name == "glm5-next-tiny" else "gpt2")


def digest(values: list[Any], *, escaped: bool) -> str:
    return hashlib.sha256(json.dumps(values, separators=(",", ":"), ensure_ascii=escaped).encode()).hexdigest()


@pytest.mark.parametrize(("name", "path"), GOLDENS, ids=[f"{name}-{path.stem}" for name, path in GOLDENS])
def test_keys_equal_upstream(name: str, path: Path) -> None:
    golden = json.loads(path.read_text(encoding="utf-8"))["keys"]
    expected = [entry for entry in golden if entry["key"].startswith("tokenizer.")]
    keys = converted(name).keys
    assert list(keys) == [entry["key"] for entry in expected]
    for entry in expected:
        value = keys[entry["key"]]
        assert value.type_name == entry["type"], entry["key"]
        if "sha256" in entry:
            assert len(value.items) == entry["len"], entry["key"]
            assert digest(list(value.items), escaped=name in ESCAPED) == entry["sha256"], entry["key"]
        else:
            assert value.value == entry["value"], entry["key"]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_nothing_is_doubtful(name: str) -> None:
    assert converted(name).findings == ()
