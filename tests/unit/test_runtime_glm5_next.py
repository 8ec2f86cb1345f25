"""Operations of glm5-next on the vectors of its specification, and the rows that each row attends to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import cos, exp, sin
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from definitions import causal_conv, delta_step, l2_norm, linear, rms_norm
from edited_weights import edited, load
from torch import Tensor

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Value
from nextn.gguf_schema.glm5_next import GLM5_NEXT, Glm5Next
from nextn.gguf_schema.reading import read_hyperparameters
from nextn.gguf_schema.types import ValueType
from nextn.kernels.operations import REFERENCE
from nextn.kernels.reference import inverse_sqrt
from nextn.kernels.routing import Gate, Router, chosen_experts
from nextn.runtime.model import Chunk
from nextn.runtime.models.glm5_next import Trunk
from nextn.runtime.models.glm5_next_attention import Indexer
from nextn.runtime.state import State
from nextn.runtime.weights import Weights

Files = Callable[[str], dict[Role, Path]]
MLA_BLOCK = 3


def wave(f: Callable[[float], float], *shape: int) -> Tensor:
    """f(1 + k) where k counts row by row: how the specification gives inputs."""
    return torch.tensor([f(1.0 + k) for k in range(int(np.prod(shape)))], dtype=torch.float64).reshape(shape)


def values(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def assert_near(got: Tensor, *expected: float) -> None:
    torch.testing.assert_close(got.flatten(), values(*expected), atol=1e-6, rtol=0)


class Plain:
    """A matrix for `linear`."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix
        self.shape = tuple(matrix.shape)

    def blocks(self) -> Iterator[Tensor]:
        yield self._matrix


@pytest.mark.parametrize("rows", [1, 3])
def test_streams_are_read_mixed_and_written(rows: int) -> None:
    streams = wave(sin, 4, 3).repeat(rows, 1, 1)
    mixed = linear(rms_norm(streams.reshape(rows, -1), None, 1e-5), Plain(0.3 * wave(cos, 24, 12)))
    scale = values(1.0, 0.7, 1.3)
    reads, writes, passes = REFERENCE.stream_weights(mixed, scale, 0.1 * wave(sin, 24), iterations=20, eps=1e-6)
    assert_near(reads[-1], 0.507159, 0.808844, 0.912990, 0.925271)
    assert_near(writes[-1], 1.581862, 1.275286, 0.822027, 0.458612)
    assert_near(passes[-1, 0], 0.109184, 0.183542, 0.278376, 0.428895)
    assert_near(passes[-1, 1], 0.076903, 0.500269, 0.377036, 0.045790)
    assert_near(passes[-1, 2], 0.784767, 0.193464, 0.019760, 0.002014)
    assert_near(passes[-1, 3], 0.029144, 0.122724, 0.324828, 0.523300)
    assert_near(REFERENCE.collapse(streams, reads)[-1], -0.088920, -0.336449, -0.274648)
    new = REFERENCE.spread(streams, wave(cos, 3).repeat(rows, 1), writes, passes)[-1]
    assert_near(new[0], 1.388085, 0.114522, -1.264332)
    assert_near(new[1], 0.525219, -0.774850, -1.362525)
    assert_near(new[2], 0.229315, -0.755781, -1.046016)
    assert_near(new[3], 0.290675, -0.366068, -0.686250)


