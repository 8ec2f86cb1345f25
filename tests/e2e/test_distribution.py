"""Wheel and source distribution hold all of nextn and put nothing else beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from families import ROOT

pytestmark = pytest.mark.long
pytest.importorskip("build")

LEFT_BEHIND = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "fixtures")


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *command], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel built from what is in it."""
    copy, folder = tmp_path_factory.mktemp("copy") / "nextn", tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT, copy, ignore=LEFT_BEHIND)
    run("-m", "build", "--no-isolation", "--outdir", str(folder), str(copy))
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site-packages")
    (wheel,) = built.glob("*.whl")
    run("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target), str(wheel))
    return target


def modules_on_disk() -> set[str]:
    """Every module and data file of the packages, under the name it has when installed."""
    folders = {"nextn": "nextn"} | {name: f"nextn/{name}" for name in ("convert", "gguf_schema", "kernels")}
    folders |= {name: f"nextn/{name}" for name in ("runtime", "validators")}
    return {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, installed in folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_packages(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == modules_on_disk()
    assert {"nextn/py.typed", "nextn/demo/step35-tiny/config.json"} <= names


def test_nothing_lands_beside_the_import_root(installed: Path) -> None:
    folders = {path.name for path in installed.iterdir()} - {"bin"}
    assert {name.partition("-")[0] for name in folders} == {"nextn"}


def test_the_licence_and_the_readme_are_in_the_metadata(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert "License-Expression: MIT" in metadata
    assert (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[0] in metadata


def test_the_source_distribution_holds_what_building_takes(built: Path) -> None:
    """The wheel above was built from it; what pip shows of the project must be there too."""
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as contents:
        names = {name.partition("/")[2] for name in contents.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "nextn/py.typed", "convert/pipeline.py"} <= names


def test_the_installed_package_converts_its_own_demo_checkpoint(installed: Path, tmp_path: Path) -> None:
    path = run("-c", "import nextn; print(nextn.__file__)", PYTHONPATH=str(installed)).strip()
    assert Path(path).is_relative_to(installed)
    source = installed / "nextn" / "demo" / "step35-tiny"
    output = tmp_path / "out"
    run("-m", "nextn", "convert", str(source), "-o", str(output), PYTHONPATH=str(installed))
    assert [file.suffix for file in output.iterdir()] == [".gguf"]
