"""What goes from row to row of a sequence, over rows of several sequences: convolutions and delta rules on trails."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nextn.kernels.operations import Operations
from nextn.runtime.model import Chunk, joined, spans
from nextn.runtime.state import Trail


def convolved_rows(
    ops: Operations, x: Tensor, chunks: Sequence[Chunk], trail: str, weight: Tensor, dilation: int = 1
) -> Tensor:
    """silu of rows x [rows, channels] convolved with those before them in their sequences: [rows, channels].

    The trail holds the last (taps - 1) * dilation rows of a sequence; weight is [channels, taps].
    """
    results = []
    for chunk, span in spans(chunks):
        held = chunk.state.trails[trail]
        convolved, pasts = ops.short_convolution(x[span], held.at(chunk.first), weight, dilation, held.kept_values)
        _put(held, chunk, pasts)
        results.append(convolved)
    return joined(results)


def recurrent_rows(
    ops: Operations, inputs: Sequence[Tensor], chunks: Sequence[Chunk], trail: str, key_heads: int, eps: float
) -> Tensor:
    """What rows read of the delta rule of their sequences, [rows, heads, dv]; the trail holds its state.

    The inputs are those of `delta_attention`: convolved rows, decays and betas of all rows.
    """
    results = []
    for chunk, span in spans(chunks):
        held = chunk.state.trails[trail]
        mixed, decay, beta = (each[span] for each in inputs)
        state, keep = held.at(chunk.first), held.kept_values
        read, states = ops.delta_attention(state, mixed, decay, beta, key_heads, eps, keep)
        _put(held, chunk, states)
        results.append(read)
    return joined(results)


def _put(trail: Trail, chunk: Chunk, values: Tensor) -> None:
    """Keep the values behind a chunk's last rows."""
    end = chunk.first + len(chunk)
    for length, value in enumerate(values.unbind(), end - len(values) + 1):
        trail.put(length, value)
