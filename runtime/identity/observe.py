"""Runs an engine in every configuration, in an order in which slow drift of the machine harms none of them more.

Source: cases I02 and I06: fresh runs, ABBA order, every configuration twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nextn.gguf_schema.errors import InputError, counted
from nextn.runtime.engines.engine import Asked, Continuation, Engine, Outcome
from nextn.runtime.engines.sound import sound
from nextn.runtime.identity.prompts import TOGETHER, Prompt

# Rows that a draft needs beyond the text: llama.cpp cuts drafts so far short of its context.
SPARE = 2


@dataclass(frozen=True)
class Settings:
    """What is asked: draft lengths, tokens behind each prompt, and the margin (logits) below which two tokens tie."""

    n_max: tuple[int, ...] = (1, 2, 3, 5)
    n_predict: int = 64
    bound: float = 0.01


@dataclass(frozen=True)
class Observation:
    """One prompt in one configuration; `order` as in the certificate, `together` sequences ran at once.

    `made` is None when the engine failed before it was done with the prompt.
    """

    prompt: Prompt
    n_max: int
    order: str
    together: int
    status: str
    message: str
    made: Continuation | None

    @property
    def tokens(self) -> tuple[int, ...]:
        """What was said."""
        return self.made.tokens if self.made else ()

    @property
    def is_first(self) -> bool:
        """Whether it was the first time of its configuration."""
        return self.order.endswith("1")

    @property
    def configuration(self) -> tuple[str, int, int]:
        """What must give the same tokens each time."""
        return (self.prompt.name, self.n_max, self.together)


def observe(
    engine: Engine,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    top: int = 0,
    vocabulary: int | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> list[Observation]:
    """All runs of an engine: without draft, each draft length, and all again backwards; some prompts also together.

    The plain runs tell `top` log-probabilities. An answer that cannot be, such as a token beyond `vocabulary`, is a
    failure of its run. InputError for a prompt that the engine has no room for, for an engine
    that fails without a draft, and for one that fails with every draft.
    """
    _check_room(engine, prompts, settings)
    schedule = [(0, "A1"), *((n, "B1") for n in settings.n_max), *((n, "B2") for n in reversed(settings.n_max))]
    found = []
    for n_max, order in [*schedule, (0, "A2")]:
        note(f"{engine.name}: {counted(len(prompts), 'prompt')}, {f'n_max {n_max}' if n_max else 'no draft'}")
        asked = Asked(n_max, settings.n_predict, top if n_max == 0 else 0)
        outcome = sound(engine.run([prompt.tokens for prompt in prompts], asked), len(prompts), vocabulary)
        found += _told(outcome, prompts, n_max, order, 1)
        group = [prompt for prompt in prompts if prompt.category == TOGETHER]
        if len(group) > 1 and (beside := engine.run_together([p.tokens for p in group], asked)) is not None:
            found += _told(sound(beside, len(group), vocabulary), group, n_max, order, len(group))
        _check_usable(engine, found, settings)
    return found


def _told(outcome: Outcome, prompts: Sequence[Prompt], n_max: int, order: str, together: int) -> list[Observation]:
    """What came of each prompt; an error that let all of them end is told with each."""
    done = len(outcome.continuations)
    made: list[Continuation | None] = [*outcome.continuations, *[None] * (len(prompts) - done)]
    status = outcome.status if done < len(prompts) else "ok"
    found = [
        Observation(prompt, n_max, order, together, "ok" if each else status, outcome.message, each)
        for prompt, each in zip(prompts, made, strict=True)
    ]
    return found if done == len(prompts) else [replace(o, message="") if o.made else o for o in found]


def _check_room(engine: Engine, prompts: Sequence[Prompt], settings: Settings) -> None:
    if engine.context is None:
        return
    room = engine.context - settings.n_predict - max(settings.n_max) - SPARE
    for prompt in prompts:
        if len(prompt.tokens) > room:
            message = f"has {len(prompt.tokens)} tokens; a context of {engine.context} has room for {max(room, 0)}"
            remedy = (
                f"with {settings.n_predict} tokens behind it and drafts of {max(settings.n_max)}: "
                "give a smaller -n or --n-max, or a larger --context"
            )
            raise InputError("prompt-too-long", message, subject=f"prompt {prompt.name}", remedy=remedy)


def _check_usable(engine: Engine, found: Sequence[Observation], settings: Settings) -> None:
    """Raise InputError when there is nothing that could be judged."""
    failed = [o for o in found if o.made is None and o.together == 1]
    if plain := [o for o in failed if o.n_max == 0]:
        where = f"{engine.name}, prompt {plain[0].prompt.name}"
        raise InputError("engine", f"without a draft: {plain[0].message}", subject=where)
    drafted = [o for o in found if o.n_max > 0 and o.together == 1]
    if {o.n_max for o in drafted} == set(settings.n_max) and all(o.made is None for o in drafted):
        raise InputError("engine", f"with a draft: {drafted[0].message}", subject=engine.name)
