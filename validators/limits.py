"""Values of keys that nothing can be computed with, as data: which, what is wanted instead, what b11549 does with them.

Findings and forecasts go by the same rows. What happens was seen in llama.cpp b11549 (tests/e2e/test_forecast.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from nextn.gguf_schema.architecture import MAX_BLOCKS, everywhere
from nextn.gguf_schema.glm5_next import Glm5Next
from nextn.gguf_schema.qwen4exp import Qwen4Exp
from nextn.gguf_schema.reading import ARCHITECTURES
from nextn.gguf_schema.step35 import Step35
from nextn.validators.loader_keys import Outcome

if TYPE_CHECKING:
    from nextn.gguf_schema.contents import Contents
    from nextn.validators.findings import Findings

REFUSES, ABORTS, WRONG, HANGS = Outcome.REFUSES, Outcome.ABORTS, Outcome.WRONG, Outcome.HANGS
STEP35, QWEN4EXP, GLM5_NEXT = "step35", "qwen4exp", "glm5-next"
SOURCE = "validators/limits.py: what llama.cpp b11549 was seen to do"
Test = Callable[[Any, Any], bool]

INT32_END = 2**31
LARGEST_EPSILON = 0.1
# Real models balance their streams 20 times.
MOST_ITERATIONS = 1000
# LLAMA_EXPERT_GATING_FUNC_TYPE_*: none, softmax, sigmoid, softmax of the weights, sqrt of softplus.
GATING_FUNCTIONS, SIGMOID = 5, 2


@dataclass(frozen=True)
class Limit:
    """Values that a key must not have: `bad` looks at one, or at each entry, beside the hyper-parameters.

    `message` holds the runtime's own words where it stops, else why the result is wrong. `concerns` says for which
    blocks it matters, `main` that it does only where the file is the model. Without a `family` the row is for every
    architecture that reads the key. Of the rows of a key the first that finds something counts.
    """

    key: str
    bad: Test
    want: str
    outcome: Outcome
    message: str
    concerns: Callable[[Any, int], bool] = everywhere
    family: str | None = None
    main: bool = False
    rule: str = "key-range"

    def applies(self, architecture: str) -> bool:
        """Whether files of an architecture are judged by this row."""
        if self.family is not None:
            return architecture == self.family
        table = ARCHITECTURES.get(architecture)
        return table is None or any(spec.name == self.key for spec in table.keys)

    def found(self, contents: Contents, h: Any, blocks: Iterable[int] | None = None) -> Any:
        """The first bad value: of a key, or of an array's entries for these blocks (else of all); else None."""
        value = contents.get(self.key)
        if value is None:
            return None
        items = value.items[:MAX_BLOCKS]
        if value.element is None:
            concerned = blocks is None or any(self.concerns(h, i) for i in blocks)
            held = items if concerned else ()
        else:
            held = items if blocks is None else [items[i] for i in blocks if i < len(items) and self.concerns(h, i)]
        return next((item for item in held if self._is_bad(item, h)), None)

    def _is_bad(self, item: Any, h: Any) -> bool:
        try:
            return not isinstance(item, str) and self.bad(item, h)
        except TypeError:  # a hyper-parameter that is not there, or an item of another type
            return False


def asserts(text: str) -> str:
    """The words of an assertion that fails."""
    return f"GGML_ASSERT({text}) failed"


def negative(x: Any, _: Any) -> bool:
    """Below zero, or no number."""
    return not x >= 0


def no_positive(x: Any, _: Any) -> bool:
    """Not a number above zero."""
    return not 0 < x < inf


def no_count(x: Any, _: Any) -> bool:
    """Zero, or a number that is negative as an INT32."""
    return not 0 < x < INT32_END


def no_epsilon(x: Any, _: Any) -> bool:
    """Nothing to keep a division apart from zero, or more than what is divided."""
    return not 0 < x < LARGEST_EPSILON


def full(h: Any, i: int) -> bool:
    """A block that rotates by `rope.freq_base`."""
    if isinstance(h, Step35):
        return not h.attention_sliding_window_pattern[i]
    return not isinstance(h, Qwen4Exp) or h.is_attention(i)


def slides(h: Any, i: int) -> bool:
    """A block with a window."""
    return not isinstance(h, Step35) or bool(h.attention_sliding_window_pattern[i])


