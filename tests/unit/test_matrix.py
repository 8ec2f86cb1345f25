"""Matrix files, and cells that run, fail, are kept, are interrupted, and are run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from certificates import certificate
from families import ROOT

from nextn.gguf_schema.errors import InputError, UsageError
from nextn.runtime.identity.matrix import MatrixResult, identity_command, run_matrix
from nextn.runtime.identity.matrix_file import Cell, read_matrix

MATRIX = """
    [matrix]
    n_max = [1, [2, 3]]
    engines = ["reference", "llama-cpp"]
    types = ["F32", "Q8_0"]
    [[models]]
    name = "a"
    model = "a-{type}.bin"
    draft = "a-draft.bin"
    [[models]]
    name = "b"
    model = "b.bin"
    types = ["F16"]
    engines = ["reference"]
"""
# What checks a cell here: leaves a ready certificate, and a line in a log; fails for engine llama-cpp on model b.
SCRIPT = """
import pathlib, shutil, sys, time
model, engine, folder, source, log = sys.argv[1:6]
with open(log, "a") as file:
    file.write(f"{pathlib.Path(model).name} {engine}\\n")
if pathlib.Path(model).read_text() == "broken":
    sys.exit("error: this one is broken\\nget another")
time.sleep(float(sys.argv[6]))
shutil.copy(source, pathlib.Path(folder) / "certificate.json")
"""


def written(path: Path, text: str) -> Path:
    path.write_text(dedent(text), encoding="utf-8")
    return path


class Bench:
    """A folder with a matrix, its files, and a log of the cells that were run."""

    def __init__(self, folder: Path, **changed: Any) -> None:
        self.folder, self.log = folder, folder / "log"
        self.matrix = written(folder / "matrix.toml", MATRIX)
        for name in ("a-F32.bin", "a-Q8_0.bin", "a-draft.bin", "b.bin"):
            (folder / name).write_text(name)
        self.certificate = folder / "made.json"
        certificate(**changed).save(self.certificate)

    def command(self, cell: Cell, folder: Path, seconds: float = 0) -> list[str]:
        words = [cell.model, cell.engine, folder, self.certificate, self.log, seconds]
        return [sys.executable, "-c", SCRIPT, *map(str, words)]

    def run(self, **asked: Any) -> MatrixResult:
        return run_matrix(self.matrix, self.folder / "out", jobs=4, check=self.command, **asked)

    def ran(self) -> int:
        """Cells that were run since this was asked last."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return len(lines)


def test_the_cells_of_a_file(tmp_path: Path) -> None:
    cells = read_matrix(written(tmp_path / "m.toml", MATRIX))
    assert [(c.name, c.type, c.engine, c.n_max) for c in cells] == [
        *(("a", type_, engine, n) for type_ in ("F32", "Q8_0") for engine in ("reference", "llama-cpp")
          for n in ((1,), (2, 3))),
        ("b", "F16", "reference", (1,)),
        ("b", "F16", "reference", (2, 3)),
    ]  # fmt: skip
    assert (cells[4].model, cells[4].draft) == (tmp_path / "a-Q8_0.bin", tmp_path / "a-draft.bin")
    assert (cells[-1].draft, cells[-1].n_predict, cells[-1].prompts) == (None, 64, None)


def test_a_file_with_the_least(tmp_path: Path) -> None:
    text = '[matrix]\nn_max = [2]\n[[models]]\nname = "a"\nmodel = "a.gguf"\n'
    assert read_matrix(written(tmp_path / "m.toml", text)) == [
        Cell("a", "", "reference", (2,), tmp_path / "a.gguf", None, 64, None)
    ]


def test_the_documented_example() -> None:
    cells = read_matrix(ROOT / "docs" / "examples" / "matrix.toml")
    assert len(cells) == 2 * 2 * 3 + 3
    assert {cell.model.name for cell in cells} == {"step35-F32.gguf", "step35-Q8_0.gguf", "step35-trunk-Q8_0.gguf"}


