"""The house stands: packages and folders agree, imports only go up the stair, and the light part stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from families import ROOT

import nextn
from nextn.runtime.load import EXTRAS

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
PACKAGES: list[str] = SETUPTOOLS["packages"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]
NOT_PACKAGED = {"bench", "build", "dist", "docs", "tests", "typings"}

# What each part may import of the others.
STAIR: dict[str, set[str]] = {
    "gguf_schema": set(),
    "kernels": set(),
    "validators": {"gguf_schema"},
    "convert": {"gguf_schema", "validators"},
    "runtime": {"gguf_schema", "kernels", "validators"},
    "demo": {"gguf_schema", "validators", "convert", "runtime"},
    "cli": {"gguf_schema", "kernels", "validators", "convert", "runtime", "demo"},
    "__main__": {"cli"},
    "__init__": set(),
}
HEAVY = {"torch", "triton", "transformers", "xllamacpp", "jinja2", "matplotlib", "ray"}
TORCH = {"torch", "triton", "transformers"}


def folder_of(package: str) -> Path:
    """The folder of a package by the longest prefix that pyproject.toml maps."""
    parts = package.split(".")
    for length in range(len(parts), 0, -1):
        if (folder := FOLDERS.get(".".join(parts[:length]))) is not None:
            return ROOT.joinpath(folder, *parts[length:])
    raise AssertionError(f"pyproject.toml maps no part of {package}")


MODULES = {
    package if path.stem == "__init__" else f"{package}.{path.stem}": path
    for package in PACKAGES
    for path in sorted(folder_of(package).glob("*.py"))
}


def part_of(module: str) -> str:
    """The subpackage of a module, or what it is itself."""
    return module.split(".")[1] if "." in module else "__init__"


def imports(path: Path, *, at_import: bool = False) -> set[str]:
    """Modules that a file imports; `at_import` leaves out what waits for a call or for the type checker."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if at_import and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if at_import and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            nodes += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= submodules or {str(node.module)}
        nodes += ast.iter_child_nodes(node)
    return found


def test_packages_are_the_folders_on_disk() -> None:
    roots = {name: ROOT / folder for name, folder in FOLDERS.items()}
    on_disk = {
        ".".join([name, *path.parent.relative_to(root).parts])
        for name, root in roots.items()
        for path in root.rglob("*.py")
    }
    assert sorted(PACKAGES) == sorted(on_disk)
    assert [str(path) for path in map(folder_of, PACKAGES) if not (path / "__init__.py").is_file()] == []


def test_every_folder_with_modules_is_packaged_or_named_here() -> None:
    packaged = {Path(folder).parts[0] for folder in FOLDERS.values()}
    beside = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert beside - packaged <= NOT_PACKAGED
    assert all(name == f"nextn.{folder}" or name == folder for name, folder in FOLDERS.items())


def test_type_checking_sees_every_package() -> None:
    linked = {path.name: path.resolve() for path in (ROOT / "typings" / "nextn").iterdir() if path.is_symlink()}
    wanted = {package.split(".")[1]: folder_of(package) for package in PACKAGES if package.count(".") == 1}
    wanted |= {path.name: path for path in (ROOT / "nextn").iterdir() if path.is_file()}
    assert linked == {name: path.resolve() for name, path in wanted.items()}
    assert not any(path.readlink().is_absolute() for path in (ROOT / "typings" / "nextn").iterdir())


def test_extras_that_remedies_name_exist() -> None:
    named = {
        name
        for path in MODULES.values()
        for name in re.findall(r'\bextra\("(\w+)"\)', path.read_text(encoding="utf-8"))
    }
    assert len(named) > 3
    assert named | {*EXTRAS.values()} <= PYPROJECT["project"]["optional-dependencies"].keys()


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_up_the_stair(module: str) -> None:
    part = part_of(module)
    of_parts = {part_of(name) for name in imports(MODULES[module]) if name.startswith("nextn.")}
    assert of_parts <= STAIR[part] | {part}


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: imports(path, at_import=True) & MODULES.keys() for module, path in MODULES.items()}
    TopologicalSorter(graph).prepare()


def test_only_runtime_and_kernels_know_torch() -> None:
    users = {
        part_of(module) for module, path in MODULES.items() if {name.split(".")[0] for name in imports(path)} & TORCH
    }
    assert users <= {"runtime", "kernels"}


def test_kernels_can_be_imported_without_torch_or_side_effects() -> None:
    """Run from the repository root, transformers looks for a package `kernels` and finds ours."""
    body = ast.parse((ROOT / "kernels" / "__init__.py").read_text(encoding="utf-8")).body
    assert all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import nextn.cli; nextn.cli.main(['--help'])", HEAVY | {"numpy", "gguf", "tokenizers", "huggingface_hub"}),
        ("import nextn.cli; nextn.cli.main(['convert', '--help'])", HEAVY | {"numpy", "gguf"}),
        ("import nextn.convert.pipeline", HEAVY),
        ("import nextn.gguf_schema.shards", HEAVY),
        ("import nextn.kernels, nextn.runtime, nextn.validators.findings", HEAVY),
    ],
)
def test_what_must_be_light_loads_nothing_heavy(code: str, absent: set[str]) -> None:
    program = f"import sys\nsys.modules |= dict.fromkeys({absent!r})\n{code}"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)


def test_the_version_stands_in_one_place() -> None:
    assert version("nextn") == nextn.__version__
    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert SETUPTOOLS["dynamic"]["version"] == {"attr": "nextn.__version__"}


def test_package_data_is_there() -> None:
    for package, patterns in SETUPTOOLS["package-data"].items():
        for pattern in patterns:
            assert any(path.is_file() for path in folder_of(package).glob(pattern)), f"{package}: {pattern}"
