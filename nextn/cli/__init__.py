"""The `nextn` command: one module per subcommand, loaded when it is asked for."""

from __future__ import annotations

import importlib
import sys

import click

from nextn import __version__

COMMANDS = (
    "bench",
    "convert",
    "demo",
    "fetch",
    "generate",
    "identity",
    "inspect",
    "join",
    "relayout",
    "repair",
    "retype",
    "split",
    "upload",
    "validate",
)


class LazyGroup(click.Group):
    """A group whose subcommands are the `command` of the module of their name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all subcommands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a subcommand."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"nextn.cli.{cmd_name}").command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nextn")
def group() -> None:
    """Move models with multi-token-prediction heads from Hugging Face to GGUF.

    Exit status: 0 fine, 1 the verdict is negative, 2 wrong usage, 3 the input cannot be used, 4 hub or network.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its status; errors are one or two lines, never a traceback."""
    from nextn.cli.report import exit_status_of, print_anything

    print_anything()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        # Without standalone mode click returns the status of `Context.exit`, and otherwise what the command returns.
        returned = group.main(arguments, prog_name="nextn", standalone_mode=False)
        status = returned if isinstance(returned, int) else 0
    except (Exception, KeyboardInterrupt) as error:
        status = exit_status_of(error, arguments)
    sys.exit(status)
