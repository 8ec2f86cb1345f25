"""`nextn demo` on the bundled checkpoint with real llama.cpp, and that it admits when something is wrong."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from families import FAMILIES

from nextn.cli.demo import command
from nextn.demo import run as demo
from nextn.runtime.engines import llama_cpp
from nextn.runtime.engines.engine import Outcome

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("xllamacpp")


def nextn_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "nextn", "demo", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)


def test_the_demo_succeeds_and_generates_the_golden_tokens() -> None:
    done = nextn_demo("--json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    shown = json.loads(done.stdout)
    assert shown["ok"]
    assert not shown["kept"]
    assert [output["role"] for output in shown["outputs"]] == ["combined", "trunk", "mtp", "mtp-shared"]

    step35 = FAMILIES["step35"]
    names = {tuple(prompt["ids"]): prompt["name"] for prompt in step35.prompts}
    golden = {prompt["name"]: prompt["tokens"] for prompt in step35.read("llama_cpp.json")["prompts"]}
    expected = [golden[names[tuple(prompt["tokens"])]][: demo.N_PREDICT] for prompt in shown["prompts"]]
    assert [run["tokens"] for run in shown["runs"]] == [expected] * 8
    assert [run["n_max"] for run in shown["runs"]] == [0, 0, 3, 3, 0, 3, 3, 3]
    assert all(run["identical"] for run in shown["runs"])
    assert shown["refusal"]["message"].startswith(
        "error loading model: check_tensor_dims: tensor 'token_embd.weight' not found"
    )


def test_the_files_are_kept_where_asked_and_never_replaced_unasked(tmp_path: Path) -> None:
    done = nextn_demo("-o", str(tmp_path))
    assert done.returncode == 0, done.stderr
    kept = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.gguf"))
    assert len(kept) == 4
    assert all(path in done.stdout for path in kept)
    assert "FAILED" not in done.stdout
    assert nextn_demo("-o", str(tmp_path), "--quiet").returncode == 2
    assert nextn_demo("-o", str(tmp_path), "--quiet", "--overwrite").returncode == 0


def test_a_diverging_draft_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = llama_cpp.run

    def diverging(*arguments: Any, **options: Any) -> Outcome:
        outcome = honest(*arguments, **options)
        if not options["draft"]:
            return outcome
        first, *others = outcome.continuations
        changed = dataclasses.replace(first, tokens=(*first.tokens[:-1], first.tokens[-1] + 1))
        return dataclasses.replace(outcome, continuations=(changed, *others))

    monkeypatch.setattr(llama_cpp, "run", diverging)
    result = CliRunner().invoke(command, ["--quiet"])
    assert result.exit_code == 1
    assert "FAILED  all runs gave the same tokens" in result.output
    assert "NO" in result.output


def test_a_runtime_that_crashes_is_a_failure_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = Outcome("abort", "step35.cpp:373: GGML_ASSERT(layer.nextn.eh_proj) failed", (), "")
    monkeypatch.setattr(llama_cpp, "run", lambda *_, **__: crash)
    result = CliRunner().invoke(command, ["--quiet"])
    assert result.exit_code == 1
    assert "FAILED  every run finished" in result.output
    assert crash.message in result.output


def test_without_llama_cpp_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "version", lambda: None)
    result = CliRunner().invoke(command, ["-o", str(tmp_path / "out")])
    assert getattr(result.exception, "code", None) == "llama-cpp-missing"
    assert not (tmp_path / "out").exists()
