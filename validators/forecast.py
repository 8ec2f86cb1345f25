"""What each runtime will do with a file, or with a pair of files: from headers alone, by the rules in `runtimes`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nextn.gguf_schema.errors import UsageError
from nextn.gguf_schema.nextn_architectures import NEXTN_ARCHITECTURES
from nextn.gguf_schema.nextn_generic import TOKENS, flags_of, head_blocks, role_of
from nextn.validators.loader import Loaded, load
from nextn.validators.loader_keys import Outcome, Stop, Values, read_keys, refuse
from nextn.validators.loader_vocabulary import vocabulary_problem
from nextn.validators.loaders import COMMON
from nextn.validators.runtimes import NO_HEADS, RUNTIMES, Runtime, Use

if TYPE_CHECKING:
    from nextn.gguf_schema.contents import Contents

WIDTHS = (
    "GGML_ASSERT(n_embd == llama_model_n_embd_out(llama_get_model(ctx_tgt)) && "
    '"MTP input row width must match the target h_nextn width") failed'
)


@dataclass(frozen=True)
class Forecast:
    """What a runtime will do with a file as its model, as a draft for a good trunk, or with a pair of files.

    `message` holds the runtime's own words where it has some, else why the result is wrong; `source` where that is
    known from.
    """

    runtime: str
    as_: Use
    outcome: Outcome
    message: str
    source: str

    def as_json(self) -> dict[str, str]:
        """The forecast as the command line prints it with `--json`."""
        return {
            "runtime": self.runtime,
            "as": str(self.as_),
            "outcome": str(self.outcome),
            "message": self.message,
            "source": self.source,
        }


@dataclass(frozen=True)
class _Verdict:
    """Where a use of a file ends, and how it is known; the file as it was loaded, if it was."""

    stop: Stop
    source: str
    loaded: Loaded | None = None


def forecast(contents: Contents, draft: Contents | None = None, runtime: str | None = None) -> list[Forecast]:
    """What runtimes, or only `runtime`, will do with a file; with a `draft`, also with that one and with the pair.

    Without tables for an architecture nothing is forecast unless a rule for all architectures finds something.
    Raises UsageError for an unknown runtime.
    """
    if runtime is not None and runtime not in RUNTIMES:
        raise UsageError("unknown-runtime", f"no such runtime: {runtime}", remedy=f"Known: {', '.join(RUNTIMES)}")
    return [
        Forecast(build.name, use, verdict.stop.outcome, verdict.stop.message, verdict.source)
        for build in ([RUNTIMES[runtime]] if runtime else RUNTIMES.values())
        if build.families is None or contents.architecture in build.families
        for use, verdict in _verdicts(build, contents, draft)
    ]


def _verdicts(build: Runtime, contents: Contents, draft: Contents | None) -> Iterator[tuple[Use, _Verdict]]:
    main = _judge(build, contents, Use.MAIN, mtp=False)
    if main:
        yield Use.MAIN, main
    if not build.known:
        return
    alone = _judge(build, draft or contents, Use.DRAFT, mtp=True)
    if alone:
        yield Use.DRAFT, alone
    if draft is not None and (pair := _judge_pair(build, contents, alone)):
        # The reader of a forecast wants to know which of the two it is.
        yield Use.PAIRED, _with_vocabulary(pair, contents, draft)


def _judge(build: Runtime, contents: Contents, use: Use, *, mtp: bool) -> _Verdict | None:
    """What becomes of one file; None when nothing is known."""
    name = contents.architecture
    if name not in build.known:
        return _Verdict(refuse(f"unknown model architecture: '{name}'"), build.source)
    loader = build.loaders.get(name)
    if loader is None:
        return _judge_by_common_rules(contents, use) if name in NEXTN_ARCHITECTURES else None
    loaded = load(loader, contents, mtp=mtp)
    if isinstance(loaded, Stop):
        return _Verdict(loaded, build.source)
    for rule in build.rules:
        if use in rule.uses and rule.architecture in (None, name) and (found := rule.finds(loaded, use is Use.DRAFT)):
            return _Verdict(Stop(rule.outcome, rule.message.replace("{found}", found)), rule.source, loaded)
    return _Verdict(Stop(Outcome.LOADS, ""), build.source, loaded)


def _judge_by_common_rules(contents: Contents, use: Use) -> _Verdict | None:
    """What is known of a file of an architecture without tables."""
    values: Values = {}
    stop = read_keys(contents, COMMON, values) or vocabulary_problem(contents)
    if stop:
        return _Verdict(stop, "src/llama-model.cpp, load_hparams")
    if not values["nextn_predict_layers"]:
        if head_blocks(contents):
            text = f"done_getting_tensors: wrong number of tensors; expected {len(contents.tensors)}, got fewer"
            return _Verdict(refuse(text), "src/llama-model-loader.cpp, done_getting_tensors")
        return _Verdict(Stop(Outcome.REFUSES, NO_HEADS), "src/llama-context.cpp") if use is Use.DRAFT else None
    if use is Use.MAIN and flags_of(contents).mtp_only:
        role = role_of(contents)
        if role is not None and not role.has_trunk:
            text = "segmentation fault while the graph of the trunk is built: its tensors are not in the file"
            return _Verdict(Stop(Outcome.SEGFAULTS, text), "src/llama-model.cpp, nextn_flags")
        text = "the tensor is missing by which the trunk is looked for: it counts as absent and is not checked"
        return _Verdict(Stop(Outcome.WRONG, text), "src/llama-model.cpp, nextn_flags")
    return None


_GOES_ON = (Outcome.LOADS, Outcome.WRONG)


def _judge_pair(build: Runtime, contents: Contents, draft: _Verdict | None) -> _Verdict | None:
    """What becomes of a model with a draft: the model is loaded first, and with its heads when it has some."""
    main = _judge(build, contents, Use.MAIN, mtp=True)
    if main is None or draft is None or main.stop.outcome not in _GOES_ON:
        return main
    if draft.stop.outcome not in _GOES_ON:
        return draft
    if main.loaded and draft.loaded and _row_width(main.loaded) != _row_width(draft.loaded):
        return _Verdict(Stop(Outcome.ABORTS, WIDTHS), "step35.md 7.3")
    return draft if main.stop.outcome is Outcome.LOADS else main


def _row_width(loaded: Loaded) -> int:
    """Width of the hidden rows that a model hands to its draft: all residual streams where the head takes them."""
    streams = loaded.values["hyper_connection.count"] if loaded.contents.architecture == "qwen4exp" else 1
    return int(loaded.values["embedding_length"] * streams)


def _with_vocabulary(pair: _Verdict, contents: Contents, draft: Contents) -> _Verdict:
    """Drafting with a head never compares vocabularies."""
    tokens, others = contents.keys.get(TOKENS), draft.keys.get(TOKENS)
    if pair.stop.outcome is not Outcome.LOADS or (tokens and others and tokens.items == others.items):
        return pair
    text = "the vocabularies differ, which is not checked: token ids are used as they are"
    return _Verdict(Stop(Outcome.WRONG, text), "step35.md 7.3")
