"""What goes from row to row: convolutions with the rows before, and delta rules.

The state of a delta rule stays in registers over all rows, a program having some of a head's value channels; it is
rounded to the type that it is kept in behind each row, so that the rows may be cut anywhere.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nextn.kernels.reference import Reference, inverse_sqrt
from nextn.kernels.triton.functions import read, rows_of, sigmoid, silu, step_of, write
from nextn.kernels.triton.launch import INTERPRETED, ROW_TYPES, Build, kernel, launch

# Value channels that a program has of a head.
CHANNELS = 16


@triton.jit
def _held(
    x: tl.tensor, past: tl.tensor, place: tl.tensor, reach: tl.tensor, channels: tl.tensor, column: tl.tensor
) -> tl.tensor:
    """Channels of a row, counted from the oldest of the `reach` past ones on."""
    there, row = column < channels, place.to(tl.int64)
    if place < reach:
        value = read(past, row * channels + column, there)
    else:
        value = read(x, (row - reach) * channels + column, there)
    return value


@kernel
def convolution_kernel(
    x: tl.tensor,
    past: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    pasts: tl.tensor,
    rows: tl.tensor,
    kept: tl.tensor,
    channels: tl.tensor,
    dilation: tl.tensor,
    TAPS: tl.constexpr,
    ACTIVATED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """A row convolved, ACTIVATED or not; programs beyond the rows copy one row of the pasts behind the kept ones."""
    place = tl.program_id(0)
    reach = (TAPS - 1) * dilation
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < channels
    if place < rows:
        total = _held(x, past, place + reach, reach, channels, column) * read(weight, column * TAPS + TAPS - 1, there)
        for tap in tl.static_range(TAPS - 1):
            value = _held(x, past, place + tap * dilation, reach, channels, column)
            total += value * read(weight, column * TAPS + tap, there)
        write(out, place.to(tl.int64) * channels + column, silu(total) if ACTIVATED else total, there)
    else:
        copy = place - rows
        value = _held(x, past, rows - kept + 1 + copy // reach + copy % reach, reach, channels, column)
        write(pasts, copy.to(tl.int64) * channels + column, value, there)


@kernel
def delta_kernel(
    state: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    decay: tl.tensor,
    beta: tl.tensor,
    out: tl.tensor,
    states: tl.tensor,
    rows: tl.tensor,
    kept: tl.tensor,
    heads: tl.tensor,
    key_heads: tl.tensor,
    dk: tl.tensor,
    dv: tl.tensor,
    query_row: tl.tensor,
    value_row: tl.tensor,
    eps: tl.tensor,
    scale: tl.tensor,
    NORMED: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
) -> None:
    """Steps of a head's delta rule, for some of its value channels; rows of queries and keys are `query_row` apart.

    The decay is BY_CHANNEL of the keys, or one of the head. When NORMED, queries, which are scaled too, and keys are
    over the roots of their sums of squares, and betas go through sigmoid.
    """
    head = tl.program_id(0)
    k, v = tl.arange(0, DK), tl.program_id(1) * DV + tl.arange(0, DV)
    is_key, is_value = k < dk, v < dv
    both = is_key[:, None] & is_value[None, :]
    place = (head * dk + k[:, None]) * dv + v[None, :]
    key_at, value_at = head % key_heads * dk + k, head * dv + v
    held = read(state, place, both)
    for row in range(rows):
        asked, along = read(query, key_at, is_key), read(key, key_at, is_key)
        share = tl.load(beta + head).to(tl.float32)
        if NORMED:
            asked = asked / tl.sqrt(tl.sum(asked * asked, axis=0) + eps) * scale
            along = along / tl.sqrt(tl.sum(along * along, axis=0) + eps)
            share = sigmoid(share)
        if BY_CHANNEL:
            held *= read(decay, head * dk + k, is_key)[:, None]
        else:
            held *= tl.load(decay + head).to(tl.float32)
        missed = share * (read(value, value_at, is_value) - tl.sum(along[:, None] * held, axis=0))
        held += along[:, None] * missed[None, :]
        held = held.to(states.dtype.element_ty).to(tl.float32)
        write(out, value_at, tl.sum(asked[:, None] * held, axis=0), is_value)
        if row >= rows - kept:
            write(states, place, held, both)
            states += heads * dk * dv
        query += query_row
        key += query_row
        value += value_row
        beta += heads
        decay += heads * dk if BY_CHANNEL else heads
        out += heads * dv


class Recurrent(Reference):
    """Convolutions and delta rules."""

    def causal_conv(self, x: Tensor, past: Tensor, weight: Tensor, dilation: int = 1) -> Tensor:
        """As defined."""
        return _convolved(x, past, weight, dilation, 0, activated=False)[0]

    def short_convolution(
        self, x: Tensor, past: Tensor, weight: Tensor, dilation: int, keep: int
    ) -> tuple[Tensor, Tensor]:
        """As defined."""
        return _convolved(x, past, weight, dilation, min(keep, len(x)), activated=True)

    def delta_attention(
        self, state: Tensor, mixed: Tensor, decay: Tensor, beta: Tensor, key_heads: int, eps: float, keep: int
    ) -> tuple[Tensor, Tensor]:
        """As defined."""
        mixed, dk = rows_of(mixed), state.shape[1]
        parts = mixed, mixed[:, key_heads * dk :], mixed[:, 2 * key_heads * dk :]
        return _stepped(state, parts, decay, beta, key_heads, keep, eps)

    def delta_rule(
        self, state: Tensor, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, keep: int
    ) -> tuple[Tensor, Tensor]:
        """As defined."""
        parts = rows_of(query), rows_of(key), rows_of(value)
        return _stepped(state, parts, decay, beta, len(state), keep, None)


def _convolved(
    x: Tensor, past: Tensor, weight: Tensor, dilation: int, kept: int, *, activated: bool
) -> tuple[Tensor, Tensor]:
    """Rows convolved, and the pasts behind the last `kept` of them. ValueError unless the past is as long as needed."""
    (rows, channels), taps = x.shape, weight.shape[1]
    if past.shape != ((taps - 1) * dilation, channels):
        raise ValueError(f"past of shape {list(past.shape)}, want {[(taps - 1) * dilation, channels]}")
    x, past = rows_of(x), rows_of(past)
    out, pasts = x.new_empty(x.shape), x.new_empty(kept, *past.shape)
    block = step_of(channels)
    grid = rows + kept * len(past), triton.cdiv(channels, block)
    arguments = x, past, weight.contiguous(), out, pasts, rows, kept, channels, dilation
    launch(convolution_kernel, grid, *arguments, TAPS=taps, ACTIVATED=activated, BLOCK=block)
    return out, pasts


def _stepped(
    state: Tensor,
    parts: tuple[Tensor, Tensor, Tensor],
    decay: Tensor,
    beta: Tensor,
    key_heads: int,
    keep: int,
    eps: float | None,
) -> tuple[Tensor, Tensor]:
    """What rows read, and the last states; `parts` are queries, keys (both normed if there is an eps) and values."""
    query, key, value = parts
    rows, (heads, dk, dv) = len(query), state.shape
    kept = min(keep, rows)
    out, states = query.new_empty(rows, heads, dv), state.new_empty(kept, *state.shape)
    arguments = rows_of(state), query, key, value, rows_of(decay), rows_of(beta), out, states
    steps = query.stride(0), value.stride(0), eps or 0.0, inverse_sqrt(dk)
    constants = delta_constants(dk, dv, by_channel=decay.shape[-1] > 1, normed=eps is not None)
    grid = heads if rows else 0, triton.cdiv(dv, constants["DV"])
    launch(delta_kernel, grid, *arguments, rows, kept, heads, key_heads, dk, dv, *steps, **constants)
    return out, states


def delta_constants(dk: int, dv: int, *, by_channel: bool, normed: bool) -> dict[str, Any]:
    """What the kernel is compiled for."""
    channels = triton.next_power_of_2(dv)
    return {
        "NORMED": normed,
        "BY_CHANNEL": by_channel,
        "DK": triton.next_power_of_2(dk),
        "DV": channels if INTERPRETED else min(CHANNELS, channels),
    }


def _builds(x: str) -> tuple[Build, ...]:
    """The kernels for rows of a type: heads of 128 by 128, and four taps of some thousand channels."""
    pointers = dict.fromkeys(("state", "query", "key", "value", "decay", "beta", "out", "states"), x)
    sizes = dict.fromkeys(("rows", "kept", "heads", "key_heads", "dk", "dv", "query_row", "value_row"), "i32")
    delta = pointers | sizes | {"eps": "fp32", "scale": "fp32"}
    forms = {f"delta rule{' by channel' if each else ''}": (each, False) for each in (False, True)}
    forms |= {f"delta attention{' by channel' if each else ''}": (each, True) for each in (False, True)}
    names = dict.fromkeys(("x", "past", "weight", "out", "pasts"), x)
    conv = names | dict.fromkeys(("rows", "kept", "channels", "dilation"), "i32")
    return (
        *(
            Build(f"{name} {x}", delta_kernel, delta, delta_constants(128, 128, by_channel=each, normed=normed))
            for name, (each, normed) in forms.items()
        ),
        Build(f"convolution {x}", convolution_kernel, conv, {"TAPS": 4, "ACTIVATED": True, "BLOCK": step_of(8192)}),
    )


BUILDS = tuple(build for x in ROW_TYPES.values() for build in _builds(x))
