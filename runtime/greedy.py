"""Greedy generation one token at a time: what every way to draft must reproduce."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor

from nextn.gguf_schema.errors import VerdictError
from nextn.runtime.model import Chunk, Trunk
from nextn.runtime.state import State

# Rows of a prompt in one forward.
UBATCH = 512


def forwards(trunk: Trunk, state: State, tokens: Sequence[int], ubatch: int = UBATCH) -> Iterator[Tensor]:
    """The hidden rows of tokens, `ubatch` of them at a time: [rows, hidden width] each."""
    for start in range(0, len(tokens), ubatch):
        yield trunk.forward([Chunk(state, tokens[start : start + ubatch])])


def prefill(trunk: Trunk, state: State, tokens: Sequence[int], ubatch: int = UBATCH) -> Tensor:
    """Read a prompt; the hidden row [1, hidden width] of its last token."""
    last: Tensor | None = None
    for hidden in forwards(trunk, state, tokens, ubatch):
        last = hidden[-1:]
    if last is None:
        raise ValueError("a prompt has at least one token")
    return last


def greedy(
    trunk: Trunk, prompt: Sequence[int], count: int, ends: Collection[int] = (), ubatch: int = UBATCH
) -> list[int]:
    """Up to `count` tokens behind a prompt, the end token included."""
    state = trunk.new_state()
    hidden = prefill(trunk, state, prompt, ubatch)
    tokens: list[int] = []
    while len(tokens) < count:
        tokens += best(trunk.logits(hidden))
        if tokens[-1] in ends or len(tokens) == count:
            break
        hidden = trunk.forward([Chunk(state, tokens[-1:])])
    return tokens


def best(logits: Tensor, subject: str = "model") -> list[int]:
    """The ids of the largest of each row of logits [rows, vocabulary]; of equal ones the lowest id.

    All rows are asked for at once: a device is waited for each time. VerdictError when one is no number; `subject` is
    what made the logits, for the message.
    """
    found = logits.argmax(dim=-1, keepdim=True)
    if not logits.gather(-1, found).isfinite().all():
        remedy = "nextn validate --deep tells which weights are no numbers"
        raise VerdictError("not-a-number", "the logits are not numbers", subject=subject, remedy=remedy)
    return [int(token) for token in found.flatten().tolist()]
