"""The integer constants of a hashed n-gram embedding, by the rule of the model's code.

Source: transformers 5.24, models/qwen4_exp. Only the first n-gram layer of a model is covered: runtimes take one.
"""

from __future__ import annotations

from math import isqrt

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def ngram_vocab_sizes(base: int, heads: int) -> tuple[int, ...]:
    """Rows of each head's part of the table: the first `heads` primes from `base` on."""
    sizes: list[int] = []
    candidate = base
    while len(sizes) < heads:
        if _is_prime(candidate):
            sizes.append(candidate)
        candidate += 1
    return tuple(sizes)


def ngram_multipliers(vocab_size: int, seed: int, ngram_size: int) -> tuple[int, ...]:
    """Odd hash multipliers, one a position of the n-gram; a product with a token id stays below 2**63."""
    half = max(1, ((1 << 63) - 1) // vocab_size // 2)
    return tuple(2 * (_splitmix(seed + GOLDEN * (i + 1)) % half) + 1 for i in range(ngram_size))


def _splitmix(state: int) -> int:
    """The output function of SplitMix64."""
    z = (state + GOLDEN) & WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & WORD
    return z ^ (z >> 31)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))
