"""The forecast against real llama.cpp: every faulty file, as a model and as a draft for the good trunk.

The forecast is made from the headers of the file that llama.cpp is given. A file that "loads silently wrong" must load;
where that shows in a few tokens, `test_silence_is_wrong` looks at them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from families import FAMILIES
from fault_tables import FAULTS, SAMPLE
from faults import ABORTS, HANGS, LOADS, REFUSES, SEGFAULTS, WRONG, Expect, Fault, edit

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.shards import open_gguf
from nextn.runtime.engines import llama_cpp
from nextn.runtime.engines.engine import Outcome
from nextn.validators.forecast import forecast

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Converted = Callable[[str], dict[Role, Path]]

pytest.importorskip("xllamacpp")

STATUS = {LOADS: "ok", WRONG: "ok", HANGS: "timeout", REFUSES: "error", ABORTS: "abort", SEGFAULTS: "segfault"}
PATIENCE = 30.0  # seconds, where nothing is to come
B11549 = "llama.cpp@b11549"

LONG = [pytest.param(fault, id=name, marks=pytest.mark.long) for name, fault in FAULTS.items() if not fault.sampled]
EVERY_FAULT = [*(pytest.param(fault, id=name) for name, fault in SAMPLE.items()), *LONG]


def answer(
    model: Path, prompt: list[int], draft: Path | None = None, n_predict: int = 4, timeout_s: float = 300.0
) -> Outcome:
    """What llama.cpp does with a prompt, and with drafts of two tokens if there is a `draft`."""
    for _ in range(2):
        n_max = 2 if draft else 0
        outcome = llama_cpp.run(model, [prompt], draft=draft, n_max=n_max, n_predict=n_predict, timeout_s=timeout_s)
        # The log is written by a thread of its own, and a refusal may end the process before that is done.
        if not outcome.message.startswith("exit status"):
            break
    return outcome


def check(outcome: Outcome, expected: Expect) -> None:
    assert (outcome.status, expected.text in outcome.message) == (STATUS[expected.outcome], True), outcome.message


@pytest.mark.parametrize("fault", EVERY_FAULT)
def test_the_library_does_what_is_forecast(converted: Converted, tmp_path: Path, fault: Fault) -> None:
    files, prompt = converted(fault.family), FAMILIES[fault.family].prompts[0]["ids"]
    path = edit(files[fault.base], tmp_path / "faulty.gguf", fault.edit)
    rows = {row.as_: row for row in forecast(open_gguf(path).contents, runtime=B11549)}
    for use, expected in (("main", fault.main), ("draft", fault.draft)):
        files_of_use = (path, prompt) if use == "main" else (files[Role.TRUNK], prompt, path)
        outcome = answer(*files_of_use, timeout_s=PATIENCE if expected.outcome == HANGS else 300.0)
        check(outcome, expected)
        # Words of the forecast's own explain what loads, and a segmentation fault has no words.
        text = rows[use].message if rows[use].outcome in (REFUSES, ABORTS) else ""
        check(outcome, Expect(str(rows[use].outcome), text))


# Faults that change what is generated, or how much of the head's draft is accepted, within the first sixteen tokens.
SHOWING = (
    ("step35 combined: no attn_gate", "main"),
    ("step35 combined: no shared_head_head", "draft"),
    ("step35 combined: no ffn_gate in a head", "draft"),
    ("qwen4exp combined: no output", "main"),
    ("qwen4exp mtp: no output", "draft"),
    ("qwen4exp combined: no n-grams at all", "main"),
    ("qwen4exp combined: two heads declared", "main"),
    ("qwen4exp trunk: a head declared", "main"),
    ("glm5-next combined: decay positive", "main"),
    ("glm5-next combined: no clamps", "main"),
    ("glm5-next combined: no expert_weights_scale", "main"),
)


@pytest.mark.long
@pytest.mark.parametrize(("name", "use"), SHOWING)
def test_silence_is_wrong(converted: Converted, tmp_path: Path, name: str, use: str) -> None:
    fault = FAULTS[name]
    files, prompt = converted(fault.family), FAMILIES[fault.family].prompts[0]["ids"]
    path = edit(files[fault.base], tmp_path / "faulty.gguf", fault.edit)
    if use == "main":
        (good,) = answer(files[Role.TRUNK], prompt, None, 16).continuations
        (bad,) = answer(path, prompt, None, 16).continuations
        assert bad.tokens != good.tokens
    else:
        (good,) = answer(files[Role.TRUNK], prompt, files[Role.MTP], 16).continuations
        (bad,) = answer(files[Role.TRUNK], prompt, path, 16).continuations
        assert bad.tokens == good.tokens
        assert bad.n_accepted < good.n_accepted


@pytest.mark.long
@pytest.mark.parametrize(
    ("trunk", "fault", "draft", "expected"),
    [
        ("glm5-next", "glm5-next trunk: as converted", "qwen4exp", ABORTS),
        ("glm5-next", "glm5-next trunk: as converted", "step35", WRONG),
        ("qwen4exp", "qwen4exp combined: no ffn_up_exps in the head", "qwen4exp", REFUSES),
        ("qwen4exp", "qwen4exp combined: no first hc_attn_norm", "qwen4exp", SEGFAULTS),
    ],
)
def test_the_library_does_with_a_pair_what_is_forecast(
    converted: Converted, tmp_path: Path, trunk: str, fault: str, draft: str, expected: str
) -> None:
    path = edit(converted(trunk)[FAULTS[fault].base], tmp_path / "model.gguf", FAULTS[fault].edit)
    head = converted(draft)[Role.MTP]
    rows = {row.as_: row for row in forecast(open_gguf(path).contents, open_gguf(head).contents, B11549)}
    assert rows["paired"].outcome == expected
    outcome = answer(path, FAMILIES[trunk].prompts[0]["ids"], head)
    check(outcome, Expect(expected, rows["paired"].message if expected in (REFUSES, ABORTS) else ""))
