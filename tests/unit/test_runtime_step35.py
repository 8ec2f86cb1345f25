"""The parts of a Step model against hand computation."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from definitions import rope
from step35_models import PROMPTS, beside, model, with_alias

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import UsageError
from nextn.gguf_schema.reading import read_hyperparameters
from nextn.gguf_schema.shards import GGUFFile, open_gguf
from nextn.gguf_schema.step35 import STEP35
from nextn.kernels.operations import REFERENCE
from nextn.kernels.routing import Gate, Router
from nextn.runtime.model import Chunk
from nextn.runtime.models.step35 import Heads, Trunk
from nextn.runtime.models.step35_block import POSITION, Attention, Batch
from nextn.runtime.state import Rows, State
from nextn.runtime.weights import Weights

Float64 = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def files(converted: Callable[[str], dict[Role, Path]]) -> dict[Role, GGUFFile]:
    return {role: open_gguf(path) for role, path in converted("step35").items()}


@pytest.fixture(scope="module")
def exact(converted: Callable[[str], dict[Role, Path]]) -> tuple[Trunk, Heads]:
    return model(converted("step35")[Role.COMBINED], torch.float64)


# Limits: silu(10) = 9.99955, silu(-10) = -0.000454.


@pytest.mark.parametrize(
    ("gate", "up", "limit", "expected"),
    [
        (10.0, 3.0, 7.0, 21.0),  # The gate is limited behind silu …
        (10.0, 20.0, 7.0, 49.0),
        (10.0, -20.0, 7.0, -49.0),  # … and up on both sides, before the product.
        (-10.0, 20.0, 7.0, -10 / (1 + math.exp(10)) * 7.0),  # The gate is not limited from below.
        (0.5, 3.0, 7.0, 0.5 / (1 + math.exp(-0.5)) * 3.0),
        (10.0, 20.0, 0.0, 10 / (1 + math.exp(-10)) * 20.0),  # 0 is no limit …
        (10.0, 20.0, 1e-6, 10 / (1 + math.exp(-10)) * 20.0),  # … nor is what llama.cpp takes for 0.
    ],
)
def test_limits_of_the_gated_product(gate: float, up: float, limit: float, expected: float) -> None:
    held = REFERENCE.gated(
        *(torch.tensor([[value]], dtype=torch.float64) for value in (gate, up)), Gate(limit, behind=True)
    )
    assert held.item() == pytest.approx(expected, rel=1e-12)


# The router. Scores of these logits: 1/2, 3/4, 1/4, 1/2; with the bias 0.5, 0.25, 0.85, 0.5.
LOGITS = torch.tensor([0.0, math.log(3), -math.log(3), 0.0], dtype=torch.float64)
BIAS = torch.tensor([0.0, -0.5, 0.6, 0.0], dtype=torch.float64)


def test_the_bias_chooses_and_does_not_weigh() -> None:
    (chosen,), (weights,) = REFERENCE.sigmoid_router(LOGITS[None], BIAS, Router(2, scale=3.0))
    assert chosen.tolist() == [0, 2]  # Of 0 and 3, which are equal, the first.
    assert weights.tolist() == pytest.approx([3 * 0.5 / 0.75, 3 * 0.25 / 0.75])


def test_weights_that_are_not_normalized() -> None:
    _, (weights,) = REFERENCE.sigmoid_router(LOGITS[None], BIAS, Router(2, scale=3.0, normalizes=False))
    assert weights.tolist() == pytest.approx([1.5, 0.75])


def test_the_sum_of_weights_has_a_floor() -> None:
    _, (weights,) = REFERENCE.sigmoid_router(torch.full((1, 4), -40.0, dtype=torch.float64), BIAS, Router(2))
    assert weights.tolist() == pytest.approx([math.exp(-40) / 6.103515625e-5] * 2)


# Rotary positions.

# llama3's factors of Step-3.7-Flash, by public computation: base 5e6, 64 dimensions, 131072 positions.
MIDDLE = (1.1383628845, 1.3744993210, 1.5764362812, 1.7337294817, 1.8475685120, 1.9256492853, 1.9772508144)
FACTORS = torch.tensor([*[1.0] * 14, *MIDDLE, *[2.0] * 11, *[1.0] * 32], dtype=torch.float64)


@pytest.mark.parametrize("m", [0, 13, 17, 20, 31])
def test_a_full_layer_of_the_real_model_turns_half_of_a_head_by_llama3_angles(m: int) -> None:
    x = torch.zeros(1, 1, 128, dtype=torch.float64)
    x[..., m], x[..., 64:] = 1.0, 3.0
    turned = rope(x, torch.tensor([100_000]), 64, 5e6, FACTORS)[0, 0]
    angle = 100_000 * 5e6 ** (-2 * m / 64) / FACTORS[m].item()
    assert turned[m].item() == pytest.approx(math.cos(angle), abs=1e-9)
    assert turned[m + 32].item() == pytest.approx(math.sin(angle), abs=1e-9)
    assert turned[64:].tolist() == [3.0] * 64
    assert turned.count_nonzero() == 66


def llama3_factor(theta: float) -> float:
    """With the fixture's scaling: factor 2 over 2048 positions, low 1, high 32."""
    length = 2 * math.pi / theta
    if length < 2048 / 32:
        return 1.0
    if length > 2048:
        return 2.0
    t = (2048 / length - 1) / 31
    return 1 / ((1 - t) / 2 + t)


