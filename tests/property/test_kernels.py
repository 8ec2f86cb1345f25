"""Width invariance: a row has the same bits whatever the number of rows, its place among them, and its neighbours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import definitions as reference
import pytest
import torch
from families import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nextn.kernels.reference import by_row, mean_of, top
from nextn.runtime.state import Rows

WIDTHS = (*range(1, 10), 16, 36)
MOST = max(WIDTHS)
DTYPES = (torch.float32, torch.float64, torch.bfloat16)

dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**31)
# Rows of one vector and of several, with and without a rest; and some that are split among threads.
lengths = st.integers(1, 70) | st.sampled_from((127, 128, 129, 1000, 4097))
few = settings(max_examples=8, deadline=None)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


class Blocks:
    """A weight in blocks of so many rows."""

    def __init__(self, matrix: Tensor, rows: int) -> None:
        self.matrix, self.rows = matrix, rows

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.matrix.shape)

    def blocks(self) -> Iterator[Tensor]:
        yield from self.matrix.split(self.rows)


def noise(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal, and zeros of one sign."""
    return torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())


# How rows [rows, n] may lie in memory when a model hands them over.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "behind others": lambda x: torch.cat((x[:1], x))[1:],
    "part of wider rows": lambda x: torch.cat((x[:, :1], x, x[:, :1]), dim=1)[:, 1:-1],
    "transposed": lambda x: x.T.contiguous().T,
    "with gaps": lambda x: torch.stack((x, x + 1), dim=2)[:, :, 0],
}

# Of rows x [rows, n], for a vector of n values and a number.
Operation = Callable[[Tensor, Tensor, int], Tensor]


def by_heads(function: Callable[[Tensor], Tensor]) -> Operation:
    """Three heads in each row, which lie apart in it."""
    return lambda x, _, __: function(torch.stack((x, -x, x + 1), dim=1))


