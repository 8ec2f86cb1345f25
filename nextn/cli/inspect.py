"""`nextn inspect`: what a GGUF file or a checkpoint holds, what it takes to load, what runtimes will do with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nextn.cli.report import Report, report_options, size

if TYPE_CHECKING:
    from nextn.convert.plan import Plan, PlannedFile
    from nextn.validators.examine import Memory
    from nextn.validators.examine import Report as Examination

# Not imported from validators/memory.py: the help must not wait for the tables.
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
# Who may not read a file is told so by who opens it: that is no wrong usage.
FILE = click.Path(path_type=Path, readable=False)
EXAMPLE = """
\b
Examples:
  nextn inspect Step-3.7-Flash-trunk-Q8_0.gguf --draft shared/mtp-Step-3.7-Flash-shared-Q8_0.gguf --context 65536
  nextn inspect Step-3.7-Flash
"""


class Tokens(click.IntRange):
    """A number of tokens, perhaps in thousands as memory counts them: 64K is 65536."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; fails when it is none."""
        if isinstance(value, str) and value[-1:] in ("K", "k") and value[:-1].isdecimal():
            value = 1024 * int(value[:-1])
        return super().convert(value, param, ctx)


@click.command(epilog=EXAMPLE)
@click.argument("source", type=FILE)
@click.option("--draft", type=FILE, metavar="FILE", help="The head that is to draft for SOURCE.")
@click.option(
    "--context", type=Tokens(1), metavar="N", help="Tokens to hold; 64K is 65536.  [default: the model's, at most 8192]"
)
@click.option(
    "--ubatch",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    metavar="N",
    help="Tokens at once, at most N of --context.",
)
@click.option(
    "--kv-type",
    type=click.Choice(KV_TYPES, case_sensitive=False),
    default="f16",
    show_default=True,
    help="Type of the caches.",
)
@click.option("--n-max", type=click.IntRange(0), default=3, show_default=True, metavar="N", help="Longest draft.")
@report_options
def command(
    source: Path,
    draft: Path | None,
    context: int | None,
    ubatch: int,
    kv_type: str,
    n_max: int,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Show what SOURCE is: a GGUF file, any shard of a set, or the folder of a checkpoint in Hugging Face format.

    Memory is estimated from headers alone, for a shared sidecar too. Of a checkpoint, what converting it would give is
    shown. Exit status 1 when something is wrong with the file.
    """
    from nextn.validators.examine import Memory, examine

    memory = Memory(context, ubatch, kv_type, n_max)
    if source.is_dir():
        _checkpoint(source, draft, memory, Report(as_json, quiet))
        return
    _print(examine(source, draft, memory=memory), Report(as_json, quiet))


def _print(found: Examination, report: Report, more: dict[str, Any] | None = None, head: str = "") -> None:
    from nextn.cli.verdict import verdict_text

    text = "" if report.as_json else head + verdict_text(found, memory=True)
    report.result(text, found.as_json() | (more or {}))
    if not found.ok:
        sys.exit(1)


def _checkpoint(source: Path, draft: Path | None, memory: Memory, report: Report) -> None:
    """What converting a checkpoint would give: each file with its size, and the verdict about the whole model."""
    from nextn.gguf_schema.errors import InputError, UsageError, counted, listed
    from nextn.validators.examine import examine_contents, judge
    from nextn.validators.findings import Findings

    if draft is not None:
        raise UsageError("no-draft", "goes with a GGUF file; a checkpoint holds its own head", subject="--draft")
    beside = sorted(path.name for path in source.glob("*.gguf"))
    try:
        planned, claimed = _plan(source)
    except InputError as error:
        if error.code == "no-config" and beside:
            error.remedy = f"It holds {counted(len(beside), 'GGUF file')}: give one, for example {source / beside[0]}."
        raise
    whole = planned.files[0]
    examined = examine_contents(whole.contents, Findings(planned.findings), ((str(whole.path), whole.total_bytes),))
    outputs = [_output(file) for file in planned.files]
    rows = [f"  {output['role']:<11}{size(output['bytes']):>9}  {output['path']}" for output in outputs]
    if beside:
        rows.append(f"  beside it: {listed(beside)}")
    heads = examined.role.nextn_blocks if examined.role else 0
    says = "says nothing" if claimed is None else f"says {claimed}"
    head = (
        "\n".join([f"checkpoint {source}: the tensors hold {counted(heads, 'head')}, config.json {says}", *rows])
        + "\n\n"
    )
    more = {"checkpoint": {"path": str(source), "heads": heads, "heads_claimed": claimed}, "outputs": outputs}
    _print(judge(examined, memory=memory), report, more, head)


def _plan(source: Path) -> tuple[Plan, int | None]:
    """The plan of every file that the checkpoint can become, and the number of heads that its configuration claims."""
    from nextn.convert.checkpoint import open_checkpoint
    from nextn.convert.families import family_of
    from nextn.convert.planner import Options, plan_conversion
    from nextn.gguf_schema.architecture import Role
    from nextn.gguf_schema.errors import InputError

    checkpoint = open_checkpoint(source)
    keys = family_of(checkpoint.config).head_count_keys
    claimed = next((value for key in keys if isinstance(value := checkpoint.text_config.get(key), int)), None)
    try:
        return plan_conversion(checkpoint, Options(tuple(Role))), claimed
    except InputError as error:
        if error.code != "no-head":
            raise
    return plan_conversion(checkpoint, Options((Role.COMBINED,))), claimed


def _output(file: PlannedFile) -> dict[str, Any]:
    return {
        "path": str(file.path),
        "role": file.role,
        "tensors": len(file.tensors),
        "bytes": file.total_bytes,
        "sha256": None,
    }
