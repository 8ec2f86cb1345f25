"""Everything that `nextn identity` refuses: one or two lines, the right exit status, no traceback."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from identifying import Identity, write_prompts
from serving import answer, scripted

Converted = Callable[[str], dict[str, Path]]


@pytest.fixture
def identity(capsys: pytest.CaptureFixture[str]) -> Identity:
    return Identity(capsys)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "prompts.jsonl", "step35", 2, 3)


def test_usage(identity: Identity, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    assert identity.error(status=2)["code"] == "no-model"
    assert identity.error("-m", model, "--n-max", "0,1", status=2)["code"] == "usage"
    assert identity.error("-m", model, "--n-max", "one", status=2)["code"] == "usage"
    for bound in ("nan", "inf", "0"):
        assert identity.error("-m", model, "--bound", bound, status=2)["code"] == "usage"
    assert identity.error("-m", model, "--context", 10**12, status=2)["code"] == "usage"
    assert identity.error("-m", model, "--engine", "ollama", status=2)["code"] == "engine"
    assert identity.error("-m", model, "--engine", "llama-server=", status=2)["code"] == "engine"
    assert identity.error("-m", model, "--engine", "llama-cpp", "--engine", "llama-cpp", status=2)["code"] == "engine"
    assert identity.error("--matrix", tmp_path / "m.toml", status=2)["code"] == "no-output"
    model.touch()
    assert identity.error("-m", model, "-o", model, status=2)["code"] == "not-a-folder"


def test_files_that_are_missing_or_none(identity: Identity, tmp_path: Path, converted: Converted) -> None:
    assert identity.error("-m", tmp_path / "missing.gguf", status=3)
    garbage = tmp_path / "garbage.gguf"
    garbage.write_bytes(b"not a model at all" * 20)
    assert identity.error("-m", garbage, status=3)
    files = converted("step35")
    assert identity.error("-m", files["trunk"], "-d", tmp_path / "missing.gguf", status=3)
    assert identity.error("-m", files["combined"], "--prompts", tmp_path / "missing.jsonl", status=3)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert identity.error("-m", files["combined"], "--prompts", empty, status=3)["code"] == "no-prompts"
    twice = tmp_path / "twice.jsonl"
    twice.write_text('{"name": "a", "tokens": [1]}\n{"name": "a", "tokens": [2]}')
    assert "two prompts named 'a'" in identity.error("-m", files["combined"], "--prompts", twice, status=3)["message"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"garbage", "cannot be read"),
        (b"[1, 2]", "is no 'nextn identity 1'"),
        (b'{"format": "nextn identity 9"}', "is no 'nextn identity 1'"),
        (b'{"format": "nextn identity 1", "identical": true}', "verdict is missing"),
        (b'{"format": "nextn identity 1", "identical": "yes"}', "identical has the value 'yes'"),
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
    ],
)
def test_a_baseline_that_is_no_certificate_is_refused_before_anything_runs(
    identity: Identity, tmp_path: Path, content: bytes, message: str
) -> None:
    baseline = tmp_path / "baseline.json"
    baseline.write_bytes(content)
    error = identity.error("-m", tmp_path / "never-read.gguf", "--baseline", baseline, status=3)
    assert error["subject"] == str(baseline)
    assert message in error["message"]


@pytest.mark.parametrize("option", ["--prompts", "--baseline", "--matrix"])
def test_a_file_that_is_not_there_is_named_once(
    identity: Identity, converted: Converted, tmp_path: Path, option: str
) -> None:
    """The system's text with its number and the name again was shown behind the name."""
    missing = tmp_path / "nope"
    asked = ("-o", tmp_path) if option == "--matrix" else ("-m", converted("step35")["combined"])
    status, _, err = identity(*asked, option, missing)
    assert (status, err.count("nope"), "Errno" in err) == (3, 1, False)
    assert "cannot be read" in err
    assert "No such file or directory" in err


def test_a_head_is_no_model(identity: Identity, converted: Converted, prompts: Path) -> None:
    files = converted("step35")
    assert identity.error("-m", files["mtp"], "--prompts", prompts, status=1)["code"] == "draft-head"
    pytest.importorskip("xllamacpp")
    asked = ("-m", files["mtp"], "--prompts", prompts, "--engine", "llama-cpp", "--no-reference")
    error = identity.error(*asked, status=3)
    assert error["message"].startswith("without a draft: segmentation fault")


def test_llama_cpp_that_cannot_load_the_draft_is_an_input_error(
    identity: Identity, converted: Converted, prompts: Path
) -> None:
    pytest.importorskip("xllamacpp")
    files = converted("step35")
    asked = ("-m", files["trunk"], "-d", files["mtp-shared"], "--prompts", prompts, "--n-max", 1, "-n", 4)
    error = identity.error(*asked, "--engine", "llama-cpp", status=3)
    assert error["message"].startswith("with a draft: error loading model")
    assert "failed to load draft model" in error["message"]


@pytest.mark.parametrize("engine", ["reference", "llama-cpp"])
def test_a_model_without_a_head_is_refused(
    identity: Identity, converted: Converted, prompts: Path, engine: str
) -> None:
    """It was identical, status 0, with nothing tested but a warning."""
    error = identity.error("-m", converted("step35")["trunk"], "--prompts", prompts, "--engine", engine, status=3)
    assert (error["code"], error["remedy"]) == ("no-heads", "give one with -d FILE")