@pytest.mark.parametrize(
    ("was", "then", "said"),
    [
        ("[matrix]", "[matrix", "cannot be read as TOML"),
        ("[matrix]", "[matrices]", "matrices is no key here; there are matrix, models"),
        ("n_max = [1, [2, 3]]", "", "matrix.n_max is missing"),
        ("n_max = [1, [2, 3]]", "n_max = [0]", "matrix.n_max is not a list of draft lengths"),
        ("n_max = [1, [2, 3]]", "n_max = [[]]", "matrix.n_max is not a list of draft lengths"),
        ("n_max = [1, [2, 3]]", "n_max = 3", "matrix.n_max is not a list of draft lengths"),
        ("n_max = [1, [2, 3]]", "n_max = [1, 1]", "give the same cell twice: a F32 reference n_max 1"),
        ("n_max = [1, [2, 3]]", "n_max = [1]\nn_predict = true", "matrix.n_predict is not a number of tokens"),
        ("n_max = [1, [2, 3]]", "n_max = [1]\nprompts = 4", "matrix.prompts is not a path"),
        ('types = ["F32", "Q8_0"]', 'typos = ["F32"]', "matrix.typos is no key here"),
        ('types = ["F32", "Q8_0"]', "types = []", r"types is not a list of texts"),
        ("[matrix]", "x = " + 10_000 * "[", "cannot be read as TOML"),
        ('name = "b"', 'name = "b\\u001b[31m"', r"models\[1\].name is not a name"),
        ('model = "b.bin"', 'model = "b\\u0000.bin"', r"models\[1\].model is not a path"),
        ('name = "b"', "", r"models\[1\].name is missing"),
        ('name = "b"', "name = 4", r"models\[1\].name is not a name"),
        ('model = "b.bin"', 'modell = "b.bin"', r"models\[1\].modell is no key here"),
        ('types = ["F16"]', 'types = ["F16", "F32"]', r"models\[1\].model has no {type}, and there are 2 types"),
    ],
)
def test_files_that_are_no_matrix(tmp_path: Path, was: str, then: str, said: str) -> None:
    assert was in MATRIX
    path = written(tmp_path / "m.toml", MATRIX.replace(was, then))
    with pytest.raises(InputError, match=said) as raised:
        read_matrix(path)
    assert raised.value.subject == str(path)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_bytes(b"\xff\xfe")
    for name in ("none.toml", "m.toml"):
        with pytest.raises(InputError, match="cannot be read as TOML"):
            read_matrix(tmp_path / name)


def test_what_is_done_is_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first = bench.run()
    assert (bench.ran(), {cell.status for cell in first.cells}, first.ok) == (10, {"done"}, True)
    again = bench.run()
    assert (bench.ran(), {cell.status for cell in again.cells}, again.ok) == (0, {"kept"}, True)
    told = json.loads((tmp_path / "out" / "matrix.json").read_text())
    assert told == again.as_json() | {"cells": told["cells"]}
    assert all(Path(cell["certificate"]).exists() for cell in told["cells"])
    assert len(again.rows()) == 10


def test_what_changed_is_run_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run()
    bench.ran()
    (tmp_path / "a-Q8_0.bin").write_text("another")
    assert sorted(cell.status for cell in bench.run().cells) == ["done"] * 4 + ["kept"] * 6
    assert bench.ran() == 4
    bench.matrix.write_text(bench.matrix.read_text().replace("[matrix]", "[matrix]\nn_predict = 8"))
    bench.run()
    assert bench.ran() == 10
    # A certificate that was damaged is none.
    for path in (tmp_path / "out" / "cells").glob("b-*/certificate.json"):
        path.write_text("{")
    bench.run()
    assert bench.ran() == 2


@pytest.mark.parametrize(("command", "said"), [("", "names no program"), ('"x', "No closing quotation")])
def test_a_program_that_is_none_is_a_failed_cell(tmp_path: Path, command: str, said: str) -> None:
    bench = Bench(tmp_path)
    text = f"[matrix]\nn_max = [1]\nengines = ['llama-server={command}']\n[[models]]\nname = 'a'\nmodel = 'b.bin'\n"
    bench.matrix.write_text(text)
    [cell] = bench.run().cells
    assert (cell.status, said in cell.message, bench.ran()) == ("failed", True, 0)


def test_models_of_the_same_bytes_are_cells_of_their_own(tmp_path: Path) -> None:
    """Names that folders are made of may look alike."""
    bench = Bench(tmp_path)
    models = "".join(f"[[models]]\nname = {name!r}\nmodel = 'b.bin'\n" for name in ("a b", "a-b"))
    bench.matrix.write_text(f"[matrix]\nn_max = [1]\n{models}")
    cells = bench.run().cells
    assert [cell.status for cell in cells] == ["done", "done"]
    assert len({cell.certificate for cell in cells}) == 2