def turned(x: Tensor, vector: Tensor, seed: int) -> Tensor:
    n, heads = x.shape[1], torch.stack((torch.cat((x, x), dim=1), torch.cat((-x, x), dim=1)), dim=1)
    positions = (noise(seed, MOST)[:1] * 1000).long().abs() + torch.zeros(len(x), dtype=torch.int64)
    return reference.rope(heads, positions, (n + 1) // 2 * 2, 1e4, 1 + vector.abs())


def multiplied(x: Tensor, vector: Tensor, seed: int) -> Tensor:
    out = 1 + seed % 40
    return reference.linear(x, Blocks(noise(seed, out, x.shape[1], dtype=x.dtype), 1 + seed % 17))


OPERATIONS: dict[str, Operation] = {
    "linear": multiplied,
    "dot": lambda x, vector, _: reference.dot(x, vector.expand_as(x)),
    "dot of heads": by_heads(lambda x: reference.dot(x, x.flip(-1))),
    "rms_norm": lambda x, vector, _: reference.rms_norm(x, vector, 1e-5),
    "rms_norm of heads": by_heads(lambda x: reference.rms_norm(x, None, 1e-6)),
    "l2_norm": lambda x, _, __: reference.l2_norm(x, 1e-6),
    "layer_norm": lambda x, vector, _: reference.layer_norm(x, vector, -vector, 1e-5),
    "softmax": lambda x, _, __: reference.softmax(x),
    "softmax of heads": by_heads(reference.softmax),
    "rope": turned,
    "sigmoid": lambda x, _, __: reference.sigmoid(x),
    "silu": lambda x, _, __: reference.silu(x),
    "swiglu": lambda x, vector, _: reference.swiglu(x, vector * x),
    "exp": lambda x, _, __: reference.exp(x),
    "softplus": lambda x, _, __: reference.softplus(10 * x),
    "by_row": lambda x, _, __: by_row(torch.tanh, x),
    "mean_of": lambda x, vector, _: mean_of([x, vector * x, x + vector]),
}


@pytest.mark.parametrize("name", OPERATIONS)
@few
@given(n=lengths, seed=seeds, dtype=dtypes, layout=st.sampled_from(tuple(LAYOUTS)), count=st.sampled_from((1, 2)))
def test_a_row_does_not_depend_on_the_others(
    name: str, n: int, seed: int, dtype: torch.dtype, layout: str, count: int
) -> None:
    operation, vector = OPERATIONS[name], noise(seed + 1, n, dtype=dtype)
    rows = noise(seed, MOST, n, dtype=dtype)
    with threads(count):
        alone = [operation(row[None].clone(), vector, seed)[0] for row in rows]
        for width in WIDTHS:
            first = seed % (MOST - width + 1)
            together = operation(LAYOUTS[layout](rows[first : first + width]), vector, seed)
            assert len(together) == width
            assert all(same(together[i], alone[first + i]) for i in range(width)), width


@few
@given(
    heads=st.sampled_from(((1, 1), (2, 2), (6, 2), (8, 1))),
    width=st.integers(1, 40),
    n=st.integers(1, 70) | st.just(600),
    seed=seeds,
    dtype=dtypes,
    window=st.integers(0, 5),
)
def test_attention_depends_on_what_a_query_sees(
    heads: tuple[int, int], width: int, n: int, seed: int, dtype: torch.dtype, window: int
) -> None:
    """Not on the query's place in its batch, nor on what is behind the keys in their memory."""
    queries = noise(seed, MOST, heads[0], width, dtype=dtype)
    keys, values = (noise(seed + i, n + MOST, heads[1], width, dtype=dtype) for i in (1, 2))
    begin = min(window, n - 1)
    caches = []
    for rows in (keys, values):
        cache = Rows((heads[1], width), dtype)
        cache.write(0, rows[:n])
        caches.append(cache)
    alone = reference.attend(queries[7].clone(), *(cache.first(n)[begin:] for cache in caches), 0.2)
    for place, cache_rows in ((7, MOST), (0, 1), (MOST - 1, 5)):
        batch = queries.roll(place - 7, dims=0)
        for cache, rows in zip(caches, (keys, values), strict=True):
            cache.write(n, rows[n : n + cache_rows])
        seen = (cache.first(n + cache_rows)[begin:n] for cache in caches)
        assert same(reference.attend(batch[place], *seen, 0.2), alone)


@few
@given(n=st.integers(1, 40), heads=st.integers(1, 4), seed=seeds, dtype=dtypes)
def test_a_delta_step_does_not_depend_on_the_place_of_its_row(
    n: int, heads: int, seed: int, dtype: torch.dtype
) -> None:
    state = noise(seed, heads, n, n + 1, dtype=dtype)
    query, key, value, decay = (noise(seed + i, MOST, heads, n + i // 3, dtype=dtype) for i in range(1, 5))
    decay, beta = decay[..., :1].sigmoid(), noise(seed + 5, MOST, heads, dtype=dtype)
    parts = (query, key, value[..., : n + 1], decay, beta)
    wanted = reference.delta_step(state.clone(), *(part[5].clone() for part in parts))
    for place in (0, 1, 5, MOST - 1):
        moved = [part.roll(place - 5, dims=0)[place] for part in parts]
        assert all(same(a, b) for a, b in zip(reference.delta_step(state, *moved), wanted, strict=True))


@few
@given(n=st.integers(1, 70), taps=st.integers(1, 4), dilation=st.integers(1, 3), seed=seeds, dtype=dtypes)
def test_a_convolution_does_not_depend_on_the_place_of_its_row(
    n: int, taps: int, dilation: int, seed: int, dtype: torch.dtype
) -> None:
    reach = (taps - 1) * dilation
    rows, weight = noise(seed, reach + MOST, n, dtype=dtype), noise(seed + 1, n, taps, dtype=dtype)
    for place in (0, 1, MOST - 1):
        past, row = rows[place : place + reach], rows[place + reach]
        wanted = reference.causal_conv(row.clone(), past.clone(), weight, dilation)
        assert same(reference.causal_conv(row, past, weight, dilation), wanted)


@few
@given(st.lists(st.sampled_from((-1.0, -0.0, 0.0, 0.5, 1.0, 2.0)), min_size=1, max_size=200), st.integers(0, 20))
def test_the_best_scores_are_chosen_and_of_equal_ones_the_first(scores: list[float], count: int) -> None:
    ranked = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    assert top(torch.tensor(scores), count) == sorted(ranked[:count])


@pytest.mark.long
@pytest.mark.parametrize(
    ("variable", "value"),
    [("MKL_ENABLE_INSTRUCTIONS", "SSE4_2"), ("MKL_ENABLE_INSTRUCTIONS", "AVX2"), ("ATEN_CPU_CAPABILITY", "default")],
)
def test_older_processors_too(variable: str, value: str) -> None:
    """With SSE 4.2 the math library sums vectors in another order when they do not begin at a multiple of 64 bytes."""
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", str(Path(__file__))]
    done = subprocess.run(tests, cwd=ROOT, env={**os.environ, variable: value}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
