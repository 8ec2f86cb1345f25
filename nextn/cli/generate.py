"""`nextn generate`: run a model on the reference runtime, with its head drafting."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nextn.cli.computing import computing_options, runtime_needed_by
from nextn.cli.options import SomePath
from nextn.cli.report import Report, report_options
from nextn.gguf_schema.errors import InputError, UsageError, counted, listed
from nextn.gguf_schema.nextn_architectures import NEXTN_ARCHITECTURES

if TYPE_CHECKING:
    from nextn.runtime.load import Pair
    from nextn.runtime.prompts import Prompt
    from nextn.runtime.runs import Run
    from nextn.runtime.session import Session
    from nextn.runtime.speculative import Speculator
    from nextn.runtime.text import Text

EXAMPLE = """
\b
Examples:
  nextn generate -m Step-3.7-Flash-Q8_0.gguf -p "Once upon a time" -n 64
  nextn generate -m trunk.gguf -d mtp.gguf --prompts prompts.jsonl -n 128 --n-max 5 --json
"""


def ids(_: click.Context, __: click.Parameter, value: str | None) -> list[int] | None:
    """Token ids in a list with commas."""
    if value is None:
        return None
    try:
        return [int(part) for part in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no list of token ids such as 1,2,3") from error


@click.command(epilog=EXAMPLE)
@click.option("-m", "--model", type=SomePath(), required=True, metavar="FILE", help="The model: combined, or a trunk.")
@click.option("-d", "--draft", type=SomePath(), metavar="FILE", help="The head that drafts for it, also a shared one.")
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt as text.")
@click.option("--tokens", callback=ids, metavar="IDS", help="The prompt as token ids: 1,2,3. No BOS is added.")
@click.option(
    "--prompts", type=SomePath(), metavar="FILE", help='Prompts, one JSON a line: {"name", "text" | "tokens"}.'
)
@click.option("-n", "--count", type=click.IntRange(1), default=64, show_default=True, help="Most tokens to generate.")
@click.option("--n-max", type=click.IntRange(0), default=3, show_default=True, help="Most tokens of a draft; 0: none.")
@click.option("--n-min", type=click.IntRange(0), default=0, help="Shorter drafts are not used.")
@click.option("--p-min", type=click.FloatRange(0, 1), default=0.0, help="A draft ends below this probability.")
@click.option("--reuse-last-head", is_flag=True, help="Draft on with the last of chained heads when there are no more.")
@click.option("--strict-draft", is_flag=True, help="Stop at an error of a head; else it is counted.")
@click.option(
    "--hnorm",
    type=click.Choice(("stream", "flat")),
    default="stream",
    help="How a qwen4exp head norms the hidden row: each stream by itself as llama.cpp does, or all at once.",
)
@click.option("--stop", callback=ids, metavar="IDS", help="Token ids that end the text, beside those of the model.")
@click.option(
    "--ubatch", type=click.IntRange(1), default=512, show_default=True, help="Rows of a prompt in one forward."
)
@computing_options
@click.option(
    "--dtype",
    type=click.Choice(("float32", "float64", "bfloat16")),
    default="float32",
    show_default=True,
    help="Type of all values; in bfloat16 they are rough, and nothing is compared with others.",
)
@report_options
def command(model: Path, draft: Path | None, count: int, **asked: Any) -> None:
    """Generate text greedily on the reference runtime.

    What is generated does not depend on the draft; how much of the drafts was accepted is shown beside it.
    """
    _check(asked)
    report = Report(asked["as_json"], asked["quiet"])
    pair = _loaded(model, draft, asked)
    text, prompts = _prompts(pair, asked)
    stream = None
    if len(prompts) == 1 and text is not None and not asked["as_json"] and sys.stdout.isatty():
        stream = Stream(text, lambda part: click.echo(part, nl=False))
    speculator = _speculator(pair, asked, stream)
    for told in [*_warnings(pair, speculator, asked), *_beyond(pair, prompts, count)]:
        report.note(told)
    ends = {*(text.ends if text else ()), *_stops(pair, asked)}
    with _watched(report):
        runs = speculator.generate([p.tokens for p in prompts], count, ends, [p.name for p in prompts])
    report.result(
        stream.rest(runs[0]) if stream else "\n".join(_told(run, text) for run in runs),
        {
            "runs": [run.as_json(text.decode(run.tokens) if text else None) for run in runs],
            "kernels": pair.kernels,
            "dtype": asked["dtype"],
            "device": asked["device"],
        },
    )
    for run in runs:
        report.note(_fared(run))


def _check(asked: dict[str, Any]) -> None:
    """UsageError for options that say nothing, or contradict each other, before anything is loaded."""
    given = [name for name in ("prompt", "tokens", "prompts") if asked[name] is not None]
    if len(given) != 1:
        raise UsageError("no-prompt", "give one of -p TEXT, --tokens IDS and --prompts FILE", subject="generate")
    if asked["n_min"] > asked["n_max"] > 0:
        message = f"is {asked['n_min']}, more than --n-max {asked['n_max']}: no draft would ever be used"
        raise UsageError("n-min", message, subject="--n-min")
    if math.isnan(asked["p_min"]):
        raise UsageError("p-min", "is no number", subject="--p-min", remedy="give a probability: 0 to 1")


def _loaded(model: Path, draft: Path | None, asked: dict[str, Any]) -> Pair:
    """The model with its heads, unless drafts are not wanted. InputError without the runtime's packages."""
    with runtime_needed_by("nextn generate"):
        from nextn.runtime.load import fit_threads, load_pair
    pair = load_pair(
        model,
        draft,
        dtype=asked["dtype"],
        device=asked["device"],
        drafting=asked["n_max"] > 0,
        flat=asked["hnorm"] == "flat",
        kernels=asked["kernels"],
    )
    fit_threads({path for weights in pair.weights for path in weights.file.paths})
    return pair


