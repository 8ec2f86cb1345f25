"""The integer constants of the real model's n-gram embedding, as the specification lists them."""

from __future__ import annotations

from itertools import accumulate

import pytest

from nextn.convert.ngrams import ngram_multipliers, ngram_vocab_sizes

VOCAB_SIZES = (
    20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
    20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171,
)  # fmt: skip
OFFSETS = (
    0, 20000003, 40000026, 60000059, 80000106, 100000165, 120000228, 140000297,
    160000374, 180000455, 200000548, 220000655, 240000802, 260000955, 280001114, 300001275,
)  # fmt: skip
MULTIPLIERS = (23703573157769, 20109073645365, 8052911324071)

# Rows of the table for tokens in a sequence (id and its two predecessors, 248044 where the text began or was cut).
ROWS = {
    (1000, 248044, 248044): (
        1876085, 31308566, 59776718, 71834192, 97499724, 100188615, 134972424, 142751402,
        178377549, 180579936, 219367837, 221375066, 245391246, 270637420, 285992863, 304819575,
    ),
    (3000, 2000, 1000): (
        17238551, 37786998, 58085363, 66530061, 90936363, 119077008, 131292711, 147589323,
        163669071, 180711380, 217289238, 227679745, 246259980, 264845837, 284375812, 302034413,
    ),
    (5000, 4000, 248044): (
        6829280, 32039346, 44683399, 74428801, 85679696, 102771691, 138417527, 152626436,
        173954575, 186336752, 205886610, 229393015, 249261652, 269480527, 296298143, 310968987,
    ),
}  # fmt: skip


def test_vocab_sizes_are_the_first_primes_from_the_base_on() -> None:
    assert ngram_vocab_sizes(20_000_000, 16) == VOCAB_SIZES
    assert sum(VOCAB_SIZES) == 320001446


def test_the_base_itself_may_be_prime() -> None:
    assert ngram_vocab_sizes(7, 4) == (7, 11, 13, 17)
    assert ngram_vocab_sizes(0, 4) == (2, 3, 5, 7)


def test_offsets_add_up() -> None:
    assert tuple(accumulate(ngram_vocab_sizes(20_000_000, 16)[:-1], initial=0)) == OFFSETS


def test_multipliers() -> None:
    assert ngram_multipliers(248320, 1234, 3) == MULTIPLIERS


def test_multipliers_are_odd_and_keep_products_below_two_to_the_63() -> None:
    for vocab_size in (512, 248320):
        for multiplier in ngram_multipliers(vocab_size, 1234, 8):
            assert multiplier % 2 == 1
            assert (vocab_size - 1) * multiplier < 1 << 63


@pytest.mark.parametrize("tokens", ROWS)
def test_the_constants_give_the_rows_of_the_models_own_code(tokens: tuple[int, int, int]) -> None:
    sizes = ngram_vocab_sizes(20_000_000, 16)
    token, previous, before = (
        token * multiplier for token, multiplier in zip(tokens, ngram_multipliers(248320, 1234, 3), strict=True)
    )
    pairs, triples = token ^ previous, token ^ previous ^ before
    offsets = accumulate(sizes[:-1], initial=0)
    mixed = [pairs] * 8 + [triples] * 8
    assert tuple(m % size + o for m, size, o in zip(mixed, sizes, offsets, strict=True)) == ROWS[tokens]
