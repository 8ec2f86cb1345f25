"""What runtimes do with a file that they have loaded, and which runtimes there are: rules as data.

A rule names what it looks for; its predicate answers with what it found, for the message. Of the rules for a use the
first that finds something is the forecast, so those that end the process come before those that only spoil the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from nextn.gguf_schema.nextn_architectures import ARCHITECTURE_NAMES
from nextn.validators import predicates as p
from nextn.validators import tensor_types as types
from nextn.validators.limits import LIMITS, says
from nextn.validators.limits import SOURCE as LIMITS_SOURCE
from nextn.validators.loader import Loader
from nextn.validators.loader_keys import Outcome
from nextn.validators.loader_qwen4exp import LOAD_QWEN4EXP, RATIO_CHECKS
from nextn.validators.loaders import LOAD_GLM5_NEXT, LOAD_STEP35


class Use(StrEnum):
    """What a file is to a runtime: its model, the draft of another one, or one of a pair."""

    MAIN = "main"
    DRAFT = "draft"
    PAIRED = "paired"


MAIN, DRAFT = frozenset({Use.MAIN}), frozenset({Use.DRAFT})
BOTH = MAIN | DRAFT
LOADS, WRONG, REFUSES, ABORTS, SEGFAULTS = (
    Outcome.LOADS,
    Outcome.WRONG,
    Outcome.REFUSES,
    Outcome.ABORTS,
    Outcome.SEGFAULTS,
)
STEP35, QWEN4EXP, GLM5_NEXT = "step35", "qwen4exp", "glm5-next"

# Where the rules are known from: files of llama.cpp b11549, and of other builds.
IN_STEP35, IN_QWEN4EXP, IN_GLM5_NEXT = (f"src/models/{name}.cpp" for name in ("step35", "qwen4exp", "glm5-next"))
NEXTN_FLAGS, GGML = "src/llama-model.cpp, nextn_flags", "ggml/src/ggml-cpu"
OLD, PULL = "src/models of llama.cpp 0c1e570", "pull request 28243 of llama.cpp"
TABLES = "docs/formats.md, Without it"


@dataclass(frozen=True)
class Rule:
    """What a runtime does with a loaded file of `architecture` (None: of any) in which `finds` finds something.

    `message` may hold `{found}`. Texts of assertions are the runtime's own.
    """

    architecture: str | None
    uses: frozenset[Use]
    finds: p.Predicate
    outcome: Outcome
    message: str
    source: str


def _assert(text: str) -> str:
    return f"GGML_ASSERT({text}) failed"


NO_HEADS = "context type MTP requested but model doesn't contain MTP layers; failed to create MTP context"
NO_TRUNK = "segmentation fault while the graph of the trunk is built: {found} is not in the file"
TIED = "{found} is missing: token_embd takes its place, which is right only for a tied model"
DENSE = "{found} has an indexer and no compress ratio: attention is dense past the budget"
MISSING = "{found} is missing: the loader does without it, the result is another one"

RULES: tuple[Rule, ...] = (
    Rule(None, DRAFT, p.no_head_declared, REFUSES, NO_HEADS, "src/llama-context.cpp, llama_init_from_model"),
    # step35
    Rule(STEP35, BOTH, p.no_sliding_block, ABORTS, _assert("hparams.is_swa_any()"), IN_STEP35),
    Rule(STEP35, DRAFT, p.no_eh_proj, ABORTS,
         _assert('layer.nextn.eh_proj && "MTP block missing nextn.eh_proj"'), IN_STEP35),
    Rule(STEP35, MAIN, p.no_trunk_weight, SEGFAULTS, NO_TRUNK, IN_STEP35),
    Rule(STEP35, DRAFT, p.no_output_for_head, ABORTS,
         _assert('head_w && "STEP35 MTP: missing LM head (nextn.shared_head_head or model.output)"'), IN_STEP35),
    Rule(STEP35, BOTH, p.lacks("ffn_up_exps", beside="ffn_gate_inp"), SEGFAULTS,
         "segmentation fault: {found} is not in the file", IN_STEP35),
    Rule(STEP35, BOTH, p.lacks("ffn_down_exps", beside="ffn_gate_inp"), SEGFAULTS,
         "segmentation fault: {found} is not in the file", IN_STEP35),
    Rule(STEP35, BOTH, p.lacks("ffn_up", beside="ffn_down"), ABORTS,
         _assert("ggml_are_same_shape(a, b)"), IN_STEP35),
    Rule(STEP35, BOTH, p.lacks("ffn_down", beside="ffn_up"), ABORTS, _assert("ggml_can_repeat(b, a)"), IN_STEP35),
    Rule(STEP35, BOTH, p.lacks("ffn_up_shexp", beside="ffn_down_shexp"), ABORTS,
         _assert("ggml_can_repeat(b, a)"), IN_STEP35),
    Rule(STEP35, BOTH, p.factors_not_f32, ABORTS, _assert("c->type == GGML_TYPE_F32"), GGML),
    # qwen4exp
    Rule(QWEN4EXP, DRAFT, p.several_heads, ABORTS,
         _assert('hparams.n_layer_nextn == 1 && "qwen4exp MTP has a single block"'), IN_QWEN4EXP),
    Rule(QWEN4EXP, DRAFT, p.no_eh_proj, ABORTS,
         _assert('layer.nextn.eh_proj && layer.nextn.enorm && layer.nextn.hnorm && layer.nextn.hc_head_norm && '
                 '"MTP block missing, load the model with MTP enabled"'), IN_QWEN4EXP),
    Rule(QWEN4EXP, MAIN, p.no_trunk_tensor, SEGFAULTS, NO_TRUNK, IN_QWEN4EXP),
    Rule(QWEN4EXP, BOTH, p.pools_unused, ABORTS, _assert("buffer"), IN_QWEN4EXP),
    # glm5-next
    Rule(GLM5_NEXT, DRAFT, p.several_heads, ABORTS,
         _assert('hparams.n_layer_nextn == 1 && "GLM5-Next MTP currently supports a single NextN block"'),
         IN_GLM5_NEXT),
    Rule(GLM5_NEXT, DRAFT, p.no_eh_proj, ABORTS,
         _assert('layer.nextn.eh_proj && layer.nextn.enorm && layer.nextn.hnorm && '
                 '"GLM5-Next MTP block is missing - load the model with MTP enabled"'), IN_GLM5_NEXT),
    Rule(GLM5_NEXT, MAIN, p.no_trunk_weight, SEGFAULTS, NO_TRUNK, IN_GLM5_NEXT),
    Rule(GLM5_NEXT, BOTH, p.latent_of_other_width, ABORTS, _assert("a->ne[0] == b->ne[0]"), IN_GLM5_NEXT),
    Rule(GLM5_NEXT, MAIN, p.no_selection_to_share, ABORTS,
         _assert('*prev_sel != nullptr && "shared indexer layer must follow a full indexer layer"'), IN_GLM5_NEXT),
    # All families: when the graph is built and computed
    Rule(None, BOTH, types.table_in(types.INTEGER_ROWS), ABORTS, "GGML_ASSERT(", GGML),
    Rule(QWEN4EXP, BOTH, p.no_rotation, ABORTS, _assert("n_dims <= ne0"), GGML),
    *(
        Rule(limit.family, MAIN if limit.main else BOTH, p.limited(limit), limit.outcome, says(limit, "{found}"),
             LIMITS_SOURCE)
        for limit in LIMITS
        if limit.outcome is not WRONG
    ),
    Rule(None, BOTH, types.table_in(types.NO_ROWS), ABORTS, "fatal error", GGML),
    Rule(None, BOTH, types.matrix_without_product, SEGFAULTS,
         "segmentation fault: {found}, a type without products", GGML),
    Rule(QWEN4EXP, BOTH, types.convolution_not_f32, ABORTS, _assert("src1->nb[0] == sizeof(float)"), GGML),
    Rule(None, BOTH, p.norm_not_f32, ABORTS,
         "binary_op: unsupported types: dst: f32, src0: f32, src1: {found}", GGML),
    Rule(None, MAIN, p.trunk_taken_for_absent, WRONG,
         "{found} is missing, so that the whole trunk counts as absent and is not checked", NEXTN_FLAGS),
    Rule(None, MAIN, p.trunk_block_taken_for_head, WRONG,
         "{found} counts as a head and is not run: nextn_predict_layers is too large", NEXTN_FLAGS),
    Rule(None, BOTH, p.tensor_missed, WRONG, MISSING, TABLES),
    *(
        Rule(limit.family, MAIN if limit.main else BOTH, p.limited(limit), WRONG, says(limit, "{found}"),
             LIMITS_SOURCE)
        for limit in LIMITS
        if limit.outcome is WRONG
    ),
    Rule(None, BOTH, p.key_missed, WRONG, "key {found} is missing: the default is another value",
         TABLES),
    Rule(STEP35, MAIN, p.no_rope_factors, WRONG,
         "{found} is missing: right only for a model that does not scale its rotary embedding", IN_STEP35),
    Rule(STEP35, BOTH, p.windows_too_few, WRONG,
         "{found}: blocks without an entry have full attention", IN_STEP35),
    Rule(STEP35, DRAFT, p.window_of_other_kind, WRONG,
         "{found} has the number of heads of the other kind of attention", IN_STEP35),
    Rule(QWEN4EXP, BOTH, p.output_tied, WRONG, TIED, IN_QWEN4EXP),
    Rule(QWEN4EXP, MAIN, p.no_ngrams, WRONG,
         "{found} is missing: the published model has n-gram embeddings", IN_QWEN4EXP),
    Rule(QWEN4EXP, BOTH, p.attention_dense, WRONG, DENSE, IN_QWEN4EXP),
    Rule(GLM5_NEXT, MAIN, p.indexer_unused, WRONG,
         "{found} has an indexer that attention.indexer.types says to share", IN_GLM5_NEXT),
)  # fmt: skip


@dataclass(frozen=True)
class Runtime:
    """A build: the architectures it knows, how it loads those with tables, and what it does then.

    `families` limits what is forecast at all. Architectures without a loader are judged by the common keys.
    """

    name: str
    loaders: Mapping[str, Loader] = field(default_factory=dict)
    rules: tuple[Rule, ...] = RULES
    known: frozenset[str] = ARCHITECTURE_NAMES
    families: frozenset[str] | None = None
    source: str = "src/models of llama.cpp b11549"


def rules_of(*own: Rule, without: tuple[p.Predicate, ...]) -> tuple[Rule, ...]:
    """Rules of another build: its own first, then those of b11549 that look for other things."""
    return (*own, *(rule for rule in RULES if rule.finds not in without))


def _without_ratio_checks(loader: Loader) -> Loader:
    kept: tuple[object, ...] = tuple(step for step in loader.reads if step not in RATIO_CHECKS)
    return replace(loader, reads=kept)  # type: ignore[arg-type]


def _no_graph(family: str, message: str, source: str) -> Rule:
    return Rule(family, DRAFT, p.any_file, REFUSES, message, source)


# Before the heads of two families came: their loaders look for no probe, and one of them for no head.
BEFORE_HEADS = Runtime(
    "llama.cpp@0c1e570",
    {
        STEP35: LOAD_STEP35,
        QWEN4EXP: _without_ratio_checks(replace(LOAD_QWEN4EXP, probes=False, heads=False)),
        GLM5_NEXT: replace(LOAD_GLM5_NEXT, probes=False),
    },
    rules_of(
        RULES[0],
        _no_graph(GLM5_NEXT, "NextN graph not implemented", OLD),
        _no_graph(QWEN4EXP, "this build has no graph for the head of qwen4exp", OLD),
        without=(p.pools_unused,),
    ),
    source=OLD,
)

BUNDLED = Runtime("llama.cpp@b11549", {STEP35: LOAD_STEP35, QWEN4EXP: LOAD_QWEN4EXP, GLM5_NEXT: LOAD_GLM5_NEXT})

# The pull request that forks carry: heads may borrow, and are dense whatever their ratio.
PULL_REQUEST = Runtime(
    "llama.cpp PR 28243",
    {QWEN4EXP: _without_ratio_checks(replace(LOAD_QWEN4EXP, whole_trunk_probe=True, borrows=True))},
    rules_of(
        RULES[0],
        Rule(QWEN4EXP, MAIN, p.no_embedding, REFUSES,
             "QWEN4EXP model has no token embedding to build an ordinary graph from", PULL),
        Rule(QWEN4EXP, MAIN, p.no_trunk_tensor, WRONG,
             "no trunk: an ordinary graph leads from the embedding straight to the output", PULL),
        Rule(QWEN4EXP, MAIN, p.output_tied, WRONG, TIED, PULL),
        Rule(QWEN4EXP, MAIN, p.attention_dense, WRONG, DENSE, PULL),
        without=(p.pools_unused, p.no_trunk_tensor, p.output_tied, p.attention_dense),
    ),
    families=frozenset({QWEN4EXP}),
    source=PULL,
)  # fmt: skip

# Names of the builds in which a family is unknown; they refuse it by its architecture.
OLDER = Runtime(
    "llama.cpp@older", known=frozenset(), families=frozenset({STEP35, QWEN4EXP, GLM5_NEXT}),
    source="src/llama-arch.cpp: a name that it does not list",
)  # fmt: skip

RUNTIMES: dict[str, Runtime] = {runtime.name: runtime for runtime in (BUNDLED, BEFORE_HEADS, PULL_REQUEST, OLDER)}
