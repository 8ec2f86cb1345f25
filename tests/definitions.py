"""The operations by their definition, also for one row."""

from __future__ import annotations

from torch import Tensor

from nextn.kernels.operations import REFERENCE

linear, dot = REFERENCE.linear, REFERENCE.dot
rms_norm, l2_norm, layer_norm = REFERENCE.rms_norm, REFERENCE.l2_norm, REFERENCE.layer_norm
softmax, sigmoid, silu, exp, softplus = (
    REFERENCE.softmax,
    REFERENCE.sigmoid,
    REFERENCE.silu,
    REFERENCE.exp,
    REFERENCE.softplus,
)
rope, swiglu = REFERENCE.rope, REFERENCE.gated


def attend(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """One query [heads, d] over all keys [n, kv_heads, d]: [heads, dv]."""
    return REFERENCE.attend(query[None], keys, values, [0], [len(keys)], scale)[0]


def causal_conv(x: Tensor, past: Tensor, weight: Tensor, dilation: int = 1) -> Tensor:
    """One row [channels] behind those before it."""
    return REFERENCE.causal_conv(x[None], past, weight, dilation)[0]


def delta_step(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """One step: the new state [heads, dk, dv], and what is read [heads, dv]."""
    parts = (part[None] for part in (query, key, value, decay, beta))
    read, states = REFERENCE.delta_rule(state, *parts, keep=1)
    return states[0], read[0]