def _speculator(pair: Pair, asked: dict[str, Any], stream: Stream | None) -> Speculator:
    from nextn.runtime.drafting import Options
    from nextn.runtime.speculative import Speculator

    options = Options(
        n_max=asked["n_max"],
        n_min=asked["n_min"],
        p_min=asked["p_min"],
        reuse_last_head=asked["reuse_last_head"],
        strict=asked["strict_draft"],
        ubatch=asked["ubatch"],
    )
    return Speculator(pair.trunk, pair.heads, options, stream)


def _watched(report: Report) -> AbstractContextManager[None]:
    """Tells what the first run takes its time for."""
    from nextn.runtime.load import watched_compiling

    return watched_compiling(lambda: report.note("compiling for this processor; numba keeps it for the next run"))


def _warnings(pair: Pair, speculator: Speculator, asked: dict[str, Any]) -> list[str]:
    """What is otherwise than asked or expected: no head, too few heads for so long a draft, tensors nobody reads."""
    found = []
    if pair.heads is None and asked["n_max"] > 0:
        found.append("nothing drafts: the file has no head; give one with -d")
    if pair.heads is not None and speculator.longest < asked["n_max"]:
        heads = counted(pair.heads.count, "chained head")
        found.append(
            f"drafts have at most {speculator.longest} tokens: {heads}; --reuse-last-head drafts on with the last"
        )
    known = NEXTN_ARCHITECTURES[pair.trunk.contents.architecture]
    if pair.heads is not None and known.heads is None and pair.heads.count == 1 and asked["n_max"] > 1:
        found.append("the model drafts with chained heads, of which there is one here: it is looped, as llama.cpp does")
    if speculator.heads is not None and speculator.longest < asked["n_min"]:
        found.append(f"no draft is used: --n-min is {asked['n_min']}")
    if asked["kernels"] not in (None, pair.kernels):
        found.append(f"the definition computes (reference): {asked['kernels']} kernels do not in {asked['dtype']}")
    found += pair.notes
    if pair.unused:
        found.append(f"not used: {counted(len(pair.unused), 'tensor')} of the file: {listed(pair.unused)}")
    return found


def _beyond(pair: Pair, prompts: Sequence[Prompt], count: int) -> list[str]:
    """That a sequence may grow longer than the model was made for; it is continued all the same."""
    context = pair.trunk.contents.get("context_length")
    longest = max(len(prompt.tokens) for prompt in prompts)
    if context is None or not isinstance(context.value, int) or longest + count <= context.value:
        return []
    rows = f"{counted(longest, 'token')} of a prompt and {count} more"
    return [f"{rows} go beyond the context of {context.value} that the file declares (context_length)"]


def _prompts(pair: Pair, asked: dict[str, Any]) -> tuple[Text | None, list[Prompt]]:
    """The vocabulary, if the file has one that can be read, and the prompts; those of token ids can do without."""
    from nextn.runtime.prompts import Prompt, checked, read_prompts
    from nextn.runtime.text import Text

    text: Text | None = None
    unread: InputError | None = None
    try:
        text = Text(pair.file.contents)
    except InputError as error:
        unread = error

    def encode(prompt: str) -> list[int]:
        if text is None:
            raise unread or AssertionError("either the vocabulary or an error")
        return text.encode(prompt)

    size = pair.trunk.vocab_size
    for option, tokens in (("--tokens", asked["tokens"]), ("-p", asked["prompt"])):
        if tokens is not None:
            given = encode(tokens) if isinstance(tokens, str) else tokens
            return text, [Prompt("", checked(given, size, option, UsageError))]
    return text, read_prompts(asked["prompts"], encode, size)


def _stops(pair: Pair, asked: dict[str, Any]) -> tuple[int, ...]:
    """Token ids that end the text, beside those of the model."""
    from nextn.runtime.prompts import checked

    return () if asked["stop"] is None else checked(asked["stop"], pair.trunk.vocab_size, "--stop", UsageError)


def _told(run: Run, text: Text | None) -> str:
    """What was said, under the name of the prompt if it has one."""
    said = text.decode(run.tokens) if text else ",".join(map(str, run.tokens))
    return f"{run.name}: {said}" if run.name else said


def _fared(run: Run) -> str:
    """How the drafts fared, and how long it took."""
    told = f"{run.name}: " if run.name else ""
    told += counted(len(run.tokens), "token")
    # The first token comes with the prompt.
    if run.seconds_decode > 0 and len(run.tokens) > 1:
        told += f", {(len(run.tokens) - 1) / run.seconds_decode:.1f} a second"
    if run.rounds:
        by_position = ", ".join(f"{part:.2f}" for part in run.accepted_by_position)
        told += f"; {run.n_accepted} of {run.n_drafted} drafted tokens accepted (by position {by_position})"
        told += f", {run.mean_accepted_length:.2f} tokens a round"
    if run.draft_errors:
        told += f"; {counted(len(run.draft_errors), 'draft error')}, first: {run.draft_errors[0]}"
    return told


class Stream:
    """Hands on text while it comes; a character whose bytes are not all there waits for them."""

    def __init__(self, text: Text, write: Callable[[str], object]) -> None:
        self._text = text
        self._write = write
        self._shown = ""

    def __call__(self, run: Run, _: Session) -> None:
        """Hand on what is new."""
        # Bytes that may become a character end in the replacement character until they do.
        said = self._text.decode(run.tokens).rstrip("\ufffd")
        self._write(said[len(self._shown) :])
        self._shown = said

    def rest(self, run: Run) -> str:
        """What has waited in vain until the end."""
        return self._text.decode(run.tokens)[len(self._shown) :]