def routes(h: Any, i: int) -> bool:
    """A block with routed experts."""
    return not isinstance(h, (Step35, Glm5Next)) or h.is_moe(i)


def indexed(h: Any, i: int) -> bool:
    """A block whose indexer has layer norms."""
    return not isinstance(h, Glm5Next) or h.has_indexer(i)


def says(limit: Limit, found: Any) -> str:
    """What happens, in the runtime's words where it stops: the message of a forecast."""
    if limit.outcome in (WRONG, HANGS):
        return f"{limit.key} is {found}, want {limit.want}: {limit.message}"
    return limit.message


def examine_limits(contents: Contents, h: Any, findings: Findings) -> None:
    """Add the keys with a value that nothing can be computed with; `h` is None without tables."""
    told: set[str] = set()
    for limit in LIMITS:
        found = limit.found(contents, h) if limit.applies(contents.architecture) and limit.key not in told else None
        if found is None:
            continue
        told.add(limit.key)
        end = "computes something else" if limit.outcome is WRONG else str(limit.outcome)
        message = f"is {found}, want {limit.want}: llama.cpp b11549 {end} ({limit.message})"
        key = f"{contents.architecture}.{limit.key}"
        findings.error(limit.rule, key, message, "take the value from the source: nextn convert", SOURCE)


def kinds(test: Callable[[Any, int], bool], family: type[Any]) -> Callable[[Any, int], bool]:
    """The condition of one family, without asking others."""
    return lambda h, i: isinstance(h, family) and test(h, i)


def ngram_width_differs(_: Any, h: Any) -> bool:
    """N-gram embeddings that are not as wide, side by side, as a row of the model."""
    heads = (h.ple_ngram_size - 1) * h.ple_heads_per_ngram
    return bool(heads * h.embedding_length_per_layer_input != h.embedding_length)


def sections_differ(x: Any, h: Any) -> bool:
    """Sections of the rotation, one for each axis, that are of another number of dimensions; one value is for all."""
    sections = h.rope_dimension_sections
    return len(set(sections)) > 1 and x != 2 * sum(sections)


EPSILON = "a small number above 0"
EPS = asserts("eps >= 0.0f")
WINDOW = "attention.sliding_window"
NO_ANGLES = "angles of the rotary embedding are no numbers"
ROTATED, KEY, LATENT = "rope.dimension_count", "attention.key_length", "attention.kv_lora_rank"
QWEN_ATTENTION = kinds(Qwen4Exp.is_attention, Qwen4Exp)
MLA, KDA, TRUNK = (kinds(test, Glm5Next) for test in (Glm5Next.is_mla, Glm5Next.is_kda, Glm5Next.is_trunk))
RMS, LAYER_NORM = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"

