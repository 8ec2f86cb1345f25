"""The three fixture families: where their checkpoints and goldens are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "fixtures"


@dataclass(frozen=True)
class FamilyFixture:
    name: str
    checkpoint: Path
    ascii_hashes: bool

    @property
    def golden(self) -> Path:
        return FIXTURES / f"{self.name}-tiny" / "golden"

    def read(self, name: str) -> Any:
        return json.loads((self.golden / name).read_text(encoding="utf-8"))

    @cached_property
    def prompts(self) -> list[dict[str, Any]]:
        prompts: list[dict[str, Any]] = self.read("prompts.json")["prompts"]
        return prompts


FAMILIES = {
    "step35": FamilyFixture("step35", ROOT / "nextn" / "demo" / "step35-tiny", True),
    "qwen4exp": FamilyFixture("qwen4exp", FIXTURES / "qwen4exp-tiny" / "checkpoint", False),
    "glm5-next": FamilyFixture("glm5-next", FIXTURES / "glm5-next-tiny" / "checkpoint", False),
}
