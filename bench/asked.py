"""What the benchmarks are asked on their command lines, checked before anything is measured."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that tells a script's docstring as it stands, and calls the script as the documentation does."""
    return argparse.ArgumentParser(
        prog=f"python bench/{Path(sys.argv[0]).name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # bench/gpu.py looks for an option before this parser does.
        allow_abbrev=False,
    )


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Reads a whole number within bounds."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        if most is not None and number > most:
            raise argparse.ArgumentTypeError(f"{number} is more than {most}")
        return number

    return read


def amount(text: str) -> float:
    """Reads a number above zero."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above zero, or has no end")
    return number


def one_of(known: Iterable[str]) -> Callable[[str], str]:
    """Reads a name that is known."""
    names = tuple(known)

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
        return text

    return read


def several(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Reads a list with commas, each once."""
    return lambda text: list(dict.fromkeys(read(part) for part in text.split(",")))


def program(text: str) -> str:
    """Reads the name or path of a program that can be run."""
    if shutil.which(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no program that can be run")
    return text


def folder(text: str) -> Path:
    """Reads the path of a folder that is there."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder")
    return path


def new_folder(text: str) -> Path:
    """Reads the path of a folder that is not there yet."""
    path = Path(text)
    if path.exists():
        raise argparse.ArgumentTypeError(f"{text!r} is there already")
    return path
