"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import UsageError

if TYPE_CHECKING:
    from nextn.convert.hub.locations import Location
    from nextn.convert.splitting import Split
    from nextn.gguf_schema.shards import FileSet

F = TypeVar("F", bound=Callable[..., Any])


def roles(_: click.Context, __: click.Parameter, value: str | None) -> tuple[Role, ...]:
    """The roles named in a list with commas; none when the option is not given."""
    if value is None:
        return ()
    try:
        return tuple(Role(part.strip()) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} names something other than {', '.join(Role)}") from error


class SomePath(click.Path):
    """A path; an empty one, as from an unset variable, would mean the working folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path of a text; fails when it is empty."""
        if value == "":
            self.fail("is empty", param, ctx)
        return super().convert(value, param, ctx)


class Place(SomePath):
    """A path, or what is on the hub: `org/name`, `org/name@revision`, `hf://org/name/file.gguf`. A local path wins."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path of a text, or its Location on the hub."""
        from nextn.convert.hub.locations import location_of

        location = location_of(value) if isinstance(value, str) else None
        return location or super().convert(value, param, ctx)


def opened(place: Path | Location) -> Path | FileSet:
    """What a validator takes: a path as it is, a file on the hub by range. HubError when that is not there."""
    if isinstance(place, Path):
        return place
    # Not for local files: it takes longer to import than all else that is done for one.
    from nextn.convert.hub.gguf_sets import file_at

    return file_at(place)


def writing_options(function: F) -> F:
    """The options of every command that writes files."""
    for option in (
        click.option("--overwrite", is_flag=True, help="Replace files that exist."),
        click.option("--dry-run", is_flag=True, help="Print what would be written, and write nothing."),
        click.option(
            "--manifest",
            type=SomePath(),
            metavar="FILE",
            help="Write there what each tensor was made of, and the files' hashes.",
        ),
        click.option(
            "--jobs", type=click.IntRange(1), help="Threads that read and encode.  [default: one per processor]"
        ),
    ):
        function = option(function)
    return function


def splitting_options(function: F) -> F:
    """The options about how large shards may be."""
    for option in (
        click.option(
            "--no-tensor-first-split", is_flag=True, help="Put the metadata alone into the first of the shards."
        ),
        click.option("--split-max-tensors", type=click.IntRange(0), default=0, help="Most tensors in a shard."),
        click.option(
            "--split-max-size",
            metavar="SIZE",
            default="0",
            help="Most bytes of tensor data in a shard, for example 48G; K, M and G are powers of 1000.",
        ),
    ):
        function = option(function)
    return function


def split_of(asked: dict[str, Any]) -> Split:
    """What the options about shards say."""
    from nextn.convert.splitting import Split, parse_size

    split = Split(parse_size(asked["split_max_size"]), asked["split_max_tensors"], asked["no_tensor_first_split"])
    if split.metadata_first and not split:
        raise UsageError(
            "no-split", "goes with --split-max-size or --split-max-tensors", subject="--no-tensor-first-split"
        )
    return split


def surgery_options(function: F) -> F:
    """The options of the commands that make files from GGUF files."""
    provenance = click.option(
        "--provenance", is_flag=True, help="Also write into the output which files it was made of (nextn.source.*)."
    )
    return provenance(writing_options(function))
