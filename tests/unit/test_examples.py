"""The examples in docs/examples are what they say: valid, and made of commands and options that exist."""

from __future__ import annotations

import re
import shlex
from typing import Any

import click
import pytest
import yaml
from families import FAMILIES, ROOT

from nextn.cli import group

EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.yml"))


def steps(told: Any) -> list[dict[str, Any]]:
    return [step for job in told["jobs"].values() for step in job["steps"]]


def commands(told: Any) -> list[list[str]]:
    """The nextn command lines of a workflow, with values in place of its expressions."""
    text = "\n".join(step.get("run", "") for step in steps(told))
    lines = re.sub(r"\$\{\{.*?\}\}", "value", text).replace("\\\n", " ").splitlines()
    return [words[1:] for line in lines if (words := shlex.split(line))[:1] == ["nextn"]]


def test_there_are_examples() -> None:
    assert [path.name for path in EXAMPLES] == ["identity-pull-request.yml"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_workflow_is_one(path: Any) -> None:
    told = yaml.safe_load(path.read_text(encoding="utf-8"))
    # YAML 1.1 reads the key `on` as a boolean.
    assert "pull_request" in told[True]
    assert told["permissions"] == {"contents": "read"}
    assert all(("run" in step) != ("uses" in step) and step["name"] for step in steps(told))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_its_commands_and_options_exist(path: Any) -> None:
    found = commands(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert [words[0] for words in found] == ["convert", "identity"]
    for name, *arguments in found:
        command = group.get_command(click.Context(group), name)
        assert command is not None, name
        command.make_context(name, list(arguments))


def test_its_models_are_in_this_repository() -> None:
    told = yaml.safe_load((ROOT / "docs/examples/identity-pull-request.yml").read_text(encoding="utf-8"))
    matrix = told["jobs"]["identity"]["strategy"]["matrix"]["include"]
    assert {each["family"]: ROOT / each["checkpoint"] for each in matrix} == {
        name: family.checkpoint for name, family in FAMILIES.items()
    }
