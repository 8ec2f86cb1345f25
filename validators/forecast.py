"""What each runtime will do with a file, or with a pair of files: from headers alone, by the rules in `runtimes`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nextn.gguf_schema.errors import UsageError
from nextn.gguf_schema.nextn_architectures import NEXTN_ARCHITECTURES
from nextn.gguf_schema.nextn_generic import TOKENS, flags_of, head_blocks, role_of
from nextn.validators import loader_container
from nextn.validators.loader import Loaded, load
from nextn.validators.loader_keys import Outcome, Stop, Values, read_general, read_keys, refuse
from nextn.validators.loader_vocabulary import vocabulary_problem
from nextn.validators.loaders import COMMON
from nextn.validators.runtimes import NO_HEADS, RUNTIMES, Runtime, Use
from nextn.validators.vocabularies import same_vocabulary

if TYPE_CHECKING:
    from nextn.gguf_schema.contents import Contents

_GOES_ON = (Outcome.LOADS, Outcome.WRONG)
# Architectures whose loaders read, or change, more among the common keys.
OTHER_COMMON_KEYS = frozenset({"hunyuan_vl", "hunyuan-dense", "wavtokenizer-dec"})
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

    @property
    def loads(self) -> bool:
        """Whether the file loads and nothing is known to be wrong."""
        return self.stop.outcome is Outcome.LOADS


@dataclass(frozen=True)
class _File:
    """What a file says, and where its container stops a loader or spoils what it loads."""

    contents: Contents
    stop: Stop | None = None


def forecast(
    contents: Contents,
    draft: Contents | None = None,
    runtime: str | None = None,
    *,
    stop: Stop | None = None,
    draft_stop: Stop | None = None,
) -> list[Forecast]:
    """What runtimes, or only `runtime`, will do with a file; with a `draft`, also with that one and with the pair.

    `stop` and `draft_stop` are what their containers do to a loader (`container_stop`). Without tables for an
    architecture nothing is forecast unless a rule for all architectures finds something. Raises UsageError for an
    unknown runtime.
    """
    model, head = _File(contents, stop), _File(draft, draft_stop) if draft is not None else None
    if runtime is not None and runtime not in RUNTIMES:
        raise UsageError("unknown-runtime", f"no such runtime: {runtime}", remedy=f"Known: {', '.join(RUNTIMES)}")
    return [
        Forecast(build.name, use, verdict.stop.outcome, verdict.stop.message, verdict.source)
        for build in ([RUNTIMES[runtime]] if runtime else RUNTIMES.values())
        if build.families is None or contents.architecture in build.families
        for use, verdict in _verdicts(build, model, head)
    ]


def _verdicts(build: Runtime, model: _File, draft: _File | None) -> Iterator[tuple[Use, _Verdict]]:
    main = _judge(build, model, Use.MAIN, mtp=False)
    if main:
        yield Use.MAIN, main
    alone = _judge(build, draft or model, Use.DRAFT, mtp=True)
    if alone and build.known:
        yield Use.DRAFT, alone
    if draft is not None and (pair := _judge_pair(build, model, alone)):
        # The reader of a forecast wants to know which of the two it is.
        yield Use.PAIRED, _with_vocabulary(pair, model.contents, draft.contents)


def _judge(build: Runtime, file: _File, use: Use, *, mtp: bool) -> _Verdict | None:
    """What becomes of one file; None when nothing is known."""
    damage = _Verdict(file.stop, loader_container.SOURCE) if file.stop else None
    if damage and damage.stop.outcome not in _GOES_ON:
        return damage
    verdict = _judge_contents(build, file.contents, use, mtp=mtp)
    return replace(damage, loaded=verdict.loaded) if damage and verdict and verdict.loads else verdict


def _judge_contents(build: Runtime, contents: Contents, use: Use, *, mtp: bool) -> _Verdict | None:
    name = contents.architecture
    if name not in build.known:
        return _Verdict(refuse(f"unknown model architecture: '{name}'"), build.source)
    loader = build.loaders.get(name)
    if loader is None:
        return _judge_by_common_rules(contents, use)
    loaded = load(loader, contents, mtp=mtp)
    if isinstance(loaded, Stop):
        return _Verdict(loaded, build.source)
    for rule in build.rules:
        if use in rule.uses and rule.architecture in (None, name) and (found := rule.finds(loaded, use is Use.DRAFT)):
            return _Verdict(Stop(rule.outcome, rule.message.replace("{found}", found)), rule.source, loaded)
    return _Verdict(Stop(Outcome.LOADS, ""), build.source, loaded)


def _judge_by_common_rules(contents: Contents, use: Use) -> _Verdict | None:
    """What is known of a file of an architecture without tables: keys read for all, and what marks a head."""
    if contents.architecture == "clip":
        return _Verdict(refuse("CLIP cannot be used as main model, use it with --mmproj instead"), "src/llama.cpp")
    if contents.architecture in OTHER_COMMON_KEYS:
        return None
    values: Values = {}
    stop = read_general(contents) or read_keys(contents, COMMON, values) or vocabulary_problem(contents)
    if stop:
        return _Verdict(stop, "src/llama-model.cpp, load_hparams")
    if not values["nextn_predict_layers"]:
        if head_blocks(contents) and contents.architecture in NEXTN_ARCHITECTURES:
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


def _judge_pair(build: Runtime, model: _File, draft: _Verdict | None) -> _Verdict | None:
    """What becomes of a model with a draft: the model is loaded first, and with its heads when it has some."""
    main = _judge(build, model, Use.MAIN, mtp=True)
    if main is not None and main.stop.outcome not in _GOES_ON:
        return main
    if draft is not None and draft.stop.outcome not in _GOES_ON:
        return draft
    # Of a pair of which one half is unknown nothing is known.
    if main is None or draft is None:
        return None
    if main.loaded and draft.loaded and _row_width(main.loaded) != _row_width(draft.loaded):
        return _Verdict(Stop(Outcome.ABORTS, WIDTHS), "common/speculative.cpp")
    return draft if main.loads else main


def _row_width(loaded: Loaded) -> int:
    """Width of the hidden rows that a model hands to its draft: all residual streams where the head takes them."""
    streams = loaded.values["hyper_connection.count"] if loaded.contents.architecture == "qwen4exp" else 1
    return int(loaded.values["embedding_length"] * streams)


def _with_vocabulary(pair: _Verdict, contents: Contents, draft: Contents) -> _Verdict:
    """Drafting with a head never compares vocabularies."""
    tokens, others = contents.keys.get(TOKENS), draft.keys.get(TOKENS)
    if pair.stop.outcome is not Outcome.LOADS or (tokens and others and same_vocabulary(tokens.items, others.items)):
        return pair
    text = "the vocabularies differ, which is not checked: token ids are used as they are"
    return _Verdict(Stop(Outcome.WRONG, text), "common/speculative.cpp")
