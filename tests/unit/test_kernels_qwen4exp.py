"""Operations of the Qwen model against numbers of the specification, or computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from definitions import delta_step
from torch import Tensor

from nextn.kernels.operations import REFERENCE
from nextn.kernels.qwen4exp import ngram_rows, seen_keys

EOS = 248044
MULTIPLIERS = (23703573157769, 20109073645365, 8052911324071)
SIZES = (
    20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
    20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171,
)  # fmt: skip
OFFSETS = (
    0, 20000003, 40000026, 60000059, 80000106, 100000165, 120000228, 140000297,
    160000374, 180000455, 200000548, 220000655, 240000802, 260000955, 280001114, 300001275,
)  # fmt: skip
TEXT = (1000, 2000, 3000, EOS, 4000, 5000, 6000)
# What transformers' own class makes of TEXT with the real model's constants, by position.
HASHED = {
    0: "1876085 31308566 59776718 71834192 97499724 100188615 134972424 142751402 178377549 180579936 219367837"
    " 221375066 245391246 270637420 285992863 304819575",
    2: "17238551 37786998 58085363 66530061 90936363 119077008 131292711 147589323 163669071 180711380 217289238"
    " 227679745 246259980 264845837 284375812 302034413",
    3: "2413878 39243940 42052938 62906807 91065595 108055928 124420192 141212937 179088783 189638116 210620860"
    " 239412838 245782010 273207959 282584748 311229572",
    4: "6892213 22993291 54740843 71327989 80818942 104771340 121439272 151710079 176841435 183639867 217854104"
    " 235747063 252194809 269885269 296058408 308994327",
    5: "6829280 32039346 44683399 74428801 85679696 102771691 138417527 152626436 173954575 186336752 205886610"
    " 229393015 249261652 269480527 296298143 310968987",
}


class Plain:
    """A matrix that is there as it is."""

    def __init__(self, values: Sequence[Sequence[float]] | Tensor) -> None:
        self.values = torch.as_tensor(values, dtype=torch.float64)
        self.shape = tuple(self.values.shape)

    def blocks(self) -> Sequence[Tensor]:
        return [self.values]


@pytest.mark.parametrize("position", HASHED)
@pytest.mark.parametrize("known", [3, 7], ids=["three tokens", "all tokens"])
def test_rows_of_the_ngram_table(position: int, known: int) -> None:
    text = TEXT[: position + 1][-known:]
    rows = ngram_rows(text, EOS, MULTIPLIERS, OFFSETS, SIZES)
    assert rows == [int(row) for row in HASHED[position].split()]


def test_an_eos_hides_what_is_before_it_but_not_itself() -> None:
    constants = (9, (1, 3, 5), (0, 100), (100, 100))
    assert ngram_rows([7, 4, 2], *constants) == [2 ^ 12, 100 + (2 ^ 12 ^ 35)]
    assert ngram_rows([7, 9, 2], *constants) == [2 ^ 27, 100 + (2 ^ 27 ^ 45)]
    assert ngram_rows([9, 4, 2], *constants) == [2 ^ 12, 100 + (2 ^ 12 ^ 45)]
    assert ngram_rows([7, 4, 9], *constants) == [9 ^ 12, 100 + (9 ^ 12 ^ 35)]
    assert ngram_rows([2], *constants) == [2 ^ 27, 100 + (2 ^ 27 ^ 45)]


def test_gates_of_ngrams() -> None:
    """Keys and queries of two streams, whose products are -4 and a value below the least one: sqrt(|s|) keeps signs."""
    keys = torch.tensor([[[2.0, 0.0, 0.0, 0.0], [1e-4, 0.0, 0.0, 0.0]]], dtype=torch.float64)
    queries = torch.tensor([[[-4.0, 1.0, 1.0, 1.0], [1e-4, 0.0, 0.0, 0.0]]], dtype=torch.float64)
    wanted = [1 / (1 + math.exp(2.0)), 1 / (1 + math.exp(-1e-3))]
    assert REFERENCE.ngram_gates(keys, queries)[0].tolist() == pytest.approx(wanted, rel=1e-12)
    assert REFERENCE.ngram_gates(torch.zeros(1, 1, 4), torch.ones(1, 1, 4)).tolist() == [[0.5]]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_a_hyper_connection_by_hand() -> None:
    """Two streams of two values: [3, 4] has the mean square 12.5, [0, 2] has 2."""
    streams = torch.tensor([[[3.0, 4.0], [0.0, 2.0]]], dtype=torch.float64)
    norm = torch.tensor([[1.0, 2.0], [3.0, 0.5]], dtype=torch.float64)
    a, b, d = 3 / math.sqrt(12.5), 2 * 4 / math.sqrt(12.5), 0.5 * 2 / math.sqrt(2)
    mixed, normed = REFERENCE.hyper_connection_read(
        streams, norm, Plain([[1.0, 0.5, 7.0, -1.0]]), Plain([[0.3], [-0.2], [5.0], [1.0]]), 0.0
    )
    assert normed[0].tolist() == pytest.approx([a, b, 0.0, d], rel=1e-12)
    half = (a + 0.5 * b - d) / 2
    low = half * sigmoid(half)
    wanted = [sigmoid(0.3 * low) * a / 2, (sigmoid(-0.2 * low) * b + sigmoid(low) * d) / 2]
    assert mixed[0].tolist() == pytest.approx(wanted, rel=1e-12)
    strengths = REFERENCE.hyper_connection_strengths(normed, Plain([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 9.0, 2.0]]), 2)
    assert strengths[0].tolist() == pytest.approx([2 * sigmoid(a / 2), 2 * sigmoid(d)], rel=1e-12)


def test_a_hyper_connection_without_weights_reads_half_the_mean_and_adds_the_whole() -> None:
    streams = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4)
    zeros = Plain(torch.zeros(1, 12)), Plain(torch.zeros(12, 1))
    mixed, normed = REFERENCE.hyper_connection_read(streams, torch.ones(3, 4, dtype=torch.float64), *zeros, 1e-6)
    assert torch.equal(
        REFERENCE.hyper_connection_strengths(normed, Plain(torch.zeros(3, 12)), 3), torch.ones(2, 3).double()
    )
    assert torch.allclose(mixed, 0.5 * normed.reshape(2, 3, 4).mean(1), rtol=1e-14)


def test_decays() -> None:
    """The softplus of 22 is 22 and 2.8e-10: torch leaves that out unless it is told not to."""
    x, rates, bias = torch.tensor([[0.5, 21.0], [-40.0, 0.0]]), torch.tensor([-2.0, -0.5]), torch.tensor([0.25, 1.0])
    wanted = [
        [(1 + math.exp(0.75)) ** -2, math.exp(-0.5 * (22 + math.exp(-22)))],
        [math.exp(-2 * math.exp(-39.75)), (1 + math.e) ** -0.5],
    ]
    have = REFERENCE.decays(x.double(), rates.double(), bias.double())
    assert torch.allclose(have, torch.tensor(wanted, dtype=torch.float64), rtol=1e-14, atol=0)


def in_a_chunk(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """The chunked form of the gated delta rule of one head: the state behind n rows [dk, dv], and what they read."""
    total = log_decay.cumsum(0)
    between = (total[:, None] - total[None]).tril().exp().tril()
    solve = torch.eye(len(key)).double() + (beta[:, None] * (key @ key.T) * between).tril(-1)
    corrections = torch.linalg.solve(solve, beta[:, None] * value)
    corrections -= torch.linalg.solve(solve, (beta * total.exp())[:, None] * key) @ state
    read = total.exp()[:, None] * (query @ state) + ((query @ key.T) * between) @ corrections
    return total[-1].exp() * state + ((total[-1] - total).exp()[:, None] * key).T @ corrections, read


def test_steps_of_the_delta_rule_are_its_chunked_form() -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    heads, rows, dk, dv = 3, 11, 4, 5
    state, query, key, value = (
        random(heads, dk, dv),
        random(rows, heads, dk),
        random(rows, heads, dk),
        random(rows, heads, dv),
    )
    key = key / key.norm(dim=-1, keepdim=True)
    log_decay, beta = -random(rows, heads).abs(), random(rows, heads).sigmoid()
    after, read = state, []
    for i in range(rows):
        after, row = delta_step(after, query[i], key[i], value[i], log_decay[i].exp()[:, None], beta[i])
        read.append(row)
    for h in range(heads):
        chunk = (query[:, h], key[:, h], value[:, h], log_decay[:, h], beta[:, h])
        wanted_state, wanted = in_a_chunk(state[h], *chunk)
        assert torch.allclose(after[h], wanted_state, rtol=0, atol=1e-13)
        assert torch.allclose(torch.stack(read)[:, h], wanted, rtol=0, atol=1e-13)


RATIO = 4


@pytest.mark.parametrize(
    ("visible", "scores", "seen"),
    [
        (RATIO - 1, [], [0, 1, 2]),
        (RATIO, [0.0], [0, 1, 2, 3]),
        (RATIO + 1, [0.0], [0, 1, 2, 3, 4]),
        (2 * RATIO - 1, [0.0], [0, 1, 2, 3, 4, 5, 6]),
        (2 * RATIO, [0.5, 0.7], [4, 5, 6, 7]),
        (2 * RATIO, [0.7, 0.5], [0, 1, 2, 3]),  # The query's own block has no privilege.
        (2 * RATIO + 1, [0.7, 0.5], [0, 1, 2, 3, 8]),
        (3 * RATIO + 3, [0.1, 0.1, 0.1], [0, 1, 2, 3, 12, 13, 14]),
    ],
)
def test_keys_that_a_query_sees_with_room_for_one_block(visible: int, scores: list[float], seen: list[int]) -> None:
    assert seen_keys(torch.tensor(scores), RATIO, 1, visible) == seen


def test_scores_add_what_is_positive_in_each_head() -> None:
    query = torch.tensor([[1.0, 0, 0, 0], [0, -1.0, 0, 0]])
    keys = torch.tensor([[3.0, 4.0, 0, 0], [-2.0, -6.0, 0, 0], [5.0, -1.0, 9.0, 9.0]])
    assert REFERENCE.block_scores(query, keys).tolist() == [1.5, 3.0, 3.0]


def test_pooled_keys_are_means() -> None:
    assert REFERENCE.pooled(torch.tensor([[1.0, 2], [3, 6], [10, 20], [30, 60]]), 2).tolist() == [[2, 4], [20, 40]]