@pytest.mark.parametrize(("block", "turned", "base"), [(0, 16, 5e6), (1, 32, 1e4), (4, 16, 5e6)])
def test_keys_of_full_and_sliding_layers(exact: tuple[Trunk, Heads], block: int, turned: int, base: float) -> None:
    """One row alone attends to itself, so that its position shows in its keys and nowhere else."""
    trunk, _ = exact
    keys = []
    for position in (0, 1000):
        state = trunk.new_state()
        trunk.forward([Chunk(state, [42], positions=[position])])
        keys.append(state.rows[f"keys.{block}"].first(1)[0])
    still, moved = keys
    half = turned // 2
    theta = [base ** (-2 * m / turned) for m in range(half)]
    angle = torch.tensor([1000 * t / (1.0 if block == 1 else llama3_factor(t)) for t in theta], dtype=torch.float64)
    first, second = still[:, :half], still[:, half:turned]
    expected = torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), 1)
    assert torch.allclose(moved[:, :turned], expected, rtol=0, atol=2e-5)  # The factors are stored in float32.
    assert torch.equal(moved[:, turned:], still[:, turned:])


# The window.


def positions_only(*known: int) -> State:
    rows = Rows((), torch.int64)
    rows.write(0, torch.tensor(known, dtype=torch.int64))
    return State({POSITION: rows}, length=len(known), position=known[-1] + 1 if known else 0)


def test_a_window_of_four_is_the_row_and_three_before() -> None:
    batch = Batch([Chunk(positions_only(), range(7)), Chunk(positions_only(0, 1, 2), [5, 5])], 4, "cpu")
    assert batch.window_begins == [0, 0, 0, 0, 1, 2, 3, 0, 1]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 3, 4]


def test_a_window_counts_positions_and_not_rows() -> None:
    """Rows of an image share positions, and positions may be left out."""
    image = torch.zeros(4, 1)
    batch = Batch([Chunk(positions_only(0, 1, 2), embeddings=image, positions=[3, 3, 4, 9])], 4, "cpu")
    assert batch.window_begins == [0, 0, 1, 6]


def test_an_uncounted_row_is_seen_by_those_behind_it() -> None:
    state = positions_only(0, 1, 2)
    Batch([Chunk(state, [7])], 4, "cpu")
    assert Batch([Chunk(state, [8], start=4)], 4, "cpu").window_begins == [1]


