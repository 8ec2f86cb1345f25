"""`nextn inspect`: what a GGUF file or a checkpoint holds, what it takes to load, what runtimes will do with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nextn.cli.options import Place, opened
from nextn.cli.report import Report, report_options
from nextn.gguf_schema.errors import size

if TYPE_CHECKING:
    from nextn.convert.checkpoint import CheckpointFiles
    from nextn.convert.hub.locations import Location
    from nextn.convert.plan import Plan, PlannedFile
    from nextn.validators.examine import Memory
    from nextn.validators.examine import Report as Examination

# Not imported from validators/memory.py: the help must not wait for the tables.
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
EXAMPLE = """
\b
Examples:
  nextn inspect Step-3.7-Flash-trunk-Q8_0.gguf --draft shared/mtp-Step-3.7-Flash-shared-Q8_0.gguf --context 65536
  nextn inspect Step-3.7-Flash
  nextn inspect org/Step-3.7-Flash-GGUF:Q8_0
"""


class Tokens(click.IntRange):
    """A number of tokens, perhaps in thousands as memory counts them: 64K is 65536."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; fails when it is none."""
        if isinstance(value, str) and value[-1:] in ("K", "k") and value[:-1].isdecimal():
            value = 1024 * int(value[:-1])
        return super().convert(value, param, ctx)


@click.command(epilog=EXAMPLE)
@click.argument("source", type=Place())
@click.option("--draft", type=Place(), metavar="FILE", help="The head that is to draft for SOURCE.")
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
    source: Path | Location,
    draft: Path | Location | None,
    context: int | None,
    ubatch: int,
    kv_type: str,
    n_max: int,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Show what SOURCE is: a GGUF file, any shard of a set, or the folder of a checkpoint in Hugging Face format.

    It may be on the hub: hf://org/name/file.gguf, or org/name[@revision][:tag]. Only headers are read. Memory is
    estimated from them, for a shared sidecar too. Of a checkpoint, what converting it would give is shown; of a
    repository of GGUF files, what llama.cpp's -hf picks there and which files pair. Exit status 1 when something is
    wrong with the file, or with what -hf picks.
    """
    from nextn.validators.examine import Memory, examine

    memory, report = Memory(context, ubatch, kv_type, n_max), Report(as_json, quiet)
    if isinstance(source, Path) and source.is_dir():
        from nextn.convert.checkpoint import LocalFiles

        beside = sorted(path.name for path in source.glob("*.gguf"))
        _checkpoint(LocalFiles(source), beside, draft, memory, report)
    elif not isinstance(source, Path) and source.path is None:
        _repository(source, draft, memory, report)
    else:
        head = opened(draft) if draft else None
        _print(examine(opened(source), head, memory=memory), report)


def _repository(source: Location, draft: object, memory: Memory, report: Report) -> None:
    """A repository that holds a checkpoint, or one of GGUF files."""
    from nextn.cli.repository import print_survey
    from nextn.convert.hub.checkpoint import HubFiles
    from nextn.convert.hub.repository import open_repository
    from nextn.convert.hub.survey import survey
    from nextn.gguf_schema.errors import UsageError

    repository = open_repository(source)
    files = HubFiles(repository)
    if files.parts() and not source.tag:
        _checkpoint(files, sorted(path for path in repository.files if path.endswith(".gguf")), draft, memory, report)
        return
    if draft is not None:
        remedy = f"give the model's file: hf://{source.repo}/FILE.gguf"
        raise UsageError("no-draft", "goes with a GGUF file, not with a repository", subject="--draft", remedy=remedy)
    print_survey(survey(repository), report)


def _print(found: Examination, report: Report, more: dict[str, Any] | None = None, head: str = "") -> None:
    from nextn.cli.verdict import verdict_text

    text = "" if report.as_json else head + verdict_text(found, memory=True)
    report.result(text, found.as_json() | (more or {}))
    if not found.ok:
        sys.exit(1)


def _checkpoint(files: CheckpointFiles, beside: Sequence[str], draft: object, memory: Memory, report: Report) -> None:
    """What converting a checkpoint would give: each file with its size, and the verdict about the whole model."""
    from nextn.gguf_schema.errors import InputError, UsageError, counted, listed
    from nextn.validators.examine import examine_contents, judge
    from nextn.validators.findings import Findings

    if draft is not None:
        raise UsageError("no-draft", "goes with a GGUF file; a checkpoint holds its own head", subject="--draft")
    source = files.repository or str(files.folder)
    try:
        planned, claimed = _plan(files)
    except InputError as error:
        if error.code == "no-config" and beside:
            error.remedy = (
                f"It holds {counted(len(beside), 'GGUF file')}: give one, for example {Path(source) / beside[0]}."
            )
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
    more = {"checkpoint": {"path": source, "heads": heads, "heads_claimed": claimed}, "outputs": outputs}
    _print(judge(examined, memory=memory), report, more, head)


def _plan(files: CheckpointFiles) -> tuple[Plan, int | None]:
    """The plan of every file that the checkpoint can become, and the number of heads that its configuration claims."""
    from nextn.convert.checkpoint import open_checkpoint
    from nextn.convert.families import family_of
    from nextn.convert.planner import Options, plan_conversion
    from nextn.gguf_schema.architecture import Role
    from nextn.gguf_schema.errors import InputError

    checkpoint = open_checkpoint(files)
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
