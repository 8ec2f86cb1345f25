"""Files whose keys contradict their tensors, each as users made it, and what repairing them must say and give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from by_hand import Hand

from nextn.gguf_schema.architecture import Role

COMBINED, TRUNK, MTP, SHARED = Role
STEP, QWEN, GLM = "step35", "qwen4exp", "glm5-next"
NEXTN, RATIOS, HEADS_KV = "nextn_predict_layers", "attention.compress_ratios", "attention.head_count_kv"
# How many blocks trunk and heads have, and the arrays over them.
CLAMPS = ("swiglu_clamp_exp", "swiglu_clamp_shexp")
BLOCKS = {
    STEP: (5, 3, ("attention.head_count", HEADS_KV, *CLAMPS, "attention.sliding_window_pattern")),
    QWEN: (8, 1, ("attention.recurrent_layers", RATIOS)),
    GLM: (6, 1, (HEADS_KV, *CLAMPS)),
}


@dataclass(frozen=True)
class Repairable:
    """A fault: the case it is of, the file that it is made from and how; what the lines about changes begin with.

    The repaired file is, to the byte, the converter's of role `gives`, but for the size label, which people read.
    llama.cpp says `refusal` to the file before; without a text it takes it.
    """

    case: str
    family: str
    base: Role
    hand: Hand
    changes: tuple[str, ...]
    gives: Role
    refusal: str = ""

    @property
    def id(self) -> str:
        return f"{self.case}-{self.family}-{self.base}"


def _of_family(family: str) -> list[Repairable]:
    trunk, heads, arrays = BLOCKS[family]
    total = trunk + heads
    found = []

    def add(case: str, base: Role, hand: Hand, *changes: str, gives: Role | None = None, refusal: str = "") -> None:
        found.append(Repairable(case, family, base, hand, changes, gives or base, refusal))

    gone = (
        f"{family}.block_count {total} → {trunk}: no tensor of blk.{trunk}",
        f"{family}.{NEXTN} {heads} → (removed): no tensor is named blk.N.nextn.*",
        *(f"{family}.{name} {total} → {trunk} entries: an entry for each of the trunk's" for name in arrays),
    )
    add("c02", COMBINED, Hand(without=tuple(f"blk.{trunk + k}." for k in range(heads))), *gone, gives=TRUNK)
    wrong = (
        "key glm5-next.attention.indexer.types has wrong array length" if family == GLM else "wrong number of tensors"
    )
    for base in (COMBINED, MTP, SHARED):
        line = f"{family}.{NEXTN} (missing) → {heads}: nextn tensors are in blk.{trunk}"
        add("c06", base, Hand(keys={NEXTN: None}), line, refusal=wrong if base is COMBINED else "error loading model")
    line = f"{family}.{NEXTN} 0 → {heads}: nextn tensors are in blk.{trunk}"
    add("s18", COMBINED, Hand(keys={NEXTN: 0}), line, refusal=wrong)
    line = (
        f"tokenizer.ggml.{NEXTN} → {family}.{NEXTN} ({heads}): loaders look for it under {family}., where there is none"
    )
    add("v11", COMBINED, Hand(moved={NEXTN: f"=tokenizer.ggml.{NEXTN}"}), line, refusal=wrong)
    spelling = {STEP: "step3p5", QWEN: "qwen4-exp", GLM: "glm5_next"}[family]
    line = f"general.architecture '{spelling}' → '{family}': the tensors' names are those of {family}"
    more = f" {spelling}.* → {family}.* ("
    add("c16", MTP, Hand(architecture=spelling), line, more, refusal=f"unknown model architecture: '{spelling}'")
    return found


def shorter(old: list[int]) -> list[int]:
    return old[:-1]


def longer(entry: int) -> Callable[[list[int]], list[int]]:
    return lambda old: [*old, entry]


def _arrays() -> list[Repairable]:
    """Case C14: one array has the length of another file, which llama.cpp does not take."""

    def fault(family: str, base: Role, key: str, change: Callable[[list[int]], list[int]]) -> Repairable:
        trunk, heads, _ = BLOCKS[family]
        want = trunk + (0 if base is TRUNK else heads)
        have = want + (1 if base is TRUNK else -1)
        says = f"{family}.{key} has wrong array length; expected {want}, got {have}"
        return Repairable(
            "c14", family, base, Hand(keys={key: change}), (f"{family}.{key} {have} → {want} entries: ",), base, says
        )

    return [
        fault(GLM, COMBINED, HEADS_KV, shorter),
        fault(GLM, TRUNK, HEADS_KV, longer(1)),
        fault(QWEN, COMBINED, RATIOS, shorter),
        fault(STEP, COMBINED, HEADS_KV, shorter),
    ]


REPAIRABLE = [fault for family in BLOCKS for fault in _of_family(family)] + _arrays()
