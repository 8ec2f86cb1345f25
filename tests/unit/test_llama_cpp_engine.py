"""How the end of a llama.cpp process becomes an outcome; every child here is a few lines of Python, not llama.cpp."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from nextn.gguf_schema.errors import InputError, UsageError
from nextn.runtime.engines import llama_cpp
from nextn.runtime.engines.child import LOG_TAIL, supervise
from nextn.runtime.engines.engine import Continuation, Outcome

if TYPE_CHECKING:
    from pathlib import Path

RESULT = {
    "tokens": [5, 6, 7],
    "stop": "eos",
    "n_drafted": 4,
    "n_accepted": 3,
    "seconds_prefill": 0.25,
    "seconds_decode": 0.5,
}
CONTINUATION = Continuation((5, 6, 7), "eos", 4, 3, 0.25, 0.5)

# Logs of llama.cpp b11549, shortened.
LOADING = """\
0.00.000.347 I srv          init: initializing ...
0.00.003.030 W srv          init: security: no API key is set and CORS allows all origins
0.00.004.971 I srv    load_model: loading model '/models/mtp.gguf'
"""
REFUSED_MAIN = """\
0.00.006.059 E llama_model_load: error loading model: check_tensor_dims: tensor 'token_embd.weight' not found
0.00.006.097 E llama_model_load_from_file_impl: failed to load model
0.00.006.099 E cmn  common_init_: failed to load model '/models/mtp.gguf'
0.00.006.101 E srv    load_model: failed to load model, '/models/mtp.gguf'
0.00.006.103 I srv    operator(): operator(): cleaning up before exit...
0.00.006.422 E srv          init: exiting due to model loading error
Traceback (most recent call last):
RuntimeError: Failed to init server, please check the input params.
"""
REFUSED_DRAFT = """\
0.00.011.382 E llama_model_load: error loading model: check_tensor_dims: tensor 'token_embd.weight' not found
0.00.011.419 E llama_model_load_from_file_impl: failed to load model
0.00.011.419 E common_speculative_init_result: failed to load draft model, '/models/mtp.gguf'
0.00.011.421 E srv    load_model: failed to load draft model, '/models/mtp.gguf'
0.00.011.848 E srv          init: exiting due to model loading error
"""
NO_HEAD = """\
0.00.006.276 W load: special_eot_id is not in special_eog_ids - the tokenizer config may be incorrect
0.00.008.739 W llama_init_from_model: context type MTP requested but model doesn't contain MTP layers
0.00.008.740 E common_speculative_init_result: failed to create MTP context
0.00.008.741 E srv    load_model: failed to create MTP context
"""
REFUSED_PROMPT = """\
0.00.015.281 E srv    send_error: task id = 0, error: request (600 tokens) exceeds the available context size
0.00.014.543 E srv  process_sing: failed to launch slot with task, id_task = 0
request (600 tokens) exceeds the available context size
"""
ASSERTION = """\
/src/llama.cpp/src/llama-model.cpp:1358: GGML_ASSERT(hparams.n_layer_nextn <= hparams.n_layer_all) failed
"""
UNUSED = """\
0.00.007.635 W model has unused tensor blk.7.nextn.hnorm.weight (size = 512 bytes) -- ignoring
"""


def child(script: str, timeout_s: float = 20.0, job: dict[str, Any] | None = None) -> Outcome:
    helpers = (
        "import json, os, signal, sys, time\n"
        f"def result(): print({json.dumps(json.dumps(RESULT))}, flush=True)\n"
        "def log(text): print(text, file=sys.stderr, end='', flush=True)\n"
    )
    return supervise([sys.executable, "-I", "-c", helpers + script], job or {}, timeout_s)


def test_results_are_collected_and_a_good_end_has_no_message() -> None:
    outcome = child(f"result(); log({LOADING!r}); result()")
    assert outcome == Outcome("ok", "", (CONTINUATION, CONTINUATION), LOADING)
    assert outcome.ok


def test_the_child_reads_its_job_from_standard_input() -> None:
    job = {"prompts": [[1, 2]] * 50_000}  # more than a pipe holds: the parent must not wait for the child to read
    outcome = child("sys.exit(len(json.load(sys.stdin)['prompts']) != 50_000)", job=job)
    assert outcome.ok


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (REFUSED_MAIN, "error loading model: check_tensor_dims: tensor 'token_embd.weight' not found"),
        (
            REFUSED_DRAFT,
            "error loading model: check_tensor_dims: tensor 'token_embd.weight' not found; "
            "failed to load draft model, '/models/mtp.gguf'",
        ),
        (
            NO_HEAD,
            "context type MTP requested but model doesn't contain MTP layers; failed to create MTP context",
        ),
        (REFUSED_PROMPT, "request (600 tokens) exceeds the available context size"),
        (
            "ModuleNotFoundError: No module named 'xllamacpp'\n",
            "exit status 1; last line of the log: ModuleNotFoundError: No module named 'xllamacpp'",
        ),
    ],
    ids=["main", "draft", "no-head", "prompt", "no-log-line"],
)
def test_an_error_carries_the_decisive_lines_of_the_log(log: str, message: str) -> None:
    outcome = child(f"log({LOADING + log!r}); sys.exit(1)")
    assert (outcome.status, outcome.message) == ("error", message)
    assert not outcome.ok


def test_an_abort_keeps_the_results_before_it() -> None:
    outcome = child(f"result(); log({LOADING + ASSERTION!r}); os.abort()")
    assert outcome.status == "abort"
    assert outcome.message == ("llama-model.cpp:1358: GGML_ASSERT(hparams.n_layer_nextn <= hparams.n_layer_all) failed")
    assert outcome.continuations == (CONTINUATION,)


def test_an_uncaught_exception_is_an_abort_with_its_text() -> None:
    log = "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no such tensor\n"
    outcome = child(f"log({log!r}); os.abort()")
    assert outcome.status == "abort"
    assert outcome.message == (
        "terminate called after throwing an instance of 'std::runtime_error'; what():  no such tensor"
    )


def test_a_segmentation_fault_says_what_came_last() -> None:
    outcome = child(f"log({LOADING + UNUSED!r}); os.kill(os.getpid(), signal.SIGSEGV)")
    assert outcome.status == "segfault"
    assert outcome.message == "segmentation fault; last line of the log: loading model '/models/mtp.gguf'"


def test_any_other_signal_is_named() -> None:
    outcome = child("os.kill(os.getpid(), signal.SIGKILL)")
    assert (outcome.status, outcome.message) == ("killed", "killed by signal 9")


def test_a_silent_child_is_ended_and_its_results_are_kept() -> None:
    started = time.monotonic()
    outcome = child(f"result(); log({LOADING!r}); time.sleep(60)", timeout_s=1.0)
    assert time.monotonic() - started < 20
    assert outcome.status == "timeout"
    assert outcome.message == "no result within 1 s; last line of the log: loading model '/models/mtp.gguf'"
    assert outcome.continuations == (CONTINUATION,)


def test_a_child_that_closes_its_output_but_stays_is_ended() -> None:
    assert child("os.close(1); time.sleep(60)", timeout_s=1.0).status == "timeout"


def test_half_a_line_is_no_result() -> None:
    outcome = child("result(); print('{\"tokens\": [1, 2', end='', flush=True); os.abort()")
    assert outcome.status == "abort"
    assert outcome.continuations == (CONTINUATION,)


def test_only_the_end_of_a_long_log_is_kept_but_all_of_it_is_searched() -> None:
    outcome = child(f"log({REFUSED_MAIN!r} + 'x' * 100_000); sys.exit(1)")
    assert outcome.message == "error loading model: check_tensor_dims: tensor 'token_embd.weight' not found"
    assert outcome.log == "x" * LOG_TAIL


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The jobs that would have been given to a child."""
    seen: list[dict[str, Any]] = []

    def supervise(command: object, job: dict[str, Any], timeout_s: float) -> Outcome:
        seen.append(job)
        return Outcome("ok", "", (), "")

    monkeypatch.setattr(llama_cpp, "supervise", supervise)
    monkeypatch.setattr(llama_cpp, "version", lambda: "2026.10.11549")
    return seen