def test_where_drafts_stop_short_of_the_context_all_lengths_are_named(
    identity: Identity, converted: Converted, prompts: Path
) -> None:
    model = converted("step35")["combined"]
    error = identity.error("-m", model, "--prompts", prompts, "-n", 8, "--n-max", 100000, status=3)
    assert error["code"] == "prompt-too-long"
    assert error["remedy"].startswith("with 8 tokens behind it and drafts of 100000: give a smaller -n or --n-max")


def test_a_missing_llama_cpp_is_told_before_anything_runs(
    identity: Identity, converted: Converted, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told by the child, whose output hid it, after all else had been loaded."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    asked = ("-m", converted("step35")["combined"], "--prompts", prompts, "--engine", "llama-cpp")
    status, _, err = identity(*asked)
    assert (status, err.splitlines()) == (
        3,
        [
            "error: llama.cpp is not installed",
            "  install the extra 'llamacpp': pip install '.[llamacpp]' in the clone of nextn",
        ],
    )


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://127.0.0.1:1,http://127.0.0.1:2", "http://[bad", "http://h:x"]
)
def test_a_server_that_is_not_there(identity: Identity, converted: Converted, prompts: Path, url: str) -> None:
    error = identity.error("-m", converted("step35")["trunk"], "--prompts", prompts, "--engine", url, status=3)
    assert error["code"] == "server"


@pytest.mark.parametrize(("status", "body"), [(503, {"error": {"message": "Loading model"}}), (200, b"<html>")])
def test_a_server_that_is_none_or_has_no_model(
    identity: Identity, converted: Converted, prompts: Path, status: int, body: object
) -> None:
    with scripted(lambda *_: (status, body)) as url:
        error = identity.error("-m", converted("step35")["trunk"], "--prompts", prompts, "--engine", url, status=3)
    assert (error["code"], error["subject"]) == ("server", url)


def test_a_server_that_breaks_off_is_an_input_error(identity: Identity, converted: Converted, prompts: Path) -> None:
    def script(path: str, _: dict[str, object]) -> tuple[int, object]:
        return (200, b'{"tokens": [1,') if path == "/completion" else (200, {})

    with scripted(script) as url:
        error = identity.error("-m", converted("step35")["trunk"], "--prompts", prompts, "--engine", url, status=3)
    assert error["message"].startswith("without a draft: answers /completion with no JSON")


@pytest.mark.parametrize("name", ["certificate.json", "report.html"])
def test_a_result_that_is_there_is_not_replaced(identity: Identity, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    error = identity.error("-m", tmp_path / "never-read.gguf", "-o", tmp_path, status=2)
    assert (error["code"], error["subject"]) == ("exists", str(tmp_path / name))


def test_a_place_for_results_is_looked_at_first(identity: Identity, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = identity.error("-m", tmp_path / "never-read.gguf", "-o", tmp_path / "file" / "out", status=3)
    assert error["code"] == "write-error"


def test_a_file_that_changes_during_the_check_gets_no_certificate(
    identity: Identity, converted: Converted, prompts: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(converted("step35")["trunk"], model)

    def script(path: str, _: dict[str, object]) -> tuple[int, object]:
        if path == "/completion":
            model.write_bytes(model.read_bytes() + b"\0")
        return 200, answer([9, 9]) if path == "/completion" else {}

    with scripted(script) as url:
        given = ("-m", model, "--prompts", prompts, "--engine", url, "--n-max", 1, "-n", 2, "--no-reference")
        error = identity.error(*given, "-o", tmp_path / "out", status=3)
    assert (error["code"], error["subject"]) == ("changed", str(model))
    assert not (tmp_path / "out").exists()


def test_tokens_behind_the_vocabulary_are_an_error_of_the_server(
    identity: Identity, converted: Converted, prompts: Path
) -> None:
    with scripted(lambda path, _: (200, answer([9, 512]) if path == "/completion" else {})) as url:
        given = ("-m", converted("step35")["trunk"], "--prompts", prompts, "--engine", url, "--n-max", 1, "-n", 2)
        error = identity.error(*given, "--no-reference", status=3)
    assert error["message"] == "without a draft: said token 512, and the vocabulary has 512"


def test_names_do_nothing_to_a_terminal(identity: Identity, converted: Converted, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"name": "a\x1b[31m\nidentical", "tokens": [5]}))
    with scripted(lambda path, _: (200, answer([9, 9]) if path == "/completion" else {})) as url:
        given = ("-m", converted("step35")["trunk"], "--prompts", own, "--engine", url, "--n-max", 1, "-n", 2)
        status, out, _ = identity(*given, "--no-reference")
    assert status == 0
    assert "\x1b" not in out
    assert "a\\x1b[31m\\nidentical" in out


def test_nothing_is_written_when_the_check_fails(identity: Identity, tmp_path: Path) -> None:
    identity.error("-m", tmp_path / "missing.gguf", "-o", tmp_path / "out", status=3)
    assert not (tmp_path / "out").exists()
    assert json.dumps([path.name for path in tmp_path.iterdir()]) == "[]"
