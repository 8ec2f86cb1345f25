"""Where the reference runtime computes, and with what: options of the commands that run models."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

MOST_CONTEXT = 1 << 20  # tokens; the long prompt of a check fills its context
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
