"""`nextn generate`: prompts, the JSON contract, what is shown, streaming."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from by_hand import Hand, by_hand
from command import NEXTN
from generating import FAMILY, GOLDEN, IDS, PROMPT, SHORT, Generate

from nextn.cli.generate import Stream
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.shards import open_gguf
from nextn.runtime.runs import Run
from nextn.runtime.text import Text

Converted = Callable[[str], dict[Role, Path]]
RUN_KEYS = {
    *("name", "prompt_tokens", "tokens", "text", "n_drafted", "n_accepted", "accepted_by_position", "draft_errors"),
    *("rounds", "seconds_prefill", "seconds_decode"),
}


@pytest.fixture
def generate(capsys: pytest.CaptureFixture[str]) -> Generate:
    return Generate(capsys)


@pytest.fixture(scope="module")
def files(converted: Converted) -> dict[Role, Path]:
    return converted("step35")


def test_text_ids_and_files_of_prompts_are_one(generate: Generate, files: dict[Role, Path], tmp_path: Path) -> None:
    model = files[Role.COMBINED]
    [run] = generate.runs("-m", model, "-p", PROMPT["text"], "-n", 12)
    assert run.keys() >= RUN_KEYS
    assert run["tokens"] == GOLDEN[SHORT]["tokens"][:12]
    assert run["prompt_tokens"] == len(PROMPT["ids"])
    assert run["text"] == Text(open_gguf(model).contents).decode(run["tokens"])
    assert 0 < run["n_accepted"] <= run["n_drafted"]
    assert len(run["accepted_by_position"]) == 3
    assert run["draft_errors"] == 0
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"text": PROMPT["text"]}, {"name": "ids", "tokens": PROMPT["ids"]}]
    prompts.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    [first, second] = generate.runs("-m", model, "--prompts", prompts, "-n", 12)
    assert [first["name"], second["name"]] == ["1", "ids"]
    [by_ids] = generate.runs("-m", model, "--tokens", IDS, "-n", 12)
    for other in (first, second, by_ids):
        seconds = {"name", "seconds_prefill", "seconds_decode"}
        assert {k: v for k, v in other.items() if k not in seconds} == {
            k: v for k, v in run.items() if k not in seconds
        }


def test_all_pairs_draft_alike_and_without_drafts_the_text_is_the_same(
    generate: Generate, files: dict[Role, Path]
) -> None:
    """Also case R04: what a shared sidecar borrows is found by name."""
    asked = ("--tokens", IDS, "-n", 10)
    combined, trunk = files[Role.COMBINED], files[Role.TRUNK]
    [plain] = generate.runs("-m", combined, *asked, "--n-max", 0)
    assert (plain["n_drafted"], plain["rounds"], plain["mean_accepted_length"]) == (0, 0, None)
    [whole] = generate.runs("-m", combined, *asked)
    assert whole["tokens"] == plain["tokens"]
    for model, head in ((trunk, files[Role.MTP]), (trunk, files[Role.MTP_SHARED]), (combined, files[Role.MTP_SHARED])):
        [run] = generate.runs("-m", model, "-d", head, *asked)
        assert [run[key] for key in ("tokens", "n_drafted", "n_accepted")] == [
            whole[key] for key in ("tokens", "n_drafted", "n_accepted")
        ]
    status, _, err = generate("-m", trunk, *asked)
    assert (status, "nothing drafts: the file has no head" in err) == (0, True)


def test_what_is_shown(generate: Generate, files: dict[Role, Path]) -> None:
    status, out, err = generate("-m", files[Role.COMBINED], "--tokens", IDS, "-n", 10, "--n-max", 5)
    text = Text(open_gguf(files[Role.COMBINED]).contents).decode(GOLDEN[SHORT]["tokens"][:10])
    assert (status, out) == (0, f"{text}\n")
    assert "drafts have at most 3 tokens: 3 chained heads; --reuse-last-head" in err
    assert "10 tokens, " in err
    assert "drafted tokens accepted (by position " in err
    assert "tokens a round" in err
    assert "not used" not in err
    assert generate("-m", files[Role.COMBINED], "--tokens", IDS, "-n", 2, "--quiet")[2] == ""
    [run] = generate.runs("-m", files[Role.COMBINED], "--tokens", IDS, "-n", 10, "--n-max", 5, "--reuse-last-head")
    assert len(run["accepted_by_position"]) == 5


def test_what_computes_is_told(generate: Generate, files: dict[Role, Path]) -> None:
    """Where the definition stood in for the form that was asked for, nothing said so."""
    asked = ("-m", files[Role.TRUNK], "--tokens", "1", "-n", 1, "--kernels", "cpu", "--dtype")
    for dtype, form in (("float32", "cpu"), ("float64", "reference")):
        told = json.loads(generate(*asked, dtype, "--json")[1])
        assert (told["kernels"], told["dtype"], told["device"]) == (form, dtype, "cpu")
        noted = f"the definition computes (reference): cpu kernels do not in {dtype}" in generate(*asked, dtype)[2]
        assert noted is (form == "reference")


def test_end_tokens_end_it(generate: Generate, files: dict[Role, Path]) -> None:
    """Those of the model, and those that are asked for."""
    ending = next(i for i, prompt in enumerate(GOLDEN) if prompt["stop"] == "eos" and len(prompt["tokens"]) < 32)
    ids = ",".join(map(str, FAMILY.prompts[ending]["ids"]))
    [run] = generate.runs("-m", files[Role.COMBINED], "--tokens", ids, "-n", 64)
    assert (run["tokens"], run["stop"]) == (GOLDEN[ending]["tokens"], "eos")
    stop = run["tokens"][1]
    [cut] = generate.runs("-m", files[Role.COMBINED], "--tokens", ids, "-n", 64, "--stop", stop)
    assert cut["tokens"] == run["tokens"][: run["tokens"].index(stop) + 1]


def test_streamed_text_is_the_result(converted: Converted) -> None:
    """Characters of several tokens come whole; bytes that never become one come at the end."""
    text = Text(open_gguf(converted("step35")[Role.TRUNK]).contents)
    cloud = text.encode("a ☁ b 🌫\n")[1:]
    for tokens in (cloud, cloud[:-2], cloud[:3], [], GOLDEN[SHORT]["tokens"], [*cloud[:3], *cloud]):
        run, parts = Run("", 0), []
        stream = Stream(text, parts.append)
        for token in tokens:
            run.tokens.append(token)
            stream(run, None)  # type: ignore[arg-type]
        whole = text.decode(tokens)
        assert "".join(parts) + stream.rest(run) == whole
        assert "\ufffd" not in "".join(parts).rstrip("\ufffd") or "\ufffd" in whole


def test_the_command_as_installed_on_a_terminal(files: dict[Role, Path]) -> None:
    """Text comes while it is made; results are the same on a pipe."""
    pty = pytest.importorskip("pty")
    command = [NEXTN, "generate", "-m", str(files[Role.COMBINED]), "--tokens", IDS, "-n", "8", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    piped = subprocess.run(command, check=True, capture_output=True, env=environment, timeout=120)
    master, slave = pty.openpty()
    subprocess.run(command, check=True, stdout=slave, env=environment, timeout=120)
    os.close(slave)
    shown = os.read(master, 65536)
    os.close(master)
    assert shown.replace(b"\r\n", b"\n") == piped.stdout
    assert piped.stderr == b""


def test_prompts_may_come_through_a_pipe(generate: Generate, files: dict[Role, Path], tmp_path: Path) -> None:
    pipe = tmp_path / "prompts"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(json.dumps({"tokens": PROMPT["ids"]}),))
    writer.start()
    [run] = generate.runs("-m", files[Role.COMBINED], "--prompts", pipe, "-n", 4)
    writer.join()
    assert run["tokens"] == GOLDEN[SHORT]["tokens"][:4]


def test_more_than_the_declared_context_is_told(generate: Generate, files: dict[Role, Path], tmp_path: Path) -> None:
    model = by_hand(
        files[Role.COMBINED], tmp_path / "model.gguf", Hand(keys={"context_length": len(PROMPT["ids"]) + 3})
    )
    _, _, err = generate("-m", model, "--tokens", IDS, "-n", 4)
    assert f"and 4 more go beyond the context of {len(PROMPT['ids']) + 3}" in err
    assert "beyond the context" not in generate("-m", model, "--tokens", IDS, "-n", 3)[2]


@pytest.mark.parametrize("family", ["step35", "qwen4exp", "glm5-next"])
def test_bfloat16_drafts_change_nothing_either(generate: Generate, converted: Converted, family: str) -> None:
    """What it says may be otherwise than in float32: values have 8 bits."""
    arguments = ("-m", converted(family)[Role.COMBINED], "--tokens", "5,6,7,8", "-n", 8, "--dtype", "bfloat16")
    [plain], [drafted] = (generate.runs(*arguments, "--n-max", n) for n in (0, 2))
    assert (plain["tokens"], drafted["draft_errors"]) == (drafted["tokens"], 0)
    assert drafted["n_drafted"] > 0
