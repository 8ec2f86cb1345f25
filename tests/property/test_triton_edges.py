"""Triton's operations, interpreted, where blocks end, where scores are equal, and where there is nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from triton_cases import poisoned as poisoned
from triton_cases import same
from triton_device import DEVICE, error, noise

from nextn.kernels.operations import REFERENCE, operations
from nextn.kernels.routing import Gate, Router
from nextn.kernels.triton import attention
from nextn.kernels.triton.attention import PART
from nextn.kernels.triton.functions import MOST_COLUMNS

ops = operations("triton")
WIDE = MOST_COLUMNS + 5


def given(values: object) -> Tensor:
    return torch.tensor(values, device=DEVICE)


def exact(*parts: Tensor) -> list[Tensor]:
    return [part.double().cpu() for part in parts]


def test_of_equal_scores_the_first_are_chosen_in_ascending_order() -> None:
    scores = given([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0]])
    assert ops.softmax_router(scores, 3)[0].tolist() == [[1, 2, 3]]
    assert ops.softmax_router(torch.zeros(1, 200, device=DEVICE), 3)[0].tolist() == [[0, 1, 2]]
    assert ops.softmax_router(-scores, 6)[0].tolist() == [[0, 1, 2, 3, 4, 5]]
    zeros = torch.zeros(6, device=DEVICE)
    assert ops.sigmoid_router(scores, zeros, Router(4))[0].tolist() == [[1, 2, 3, 4]]
    # The bias makes equal what is not: the shares are those of the scores without it.
    bias = given([0.5, 0.0, 0.0, 0.0, 0.0, 0.0]) - scores[0].sigmoid()
    chosen, shares = ops.sigmoid_router(scores, bias, Router(2, normalizes=False))
    assert chosen.tolist() == [[0, 1]]
    assert shares[0].tolist() == pytest.approx(scores[0, :2].sigmoid().tolist())


def test_equal_groups_and_groups_of_one() -> None:
    # However low the bias is.
    low, grouped = torch.full((6,), -50.0, device=DEVICE), given([[2.0, 1.0, 0.0, 0.0, 1.0, 2.0]])
    route = lambda router: ops.sigmoid_router(grouped, low, router)[0].tolist()  # noqa: E731
    assert route(Router(2, groups=3, groups_used=1)) == [[0, 1]]
    assert route(Router(3, groups=3, groups_used=2)) == [[0, 1, 5]]
    assert route(Router(2, groups=6, groups_used=2)) == [[0, 5]]
    # One of a group that is not looked at comes behind all that are, the first of them first.
    assert route(Router(3, groups=3, groups_used=1)) == [[0, 1, 2]]


def test_weights_of_experts_with_no_score_to_speak_of() -> None:
    logits = torch.full((1, 4), -100.0, device=DEVICE)
    chosen, shares = ops.sigmoid_router(logits, torch.zeros(4, device=DEVICE), Router(2))
    assert (chosen.tolist(), shares.tolist()) == ([[0, 1]], [[0, 0]])


def test_an_expert_whose_score_is_no_number_is_not_passed_over() -> None:
    logits = given([[0.0, 1.0, math.nan, 2.0]])
    chosen, shares = ops.sigmoid_router(logits, torch.zeros(4, device=DEVICE), Router(2))
    assert chosen.tolist() == [[2, 3]]
    assert shares.isnan().all()


@pytest.mark.parametrize("bad", [Router(7), Router(1, groups=4), Router(1, groups=2, groups_used=3)])
def test_routers_that_ask_for_more_than_there_is(bad: Router) -> None:
    with pytest.raises(ValueError, match="cannot be routed"):
        ops.sigmoid_router(torch.zeros(1, 6, device=DEVICE), torch.zeros(6, device=DEVICE), bad)


# Rows that see nothing, one key, all but one of a part, a part, one more, and three parts; from several keys on.
REACH = tuple((begin, begin + seen) for seen in (0, 1, PART - 1, PART, PART + 1, 2 * PART + 9) for begin in (0, 5))
KEYS = 2 * PART + 20


def attended(query: Tensor, keys: Tensor, values: Tensor, some: slice = slice(None)) -> Tensor:
    begins, ends = zip(*REACH[some], strict=True)
    return ops.attend(query[some], keys, values, begins, ends, 0.3)


@pytest.mark.parametrize(("heads", "kv_heads", "dtype"), [(2, 2, torch.float32), (3, 1, torch.bfloat16)])
def test_attention_at_the_ends_of_parts(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    query, keys = noise(0, len(REACH), heads, 8, dtype=dtype), noise(1, KEYS, kv_heads, 8, dtype=dtype)
    values = noise(2, KEYS, kv_heads, 5, dtype=dtype)
    found = attended(query, keys, values)
    begins, ends = zip(*REACH, strict=True)
    expected = REFERENCE.attend(*exact(query, keys, values), begins, ends, 0.3)
    assert found[:2].count_nonzero() == 0
    assert error(found, expected) < (1e-6 if dtype is torch.float32 else 1e-2)
    for i in range(2, len(REACH), 3):
        assert torch.equal(attended(query, keys, values, slice(i, i + 1))[0], found[i])


def test_attention_in_turns_when_there_is_no_memory_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    query, keys = noise(3, len(REACH), 2, 4), noise(4, KEYS, 1, 4)
    at_once = attended(query, keys, keys)
    # Three rows: two heads of three parts, with four values in float32.
    monkeypatch.setattr(attention, "HELD_BYTES", 3 * 2 * 3 * 4 * 4)
    assert torch.equal(attended(query, keys, keys), at_once)


def test_keys_out_of_sight_add_nothing() -> None:
    query, keys, reach = noise(5, 1, 2, 4), noise(6, KEYS, 2, 4), ([5], [PART + 9])
    spoiled = torch.full_like(keys, torch.nan)
    spoiled[5 : PART + 9] = keys[5 : PART + 9]
    assert torch.equal(ops.attend(query, keys, keys, *reach, 1.0), ops.attend(query, spoiled, spoiled, *reach, 1.0))
    spoiled[PART + 8] = torch.nan
    assert ops.attend(query, spoiled, spoiled, *reach, 1.0).isnan().all()


def test_keys_that_weigh_nothing_at_all() -> None:
    """A whole part of scores of minus infinity, beside one that has others; and nothing else."""
    query, keys, values = torch.ones(1, 1, 4, device=DEVICE), noise(7, PART + 3, 1, 4), noise(8, PART + 3, 1, 4)
    keys[:PART] = -math.inf
    seen = ops.attend(query, keys, values, [PART], [PART + 3], 1.0)
    # The same keys, now in the second part.
    assert error(ops.attend(query, keys, values, [0], [PART + 3], 1.0), seen.double().cpu()) < 1e-6
    assert ops.attend(query, keys, values, [0], [PART], 1.0).isnan().all()


def test_more_heads_of_a_key_head_than_a_program_takes() -> None:
    query, latents = noise(9, 1, attention.HEADS + 2, 8), noise(10, 9, 1, 8)
    found = ops.attend(query, latents, latents, [1], [9], 0.5)
    assert error(found, REFERENCE.attend(*exact(query, latents, latents), [1], [9], 0.5)) < 1e-6


@pytest.mark.parametrize(("begin", "end"), [(0, 4), (-1, 2)])
def test_attention_reads_no_key_that_is_not_there(begin: int, end: int) -> None:
    query, keys = torch.ones(1, 1, 4, device=DEVICE), torch.ones(3, 1, 4, device=DEVICE)
    with pytest.raises(ValueError, match="attend"):
        ops.attend(query, keys, keys, [begin], [end], 1.0)


@pytest.mark.parametrize("position", [0, 1, 262_143, 1_048_575])
@pytest.mark.parametrize(("dims", "factored"), [(8, False), (6, True)])
def test_rotation_at_far_positions(position: int, dims: int, factored: bool) -> None:
    x, positions = noise(11, 1, 2, 8), given([position])
    factors = 1 + noise(12, 4).abs() if factored else None
    found = ops.rope(x, positions, dims, 1e4, factors)
    expected = REFERENCE.rope(x.double().cpu(), positions.cpu(), dims, 1e4, None if factors is None else factors.cpu())
    torch.testing.assert_close(found.double().cpu(), expected, rtol=0, atol=5e-7)
    assert torch.equal(found[..., dims:], x[..., dims:])


def test_rotation_by_a_position_for_each_frequency() -> None:
    x, positions = noise(13, 2, 1, 12), given([[0, 5, 70], [9, 9, 100_000]])
    expected = REFERENCE.rope(x.double().cpu(), positions.cpu(), 6, 5e6)
    assert error(ops.rope(x, positions, 6, 5e6), expected) < 1e-6
    # As a model has them: some columns of a wider tensor, in an order of its own.
    axes = torch.stack([positions[:, 1], positions[:, 0], positions[:, 2]], dim=1)
    assert torch.equal(ops.rope(x, axes[:, [1, 0, 2]], 6, 5e6), ops.rope(x, positions, 6, 5e6))


def test_quarters_of_a_turn() -> None:
    """Angles in all quadrants and at their borders: pairs of one frequency, 1, at whole positions."""
    positions = torch.arange(0, 60, device=DEVICE)
    x = given([1.0, 0.0]).repeat(60, 1, 1)
    expected = torch.stack((positions.double().cos(), positions.double().sin()), dim=-1)[:, None].cpu()
    torch.testing.assert_close(ops.rope(x, positions, 2, 1e4).double().cpu(), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("dims", [3, 10])
def test_values_that_cannot_be_paired(dims: int) -> None:
    with pytest.raises(ValueError, match="rotated in pairs"):
        ops.rope(noise(0, 1, 1, 8), given([0]), dims, 1e4)


WIDE_CALLS: dict[str, Callable[[Any, Callable[..., Tensor]], Any]] = {
    "dot": lambda form, x: form.dot(x(0), x(1)),
    "rms_norm": lambda form, x: form.rms_norm(x(0), x(1)[0], 1e-5),
    "layer_norm": lambda form, x: form.layer_norm(x(0), x(1)[0], x(2)[0], 1e-5),
    "added_and_normed": lambda form, x: form.added_and_normed(x(0), x(1), x(2)[0], 1e-5)[1],
    "softmax": lambda form, x: form.softmax(x(0)),
    "add_gated": lambda form, x: form.add_gated(x(0), x(1), x(2), x(3)[0] / 40),
    "silu": lambda form, x: form.silu(x(0)),
    "gated": lambda form, x: form.gated(x(0), x(1), Gate(0.5)),
    "gated_heads": lambda form, x: form.gated_heads(x(0)[:, None], x(1)[:, :1]),
    "channel_decays": lambda form, x: form.channel_decays(x(0), x(1)[0], -x(2)[0, :1].abs(), None),
    "read_streams": lambda form, x: form.read_streams(x(0, 2), x(1)[:, :2], x(2)[0], 1e-5),
    "spread": lambda form, x: form.hyper_connection_write(x(0, 2), x(1)[:, :2], x(2)),
    "short_convolution": lambda form, x: form.short_convolution(x(0), x(1, 2)[0], x(2, 2)[0].T, 2, 1)[0],
    "pooled": lambda form, x: form.pooled(x(0, 2)[0], 2),
}


@pytest.mark.parametrize("name", WIDE_CALLS)
def test_rows_that_a_program_does_not_take_at_once(name: str) -> None:
    call = WIDE_CALLS[name]
    found = call(ops, lambda seed, *parts: noise(seed, 1, *parts, WIDE))
    expected = call(REFERENCE, lambda seed, *parts: noise(seed, 1, *parts, WIDE).double().cpu())
    assert error(found, expected) < 1e-6


SWEEP = torch.cat((torch.linspace(-80, 80, 1601), torch.linspace(-1, 1, 401)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exp", torch.exp),
        ("sigmoid", torch.sigmoid),
        ("silu", torch.nn.functional.silu),
        ("softplus", lambda x: torch.nn.functional.softplus(x, threshold=50)),
    ],
)
def test_functions_over_their_range(name: str, expected: Callable[[Tensor], Tensor]) -> None:
    found = getattr(ops, name)(SWEEP[None].to(DEVICE))[0].double().cpu()
    # Of a GPU's exponential only the first digits are right when its argument is large.
    torch.testing.assert_close(found, expected(SWEEP.double()), rtol=1e-5, atol=0)


def test_functions_of_what_is_no_usual_number() -> None:
    x = given([[math.inf, -math.inf, math.nan, 0.0]])
    assert ops.exp(x)[0, [0, 1, 3]].tolist() == [math.inf, 0, 1]
    assert ops.sigmoid(x)[0, [0, 1, 3]].tolist() == [1, 0, 0.5]
    assert ops.softplus(x)[0, :2].tolist() == [math.inf, 0]
    assert ops.silu(x)[0, [0, 3]].tolist() == [math.inf, 0]
    assert all(function(x)[0, 2].isnan() for function in (ops.exp, ops.sigmoid, ops.softplus, ops.silu))
    limits = ops.gated(given([[math.nan, 9.0, 9.0]]), given([[1.0, math.nan, -9.0]]), Gate(2.0))
    assert limits[0].isnan().tolist() == [True, True, False]
    assert limits[0, 2].item() == pytest.approx(-2 * 2 / (1 + math.exp(-2)))


def test_what_is_normed_is_the_sum_as_it_is_kept() -> None:
    x, y, weight = (noise(seed, 3, 40, dtype=torch.bfloat16) for seed in (19, 20, 21))
    added, normed = ops.added_and_normed(x, y, weight[0], 1e-5)
    assert error(added, x.double().cpu() + y.double().cpu()) < 1e-2
    assert torch.equal(normed, ops.rms_norm(added, weight[0], 1e-5))
    reads = weight[:, :2].contiguous()
    streams = noise(22, 3, 2, 40, dtype=torch.bfloat16)
    collapsed = ops.collapse(streams, reads)
    assert torch.equal(ops.read_streams(streams, reads, weight[0], 1e-5), ops.rms_norm(collapsed, weight[0], 1e-5))


def test_scores_of_pooled_keys_that_lie_apart() -> None:
    held, queries, weights = noise(14, 23, 6), noise(15, 3, 6), noise(16, 3)
    apart, together = held[3::4], held[3::4].clone()
    assert same(ops.pool_scores(queries, weights, apart), ops.pool_scores(queries, weights, together))
    assert same(ops.block_scores(queries, apart), ops.block_scores(queries, together))
    held[7] = torch.nan
    assert ops.pool_scores(queries, weights, apart).isnan().tolist() == [False, True, False, False, False]
    held[7] = math.inf
    assert ops.block_scores(queries.abs(), apart)[1] == math.inf


def test_parameters_may_have_gaps() -> None:
    x, wide, places = noise(27, 2, 3, 8), noise(28, 8, 2), torch.arange(2, device=DEVICE)
    apart, together = wide[:, 0], wide[:, 0].contiguous()
    assert same(ops.rms_norm(x, apart, 1e-6), ops.rms_norm(x, together, 1e-6))
    turned = [ops.normed_and_rotated(x, weight, 1e-6, places, 8, 1e4) for weight in (apart, together)]
    assert same(*turned)
    assert same(ops.decays(x[:, 0], apart, wide[:, 1]), ops.decays(x[:, 0], together, wide[:, 1].contiguous()))


def test_streams_of_another_number_than_a_power_of_two() -> None:
    scores = noise(23, 2, 3, 5)
    assert error(ops.sinkhorn(scores, 7, 1e-3), REFERENCE.sinkhorn(*exact(scores), 7, 1e-3)) < 1e-6
    parts = noise(24, 2, 15), noise(25, 3), noise(26, 15)
    for found, expected in zip(
        ops.stream_weights(*parts, 7, 1e-6), REFERENCE.stream_weights(*exact(*parts), 7, 1e-6), strict=True
    ):
        assert error(found, expected) < 1e-6


def test_scores_of_more_keys_than_a_program_takes() -> None:
    queries, keys = noise(17, 2, 4), noise(18, 300, 4)
    found = ops.block_scores(queries, keys)
    assert error(found, REFERENCE.block_scores(*exact(queries, keys))) < 1e-6
    assert torch.equal(ops.block_scores(queries, keys[:130]), found[:130])


def test_shapes_and_types_that_no_kernel_takes_are_refused() -> None:
    with pytest.raises(ValueError, match="float64"):
        ops.silu(torch.zeros(1, 2, dtype=torch.float64, device=DEVICE))
    with pytest.raises(ValueError, match="whole blocks"):
        ops.pooled(noise(0, 5, 2), 2)
    with pytest.raises(ValueError, match="past of shape"):
        ops.causal_conv(noise(0, 1, 2), noise(0, 2, 2), noise(0, 2, 4))


def test_no_rows() -> None:
    nothing = torch.empty(0, 4, device=DEVICE)
    assert ops.rms_norm(nothing, noise(0, 4), 1e-5).shape == ops.silu(nothing).shape == (0, 4)
    assert ops.softmax_router(nothing, 2)[0].shape == (0, 2)
