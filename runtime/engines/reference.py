"""The reference runtime as an engine, in this process; every run has fresh states."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from nextn.gguf_schema.errors import NextnError
from nextn.runtime.drafting import Options
from nextn.runtime.engines.engine import Asked, Continuation, Outcome, Prompts
from nextn.runtime.forced import logits_before
from nextn.runtime.model import Heads, Trunk
from nextn.runtime.runs import Run
from nextn.runtime.speculative import Speculator


@dataclass(frozen=True)
class Reference:
    """A trunk with its heads; `ends` are the tokens that end a text, `about` what else is told of it."""

    trunk: Trunk
    heads: Heads | None
    ends: Collection[int]
    context: int | None = None
    about: dict[str, str] = field(default_factory=dict)
    name: str = "reference"

    def describe(self) -> dict[str, str]:
        """Its version, and how it computes."""
        return {
            "version": f"torch {torch.__version__}",
            "vocabulary": str(self.trunk.vocab_size),
            "context": str(self.context or "any"),
            "kv_type": str(self.trunk.dtype).removeprefix("torch."),
            "device": str(self.trunk.device),
            **self.about,
        }

    def run(self, prompts: Prompts, asked: Asked) -> Outcome:
        """Continue each prompt by itself."""
        found: list[Continuation] = []
        for prompt in prompts:
            outcome = self.run_together([prompt], asked)
            found += outcome.continuations
            if not outcome.ok:
                return Outcome(outcome.status, outcome.message, tuple(found))
        return Outcome("ok", "", tuple(found))

    def run_together(self, prompts: Prompts, asked: Asked) -> Outcome:
        """Continue all prompts in the same forwards; an error of a head is one of the run."""
        options = Options(n_max=asked.n_max, context=self.context)
        try:
            runs = Speculator(self.trunk, self.heads, options).generate(prompts, asked.n_predict, self.ends)
            found = tuple(self._continuation(prompt, run, asked) for prompt, run in zip(prompts, runs, strict=True))
        except NextnError as error:
            return Outcome("error", str(error).replace("\n", "; "), ())
        errors = [error for run in runs for error in run.draft_errors]
        return Outcome("error" if errors else "ok", "; ".join(errors[:1]), found)

    def _continuation(self, prompt: Sequence[int], run: Run, asked: Asked) -> Continuation:
        return Continuation(
            tuple(run.tokens),
            run.stop,
            run.n_drafted,
            run.n_accepted,
            run.seconds_prefill,
            run.seconds_decode,
            top=self._top(prompt, run.tokens, asked.top) if asked.top else None,
            rounds=tuple((each.rows, each.submitted, each.accepted) for each in run.rounds),
        )

    def _top(
        self, prompt: Sequence[int], tokens: Sequence[int], count: int
    ) -> tuple[tuple[tuple[int, float], ...], ...]:
        """The best tokens at each place, from the same bits as the text was made of: rows do not depend on others."""
        best = torch.log_softmax(logits_before(self.trunk, prompt, tokens), dim=1).topk(count)
        return tuple(
            tuple(zip(ids, values, strict=True))
            for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        )

    def close(self) -> None:
        """Nothing: it lives as long as this process."""
