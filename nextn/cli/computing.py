"""Where the reference runtime computes, and with what: options of the commands that run models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import click

from nextn.gguf_schema.errors import InputError, extra

MOST_CONTEXT = 1 << 20  # tokens; the long prompt of a check fills its context


def lengths(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """Draft lengths in a list with commas, each once."""
    try:
        found = tuple(dict.fromkeys(int(part) for part in value.split(",")))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no list of draft lengths such as 1,2,3") from error
    if min(found) < 1:
        raise click.BadParameter("a draft has at least one token; without a draft is always measured too")
    return found


@contextmanager
def runtime_needed_by(what: str) -> Iterator[None]:
    """For imports of the reference runtime: InputError when a package of the extra `runtime` is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"{what} needs {error.name}, which is not installed"
        raise InputError("runtime-missing", message, remedy=extra("runtime")) from error


F = TypeVar("F", bound=Callable[..., object])


def computing_options(function: F) -> F:
    """Add --device and --kernels; kernels are None when they are not asked for."""
    kernels = click.option(
        "--kernels",
        type=click.Choice(("reference", "cpu", "triton")),
        help="Which forms of the operations.  [default: the fast ones of the device]",
    )
    device = click.option(
        "--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True, help="Where to compute."
    )
    return device(kernels(function))
