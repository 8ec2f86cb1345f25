"""`nextn identity --matrix` with real cells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nextn.cli import main
from nextn.gguf_schema.architecture import Role
from nextn.runtime.identity.certificate import load_certificate

Converted = Callable[[str], dict[Role, Path]]


def test_a_cell_that_works_and_one_that_does_not(
    converted: Converted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, matrix = converted("step35"), tmp_path / "matrix.toml"
    (tmp_path / "prompts.jsonl").write_text('{"name": "weather", "text": "The weather in Kyoto"}')
    text = '[matrix]\nn_max = [[1, 3]]\nn_predict = 6\nprompts = "prompts.jsonl"\n'
    for name, model, draft in (("pair", Role.TRUNK, Role.MTP), ("head", Role.MTP, None)):
        text += f"[[models]]\nname = {json.dumps(name)}\nmodel = {json.dumps(str(files[model]))}\n"
        text += f"draft = {json.dumps(str(files[draft]))}\n" if draft else ""
    matrix.write_text(text, encoding="utf-8")
    arguments = ["identity", "--matrix", str(matrix), "-o", str(tmp_path / "out"), "--jobs", "1", "--json"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = json.loads(capsys.readouterr().out)
    [pair, head] = told["cells"]
    assert (ended.value.code, told["ok"]) == (1, False)
    assert (pair["status"], pair["verdict"]) == ("done", "identical")
    certificate = load_certificate(Path(pair["certificate"]))
    assert {run.n_max for run in certificate.runs} == {0, 1, 3}
    assert [file.path for file in certificate.files] == [str(files[Role.TRUNK]), str(files[Role.MTP])]
    assert 0 < pair["head_bytes"] < files[Role.MTP].stat().st_size
    assert (head["status"], head["verdict"]) == ("failed", None)
    assert "this is a draft head" in head["message"]
