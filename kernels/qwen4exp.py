"""The operations of Qwen3.8-Flash-Next that no other family has, in plain torch: their definition.

Width invariance as in `reference`: what is reduced is reduced for each row by itself, over its own values alone, and a
function whose bits depend on a value's place in a tensor is computed for each row by itself. A query's choice of blocks
depends on that query and on the blocks it sees; a block's pooled key on the keys in it.

Source: models/qwen4_exp of transformers 5.24, and src/models/qwen4exp.cpp of llama.cpp b11549.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import xor

import torch
from torch import Tensor

from nextn.kernels.reference import Reference, aligned, inverse_sqrt, mean_of, top
from nextn.kernels.weight import Weight


class Qwen4ExpOperations(Reference):
    """Hyper-connections, decays, gates of n-grams, and scores of blocks of keys."""

    def hyper_connection_read(
        self, streams: Tensor, norm: Tensor, down: Weight, up: Weight, eps: float
    ) -> tuple[Tensor, Tensor]:
        """What a block reads of the streams [rows, C, H]: a mixture [rows, H], and all of them normed [rows, C*H].

        Each stream is normed by its own mean square, with its own part of `norm` [C, H]. A low-rank projection, down
        [R, C*H] and up [C*H, R], gates each value of each stream; the mixture is the mean over the streams. The
        division by their number stands between the projection and the non-linearity.
        """
        rows, count, width = streams.shape
        normed = self.rms_norm(streams, norm, eps)
        flat = normed.reshape(rows, count * width)
        low = self.silu(self.linear(flat, down) / count)
        gated = self.sigmoid(self.linear(low, up)).reshape(streams.shape) * normed
        return mean_of(gated.unbind(dim=1)), flat

    def hyper_connection_strengths(self, normed: Tensor, inject: Weight, count: int) -> Tensor:
        """How strongly a block's result is added to each stream: [rows, C], from normed streams [rows, C*H]."""
        return 2 * self.sigmoid(self.linear(normed, inject) / count)

    def hyper_connection_write(self, streams: Tensor, strengths: Tensor, y: Tensor) -> Tensor:
        """Streams [rows, C, H] with a block's result y [rows, H] added to each by its strength [rows, C]."""
        return streams + strengths[..., None] * y[:, None]

    def decays(self, x: Tensor, rates: Tensor, bias: Tensor) -> Tensor:
        """What a delta net's heads keep of their state: exp(rates * softplus(x + bias)), [rows, heads].

        x is [rows, heads], rates [heads], which are negative, and bias [heads].
        """
        return self.exp(rates * self.softplus(x + bias))

    def ngram_gates(self, keys: Tensor, queries: Tensor) -> Tensor:
        """How much of an n-gram's value each stream takes: [rows, C], from normed keys and queries [rows, C, H]."""
        score = self.dot(keys, queries) * inverse_sqrt(keys.shape[-1])
        return self.sigmoid(score.sign() * score.abs().clamp(min=1e-6).sqrt())

    def pooled(self, keys: Tensor, ratio: int) -> Tensor:
        """The mean of each `ratio` keys [blocks*ratio, d] that follow each other: [blocks, d]."""
        blocks = keys.reshape(-1, ratio, keys.shape[-1])
        return mean_of(blocks.unbind(dim=1))

    def block_scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores [blocks] of pooled keys [blocks, d] for one query [heads, d]: summed over the heads if positive."""
        first, *others = [torch.relu(torch.mv(keys, aligned(head))) for head in query]
        return sum(others, first) * inverse_sqrt(query.shape[-1])


def ngram_rows(
    tokens: Sequence[int], eos: int, multipliers: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]
) -> list[int]:
    """Rows of the n-gram table for a token, `tokens[-1]`, behind its predecessors, of which there may be too few.

    `multipliers` are one for each token of the longest n-gram; `offsets` and `sizes` describe each head's part of the
    table, those of the bigrams first. An EOS, or the beginning of the text, hides what is before it: EOS stands there.
    An EOS that is the token itself hides nothing.
    """
    length = len(multipliers)
    context = [tokens[-1]]
    for back in range(1, length):
        hidden = back >= len(tokens) or eos in context[1:] or tokens[-1 - back] == eos
        context.append(eos if hidden else tokens[-1 - back])
    products = [token * multiplier for token, multiplier in zip(context, multipliers, strict=True)]
    per_ngram = len(sizes) // (length - 1)
    mixes = [reduce(xor, products[:n]) for n in range(2, length + 1) for _ in range(per_ngram)]
    return [mix % size + offset for mix, size, offset in zip(mixes, sizes, offsets, strict=True)]


def seen_keys(scores: Tensor, ratio: int, kept: int, visible: int) -> list[int]:
    """Which of the `visible` first keys a query attends to: those of its best blocks, and those behind the last block.

    scores [visible // ratio] are of the complete blocks. Whole blocks are kept, of equal ones the earlier: neither
    transformers nor llama.cpp defines their order.
    """
    blocks = top(scores, kept)
    in_blocks = [block * ratio + place for block in blocks for place in range(ratio)]
    return in_blocks + list(range(len(scores) * ratio, visible))
