"""What is given to `nextn validate` and `nextn inspect` that is no readable model; how results look on a terminal."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import STEP, run
from faults import edit
from verdicts import error, rules, verdict

from nextn.cli import group
from nextn.gguf_schema.architecture import Role

Converted = Callable[[str], dict[Role, Path]]
BOTH = pytest.mark.parametrize("command", ["validate", "inspect"])


@BOTH
def test_a_pipe_is_not_waited_for(command: str, tmp_path: Path, converted: Converted) -> None:
    """A named pipe was opened until somebody wrote to it, for ever."""
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for arguments in ((pipe,), (converted("step35")[Role.TRUNK], "--draft", pipe)):
        told = error(command, *arguments, status=3)
        assert (told["code"], told["subject"], told["message"]) == ("not-a-file", str(pipe), "is not a regular file")
    assert error(command, Path("/dev/null"), status=3)["code"] == "not-a-file"


def test_folders(tmp_path: Path, converted: Converted) -> None:
    told = error("validate", STEP, status=3)
    assert (told["code"], told["message"]) == ("not-a-file", "is a folder")
    assert "`nextn inspect` takes the folder of a checkpoint" in told["remedy"]
    good = converted("step35")[Role.TRUNK]
    shutil.copy(good, tmp_path / "m.gguf")
    told = error("inspect", tmp_path, status=3)
    assert (told["code"], "It holds 1 GGUF file: give one, for example " in told["remedy"]) == ("no-config", True)
    # Beside a checkpoint they are mentioned.
    copied = Path(shutil.copytree(STEP, tmp_path / "checkpoint"))
    shutil.copy(good, copied / "m.gguf")
    assert "\n  beside it: m.gguf\n" in run("inspect", copied).stdout


@BOTH
def test_parts_of_a_checkpoint(command: str) -> None:
    for path in (STEP / "config.json", *STEP.glob("*-00001-of-*.safetensors")):
        told = error(command, path, status=3)
        assert told["code"] == "not-gguf"
        assert told["remedy"].startswith("It is part of a checkpoint: give its folder")


@BOTH
def test_a_link_that_leads_nowhere(command: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").symlink_to("nowhere.gguf")
    told = error(command, tmp_path / "m.gguf", status=3)
    assert (told["code"], told["message"]) == ("unreadable", "is a link to 'nowhere.gguf', which is not there")


@BOTH
def test_a_file_that_may_not_be_read_is_no_wrong_usage(
    command: str, converted: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the options refused it, with status 2; who opens it says so, with status 3. Root may read everything."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    path = str(converted("step35")[Role.TRUNK])
    with pytest.raises(SystemExit) as ended:
        group.main([command, path, "--draft", path, "--json"], standalone_mode=False)
    assert ended.value.code == 1, "read, and a trunk is no draft"
    if os.geteuid():
        monkeypatch.undo()
        denied = Path(path).with_name("denied.gguf")
        denied.touch(mode=0)
        assert error(command, denied, status=3)["code"] == "unreadable"


def on_terminal(*arguments: object, columns: int) -> list[str]:
    """What a command prints on a terminal of so many columns, as lines without colours."""
    main, side = pty.openpty()
    resize = "import fcntl, struct, sys, termios; fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('4H', 50, {}, 0, 0))"
    subprocess.run([sys.executable, "-c", resize.format(columns)], stdout=side, check=True)
    with subprocess.Popen([sys.executable, "-m", "nextn", *map(str, arguments)], stdout=side, stderr=side) as child:
        os.close(side)
        printed = b""
        while True:
            try:
                part = os.read(main, 1 << 16)
            except OSError:
                break
            if not part:
                break
            printed += part
        child.wait()
    os.close(main)
    return re.sub(r"\x1b\[[0-9;]*m", "", printed.decode()).replace("\r\n", "\n").splitlines()


def test_words_of_a_runtime_are_whole(converted: Converted, tmp_path: Path) -> None:
    """They were cut after 76 characters, before the tensor or the number that matters."""
    path = edit(converted("step35")[Role.COMBINED], tmp_path / "m.gguf", drop=r"blk\.3\.attn_q_norm\.weight|output.*")
    reason = "error loading model: check_tensor_dims: tensor 'output_norm.weight' not found"
    lines = run("validate", path).stdout.splitlines()
    assert lines.count(f"    {reason}") == 1, "once for all rows that it is of"
    lines = on_terminal("validate", path, columns=60)
    begin = next(index for index, line in enumerate(lines) if line.startswith("    error loading model"))
    assert " ".join(line.strip() for line in lines[begin : begin + 2]) == reason
    assert all(len(line) <= 60 for line in lines[begin : begin + 2])


def test_a_terminal_obeys_no_file(converted: Converted, tmp_path: Path) -> None:
    """Names and values of a file reached the terminal as they are: with colours, titles and line breaks of its own."""
    names = {r"blk\.3\.attn_q\.weight": "blk.3.\x1b]0;title\x07\n\u202e.weight"}
    path = edit(converted("step35")[Role.COMBINED], tmp_path / "new\nline.gguf", rename=names)
    text = "\n".join(on_terminal("validate", path, columns=100))
    assert r"blk.3.\x1b]0;title\x07\n\u202e.weight: is not a tensor of a combined file" in text
    assert r"new\nline.gguf" in text
    assert not set(text) & set("\x1b\x07\u202e")


def test_memory_options(converted: Converted) -> None:
    path = converted("step35")[Role.TRUNK]
    shown = verdict("inspect", path, "--context", "2K", "--ubatch", "4096", "--kv-type", "Q8_0", status=0)
    settings = {key: shown["estimate"][key] for key in ("context", "ubatch", "kv_type")}
    # llama-context.cpp: n_ubatch is at most n_batch, which is at most n_ctx.
    assert settings == {"context": 2048, "ubatch": 2048, "kv_type": "q8_0"}
    assert "context-beyond" in rules(verdict("inspect", path, "--context", "64K", status=0), "note")
    for context in ("64M", "K", "-1K", "1.5K"):
        assert run("inspect", path, "--context", context).returncode == 2, context
    text = run("inspect", path).stdout
    assert re.search(r"total with the weights .* host memory, .* on one device, the activation counted once\n", text)
    assert re.search(r"on two devices .* \+ .*, each with an activation of its own\n", text)


def test_rows_that_decide_are_shown(converted: Converted, tmp_path: Path) -> None:
    """With a draft only rows of pairs were printed, also where the verdict came from another."""
    trunk = converted("step35")[Role.TRUNK]
    done = run("validate", trunk, "--draft", converted("glm5-next")[Role.MTP], "--for", "llama.cpp@older")
    assert re.search(r"^llama\.cpp@older +paired +refuses ", done.stdout, re.MULTILINE)