LIMITS: tuple[Limit, ...] = (
    Limit("context_length", no_count, "at least 1, and less than 2^31", ABORTS,
          asserts("n_ctx > 0 && n_prompt_tokens > 0"), main=True, rule="context-length"),
    # qwen4exp
    Limit("ple.heads_per_ngram", ngram_width_differs,
          "as many as make n-gram embeddings, side by side, as wide as embedding_length", ABORTS,
          asserts("ggml_can_mul_mat(a, b)"), kinds(Qwen4Exp.has_ngrams, Qwen4Exp), QWEN4EXP, main=True),
    Limit("attention.value_length", lambda x, h: x - h.attention_key_length != 0, f"what {KEY} is", ABORTS,
          asserts("hparams.n_embd_head_v() == hparams.n_embd_head_k()"), QWEN_ATTENTION, QWEN4EXP, main=True),
    Limit("attention.value_length", lambda x, h: x - h.attention_key_length != 0, f"what {KEY} is", ABORTS,
          asserts("n_embd_head == hparams.n_embd_head_k()"), QWEN_ATTENTION, QWEN4EXP),
    Limit("ssm.inner_size", lambda x, h: x != h.ssm_state_size * h.ssm_time_step_rank,
          "ssm.state_size times ssm.time_step_rank", ABORTS, asserts("head_v_dim * num_v_heads == d_inner"),
          kinds(Qwen4Exp.is_linear, Qwen4Exp), QWEN4EXP),
    Limit(ROTATED, lambda x, _: x == 0, "more than 0", HANGS, "no token comes: nothing is rotated", QWEN_ATTENTION,
          QWEN4EXP),
    Limit(ROTATED, lambda x, h: min(h.attention_key_length, h.attention_indexer_key_length) < x < INT32_END,
          f"no more than {KEY} and attention.indexer.key_length", ABORTS, asserts("n_dims <= ne0"), QWEN_ATTENTION,
          QWEN4EXP),
    Limit(ROTATED, lambda x, _: x % 2 == 1, "an even number", ABORTS, asserts("n_dims % 2 == 0"), QWEN_ATTENTION,
          QWEN4EXP),
    Limit(ROTATED, sections_differ, "twice the sum of rope.dimension_sections",
          WRONG, "other dimensions are rotated than the sections say", QWEN_ATTENTION, QWEN4EXP),
    # glm5-next
    Limit("hyper_connection.sinkhorn_iterations", no_count, "at least 1, and less than 2^31", ABORTS,
          asserts("n_iter > 0"), TRUNK, GLM5_NEXT),
    Limit("hyper_connection.sinkhorn_iterations", lambda x, _: x > MOST_ITERATIONS, f"at most {MOST_ITERATIONS}", HANGS,
          "no token comes: streams are balanced so many times", TRUNK, GLM5_NEXT),
    Limit("attention.head_count_kv", negative, "0 for linear and 1 for latent attention", REFUSES,
          "failed to allocate buffer", MLA, GLM5_NEXT),
    Limit("attention.head_count_kv", lambda x, _: x > 1, "0 for linear and 1 for latent attention", ABORTS,
          asserts("a->ne[0] == b->ne[0]"), MLA, GLM5_NEXT),
    Limit(KEY, lambda x, h: x == 0 and h.attention_kv_lora_rank > 0, f"what {LATENT} is", REFUSES,
          "failed to allocate buffer for kv cache", MLA, GLM5_NEXT),
    Limit(KEY, lambda x, h: x - h.attention_kv_lora_rank != 0, f"what {LATENT} is", ABORTS,
          asserts("a->ne[0] == b->ne[0]"), MLA, GLM5_NEXT),
    Limit("attention.indexer.top_k", lambda x, _: x == 0, "more than 0", WRONG, "nothing is selected", MLA, GLM5_NEXT),
    Limit("attention.indexer.kpool_select_tail", lambda x, _: x is False, "true", WRONG,
          "the first tokens, which fill no pool, see nothing", MLA, GLM5_NEXT),
    Limit("kda.gate_lower_bound", lambda x, _: not -inf < x < 0, "a number below 0", WRONG,
          "decays are not bounded from below", KDA, GLM5_NEXT),
    Limit("hyper_connection.epsilon", lambda x, _: not 0 <= x < LARGEST_EPSILON, EPSILON, WRONG,
          "streams are mixed by what is no number", TRUNK, GLM5_NEXT),
    # Any architecture
    Limit(RMS, negative, EPSILON, ABORTS, EPS),
    Limit(LAYER_NORM, negative, EPSILON, ABORTS, EPS, indexed),
    Limit("expert_gating_func", lambda x, _: not 0 <= x < GATING_FUNCTIONS, "0 to 4", ABORTS, "fatal error", routes),
    Limit(RMS, no_epsilon, EPSILON, WRONG, "rows are divided by what is 0 or too large"),
    Limit(LAYER_NORM, no_epsilon, EPSILON, WRONG, "rows are divided by what is 0 or too large", indexed),
    Limit("rope.freq_base", no_positive, "a number above 0", WRONG, NO_ANGLES, full),
    Limit("rope.freq_base_swa", no_positive, "a number above 0", WRONG, NO_ANGLES, slides),
    Limit("expert_weights_scale", lambda x, _: not 0 <= x < inf, "a number above 0", WRONG,
          "the experts' sum is negated, or no number", routes),
    Limit(WINDOW, no_count, "at least 1, and less than 2^31", WRONG, "sliding blocks see nothing", slides, STEP35),
    *(
        Limit("expert_gating_func", lambda x, _: x not in (0, SIGMOID), f"{SIGMOID} (sigmoid)", WRONG,
              "this family's routers are sigmoids: other weights, and other experts", routes, family)
        for family in (STEP35, GLM5_NEXT)
    ),
)  # fmt: skip
