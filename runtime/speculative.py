"""Speculative decoding: heads draft, the trunk verifies, and the text is what the trunk alone would have said.

One loop for one or several sequences, with chained heads or a looped one (`drafting`), or without any. Source:
`draft-mtp` in common/speculative.cpp and tools/server/server-context.cpp of llama.cpp b11549.

Invariants, whenever a draft begins: `pending` is the trunk's hidden row of the last token in its state (I1); the heads'
state holds exactly the rows of the trunk's, made of true tokens and true hidden rows (I2); hidden rows of heads live
within one draft (I3); no draft changes what is said (I4).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from nextn.gguf_schema.errors import InputError, NextnError, VerdictError
from nextn.runtime.drafting import Draft, Drafter, Options
from nextn.runtime.greedy import best
from nextn.runtime.model import Chunk, Heads, Trunk
from nextn.runtime.runs import Round, Run
from nextn.runtime.segments import Item, Segment, check_positions, length_of, segments
from nextn.runtime.session import Session, load_session, open_session, rows_of, shifted

P = TypeVar("P")
T = TypeVar("T")
Heard = Callable[[Run, Session], None]


@dataclass
class _Task:
    """One sequence that is being continued by at most `left` tokens."""

    session: Session
    run: Run
    left: int
    ends: Collection[int]
    context: int | None

    @property
    def room(self) -> int:
        """Tokens that may still be said, of which the trunk says the last: a draft is one shorter."""
        if self.context is None:
            return self.left
        return min(self.left, self.context - len(self.session.tokens))

    @property
    def is_over(self) -> bool:
        """Whether nothing more may be said."""
        return self.run.stop == "eos" or self.room <= 0

    def say(self, tokens: Iterable[int]) -> None:
        """Take tokens up to the first end token, and no more than there is room for."""
        for token in tokens:
            if self.is_over:
                return
            self.run.tokens.append(token)
            self.session.tokens.append(token)
            self.left -= 1
            if token in self.ends:
                self.run.stop = "eos"


class Speculator:
    """A trunk with its heads; without heads, or drafts of no token, plain greedy decoding by the same loop.

    `heard` is called with a run and its session whenever the run has grown. VerdictError when the heads take hidden
    rows of another width than the trunk makes.
    """

    def __init__(
        self, trunk: Trunk, heads: Heads | None = None, options: Options | None = None, heard: Heard | None = None
    ) -> None:
        self.options = options or Options()
        self.trunk = trunk
        self.heads = heads if self.options.n_max > 0 else None
        self.heard = heard or (lambda _, __: None)
        if self.heads is not None and self.heads.hidden_width != trunk.hidden_width:
            message = f"takes hidden rows of {self.heads.hidden_width} values, the trunk gives {trunk.hidden_width}"
            raise VerdictError("pair-width", message, subject=self.heads.contents.name)
        self.drafter = Drafter(self.heads, self.options) if self.heads is not None else None

    @property
    def longest(self) -> int:
        """Tokens of a draft at most."""
        return self.drafter.longest if self.drafter else 0

    def open(self, count: int | None = None) -> Session:
        """An empty sequence, which can go back as far as drafts go ahead; they do not where `count` tokens end it."""
        longest = self.longest if count is None else min(self.longest, count)
        return open_session(self.trunk, self.heads, max(longest, 1))

    def load(self, path: Path) -> Session:
        """A sequence that was saved; InputError when it is none of this model."""
        return load_session(path, self.trunk, self.heads, max(self.longest, 1))

    def generate(
        self, prompts: Sequence[Sequence[Item]], count: int, ends: Collection[int] = (), names: Sequence[str] = ()
    ) -> list[Run]:
        """Up to `count` tokens behind each prompt, the end token included; all sequences go in the same forwards.

        Raises InputError for a prompt without rows, and for one that the context has no room behind.
        """
        sessions = [self.open(count) for _ in prompts]
        runs = [
            Run(name, length_of(prompt)) for name, prompt in zip(names or [""] * len(prompts), prompts, strict=True)
        ]
        start = time.monotonic()
        self.prefill(sessions, prompts, runs)
        middle = time.monotonic()
        self.resume(sessions, count, ends, runs)
        end = time.monotonic()
        for run in runs:
            run.seconds_prefill, run.seconds_decode = middle - start, end - middle
        return runs

    def prefill(self, sessions: Sequence[Session], prompts: Sequence[Sequence[Item]], runs: Sequence[Run]) -> None:
        """Read prompts, `ubatch` rows of each at a time; each session then has its next token.

        A session that has been continued reads what was said last first. Errors of heads are counted in `runs`.
        """
        waiting = []
        for session, prompt in zip(sessions, prompts, strict=True):
            unread: Sequence[Item] = session.tokens[session.trunk.length :]
            self._check_length(session, prompt)
            check_positions([*unread, *prompt], session.trunk.position)
            waiting.append(list(segments([*unread, *prompt], self.options.ubatch)))
        for session in sessions:
            del session.tokens[session.trunk.length :]
        for step in range(max(map(len, waiting), default=0)):
            active = [place for place, parts in enumerate(waiting) if step < len(parts)]
            parts = [(sessions[place], waiting[place][step]) for place in active]
            hidden = self._forward(parts)
            self._catch_up(parts, hidden, [runs[place] for place in active])
            for (session, part), rows in zip(parts, hidden, strict=True):
                session.pending = rows[-1].clone()
                session.tokens += part.ids
        for session in sessions:
            [session.last] = best(self.trunk.logits(session.pending[None]))

    def resume(self, sessions: Sequence[Session], count: int, ends: Collection[int], runs: Sequence[Run]) -> None:
        """Say up to `count` tokens more in each session, also behind an end token that was said before."""
        context = self.options.context
        tasks = [_Task(session, run, count, ends, context) for session, run in zip(sessions, runs, strict=True)]
        for task in tasks:
            task.run.stop = "limit"
            # What was sampled last was said, unless it came with the prompt, or behind an end token.
            if len(task.session.tokens) == task.session.trunk.length:
                task.say([_last(task.session)])
                self.heard(task.run, task.session)
        while active := [task for task in tasks if not task.is_over]:
            self._round(active)

    def _round(self, tasks: Sequence[_Task]) -> None:
        """Draft, verify, accept and roll back once in each sequence."""
        drafts = self._drafts(tasks)
        # Cut only now: heads draft as far as they may, whatever there is room for.
        batches = [[_last(t.session), *d.tokens[: t.room - 1]] for t, d in zip(tasks, drafts, strict=True)]
        before = [task.session.trunk.length for task in tasks]
        hidden = self._forward([(t.session, Segment(batch)) for t, batch in zip(tasks, batches, strict=True)])
        chosen = self._chosen(hidden)
        said = [accepted(c, batch[1:], t.ends) for t, c, batch in zip(tasks, chosen, batches, strict=True)]
        for task, length, tokens in zip(tasks, before, said, strict=True):
            task.session.trunk.truncate(length + len(tokens))
        hidden = [rows[: len(tokens)] for rows, tokens in zip(hidden, said, strict=True)]
        kept = [Segment(batch[: len(tokens)]) for batch, tokens in zip(batches, said, strict=True)]
        self._catch_up([(t.session, part) for t, part in zip(tasks, kept, strict=True)], hidden, [t.run for t in tasks])
        for task, tokens, rows in zip(tasks, said, hidden, strict=True):
            task.session.pending, task.session.last = rows[-1].clone(), tokens[-1]
        for task, draft, batch, tokens, length in zip(tasks, drafts, batches, said, before, strict=True):
            if submitted := len(batch) - 1:
                counts = (submitted, len(tokens) - 1, length)
                task.run.rounds.append(Round(tuple(draft.tokens), tuple(draft.probabilities), *counts))
            task.say(tokens)
            self.heard(task.run, task.session)

    def _drafts(self, tasks: Sequence[_Task]) -> list[Draft]:
        """A draft for each sequence; an empty one where there is no room for it, or where none can be made."""
        made = {id(task): Draft() for task in tasks}
        able = [task for task in tasks if task.room > 1 and self._in_step(task.session)]
        if self.drafter is not None and able:
            drafter = self.drafter

            def drafted(tasks: Sequence[_Task]) -> list[Draft]:
                return drafter.drafts([task.session for task in tasks], [task.room - 1 for task in tasks])

            drafts = self._tried(able, [task.run for task in able], drafted)
            for task, draft in zip(able, drafts, strict=True):
                if draft is not None and len(draft.tokens) >= self.options.n_min:
                    made[id(task)] = draft
        return [made[id(task)] for task in tasks]

    @staticmethod
    def _in_step(session: Session) -> bool:
        """Whether the heads have the rows of the trunk: they fall behind for good when they fail to catch up."""
        return session.drafting and session.heads is not None and session.heads.length == session.trunk.length

    def _chosen(self, hidden: Sequence[Tensor]) -> list[list[int]]:
        """The trunk's own token behind each of the hidden rows of each sequence. No random number is taken."""
        tokens = iter(best(self.trunk.logits(torch.cat(list(hidden)))))
        return [list(islice(tokens, len(rows))) for rows in hidden]

    def _forward(self, parts: Sequence[tuple[Session, Segment]]) -> list[Tensor]:
        """One forward of the trunk over rows of several sequences; the hidden rows of each."""
        hidden = self.trunk.forward([part.chunk(session.trunk) for session, part in parts])
        return rows_of([len(part) for _, part in parts], hidden)

    def _catch_up(
        self, parts: Sequence[tuple[Session, Segment]], hidden: Sequence[Tensor], runs: Sequence[Run]
    ) -> None:
        """Give the heads true rows with the trunk's hidden rows; sessions whose heads fail here draft no more."""
        if self.heads is None:
            return
        heads, chunks, behind = self.heads, [], []
        for (session, part), rows, run in zip(parts, hidden, runs, strict=True):
            # The trunk is ahead by these rows already.
            if session.drafting and session.heads and session.heads.length == session.trunk.length - len(part):
                chunks.append(part.chunk(session.heads, shifted(session, rows)))
                behind.append((session, run))

        def caught_up(chunks: Sequence[Chunk]) -> list[bool]:
            before = [chunk.state.length for chunk in chunks]
            try:
                heads.catch_up(chunks)
            except Exception:
                # Some may have been counted before it failed; they are tried again.
                for chunk, length in zip(chunks, before, strict=True):
                    chunk.state.truncate(length)
                raise
            return [True] * len(chunks)

        done = self._tried(chunks, [run for _, run in behind], caught_up, "; no draft from here on") if chunks else []
        for (session, _), fine in zip(behind, done, strict=True):
            session.drafting = fine is not None

    def _tried(
        self, parts: Sequence[P], runs: Sequence[Run], work: Callable[[Sequence[P]], list[T]], then: str = ""
    ) -> list[T | None]:
        """What heads make of the parts of several runs; None after an error, which is counted.

        When they fail at all parts together, each is tried alone, so that one sequence does not stop the others.
        """
        try:
            return [*work(parts)]
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            if isinstance(error, NextnError):
                told = f"{error.subject}: {error.message}" if error.subject else error.message
            if self.options.strict:
                remedy = "without --strict-draft the text goes on, and errors of heads are counted"
                raise VerdictError("draft-error", f"a head failed: {told}{then}", remedy=remedy) from error
        if len(runs) == 1:
            runs[0].draft_errors.append(told + then)
            return [None]
        alone = [self._tried([part], [run], work, then)[0] for part, run in zip(parts, runs, strict=True)]
        if None not in alone:
            for run in runs:
                run.draft_errors.append(told)
        return alone

    def _check_length(self, session: Session, prompt: Sequence[Item]) -> None:
        rows, context = len(session.tokens) + length_of(prompt), self.options.context
        if not length_of(prompt):
            raise InputError("empty-prompt", "a prompt has at least one token")
        if context is not None and rows >= context:
            raise InputError("prompt-too-long", f"{rows} rows leave no room in a context of {context}")


def accepted(chosen: Sequence[int], draft: Sequence[int], ends: Collection[int]) -> list[int]:
    """What is said of the trunk's tokens, one more than drafted: up to the first that the draft has not, or an end.

    An end token ends it only when the draft goes on behind it; the bonus token behind the last one counts as said.
    """
    said: list[int] = []
    for place, token in enumerate(chosen):
        said.append(token)
        if place == len(draft) or token != draft[place] or (token in ends and place < len(draft) - 1):
            break
    return said


def _last(session: Session) -> int:
    if session.last is None:
        raise ValueError("the prompt of the session is still to be read")
    return session.last
