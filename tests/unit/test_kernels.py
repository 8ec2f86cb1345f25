"""The reference operations against values computed by hand, and against plain formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from definitions import (
    attend,
    causal_conv,
    delta_step,
    dot,
    exp,
    l2_norm,
    layer_norm,
    linear,
    rms_norm,
    rope,
    sigmoid,
    silu,
    softmax,
    softplus,
    swiglu,
)
from torch import Tensor

from nextn.kernels.reference import inverse_sqrt, mean_of, top


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


class InBlocks:
    shape = (3, 2)

    def blocks(self) -> Iterator[Tensor]:
        yield doubles(1, 2, 3, 4).reshape(2, 2)
        yield doubles(5, -6).reshape(1, 2)


def test_a_product_goes_through_all_blocks() -> None:
    assert linear(doubles(1, 0, 10, 100).reshape(2, 2), InBlocks()).tolist() == [[1, 3, 5], [210, 430, -550]]


def test_a_dot_product_is_over_the_last_dimension() -> None:
    a = torch.arange(12.0).reshape(2, 2, 3)
    assert dot(a, torch.ones(2, 2, 3)).tolist() == [[3, 12], [21, 30]]


def test_norms() -> None:
    x = doubles(3, 4).reshape(1, 2)
    root = math.sqrt(12.5 + 0.5)
    close(rms_norm(x, None, 0.5), doubles(3 / root, 4 / root)[None])
    close(rms_norm(x, doubles(10, -1), 0.5), doubles(30 / root, -4 / root)[None])
    close(l2_norm(x, 11.0), doubles(3 / 6, 4 / 6)[None])  # 9 + 16 + 11 = 36
    close(layer_norm(x, doubles(2, 4), doubles(1, 1), 0.0), doubles(-1, 5)[None])  # mean 3.5, deviation 0.5
    close(layer_norm(x, doubles(1, 1), doubles(0, 0), 0.75), doubles(-0.5, 0.5)[None])


def test_norms_of_each_head_by_its_own_weight() -> None:
    x, weight = noise(0, 2, 3, 5), noise(1, 3, 5)
    normed = rms_norm(x, weight, 1e-6)
    close(normed[1, 2], x[1, 2] / ((x[1, 2] ** 2).mean() + 1e-6).sqrt() * weight[2])


def test_functions_of_values() -> None:
    x = doubles(-30, -1, 0, 2)[None]
    values = [-30.0, -1.0, 0.0, 2.0]
    close(sigmoid(x), doubles(*(1 / (1 + math.exp(-v)) for v in values))[None])
    close(silu(x), doubles(*(v / (1 + math.exp(-v)) for v in values))[None])
    close(swiglu(x, x + 1), doubles(*(v / (1 + math.exp(-v)) * (v + 1) for v in values))[None])
    close(exp(x), doubles(*map(math.exp, values))[None])
    close(softplus(x), doubles(*(math.log1p(math.exp(v)) for v in values))[None])


@pytest.mark.parametrize("value", [21.0, 30.0, 49.0, 51.0, 800.0])
def test_softplus_is_exact_beyond_the_threshold_of_torch(value: float) -> None:
    assert softplus(doubles(value)).item() == value + math.log1p(math.exp(-value))


def test_softmax_of_large_values() -> None:
    close(softmax(doubles(1000, 1000 + math.log(3))[None]), doubles(0.25, 0.75)[None])
    assert softmax(doubles(0, -math.inf)[None]).tolist() == [[1, 0]]


def test_pairs_are_half_of_the_rotated_width_apart() -> None:
    """Position 1, frequencies 1 and 1/10: values 0 and 2 turn by 1, values 1 and 3 by 0.1; the last one stays."""
    x = doubles(1, 2, 3, 4, 5).reshape(1, 1, 5)
    turned = rope(x, torch.tensor([1]), 4, 100.0)
    a, b = (math.cos(1), math.sin(1)), (math.cos(0.1), math.sin(0.1))
    expected = doubles(a[0] - 3 * a[1], 2 * b[0] - 4 * b[1], 3 * a[0] + a[1], 4 * b[0] + 2 * b[1], 5)
    close(turned, expected.reshape(1, 1, 5))


def test_position_0_turns_nothing() -> None:
    x = noise(0, 1, 2, 8)
    assert torch.equal(rope(x, torch.tensor([0]), 8, 1e4), x)


def test_each_frequency_may_have_its_position() -> None:
    x = noise(0, 1, 1, 4)
    turned = rope(x, torch.tensor([[7, 0]]), 4, 1e4)
    close(turned[0, 0, :3:2], rope(x, torch.tensor([7]), 4, 1e4)[0, 0, :3:2])
    assert turned[0, 0, 1] == x[0, 0, 1]


@pytest.mark.parametrize("dims", [3, 1, 6])
def test_only_pairs_within_a_head_can_be_rotated(dims: int) -> None:
    """Three values would have become four, by broadcasting."""
    with pytest.raises(ValueError, match="pairs"):
        rope(noise(0, 1, 1, 4), torch.tensor([1]), dims, 1e4)


# Divisors of the frequencies of Step-3.7-Flash (base 5e6, 64 rotated values), as transformers makes them.
RAMP = (1.1383628845, 1.3744993210, 1.5764362812, 1.7337294817, 1.8475685120, 1.9256492853, 1.9772508144)
FACTORS = (*(1.0,) * 14, *RAMP, *(2.0,) * 11)


@pytest.mark.parametrize("m", [0, 13, 14, 17, 20, 21, 31])
def test_the_factors_of_llama3_divide_frequencies(m: int) -> None:
    """A pair with a one in its first half becomes the cosine and the sine of its angle."""
    position = 100_003
    x = torch.zeros(1, 1, 128, dtype=torch.float64)
    x[0, 0, m] = 1
    factors = torch.ones(64)
    factors[:32] = torch.tensor(FACTORS)
    turned = rope(x, torch.tensor([position]), 64, 5e6, factors)[0, 0]
    angle = position * 5e6 ** (-2 * m / 64) / factors[m].item()
    close(turned[m], doubles(math.cos(angle))[0], 1e-9)
    close(turned[m + 32], doubles(math.sin(angle))[0], 1e-9)
    assert turned.count_nonzero() <= 2


def test_angles_of_far_positions_keep_their_places() -> None:
    """In float32 the angle of position 2^24 + 1 is that of 2^24."""
    x = torch.tensor([[[1.0, 0.0]]])
    turned = rope(x, torch.tensor([2**24 + 1]), 2, 1e4)[0, 0]
    close(turned.double(), doubles(math.cos(2**24 + 1), math.sin(2**24 + 1)), 1e-6)


@pytest.mark.parametrize(("heads", "kv_heads", "n"), [(4, 2, 9), (6, 1, 1), (3, 3, 40)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_attention_is_plain_softmax(heads: int, kv_heads: int, n: int, dtype: torch.dtype, tolerance: float) -> None:
    query, keys, values = noise(0, heads, 8), noise(1, n, kv_heads, 8), noise(2, n, kv_heads, 5)
    actual = attend(query.to(dtype), keys.to(dtype), values.to(dtype), 0.3)
    for head in range(heads):
        of = head // (heads // kv_heads)
        weights = [math.exp(0.3 * float(query[head] @ key)) for key in keys[:, of]]
        expected = sum(w * value for w, value in zip(weights, values[:, of], strict=True)) / sum(weights)
        torch.testing.assert_close(actual[head].double(), expected, rtol=tolerance, atol=tolerance)


def test_of_equal_scores_the_first_are_chosen() -> None:
    scores = torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 2.0])
    assert [top(scores, count) for count in range(5)] == [[], [1], [1, 3], [1, 2, 3], [1, 2, 3, 4]]
    assert top(scores, 99) == [0, 1, 2, 3, 4, 5]
    assert top(torch.tensor([-0.0, 0.0, -1.0]), 1) == [0]
    assert top(torch.zeros(5000), 3) == [0, 1, 2]


def test_the_last_tap_of_a_convolution_meets_the_newest_row() -> None:
    """Weights .1 .2 .3 .4 and inputs 1, 2, 3 behind zeros."""
    weight, past, results = torch.tensor([[0.1, 0.2, 0.3, 0.4]]), torch.zeros(3, 1), []
    for value in (1.0, 2.0, 3.0):
        row = torch.tensor([value])
        results.append(causal_conv(row, past, weight).item())
        past = torch.cat((past[1:], row[None]))
    assert results == pytest.approx([0.4, 1.1, 2.0])


def test_a_dilated_convolution_skips_rows() -> None:
    """Taps 10, 100, 1 on the rows 5 and 3 back and the newest of 1 … 5."""
    past = torch.arange(1.0, 5.0)[:, None].repeat(1, 2)
    weight = torch.tensor([[10.0, 100.0, 1.0], [0.0, 0.0, 1.0]])
    assert causal_conv(torch.tensor([5.0, 5.0]), past, weight, dilation=2).tolist() == [10 + 300 + 5, 5]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_delta_step_is_its_formula(channels: int) -> None:
    """S' = D S + b k (v - k D S); o = q S'. The decay is one number for a head, or one for each key channel."""
    state, query, key, value = noise(0, 2, 3, 4), noise(1, 2, 3), noise(2, 2, 3), noise(3, 2, 4)
    decay, beta = noise(4, 2, channels).sigmoid(), noise(5, 2).sigmoid()
    after, read = delta_step(*(t.float() for t in (state, query, key, value, decay, beta)))
    for head in range(2):
        decayed = decay[head][:, None] * state[head]
        missed = value[head] - key[head] @ decayed
        expected = decayed + beta[head] * torch.outer(key[head], missed)
        torch.testing.assert_close(after[head].double(), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(read[head].double(), query[head] @ expected, rtol=1e-5, atol=1e-6)


def test_a_delta_step_by_hand() -> None:
    """State 10, half of it decays to 5; key 2 reads 10 of the wanted 14: a quarter of the 4 missed goes in along it."""
    one = torch.ones(1, 1)
    after, read = delta_step(torch.tensor([[[10.0]]]), 3 * one, 2 * one, 14 * one, 0.5 * one, torch.tensor([0.25]))
    assert (after.item(), read.item()) == (7, 21)


def test_inputs_are_left_alone() -> None:
    state, row, past = noise(0, 1, 2, 2), noise(1, 1, 2), noise(2, 3, 2)
    before = [t.clone() for t in (state, row, past)]
    delta_step(state, row, row, row, row, torch.ones(1, dtype=torch.float64))
    causal_conv(row[0], past, noise(3, 2, 4))
    rms_norm(row, None, 1e-6)
    assert all(torch.equal(a, b) for a, b in zip((state, row, past), before, strict=True))


def test_a_mean_is_of_rows() -> None:
    assert mean_of([doubles(1, 2), doubles(3, 6), doubles(5, 1)]).tolist() == [3, 3]
    assert inverse_sqrt(64) == 0.125
