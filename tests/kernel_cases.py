"""Every operation with random inputs, as tables: of rows that do not depend on each other, and of steps in a sequence.

A case draws its inputs, of which the first have a row for each of MOST rows, and says what an operation makes of them.
Values are drawn in float32, whatever the type they are then given in, so that types can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nextn.gguf_schema.types import TENSOR_TYPES
from nextn.kernels.operations import Operations
from nextn.kernels.routing import Gate, Router
from nextn.runtime.weights import Matrix

WIDTHS = (*range(1, 10), 16, 36)
MOST = max(WIDTHS)

Made = tuple[Tensor, ...]


@dataclass
class Draw:
    """Random values of a type; the same for a seed, whatever the type."""

    seed: int
    dtype: torch.dtype = torch.float32
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def __call__(self, *shape: int, times: float = 1.0) -> Tensor:
        return (times * torch.randn(shape, generator=self.generator)).to(self.dtype)

    def positive(self, *shape: int, least: float = 0.0) -> Tensor:
        return (least + torch.randn(shape, generator=self.generator).abs()).to(self.dtype)

    def share(self, *shape: int) -> Tensor:
        """Between 0 and 1."""
        return torch.rand(shape, generator=self.generator).to(self.dtype)

    def whole(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self.generator)

    def matrix(self, *shape: int) -> Matrix:
        """A weight in F32: [out, in], or several."""
        values = torch.randn(shape, generator=self.generator) / shape[-1] ** 0.5
        return Matrix("drawn", shape, TENSOR_TYPES["F32"], values.view(torch.uint8), self.dtype)


@dataclass(frozen=True)
class Case:
    """Inputs with a row for each of MOST rows, and an operation on some of these rows in their order."""

    rows: Made
    call: Callable[..., Tensor | Made]

    def __call__(self, ops: Operations, rows: Made) -> Made:
        made = self.call(ops, *rows)
        return made if isinstance(made, tuple) else (made,)


# For a draw and a length of vectors.
Maker = Callable[[Draw, int], Case]


def of_values(name: str, times: float = 3.0) -> Maker:
    return lambda draw, n: Case((draw(MOST, n, times=times),), lambda ops, x: getattr(ops, name)(x))


def of_heads(name: str, *more: float) -> Maker:
    return lambda draw, n: Case((draw(MOST, 3, n),), lambda ops, x: getattr(ops, name)(x, *more))


def _linear(draw: Draw, n: int) -> Case:
    weight = draw.matrix(1 + 7 * n % 40, n)
    return Case((draw(MOST, n),), lambda ops, x: ops.linear(x, weight))


def _linears(draw: Draw, n: int) -> Case:
    weights = draw.matrix(1 + 7 * n % 40, n), draw.matrix(3, n)
    return Case((draw(MOST, n),), lambda ops, x: ops.linears(x, weights))


def _linear_by_head(draw: Draw, n: int) -> Case:
    weight = draw.matrix(3, 1 + 7 * n % 40, n)
    return Case((draw(MOST, 3, n),), lambda ops, x: ops.linear_by_head(x, weight))


def _rms_norm(draw: Draw, n: int) -> Case:
    weight = draw(n)
    return Case((draw(MOST, n),), lambda ops, x: ops.rms_norm(x, weight, 1e-5))


def _rms_norm_by_head(draw: Draw, n: int) -> Case:
    weight = draw(3, n)
    return Case((draw(MOST, 3, n),), lambda ops, x: ops.rms_norm(x, weight, 1e-5))


def _layer_norm(draw: Draw, n: int) -> Case:
    weight, bias = draw(n), draw(n)
    return Case((draw(MOST, n),), lambda ops, x: ops.layer_norm(x, weight, bias, 0.1))


def _added_and_normed(draw: Draw, n: int) -> Case:
    weight = draw(n)
    return Case((draw(MOST, n), draw(MOST, n)), lambda ops, x, y: ops.added_and_normed(x, y, weight, 1e-5))


def _normed_gated_heads(draw: Draw, n: int) -> Case:
    weight, inputs = draw(n), (draw(MOST, 3, n), draw(MOST, 3 * n))
    return Case(inputs, lambda ops, x, gates: ops.normed_gated_heads(x, weight, 1e-5, gates))


def _gated_heads(gates: Callable[[int], int]) -> Maker:
    return lambda draw, n: Case((draw(MOST, 3, n), draw(MOST, gates(n))), lambda ops, x, g: ops.gated_heads(x, g))


def _add_gated(draw: Draw, n: int) -> Case:
    gate, inputs = draw(n), tuple(draw(MOST, n) for _ in range(3))
    return Case(inputs, lambda ops, x, y, inputs: ops.add_gated(x, y, inputs, gate))


def _rope(draw: Draw, n: int) -> Case:
    positions, dims, factors = draw.whole(100_000, MOST), 2 * ((n + 1) // 2), draw.positive(n, least=1.0)
    inputs = (draw(MOST, 3, dims + n % 3), positions)
    return Case(inputs, lambda ops, x, places: ops.rope(x, places, dims, 1e4, factors))


def _normed_and_rotated(draw: Draw, n: int) -> Case:
    """Each frequency has a position of its own; the last values are not rotated."""
    dims, weight = 2 * ((n + 1) // 2), draw(2 * ((n + 1) // 2) + 3)
    inputs = (draw(MOST, 2, dims + 3), draw.whole(100_000, MOST, dims // 2))
    return Case(inputs, lambda ops, x, places: ops.normed_and_rotated(x, weight, 1e-5, places, dims, 5e6))


def _attend(heads: int, kv_heads: int, keys_seen: int, share: float) -> Maker:
    """Keys and values are parts of wider rows; a few rows see nothing."""

    def made(draw: Draw, n: int) -> Case:
        held = draw(keys_seen, kv_heads, 2 * n + 1)
        keys, values = held[..., :n], held[..., n - 1 :]
        ends = draw.whole(keys_seen + 1, MOST)
        begins = (ends * share).long()
        return Case(
            (draw(MOST, heads, n), begins, ends),
            lambda ops, q, begins, ends: ops.attend(q, keys, values, begins.tolist(), ends.tolist(), n**-0.5),
        )

    return made


def _gated(form: Gate) -> Maker:
    inputs = lambda draw, n: (draw(MOST, n, times=3), draw(MOST, n, times=3))  # noqa: E731
    return lambda draw, n: Case(inputs(draw, n), lambda ops, gate, up: ops.gated(gate, up, form))


def _network(draw: Draw, n: int) -> Case:
    gate, up, down = draw.matrix(48, n), draw.matrix(48, n), draw.matrix(n, 48)
    return Case((draw(MOST, n),), lambda ops, x: ops.network(x, gate, up, down, Gate(0.5)))


def _experts(draw: Draw, n: int) -> Case:
    matrices = draw.matrix(5, 48, n), draw.matrix(5, 48, n), draw.matrix(5, n, 48)
    chosen = torch.stack([torch.randperm(5, generator=draw.generator)[:2].sort().values for _ in range(MOST)])
    inputs = (draw(MOST, n), chosen, draw.positive(MOST, 2))
    return Case(inputs, lambda ops, x, chosen, shares: ops.experts(x, chosen, shares, matrices, Gate(0.5, behind=True)))


def _sigmoid_router(router: Router) -> Maker:
    def made(draw: Draw, n: int) -> Case:
        bias = draw(24)
        return Case((draw(MOST, 24),), lambda ops, logits: ops.sigmoid_router(logits, bias, router))

    return made


def _softmax_router(draw: Draw, n: int) -> Case:
    return Case((draw(MOST, 6 + n),), lambda ops, logits: ops.softmax_router(logits, 5))


def _read_streams(draw: Draw, n: int) -> Case:
    norm = draw(n)
    return Case((draw(MOST, 4, n), draw(MOST, 4)), lambda ops, x, reads: ops.read_streams(x, reads, norm, 1e-5))


def _stream_weights(draw: Draw, n: int) -> Case:
    scale, base = draw(3), draw(24)
    return Case((draw(MOST, 24),), lambda ops, mixed: ops.stream_weights(mixed, scale, base, 20, 1e-6))


def _spread(draw: Draw, n: int) -> Case:
    inputs = (draw(MOST, 4, n), draw(MOST, n), draw(MOST, 4), draw(MOST, 4, 4))
    return Case(inputs, lambda ops, *parts: ops.spread(*parts))


def _hyper_connection_read(draw: Draw, n: int) -> Case:
    norm, down, up = draw(4, n), draw.matrix(16, 4 * n), draw.matrix(4 * n, 16)
    return Case((draw(MOST, 4, n),), lambda ops, x: ops.hyper_connection_read(x, norm, down, up, 1e-6))


def _hyper_connection_strengths(draw: Draw, n: int) -> Case:
    inject = draw.matrix(4, 4 * n)
    return Case((draw(MOST, 4 * n),), lambda ops, x: ops.hyper_connection_strengths(x, inject, 4))


def _hyper_connection_write(draw: Draw, n: int) -> Case:
    inputs = (draw(MOST, 4, n), draw(MOST, 4), draw(MOST, n))
    return Case(inputs, lambda ops, *parts: ops.hyper_connection_write(*parts))


def _decays(draw: Draw, n: int) -> Case:
    rates, bias = -draw.positive(n), draw(n)
    return Case((draw(MOST, n),), lambda ops, x: ops.decays(x, rates, bias))


def _channel_decays(bound: float | None) -> Maker:
    def made(draw: Draw, n: int) -> Case:
        bias, a = draw(3 * n), -draw.positive(3)
        return Case((draw(MOST, 3 * n),), lambda ops, f: ops.channel_decays(f, bias, a, bound))

    return made


def _log_decay(draw: Draw, n: int) -> Case:
    a = -draw.positive(3)
    return Case((draw(MOST, 3, n),), lambda ops, f: (ops.log_decay(f, a, None), ops.log_decay(f, a, -5.0)))


def _pooled_key(draw: Draw, n: int) -> Case:
    offsets, inputs = draw(4, n), (draw(MOST, 4, n), draw(MOST, 4, n))
    return Case(inputs, lambda ops, k, g: torch.stack([ops.pooled_key(*p, offsets) for p in zip(k, g, strict=True)]))


def _pool_scores(draw: Draw, n: int) -> Case:
    pooled, inputs = draw(37, n), (draw(MOST, 6, n), draw(MOST, 6))
    return Case(inputs, lambda ops, q, w: torch.stack([ops.pool_scores(*p, pooled) for p in zip(q, w, strict=True)]))


def _block_scores(draw: Draw, n: int) -> Case:
    keys = draw(37, n)
    return Case((draw(MOST, 6, n),), lambda ops, queries: torch.stack([ops.block_scores(q, keys) for q in queries]))


def _pooled(draw: Draw, n: int) -> Case:
    return Case((draw(MOST, 4, n),), lambda ops, keys: ops.pooled(keys.flatten(0, 1), 4))


# By the name of an operation, and what is particular about a case of it.
CASES: dict[str, Maker] = {
    "linear": _linear,
    "linears": _linears,
    "linear_by_head": _linear_by_head,
    "dot": lambda draw, n: Case((draw(MOST, n), draw(MOST, n)), lambda ops, a, b: ops.dot(a, b)),
    "rms_norm": _rms_norm,
    "rms_norm: heads": _rms_norm_by_head,
    "rms_norm: no weight": of_heads("rms_norm", None, 1e-6),  # type: ignore[arg-type]
    "l2_norm": of_heads("l2_norm", 1e-6),
    "layer_norm": _layer_norm,
    "added_and_normed": _added_and_normed,
    "normed_gated_heads": _normed_gated_heads,
    "gated_heads": _gated_heads(lambda n: 3 * n),
    "gated_heads: one gate": _gated_heads(lambda n: 3),
    "add_gated": _add_gated,
    "softmax": of_values("softmax"),
    "softmax: heads": of_heads("softmax"),
    "sigmoid": of_values("sigmoid"),
    "silu": of_values("silu"),
    "exp": of_values("exp"),
    "softplus": of_values("softplus", times=20),
    "rope": _rope,
    "normed_and_rotated": _normed_and_rotated,
    "attend": _attend(6, 2, 70, 0.0),
    "attend: window": _attend(6, 6, 150, 0.6),
    "attend: one key head": _attend(20, 1, 130, 0.0),
    "gated": _gated(Gate()),
    "gated: limited": _gated(Gate(0.6)),
    "gated: limited behind": _gated(Gate(0.6, behind=True)),
    "network": _network,
    "experts": _experts,
    "sigmoid_router": _sigmoid_router(Router(4, 2.5)),
    "sigmoid_router: groups": _sigmoid_router(Router(5, 1.0, False, groups=6, groups_used=3)),
    "softmax_router": _softmax_router,
    "sinkhorn": lambda draw, n: Case((draw(MOST, 4, 4),), lambda ops, x: ops.sinkhorn(x, 20, 1e-6)),
    "stream_weights": _stream_weights,
    "collapse": lambda draw, n: Case((draw(MOST, 4, n), draw(MOST, 4)), lambda ops, x, reads: ops.collapse(x, reads)),
    "read_streams": _read_streams,
    "spread": _spread,
    "hyper_connection_read": _hyper_connection_read,
    "hyper_connection_strengths": _hyper_connection_strengths,
    "hyper_connection_write": _hyper_connection_write,
    "ngram_gates": lambda draw, n: Case((draw(MOST, 4, n), draw(MOST, 4, n)), lambda ops, k, q: ops.ngram_gates(k, q)),
    "decays": _decays,
    "channel_decays": _channel_decays(None),
    "channel_decays: bounded": _channel_decays(-5.0),
    "log_decay": _log_decay,
    "pooled": _pooled,
    "pooled_key": _pooled_key,
    "pool_scores": _pool_scores,
    "block_scores": _block_scores,
}


@dataclass(frozen=True)
class Sequence:
    """Steps in a sequence: a state at first, inputs of MOST rows, and what gives results and the states behind rows."""

    state: Tensor
    rows: Made
    call: Callable[..., Made]


def _causal_conv(draw: Draw, n: int) -> Sequence:
    weight = draw(n, 4)

    def call(ops: Operations, past: Tensor, keep: int, x: Tensor) -> Made:
        held = torch.cat((past, x))
        return ops.causal_conv(x, past, weight, 2), torch.stack(list(_pasts(held, len(past), min(keep, len(x)))))

    return Sequence(draw(6, n), (draw(MOST, n),), call)


def _pasts(held: Tensor, reach: int, kept: int) -> Iterator[Tensor]:
    for behind in range(kept - 1, -1, -1):
        yield held[len(held) - behind - reach : len(held) - behind]


def _short_convolution(draw: Draw, n: int) -> Sequence:
    weight = draw(n, 4)
    return Sequence(
        draw(6, n), (draw(MOST, n),), lambda ops, past, keep, x: ops.short_convolution(x, past, weight, 2, keep)
    )


def _delta_rule(draw: Draw, n: int) -> Sequence:
    parts = (draw(MOST, 3, n), draw(MOST, 3, n, times=0.3), draw(MOST, 3, 5), draw.share(MOST, 3, 1))
    inputs = (*parts, draw.share(MOST, 3))
    return Sequence(draw(3, n, 5), inputs, lambda ops, state, keep, *rows: ops.delta_rule(state, *rows, keep=keep))


def _delta_attention(channels: bool) -> Callable[[Draw, int], Sequence]:
    """Six value heads, of which each third has a key head in common with it."""

    def made(draw: Draw, n: int) -> Sequence:
        decay = draw.share(MOST, 6, n if channels else 1)
        inputs = (draw(MOST, 2 * 3 * n + 6 * 5), decay, draw(MOST, 6))
        return Sequence(
            draw(6, n, 5), inputs, lambda ops, state, keep, *rows: ops.delta_attention(state, *rows, 3, 1e-6, keep)
        )

    return made


SEQUENCES: dict[str, Callable[[Draw, int], Sequence]] = {
    "causal_conv": _causal_conv,
    "short_convolution": _short_convolution,
    "delta_rule": _delta_rule,
    "delta_attention": _delta_attention(channels=False),
    "delta_attention: channels": _delta_attention(channels=True),
}