@pytest.mark.parametrize(("block", "reach"), [(0, 40), (1, 16)])
def test_how_far_a_row_is_seen(files: dict[Role, GGUFFile], block: int, reach: int) -> None:
    """The window of the fixture is 16: the row itself and 15 behind it."""
    weights = Weights(files[Role.COMBINED])
    trunk = Trunk(weights)
    h: Any = read_hyperparameters(STEP35, weights.contents)[0]
    attention = Attention(weights, h, block)
    x = torch.randn(40, 128, generator=torch.Generator().manual_seed(3))
    changed = x.clone()
    changed[11] += 1
    seen = []
    for rows in (x, changed):
        chunk = Chunk(trunk.new_state(), [0] * 40)
        seen.append(attention(rows, Batch([chunk], h.attention_sliding_window, "cpu")))
    differs = (seen[0] != seen[1]).any(1).nonzero().flatten().tolist()
    assert differs == list(range(11, min(11 + reach, 40)))


# A head, again, in numpy: whole matrices at once, and a mask for what is not seen.


def norm(x: Float64, weight: Float64) -> Float64:
    normed: Float64 = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight
    return normed


def turn(x: Float64) -> Float64:
    """Rotate [rows, heads, 32] of rows at positions 0, 1, …"""
    angle = np.arange(len(x))[:, None, None] * 1e4 ** (-np.arange(16) / 16)
    a, b = x[..., :16], x[..., 16:]
    return np.concatenate((a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)), -1)