def test_two_steps_of_the_delta_rule() -> None:
    a = -values(0.3).exp()
    f = torch.stack([values(0.5, -1), values(0.25, -0.5)])[:, None]  # [rows, heads, channels]
    decay = REFERENCE.log_decay(f, a, -5.0)
    assert_near(decay[0], -3.313030, -1.029467)
    assert_near(decay[1], -2.917873, -1.686970)
    assert_near(REFERENCE.log_decay(f, a, None)[0], -1.314866, -0.422859)

    q, k = (
        torch.stack(rows)[:, None]
        for rows in ((values(1, 0.5), values(2, 1.5)), (values(0.3, -0.4), values(0.6, -0.7)))
    )
    q, k = l2_norm(q, 1e-6) * inverse_sqrt(2), l2_norm(k, 1e-6)
    v = torch.stack([values(0.2, 0.7), values(0.1, 0.6)])[:, None]
    beta = torch.sigmoid(values(0.4, 1.4))[:, None]
    state = torch.zeros((1, 2, 2), dtype=torch.float64)
    state, read = delta_step(state, q[0], k[0], v[0], decay[0].exp(), beta[0])
    assert_near(state, 0.071842, 0.251448, -0.095790, -0.335264)
    assert_near(read, 0.015146, 0.053010)
    state, read = delta_step(state, q[1], k[1], v[1], decay[1].exp(), beta[1])
    assert_near(state, 0.047742, 0.297610, -0.068898, -0.393407)
    assert_near(read, -0.002224, 0.001445)


def test_the_convolution_begins_with_nothing_before_it() -> None:
    past, got = torch.zeros((3, 1), dtype=torch.float64), []
    for row in (values(1), values(2), values(3)):
        got.append(causal_conv(row, past, values(0.1, 0.2, 0.3, 0.4)[None]))
        past = torch.cat((past[1:], row[None]))
    assert_near(torch.cat(got), 0.4, 1.1, 2.0)


def test_keys_of_a_pool_are_weighted_by_channel() -> None:
    offsets = torch.tensor([[0.1 * (j - channel) for channel in range(2)] for j in range(4)], dtype=torch.float64)
    pooled = REFERENCE.pooled_key(wave(sin, 4, 2), wave(cos, 4, 2), offsets)
    assert_near(pooled, 0.276784, 0.076519)
    queries = values(sin(2), sin(3), sin(4), sin(5)).reshape(2, 2)
    score = REFERENCE.pool_scores(queries, values(0.5, -0.25) * inverse_sqrt(4), pooled[None])
    assert_near(score, 0.065619)
    # The second head's product is negative, so that its weight does not count.
    assert_near(torch.mv(queries, pooled), 0.262477, -0.282847)


def test_experts_are_chosen_with_the_bias_and_weighted_without_it() -> None:
    probabilities = torch.sigmoid(wave(sin, 6))
    bias = values(-0.5, 0, 0, 0, 0.45, 0)
    (chosen,), (weights,) = REFERENCE.sigmoid_router(wave(sin, 6)[None], bias, Router(2, scale=2.5))
    assert chosen.tolist() == [1, 4]
    assert_near(weights, 1.800233, 0.699767)
    _, (weights,) = REFERENCE.sigmoid_router(wave(sin, 6)[None], bias, Router(2, scale=2.0, normalizes=False))
    assert torch.equal(weights, 2 * probabilities[chosen])


def test_experts_of_the_best_groups_only() -> None:
    """The group of the single best score loses to those whose two best are more together."""
    scores = values(0.9, 0.0, 0.0, 0.5, 0.6, 0.1, 0.4, 0.45, 0.3)
    assert chosen_experts(scores, Router(3)) == [0, 3, 4]
    assert chosen_experts(scores, Router(3, groups=3, groups_used=1)) == [3, 4, 5]
    assert chosen_experts(-scores, Router(2, groups=3, groups_used=1)) == [1, 2]
    assert chosen_experts(scores, Router(2, groups=3, groups_used=2)) == [0, 4]


def test_the_activation_is_cut_before_silu() -> None:
    gate, up = values(12)[None], values(-15)[None]
    assert_near(REFERENCE.gated(gate, up, Gate(10.0)), -99.995460)
    for no_limit in (0.0, 1e-6):
        assert_near(REFERENCE.gated(gate, up, Gate(no_limit)), -180 / (1 + exp(-12)))
    assert_near(REFERENCE.gated(-gate, up, Gate(2.0)), 24 * exp(-12) / (1 + exp(-12)))


def hyperparameters(weights: Weights) -> Glm5Next:
    return cast(Glm5Next, read_hyperparameters(GLM5_NEXT, weights.contents)[0])