def test_a_missing_file_is_refused_before_a_child_starts(tmp_path: Path, jobs: list[dict[str, Any]]) -> None:
    model = tmp_path / "model.gguf"
    with pytest.raises(InputError, match="no such file"):
        llama_cpp.load(model)
    model.touch()
    with pytest.raises(InputError, match=r"draft\.gguf: no such file"):
        llama_cpp.run(model, [[1]], draft=tmp_path / "draft.gguf", n_max=3)
    assert jobs == []


def test_a_missing_llama_cpp_is_an_input_error_with_the_command_that_helps(
    tmp_path: Path, jobs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.gguf").touch()
    monkeypatch.setattr(llama_cpp, "version", lambda: None)
    with pytest.raises(InputError) as caught:
        llama_cpp.load(tmp_path / "model.gguf")
    assert caught.value.remedy == "install the extra 'llamacpp': pip install '.[llamacpp]' in the clone of nextn"
    assert jobs == []


@pytest.mark.parametrize("prompts", [[], [[]], [[1], []]])
def test_a_prompt_needs_a_token(tmp_path: Path, prompts: list[list[int]]) -> None:
    with pytest.raises(UsageError):
        llama_cpp.run(tmp_path / "model.gguf", prompts)


def test_without_drafting_no_draft_is_loaded(tmp_path: Path, jobs: list[dict[str, Any]]) -> None:
    model, draft = tmp_path / "model.gguf", tmp_path / "draft.gguf"
    model.touch()
    draft.touch()
    llama_cpp.run(model, [[1]], draft=draft)
    llama_cpp.run(model, [[1]], draft=draft, n_max=2)
    llama_cpp.load(model, draft)
    llama_cpp.load(model, mtp=True)
    assert [(job["mtp"], job["draft"]) for job in jobs] == [
        (False, None),
        (True, str(draft)),
        (True, str(draft)),
        (True, None),
    ]


def test_the_context_holds_the_longest_prompt_with_its_continuation(tmp_path: Path, jobs: list[dict[str, Any]]) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    for length in (1, 1000, 5000):
        llama_cpp.run(model, [[1], [1] * length], n_predict=64, n_max=3)
    short, boundary, long = (job["context"] for job in jobs)
    assert short == 1024
    # A context cuts drafts to its size minus the tokens in it minus 2 (what llama-server counts).
    assert boundary >= 1000 + 64 + 2
    assert long >= 5000 + 64 + 2


def test_the_child_imports_nothing_heavy() -> None:
    script = (
        "import sys, nextn.runtime.engines.llama_cpp_child\n"
        "print(sorted({'numpy', 'torch', 'gguf', 'click', 'rich', 'xllamacpp'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_child_that_gives_up_loses_no_line_of_the_log() -> None:
    """llama.cpp writes its log from a thread of its own: a child that left at once ended as a bare "exit status 1"."""
    pytest.importorskip("xllamacpp")
    outcome = child(
        "import ctypes, xllamacpp.xllamacpp\n"
        "from nextn.runtime.engines.llama_cpp_child import flush_log\n"
        "os.dup2(2, 1)\n"
        "library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)\n"
        "main, add = library['_Z15common_log_mainv'], library['_Z14common_log_addP10common_log14ggml_log_levelPKcz']\n"
        "main.restype = ctypes.c_void_p\n"
        "for i in range(20000): add(ctypes.c_void_p(main()), 4, b'line %d\\n', i)\n"
        "flush_log()\n"
        "os._exit(1)\n"
    )
    assert outcome.status == "error"
    assert outcome.log.rstrip().endswith("line 19999")
