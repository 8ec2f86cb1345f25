"""Teacher forcing: what a trunk would say at each place of a text that is given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.runtime.greedy import UBATCH
from nextn.runtime.model import Chunk, Trunk


def logits_before(trunk: Trunk, prompt: Sequence[int], tokens: Sequence[int], ubatch: int = UBATCH) -> Tensor:
    """The logits from which each of `tokens` behind a prompt would be chosen: [tokens, vocabulary]."""
    state = trunk.new_state()
    rows = [*prompt, *tokens[:-1]]
    found = []
    for start in range(0, len(rows), ubatch):
        part = rows[start : start + ubatch]
        hidden = trunk.forward([Chunk(state, part)])
        # The last row of the prompt is the first that one of the tokens is chosen from.
        if start + len(part) >= len(prompt):
            found.append(trunk.logits(hidden[max(len(prompt) - 1 - start, 0) :]))
    return torch.cat(found)[: len(tokens)]