def selected(weights: Weights, length: int, **changed: Any) -> tuple[list[list[int]], list[list[int]]]:
    """What each of so many random rows attends to, and the pools among all that are whole, best first by definition."""
    h = replace(hyperparameters(weights), **changed)
    indexer = Indexer(weights, h, MLA_BLOCK)
    generator = torch.Generator().manual_seed(length)
    x = torch.randn((length, h.embedding_length), generator=generator).to(weights.dtype)
    latent = torch.randn((length, h.attention_q_lora_rank), generator=generator).to(weights.dtype)
    chunk = Chunk(State(indexer.rows()), embeddings=x)
    indexer.write(x, [chunk])
    selection = indexer.select(x, latent, [chunk])
    seen = [list(range(t + 1)) if rows is None else rows.tolist() for t, rows in enumerate(selection)]
    return seen, [by_definition(weights, h, x.numpy(), latent[t].numpy(), t) for t in range(length)]


def by_definition(weights: Weights, h: Glm5Next, x: np.ndarray[Any, Any], latent: Any, t: int) -> list[int]:
    """Pools that row t sees, best first: the specification's formulas (3.4), written down again in numpy."""
    held = {
        part: weights.vector(f"blk.{MLA_BLOCK}.{name}").numpy()
        for part, name in {
            "q": "indexer.attn_q_b.weight",
            "k": "indexer.attn_k.weight",
            "norm": "indexer.k_norm.weight",
            "bias": "indexer.k_norm.bias",
            "w": "indexer.proj.weight",
            "gate": "indexer_compressor_gate.weight",
            "ape": "indexer_compressor_ape.weight",
        }.items()
    }
    heads, width, members = h.attention_indexer_head_count, h.attention_indexer_key_length, h.attention_indexer_kpool
    queries, raw, gates = (held["q"] @ latent).reshape(heads, width), x @ held["k"].T, x @ held["gate"].T
    centred = raw - raw.mean(-1, keepdims=True)
    keys = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * held["norm"] + held["bias"]
    importance = (held["w"] @ x[t]) * (heads * width) ** -0.5
    scores = []
    for pool in range((t + 1) // members):
        rows = slice(pool * members, (pool + 1) * members)
        by_channel = np.exp(gates[rows] + held["ape"])
        pooled = (by_channel / by_channel.sum(0) * keys[rows]).sum(0)
        scores.append(float(importance @ np.maximum(queries @ pooled, 0)))
    return sorted(range(len(scores)), key=lambda pool: -scores[pool])


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9, 17, 30])
def test_a_row_sees_the_best_whole_pools_and_the_tail(converted: Files, length: int) -> None:
    """With pools of 4 and a budget of 8 rows, at the lengths around whole pools and beyond the budget."""
    weights = load(converted("glm5-next")[Role.TRUNK])
    seen, best = selected(weights, length, attention_indexer_top_k=8)
    for t, rows in enumerate(seen):
        whole = (t + 1) // 4
        tail = list(range(4 * whole, t + 1))
        pools = sorted(best[t][:2])
        assert rows == [4 * pool + j for pool in pools for j in range(4)] + tail, t
    # The specification's examples: the tail alone, a pool without a tail, a pool and a tail, and a choice of two.
    shape = {0: (1, 1), 2: (3, 3), 3: (4, 0), 6: (7, 3), 16: (9, 1)}
    for t in shape.keys() & set(range(length)):
        assert (len(seen[t]), (t + 1) % 4) == shape[t]


def test_without_the_tail_rows_of_an_unfinished_pool_are_not_seen(converted: Files) -> None:
    weights = load(converted("glm5-next")[Role.TRUNK])
    seen, _ = selected(weights, 7, attention_indexer_kpool_select_tail=False)
    assert seen == [[], [], [], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    file = edited(weights, keys={"attention.indexer.kpool_select_tail": Value(ValueType.BOOL, False)})
    hidden = (trunk := Trunk(file)).forward([Chunk(trunk.new_state(), [425, 429, 220, 48, 84])])
    assert torch.isfinite(hidden).all()
