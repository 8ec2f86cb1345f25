"""Step-3.5-Flash and Step-3.7-Flash: a trunk of full and sliding attention, and chained heads with own outputs.

The hidden row of a token is the residual stream behind the last block, before the norm: from it follow the logits, it
goes into the heads, and from one head to the next. Source: src/models/step35.cpp of llama.cpp b11549. (transformers
5.24 hands over rows behind the norm, and cannot load the heads of the published checkpoints.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from nextn.gguf_schema.errors import InputError, UsageError
from nextn.gguf_schema.step35 import STEP35, Step35
from nextn.runtime.model import Chunk, embedded, hyperparameters, joined
from nextn.runtime.models.step35_block import Batch, Block, cache_rows
from nextn.runtime.state import ROLLBACK, State
from nextn.runtime.weights import Weights

# LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID of llama.cpp.
SIGMOID = 2


class Trunk:
    """The main model. InputError when a tensor or a key is missing, or one asks for what this model does not do."""

    def __init__(self, weights: Weights) -> None:
        h = self._h = _hyperparameters(weights)
        self.contents = weights.contents
        self.dtype, self.device = weights.dtype, weights.device
        self._ops = weights.ops
        self.hidden_width = h.embedding_length
        self._embedding = weights.table("token_embd.weight")
        self._blocks = [Block(weights, h, i) for i in range(h.trunk_blocks)]
        self._norm = weights.vector("output_norm.weight")
        self._output = weights.matrix("output.weight")
        self.vocab_size = self._output.shape[0]

    def new_state(self, rollback: int = ROLLBACK) -> State:
        """The state of an empty sequence. All of it is kept by rows: it can go back as far as one likes."""
        return State(cache_rows(self._h, range(self._h.trunk_blocks), self.dtype, self.device))

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Hidden rows [all rows of all chunks, H] in their order; the states then hold them."""
        batch = Batch(chunks, self._h.attention_sliding_window, self.device)
        x = embedded(chunks, self._embedding.gather, self.hidden_width).to(self.dtype)
        for block in self._blocks:
            x = block(x, batch)
        for chunk in chunks:
            chunk.advance()
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocabulary] from hidden rows [rows, H]."""
        normed = self._ops.rms_norm(hidden, self._norm, self._h.attention_layer_norm_rms_epsilon)
        return self._ops.linear(normed, self._output)


class Heads:
    """The chained heads; head k is the k-th block behind the trunk's, with a cache of its own.

    A draft asks head 0 for the token behind the last one, head 1 for the next, and so on. None of a draft's rows are in
    the cache of the head that is asked, so that it gets all of them again: step i is `forward([Chunk(state, tokens,
    hidden=rows)], i)` with the last sampled token and the i drafted ones, beside the trunk's hidden row of the token
    before the sampled one and the last row that each of the heads before made. The result's last row is new, and gives
    the logits. A single head may be looped instead: each step gives it one row, at a `start` behind those before.

    InputError when there are no heads, and for what `Trunk` raises it.
    """

    def __init__(self, weights: Weights) -> None:
        h = self._h = _hyperparameters(weights)
        self.contents = weights.contents
        self.dtype, self.device = weights.dtype, weights.device
        self._ops = weights.ops
        self.hidden_width = h.embedding_length
        self.count = h.nextn_blocks
        if not self.count:
            raise InputError("no-heads", "has no nextn blocks", subject=weights.contents.name)
        self._heads = [_Head(weights, h, h.trunk_blocks + k) for k in range(self.count)]

    def new_state(self) -> State:
        """The state of an empty sequence: the caches of all heads."""
        blocks = range(self._h.trunk_blocks, self._h.trunk_blocks + self.count)
        return State(cache_rows(self._h, blocks, self.dtype, self.device))

    def catch_up(self, chunks: Sequence[Chunk]) -> None:
        """Write keys and values of rows into the caches of all heads, and count them.

        Beside each token stands the trunk's hidden row of the token before it, for every head; zeros for the first.
        """
        batch = Batch(chunks, self._h.attention_sliding_window, self.device)
        for head in self._heads:
            head.block.remember(head.joined(chunks), batch)
        for chunk in chunks:
            chunk.advance()

    def forward(self, chunks: Sequence[Chunk], head: int) -> Tensor:
        """Hidden rows [rows, H] of one head; its cache then holds the rows, which are not counted."""
        batch = Batch(chunks, self._h.attention_sliding_window, self.device)
        return self._heads[head].block(self._heads[head].joined(chunks), batch)

    def logits(self, hidden: Tensor, head: int) -> Tensor:
        """Logits [rows, vocabulary] from hidden rows [rows, H] of a head, by its own norm and matrix."""
        normed = self._ops.rms_norm(hidden, self._heads[head].norm, self._h.attention_layer_norm_rms_epsilon)
        return self._ops.linear(normed, self._heads[head].output)


class _Head:
    """The weights of the head at block `i`, and what goes into its block."""

    def __init__(self, weights: Weights, h: Step35, i: int) -> None:
        prefix = f"blk.{i}.nextn."
        own = f"{prefix}embed_tokens.weight"
        self.ops, self.eps = weights.ops, h.attention_layer_norm_rms_epsilon
        self.width, self.dtype = h.embedding_length, weights.dtype
        self.embedding = weights.table(own if own in weights else "token_embd.weight")
        self.embedding_norm = weights.vector(f"{prefix}enorm.weight")
        self.hidden_norm = weights.vector(f"{prefix}hnorm.weight")
        self.joining = weights.matrix(f"{prefix}eh_proj.weight")
        self.block = Block(weights, h, i)
        self.norm = weights.vector(f"{prefix}shared_head_norm.weight")
        self.output = weights.matrix(f"{prefix}shared_head_head.weight")

    def joined(self, chunks: Sequence[Chunk]) -> Tensor:
        """The residual stream [rows, H] at its beginning: of the embedding first, then the hidden row beside it."""
        hidden = [chunk.hidden for chunk in chunks if chunk.hidden is not None and len(chunk.hidden) == len(chunk)]
        if len(hidden) < len(chunks):
            raise UsageError("hidden", "a head wants a hidden row beside each token")
        rows = embedded(chunks, self.embedding.gather, self.width).to(self.dtype)
        e = self.ops.rms_norm(rows, self.embedding_norm, self.eps)
        h = self.ops.rms_norm(joined(hidden), self.hidden_norm, self.eps)
        return self.ops.linear(torch.cat((e, h), dim=1), self.joining)


def _hyperparameters(weights: Weights) -> Step35:
    """Those of a file; InputError for keys that no loader would take, and for another router than this model's."""
    h = cast(Step35, hyperparameters(STEP35, weights.contents))
    if h.expert_blocks and h.expert_gating_func != SIGMOID:
        message = f"expert_gating_func is {h.expert_gating_func}; Step models route by sigmoid ({SIGMOID})"
        raise InputError("unsupported-router", message, subject=weights.contents.name)
    return h
