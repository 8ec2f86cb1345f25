"""What goes from row to row of a sequence, over rows of several sequences: convolutions and delta rules on trails."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.kernels.operations import Operations
from nextn.runtime.model import Chunk, spans


def convolved_rows(
    ops: Operations, x: Tensor, chunks: Sequence[Chunk], trail: str, weight: Tensor, dilation: int = 1
) -> Tensor:
    """Rows x [rows, channels] convolved with those before them in their sequences: [rows, channels].

    The trail holds the last (taps - 1) * dilation rows of a sequence; weight is [channels, taps].
    """
    results = []
    for chunk, span in spans(chunks):
        rows, held = x[span], chunk.state.trails[trail]
        past = held.at(chunk.first)
        results.append(ops.causal_conv(rows, past, weight, dilation))
        joined = torch.cat((past, rows))
        for i in range(max(0, len(rows) - held.kept_values), len(rows)):
            # Of its own memory: a part would keep all rows of a long chunk.
            held.put(chunk.first + i + 1, joined[i + 1 : i + 1 + len(past)].clone())
    return torch.cat(results)


def recurrent_rows(ops: Operations, inputs: Sequence[Tensor], chunks: Sequence[Chunk], trail: str) -> Tensor:
    """What rows read of the delta rule of their sequences, [rows, heads, dv]; the trail holds its state.

    The inputs are those of `delta_rule`: queries, keys, values, decays and betas of all rows.
    """
    results = []
    for chunk, span in spans(chunks):
        held = chunk.state.trails[trail]
        read, states = ops.delta_rule(held.at(chunk.first), *(each[span] for each in inputs), keep=held.kept_values)
        for behind, state in enumerate(reversed(states)):
            held.put(chunk.first + len(chunk) - behind, state)
        results.append(read)
    return torch.cat(results)