def head_in_numpy(file: GGUFFile, block: int, tokens: list[int], hidden: Float64) -> tuple[Float64, Float64]:
    """Hidden rows and logits of a head over all rows of a sequence: 6 query heads over 2, a window of 16."""

    def w(name: str) -> Float64:
        full = name if name in file.contents.tensors else f"blk.{block}.{name}.weight"
        shape = file.contents.tensors[full].ne[::-1]
        return np.frombuffer(file.read_tensor(full), "<f4").reshape(shape).astype(np.float64)

    e = w("token_embd.weight")[tokens]
    joined = (norm(e, w("nextn.enorm")), norm(hidden, w("nextn.hnorm")))
    x = np.concatenate(joined, 1) @ w("nextn.eh_proj").T
    a = norm(x, w("attn_norm"))
    rows = len(tokens)
    q = turn(norm((a @ w("attn_q").T).reshape(rows, 6, 32), w("attn_q_norm")))
    k = turn(norm((a @ w("attn_k").T).reshape(rows, 2, 32), w("attn_k_norm"))).repeat(3, axis=1)
    v = (a @ w("attn_v").T).reshape(rows, 2, 32).repeat(3, axis=1)
    behind = np.arange(rows)[:, None] - np.arange(rows)
    scores = np.where((behind >= 0) & (behind < 16), np.einsum("phd,jhd->hpj", q, k) / np.sqrt(32), -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    o = np.einsum("hpj,jhd->phd", scores / scores.sum(-1, keepdims=True), v)
    o = o / (1 + np.exp(-(a @ w("attn_gate").T)))[..., None]
    x = x + o.reshape(rows, 192) @ w("attn_output").T
    b = norm(x, w("ffn_norm"))
    gate = b @ w("ffn_gate").T
    x = x + (gate / (1 + np.exp(-gate)) * (b @ w("ffn_up").T)) @ w("ffn_down").T
    return x, norm(x, w("nextn.shared_head_norm")) @ w("nextn.shared_head_head").T


def test_heads_and_what_they_hand_on(files: dict[Role, GGUFFile], exact: tuple[Trunk, Heads]) -> None:
    """Each head takes the rows of the one before it, before that one's norm; the first takes the trunk's."""
    trunk, heads = exact
    tokens = PROMPTS["code"]
    rows = trunk.forward([Chunk(trunk.new_state(), tokens)])
    for head in range(heads.count):
        hidden = beside(rows)
        rows = heads.forward([Chunk(heads.new_state(), tokens, hidden=hidden)], head)
        wanted, logits = head_in_numpy(files[Role.COMBINED], 5 + head, tokens, hidden.numpy())
        assert np.allclose(rows.numpy(), wanted, rtol=0, atol=1e-10)
        assert np.allclose(heads.logits(rows, head).numpy(), logits, rtol=0, atol=1e-9)


def test_hidden_rows_of_the_trunk_are_those_before_its_norm(
    files: dict[Role, GGUFFile], exact: tuple[Trunk, Heads]
) -> None:
    trunk, _ = exact
    file = files[Role.COMBINED]
    hidden = trunk.forward([Chunk(trunk.new_state(), PROMPTS["short"])])
    weight = np.frombuffer(file.read_tensor("output_norm.weight"), "<f4").astype(np.float64)
    output = np.frombuffer(file.read_tensor("output.weight"), "<f4").reshape(512, 128).astype(np.float64)
    assert np.allclose(trunk.logits(hidden).numpy(), norm(hidden.numpy(), weight) @ output.T, rtol=0, atol=1e-9)


def test_catching_up_writes_what_the_whole_computation_writes(exact: tuple[Trunk, Heads]) -> None:
    trunk, heads = exact
    tokens = PROMPTS["code"]
    hidden = beside(trunk.forward([Chunk(trunk.new_state(), tokens)]))
    quick, whole = heads.new_state(), heads.new_state()
    for part in (slice(0, 20), slice(20, 33)):
        heads.catch_up([Chunk(quick, tokens[part], hidden=hidden[part])])
        chunk = Chunk(whole, tokens[part], hidden=hidden[part])
        for head in range(heads.count):
            heads.forward([chunk], head)
        chunk.advance()
    assert (quick.length, quick.position) == (33, 33)
    caches = quick.tensors()
    assert sorted(caches) == sorted(whole.tensors())
    assert all(torch.equal(caches[name], tensor) for name, tensor in whole.tensors().items())


# Embedding rows in the place of tokens.


def test_embedding_rows_of_tokens_are_as_good_as_the_tokens(
    files: dict[Role, GGUFFile], exact: tuple[Trunk, Heads]
) -> None:
    trunk, heads = exact
    tokens = PROMPTS["short"]
    table = Weights(files[Role.COMBINED], torch.float64).matrix("token_embd.weight")
    given: dict[str, Any] = {"embeddings": table.gather(tokens), "positions": range(len(tokens))}
    rows = trunk.forward([Chunk(trunk.new_state(), tokens)])
    assert torch.equal(trunk.forward([Chunk(trunk.new_state(), **given)]), rows)
    hidden = beside(rows)
    wanted = heads.forward([Chunk(heads.new_state(), tokens, hidden=hidden)], 0)
    assert torch.equal(heads.forward([Chunk(heads.new_state(), hidden=hidden, **given)], 0), wanted)


def test_an_embedding_table_of_its_own_is_preferred(files: dict[Role, GGUFFile]) -> None:
    """The output matrix stands in for one, which no published checkpoint has."""
    file = with_alias(files[Role.COMBINED], {"blk.5.nextn.embed_tokens.weight": "output.weight"})
    weights = Weights(file)
    heads = Heads(weights)
    hidden = torch.ones(2, 128)
    embeddings = weights.matrix("output.weight").gather([3, 4])
    wanted = heads.forward([Chunk(heads.new_state(), embeddings=embeddings, hidden=hidden)], 0)
    assert torch.equal(heads.forward([Chunk(heads.new_state(), [3, 4], hidden=hidden)], 0), wanted)
    others = heads.forward([Chunk(heads.new_state(), embeddings=embeddings, hidden=hidden)], 1)
    assert not torch.equal(heads.forward([Chunk(heads.new_state(), [3, 4], hidden=hidden)], 1), others)


@pytest.mark.parametrize("hidden", [None, torch.ones(1, 128)])
def test_a_head_wants_a_hidden_row_beside_each_token(exact: tuple[Trunk, Heads], hidden: torch.Tensor | None) -> None:
    _, heads = exact
    with pytest.raises(UsageError, match="hidden row"):
        heads.catch_up([Chunk(heads.new_state(), [3, 4], hidden=hidden)])