def test_a_cell_that_fails_stops_no_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "a-F32.bin").write_text("broken")
    (tmp_path / "b.bin").unlink()
    result = bench.run()
    assert not result.ok
    failed = {(cell.name, cell.type): cell.message for cell in result.cells if cell.status == "failed"}
    assert failed[("a", "F32")] == "error: this one is broken; get another"
    assert "No such file" in failed[("b", "F16")]
    assert sum(cell.status == "done" for cell in result.cells) == 4
    assert any("this one is broken" in row[-1] for row in result.rows())
    # It is tried again.
    bench.ran()
    (tmp_path / "a-F32.bin").write_text("whole")
    assert sum(cell.status == "done" for cell in bench.run().cells) == 4


def test_a_verdict_is_no_failure_of_the_cell(tmp_path: Path) -> None:
    sums = {"engine": "e", "n_max": 1, "n_requests": 1, "total_predicted": 9, "aggregate_accept_rate": 0.25}
    sums |= {"total_draft": 8, "total_draft_accepted": 2, "wall_s_total": 1.0}
    result = Bench(tmp_path, identical=False, verdict="logic", cause="accept", aggregate=[sums]).run()
    assert {(c.status, c.verdict, c.cause, c.accept_rate) for c in result.cells} == {("done", "logic", "accept", 0.25)}
    assert not result.ok
    assert any("logic, accept" in row for row in result.rows())


def test_a_killed_matrix_goes_on(tmp_path: Path) -> None:
    """Killed without warning while cells are running: what was done by then is not done again."""
    bench = Bench(tmp_path)
    script = dedent(f"""
        import sys
        sys.path[:0] = [{str(ROOT / "tests")!r}, {str(ROOT / "tests" / "unit")!r}]
        from pathlib import Path
        from test_matrix import Bench, run_matrix
        bench = Bench(Path({str(tmp_path)!r}))
        run_matrix(bench.matrix, bench.folder / "out", jobs=1, check=lambda c, f: bench.command(c, f, 0.1))
    """)
    child = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    cells = tmp_path / "out" / "cells"

    def done() -> list[Path]:
        return [path for path in cells.glob("*") if not path.name.endswith(".partial")]

    deadline = time.monotonic() + 120
    while len(done()) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    finished = len(done())
    assert 2 <= finished < 10
    bench.ran()
    result = bench.run()
    assert (bench.ran(), result.ok) == (10 - finished, True)
    assert sorted(cell.status for cell in result.cells) == ["done"] * (10 - finished) + ["kept"] * finished


def test_an_executor_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is none of process, ray"):
        Bench(tmp_path).run(executor="slurm")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match="cannot be"):
        bench.run()


def test_the_command_of_a_cell() -> None:
    cell = Cell("a", "F32", "llama-cpp", (1, 3), Path("/a.gguf"), Path("/d.gguf"), 8, Path("/p.jsonl"))
    words = identity_command(cell, Path("/out"))
    assert words[:5] == [sys.executable, "-P", "-m", "nextn", "identity"]
    told = dict(zip(words[6::2], words[7::2], strict=True))
    assert told == {
        "-m": "/a.gguf",
        "-d": "/d.gguf",
        "--engine": "llama-cpp",
        "--n-max": "1,3",
        "-n": "8",
        "--prompts": "/p.jsonl",
        "-o": "/out",
    }
    assert "-d" not in identity_command(Cell("a", "", "reference", (1,), Path("/a"), None, 8, None), Path("/out"))


@pytest.mark.long
def test_the_same_cells_on_ray(tmp_path: Path) -> None:
    """Two workers of a cluster on this machine."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
    try:
        bench = Bench(tmp_path)
        (tmp_path / "a-F32.bin").write_text("broken")
        result = bench.run(executor="ray")
        assert sorted(cell.status for cell in result.cells) == ["done"] * 6 + ["failed"] * 4
        assert bench.ran() == 10
        (tmp_path / "a-F32.bin").write_text("whole")
        assert bench.run().ok
        assert bench.ran() == 4
        assert ray.is_initialized()
    finally:
        ray.shutdown()
