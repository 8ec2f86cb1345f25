"""Teacher forcing: what a trunk would say at each place of a text that is given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.runtime.greedy import UBATCH, forwards
from nextn.runtime.model import Trunk


def logits_before(trunk: Trunk, prompt: Sequence[int], tokens: Sequence[int], ubatch: int = UBATCH) -> Tensor:
    """The logits from which each of `tokens` behind a prompt would be chosen: [tokens, vocabulary]."""
    state = trunk.new_state()
    rows = [*prompt, *tokens[:-1]]
    found = []
    # The last row of the prompt is the first that one of the tokens is chosen from.
    before = len(prompt) - 1
    for hidden in forwards(trunk, state, rows, ubatch):
        if before < len(hidden):
            found.append(trunk.logits(hidden[max(before, 0) :]))
        before -= len(hidden)
    return torch.cat(found)[: len(tokens)]
