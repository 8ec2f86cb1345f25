"""What `nextn generate` refuses, and with which status: heads as models, foreign pairs, damaged files, wrong use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from by_hand import FORKS, Hand, by_hand
from generating import GOLDEN, IDS, PROMPT, SHORT, Generate

from nextn.gguf_schema.architecture import Role

Converted = Callable[[str], dict[Role, Path]]


@pytest.fixture
def generate(capsys: pytest.CaptureFixture[str]) -> Generate:
    return Generate(capsys)


@pytest.fixture(scope="module")
def files(converted: Converted) -> dict[Role, Path]:
    return converted("step35")


@pytest.mark.parametrize("role", [Role.MTP, Role.MTP_SHARED])
def test_case_r01_a_head_given_as_model(generate: Generate, files: dict[Role, Path], role: Role) -> None:
    """An MTP file was loaded as if it had a trunk; or its empty trunk graph ended in a segmentation fault (R02)."""
    told = generate.error("-m", files[role], "-p", "a", status=1)
    assert told["code"] == "draft-head"
    assert "this is a draft head; give its trunk" in told["message"]
    assert told["remedy"] == f"nextn generate -m TRUNK -d {files[role]}"


def test_pairs_that_do_not_fit(generate: Generate, converted: Converted, tmp_path: Path) -> None:
    files = converted("step35")
    told = generate.error("-m", files[Role.TRUNK], "-d", converted("glm5-next")[Role.MTP], "-p", "a", status=1)
    assert (told["code"], "is of architecture 'glm5-next'" in told["message"]) == ("pair-refused", True)
    told = generate.error("-m", files[Role.TRUNK], "-d", files[Role.TRUNK], "-p", "a", status=1)
    assert "nothing in it can draft" in told["message"]
    # Same shapes, another token: the validator names its id.
    tokens = Hand(keys={"tokenizer.ggml.tokens": lambda old: [*old[:7], "other", *old[8:]]})
    head = by_hand(files[Role.MTP], tmp_path / "head.gguf", tokens)
    told = generate.error("-m", files[Role.TRUNK], "-d", head, "-p", "a", status=1)
    assert (told["code"], "token 7" in told["message"]) == ("pair-refused", True)


@pytest.mark.parametrize(
    ("role", "name"),
    [
        (Role.COMBINED, "b.hnorm.weight"),
        (Role.COMBINED, "b.shared_head_head.weight"),
        (Role.COMBINED, "blk.2.ffn_down_exps.weight"),
        (Role.TRUNK, "output_norm.weight"),
    ],
)
def test_case_v15_missing_weights_are_errors(
    generate: Generate, files: dict[Role, Path], tmp_path: Path, role: Role, name: str
) -> None:
    """Weights that were never loaded stayed what memory held, and acceptance was exactly 0."""
    model = by_hand(files[role], tmp_path / "model.gguf", Hand(without=(name,)))
    told = generate.error("-m", model, "-p", "a", status=3)
    assert (told["code"], name.removeprefix("b.") in told["message"]) == ("missing-weight", True)


def test_case_v15_a_head_borrows_no_weights_of_another_head(
    generate: Generate, files: dict[Role, Path], tmp_path: Path
) -> None:
    head = by_hand(files[Role.MTP_SHARED], tmp_path / "head.gguf", Hand(without=("b.hnorm.weight",)))
    told = generate.error("-m", files[Role.COMBINED], "-d", head, "-p", "a", status=3)
    assert (told["code"], "nextn.hnorm.weight" in told["message"]) == ("missing-weight", True)


def test_tensors_that_nothing_reads_are_named(generate: Generate, files: dict[Role, Path], tmp_path: Path) -> None:
    renamed = Hand(names={"rope_freqs.weight": "rope_freqz.weight"})
    model = by_hand(files[Role.TRUNK], tmp_path / "model.gguf", renamed)
    status, _, err = generate("-m", model, "--tokens", "1", "-n", 1)
    assert (status, "not used: 1 tensor of the file: rope_freqz.weight" in err) == (0, True)


def test_files_that_cannot_be_read(generate: Generate, converted: Converted, tmp_path: Path) -> None:
    files = converted("step35")
    assert generate.error("-m", tmp_path / "none.gguf", "-p", "a", status=3)["subject"] == str(tmp_path / "none.gguf")
    assert generate.error("-m", files[Role.TRUNK], "-d", tmp_path / "none.gguf", "-p", "a", status=3)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(files[Role.TRUNK].read_bytes()[:-1000])
    assert generate.error("-m", cut, "-p", "a", status=3)
    other = by_hand(files[Role.TRUNK], tmp_path / "other.gguf", Hand(architecture="llama"))
    assert generate.error("-m", other, "-p", "a", status=3)["code"] == "no-such-model"
    fork = by_hand(converted("qwen4exp")[Role.MTP], tmp_path / "fork.gguf", FORKS["rocmfpx"])
    told = generate.error("-m", converted("qwen4exp")[Role.TRUNK], "-d", fork, "-p", "a", status=3)
    assert (told["code"], told["remedy"]) == ("layout", f"nextn relayout {fork} -o FILE --to upstream")


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ((), 2, "give one of -p TEXT, --tokens IDS and --prompts FILE"),
        (("-p", "a", "--tokens", "1"), 2, "give one of -p TEXT"),
        (("--tokens", "1,b"), 2, "no list of token ids"),
        (("--tokens", ""), 2, "no list of token ids"),
        (("--tokens", "1,512"), 2, "has id 512; ids are 0 to 511"),
        (("--tokens", "-1"), 2, "has id -1"),
        (("-p", "a", "--stop", "3,512"), 2, "has id 512; ids are 0 to 511"),
        (("-p", "a", "--p-min", "nan"), 2, "is no number"),
        (("-p", "a", "-n", "0"), 2, "not in the range"),
        (("-p", "a", "--n-max", "2", "--n-min", "3"), 2, "no draft would ever be used"),
        (("-p", "a", "--p-min", "1.5"), 2, "not in the range"),
        (("-p", "a", "--hnorm", "flat"), 2, "has no streams that could be normed together"),
    ],
)
def test_wrong_use(
    generate: Generate, files: dict[Role, Path], arguments: tuple[str, ...], status: int, told: str
) -> None:
    assert told in generate.error("-m", files[Role.COMBINED], *arguments, status=status)["message"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "holds no prompt"),
        ('{"text": "a"}\n{"name": "b"}', "line 2"),
        ('{"text": "a", "tokens": [1]}', "line 1"),
        ('{"tokens": [1, true]}', "line 1"),
        ('{"tokens": [999]}', "has id 999"),
        ("[1, 2]", "line 1"),
        ("{", "is not JSON"),
    ],
)
def test_bad_files_of_prompts(
    generate: Generate, files: dict[Role, Path], tmp_path: Path, content: str, told: str
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(content, encoding="utf-8")
    error = generate.error("-m", files[Role.COMBINED], "--prompts", prompts, status=3)
    assert told in f"{error['subject']}: {error['message']}"


def test_without_a_vocabulary_ids_do(generate: Generate, files: dict[Role, Path], tmp_path: Path) -> None:
    model = by_hand(files[Role.COMBINED], tmp_path / "model.gguf", Hand(keys={"tokenizer.ggml.pre": "unheard-of"}))
    [run] = generate.runs("-m", model, "--tokens", IDS, "-n", 4)
    assert (run["tokens"], run["text"]) == (GOLDEN[SHORT]["tokens"][:4], None)
    assert generate("-m", model, "--tokens", IDS, "-n", 4)[1] == ",".join(map(str, run["tokens"])) + "\n"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"tokens": PROMPT["ids"]}), encoding="utf-8")
    assert generate.runs("-m", model, "--prompts", prompts, "-n", 4)[0]["tokens"] == run["tokens"]
    assert generate.error("-m", model, "-p", "a", status=3)["code"] == "unknown-tokenizer"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")
def test_a_device_that_is_not_there(generate: Generate, files: dict[Role, Path]) -> None:
    assert generate.error("-m", files[Role.COMBINED], "-p", "a", "--device", "cuda", status=3)["code"] == "no-device"


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("generate", ("-m", "MODEL", "-p", "a")),
        ("identity", ("-m", "MODEL", "--engine", "llama-cpp", "--no-reference")),
        ("identity", ("--matrix", "matrix.toml", "-o", "FOLDER")),
        ("bench", ("-m", "MODEL", "--engine", "llama-cpp")),
    ],
)
def test_without_torch_they_say_what_to_install(
    files: dict[Role, Path], tmp_path: Path, command: str, options: tuple[str, ...]
) -> None:
    """Also those that are asked for another engine: the command needs it, not the reference runtime."""
    program = "import sys; sys.modules['torch'] = None; import nextn.cli; nextn.cli.main(sys.argv[1:])"
    paths = {"MODEL": str(files[Role.TRUNK]), "FOLDER": str(tmp_path)}
    arguments = [paths.get(word, word) for word in options]
    done = subprocess.run([sys.executable, "-c", program, command, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"error: nextn {command} needs torch, which is not installed\n"
        "  install the extra 'runtime': pip install '.[runtime]' in the clone of nextn\n"
    )


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("NUMBA_DISABLE_JIT", "1", "numba is told not to compile"),
        ("NUMBA_THREADING_LAYER", "foo", "'foo' is unknown to Numba"),
        ("NUMBA_NUM_THREADS", "0", "must be > 0"),
    ],
)
def test_numba_that_its_variables_stop(files: dict[Role, Path], name: str, value: str, told: str) -> None:
    """They ended in errors to be reported, one in the midst of computing; what needs no numba is not kept from it."""
    command = [sys.executable, "-m", "nextn", "generate", "-m", str(files[Role.TRUNK]), "--tokens", "1", "-n", "1"]
    environment = {**os.environ, name: value}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    error, remedy = done.stderr.splitlines()
    assert (done.returncode, error.startswith("error: cpu kernels: cannot be loaded: ")) == (3, True)
    assert told in error
    assert remedy.startswith(f"  unset {name}")
    assert remedy.endswith("; or compute with --kernels reference")
    done = subprocess.run([*command, "--kernels", "reference"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("value", [None, "0", "false", "off", "2"])
def test_triton_kernels_on_the_cpu_are_wrong_use_unless_they_are_interpreted(
    generate: Generate, files: dict[Role, Path], monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """What Triton takes for off was taken for on: it found no driver."""
    monkeypatch.delenv("TRITON_INTERPRET")
    if value is not None:
        monkeypatch.setenv("TRITON_INTERPRET", value)
    told = generate.error("-m", files[Role.TRUNK], "-p", "a", "--kernels", "triton", status=2)
    assert (told["code"], "with TRITON_INTERPRET=1" in told["remedy"]) == ("kernels-device", True)
