"""What goes from row to row on the CPU: short convolutions, and delta rules."""

from __future__ import annotations

import math

import numba
import numpy as np
from torch import Tensor

from nextn.kernels.cpu import functions
from nextn.kernels.cpu.memory import compiled, float32, floats, fresh, int64, shared_by_threads, sized, whole
from nextn.kernels.cpu.norms import inverse_root
from nextn.kernels.reference import Reference


class Recurrent(Reference):
    """Convolutions and delta rules, with what is kept behind the last rows."""

    def short_convolution(
        self, x: Tensor, past: Tensor, weight: Tensor, dilation: int, keep: int
    ) -> tuple[Tensor, Tensor]:
        """As defined."""
        (rows, channels), taps = x.shape, weight.shape[1]
        reach = (taps - 1) * dilation
        x, past, weight = whole(x), sized(past, reach * channels), sized(weight, channels * taps)
        kept = min(rows, keep)
        out, pasts = fresh(rows, channels), fresh(kept, reach, channels)
        addresses = (x.data_ptr(), past.data_ptr(), weight.data_ptr(), out.data_ptr(), pasts.data_ptr())
        _convolve(*addresses, rows, channels, taps, dilation, kept)
        return out, pasts

    def delta_attention(
        self, state: Tensor, mixed: Tensor, decay: Tensor, beta: Tensor, key_heads: int, eps: float, keep: int
    ) -> tuple[Tensor, Tensor]:
        """As defined."""
        (heads, dk, dv), rows, channels = state.shape, mixed.shape[0], decay.shape[2]
        state, mixed = whole(state), sized(mixed, rows * (2 * key_heads * dk + heads * dv))
        decay, beta = sized(decay, rows * heads * (1 if channels == 1 else dk)), sized(beta, rows * heads)
        kept = min(rows, keep)
        out, states = fresh(rows, heads, dv), fresh(kept, heads, dk, dv)
        addresses = (state.data_ptr(), mixed.data_ptr(), decay.data_ptr(), beta.data_ptr())
        _delta(
            rows * heads * dk * dv,
            *(*addresses, out.data_ptr(), states.data_ptr()),
            *(rows, heads, key_heads, dk, dv, channels, kept),
            eps,
        )
        return out, states


@compiled
def _convolve(
    x_at: int,
    past_at: int,
    weight_at: int,
    out_at: int,
    pasts_at: int,
    rows: int,
    channels: int,
    taps: int,
    dilation: int,
    kept: int,
) -> None:
    reach, weight = (taps - 1) * dilation, floats(weight_at)
    for row in range(rows):
        out, x = floats(out_at + 4 * row * channels), floats(x_at + 4 * row * channels)
        for channel in range(channels):
            out[channel] = x[channel] * weight[channel * taps + taps - 1]
        for tap in range(taps - 1):
            # Counted from the oldest row of the past on.
            place = row + tap * dilation
            held = floats(past_at + 4 * place * channels if place < reach else x_at + 4 * (place - reach) * channels)
            for channel in range(channels):
                out[channel] = out[channel] + held[channel] * weight[channel * taps + tap]
        for channel in range(channels):
            out[channel] = functions.silu(out[channel])
    for copy in range(kept):
        first = rows - kept + copy + 1
        for i in range(reach):
            place = first + i
            held = floats(past_at + 4 * place * channels if place < reach else x_at + 4 * (place - reach) * channels)
            to = floats(pasts_at + 4 * (copy * reach + i) * channels)
            for channel in range(channels):
                to[channel] = held[channel]


@compiled
def _delta_head(
    head: int,
    state_at: int,
    mixed_at: int,
    decay_at: int,
    beta_at: int,
    out_at: int,
    states_at: int,
    rows: int,
    heads: int,
    key_heads: int,
    dk: int,
    dv: int,
    decays: int,
    kept: int,
    eps: float,
) -> None:
    """All rows of one head; its state goes through memory of its own until the first that is kept."""
    memory = np.empty(dk * dv + 2 * dk + dv, np.float32)
    memory_at = int64(memory.ctypes.data)
    query, key = memory[dk * dv :], memory[dk * dv + dk :]
    missed = floats(memory_at + 4 * (dk * dv + 2 * dk))
    width = (2 * key_heads + heads) * dk if dk == dv else 2 * key_heads * dk + heads * dv
    from_at, root = state_at + 4 * head * dk * dv, float32(1.0 / math.sqrt(dk))
    for row in range(rows):
        query_at = mixed_at + 4 * (row * width + head % key_heads * dk)
        key_at = query_at + 4 * key_heads * dk
        raw_query, raw_key = floats(query_at), floats(key_at)
        query_scale, key_scale = inverse_root(query_at, dk, 1, eps), inverse_root(key_at, dk, 1, eps)
        for i in range(dk):
            query[i], key[i] = raw_query[i] * query_scale * root, raw_key[i] * key_scale
        value = floats(mixed_at + 4 * (row * width + 2 * key_heads * dk + head * dv))
        decay, out = (
            floats(decay_at + 4 * (row * heads + head) * decays),
            floats(out_at + 4 * (row * heads + head) * dv),
        )
        beta = functions.sigmoid(floats(beta_at)[row * heads + head])
        place = row - (rows - kept)
        to_at = memory_at if place < 0 else states_at + 4 * (place * heads + head) * dk * dv
        for j in range(dv):
            missed[j] = float32(0)
        for i in range(dk):
            before, after = floats(from_at + 4 * i * dv), floats(to_at + 4 * i * dv)
            kept_part, k = decay[i if decays > 1 else 0], key[i]
            for j in range(dv):
                state = kept_part * before[j]
                after[j] = state
                missed[j] = missed[j] + k * state
        for j in range(dv):
            missed[j] = beta * (value[j] - missed[j])
            out[j] = float32(0)
        for i in range(dk):
            after, k, q = floats(to_at + 4 * i * dv), key[i], query[i]
            for j in range(dv):
                state = after[j] + k * missed[j]
                after[j] = state
                out[j] = out[j] + q * state
        from_at = to_at
    # The memory is read by its address: it must live to here.
    memory[0] = 0


@shared_by_threads
def _delta(
    state_at: int,
    mixed_at: int,
    decay_at: int,
    beta_at: int,
    out_at: int,
    states_at: int,
    rows: int,
    heads: int,
    key_heads: int,
    dk: int,
    dv: int,
    decays: int,
    kept: int,
    eps: float,
) -> None:
    for head in numba.prange(heads):
        _delta_head(
            *(head, state_at, mixed_at, decay_at, beta_at, out_at, states_at),
            *(rows, heads, key_heads, dk, dv, decays, kept),
            eps,
        )
