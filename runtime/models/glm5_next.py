"""GLM-5.3-Flash: delta and latent attention behind hyper-connections, and one looped head with plain residuals.

The hidden row of a token is the mean of its residual streams behind the output norm: the output matrix takes it as it
is, the head too, and what the head hands on to itself is behind its norm as well. No part of the model knows positions.
Source: src/models/glm5-next.cpp of llama.cpp b11549; transformers 5.24 computes the same trunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.errors import InputError, UsageError
from nextn.gguf_schema.glm5_next import GLM5_NEXT, Glm5Next
from nextn.kernels.reference import mean_of
from nextn.runtime.model import Chunk, embedded, hyperparameters, joined
from nextn.runtime.models.glm5_next_attention import LatentAttention, Selection
from nextn.runtime.models.glm5_next_feed_forward import Dense, Experts
from nextn.runtime.models.glm5_next_recurrent import DeltaAttention
from nextn.runtime.state import ROLLBACK, Rows, State, Trail
from nextn.runtime.weights import Matrix, Weights


class Trunk:
    """The main model. InputError when a tensor or a key is missing, or a key asks for what this model does not do."""

    def __init__(self, weights: Weights) -> None:
        h = self._h = _hyperparameters(weights.contents)
        self.contents = weights.contents
        self.dtype, self.device = weights.dtype, weights.device
        self._ops = weights.ops
        self.hidden_width = h.embedding_length
        self._embedding = weights.table("token_embd.weight")
        self._blocks = [_Block(weights, h, i) for i in range(h.trunk_blocks)]
        self._norm = weights.vector("output_norm.weight")
        self._output = weights.matrix("output.weight")
        self.vocab_size = self._output.shape[0]
        latent = [block.attention for block in self._blocks if isinstance(block.attention, LatentAttention)]
        if latent and not latent[0].selects:
            message = "the first latent attention has no indexer, and none before it chose for it"
            raise InputError("indexer-types", message, subject="glm5-next.attention.indexer.types")

    def new_state(self, rollback: int = ROLLBACK) -> State:
        """The state of an empty sequence, of which so many rows can be taken back."""
        rows: dict[str, Rows] = {}
        trails: dict[str, Trail] = {}
        for block in self._blocks:
            if isinstance(block.attention, LatentAttention):
                rows |= block.attention.rows()
            else:
                trails |= block.attention.trails(rollback)
        return State(rows, trails)

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Hidden rows [all rows of all chunks, H] in their order, behind the output norm; the states then hold them."""
        x = _embedded(chunks, self._embedding, self.dtype)
        streams = x[:, None].repeat(1, self._h.hyper_connection_count, 1)  # [rows, streams, H]
        selection: Selection | None = None
        for block in self._blocks:
            streams, selection = block(streams, chunks, selection)
        for chunk in chunks:
            chunk.advance()
        return self._ops.rms_norm(mean_of(streams.unbind(1)), self._norm, self._h.attention_layer_norm_rms_epsilon)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocabulary] from hidden rows [rows, H]."""
        return self._ops.linear(hidden, self._output)


class Heads:
    """The one head, a block of latent attention and experts, which is looped.

    A draft from a state of n rows asks for one row a step, which is not counted and stands behind those of the steps
    before: step i is `forward([Chunk(state, [token], hidden=row, start=n + i)], 0)`. Step 0 takes the last sampled
    token and the trunk's hidden row of the token before it (zeros if there is none), every other step the token that
    the one before drafted and the hidden row that it gave. `catch_up` writes over these rows: nothing is to be undone.

    InputError when there is no head, or more than one, and for what `Trunk` raises it. A file may lack token_embd where
    the head has an embedding of its own, output where it has an output of its own, output_norm where it has a norm.
    """

    count = 1

    def __init__(self, weights: Weights) -> None:
        h = self._h = _hyperparameters(weights.contents)
        if h.nextn_blocks != 1:
            message = f"has {h.nextn_blocks} nextn blocks; a model of this architecture drafts with one"
            raise InputError("heads", message, subject=weights.contents.name)
        self.contents = weights.contents
        self.dtype, self.device = weights.dtype, weights.device
        self._ops = weights.ops
        self.hidden_width = h.embedding_length
        self._eps = h.attention_layer_norm_rms_epsilon

        i = h.trunk_blocks
        nextn = f"blk.{i}.nextn"
        self._embedding = weights.table(_own(weights, f"{nextn}.embed_tokens.weight", "token_embd.weight"))
        self._embedding_norm = weights.vector(f"{nextn}.enorm.weight")
        self._hidden_norm = weights.vector(f"{nextn}.hnorm.weight")
        self._joining = weights.matrix(f"{nextn}.eh_proj.weight")
        self._attention_norm = weights.vector(f"blk.{i}.attn_norm.weight")
        self._attention = LatentAttention(weights, h, i)
        self._feed_forward_norm = weights.vector(f"blk.{i}.ffn_norm.weight")
        self._feed_forward = _feed_forward(weights, h, i)
        norm, other = f"{nextn}.shared_head_norm.weight", "output_norm.weight"
        self._norm = weights.vector(norm if norm in weights else weights.instead(norm, other))
        self._output = weights.matrix(_own(weights, f"{nextn}.shared_head_head.weight", "output.weight"))

    def new_state(self) -> State:
        """The state of an empty sequence. All of it is kept by rows: it can go back as far as one likes."""
        return State(self._attention.rows())

    def catch_up(self, chunks: Sequence[Chunk]) -> None:
        """Write latents, indexer keys and pooled keys of rows, and count them; nothing else is computed.

        Beside each token stands the trunk's hidden row of the token before it; zeros for the first.
        """
        x = self._joined(chunks)
        self._attention.write(self._ops.rms_norm(x, self._attention_norm, self._eps), chunks)
        for chunk in chunks:
            chunk.advance()

    def forward(self, chunks: Sequence[Chunk], head: int) -> Tensor:
        """Hidden rows [rows, H], behind the head's norm; the state holds the rows, which are not counted."""
        x = self._joined(chunks)
        normed = self._ops.rms_norm(x, self._attention_norm, self._eps)
        self._attention.write(normed, chunks)
        x = x + self._attention(normed, chunks, None)[0]
        x = x + self._feed_forward(self._ops.rms_norm(x, self._feed_forward_norm, self._eps))
        return self._ops.rms_norm(x, self._norm, self._eps)

    def logits(self, hidden: Tensor, head: int) -> Tensor:
        """Logits [rows, vocabulary] from hidden rows [rows, H]."""
        return self._ops.linear(hidden, self._output)

    def _joined(self, chunks: Sequence[Chunk]) -> Tensor:
        """What goes into the block [rows, H]: of the embedding first, then the hidden row beside it, each normed."""
        hidden = [chunk.hidden for chunk in chunks if chunk.hidden is not None and len(chunk.hidden) == len(chunk)]
        if len(hidden) < len(chunks):
            raise UsageError("hidden", "a head wants a hidden row beside each token")
        e = self._ops.rms_norm(_embedded(chunks, self._embedding, self.dtype), self._embedding_norm, self._eps)
        h = self._ops.rms_norm(joined(hidden), self._hidden_norm, self._eps)
        return self._ops.linear(torch.cat((e, h), dim=1), self._joining)


class _Block:
    """A block of the trunk: attention, then a feed-forward network, each within a hyper-connection."""

    def __init__(self, weights: Weights, h: Glm5Next, i: int) -> None:
        self._attention_streams = _Connection(weights, h, f"blk.{i}.hc_attn", f"blk.{i}.attn_norm.weight")
        self.attention = DeltaAttention(weights, h, i) if h.is_kda(i) else LatentAttention(weights, h, i)
        self._feed_forward_streams = _Connection(weights, h, f"blk.{i}.hc_ffn", f"blk.{i}.ffn_norm.weight")
        self._feed_forward = _feed_forward(weights, h, i)

    def __call__(
        self, streams: Tensor, chunks: Sequence[Chunk], selection: Selection | None
    ) -> tuple[Tensor, Selection | None]:
        """New streams [rows, streams, H], and what an indexer chose last."""
        x, write = self._attention_streams(streams)
        if isinstance(self.attention, LatentAttention):
            self.attention.write(x, chunks)
            x, selection = self.attention(x, chunks, selection)
        else:
            x = self.attention(x, chunks)
        streams = write(x)
        x, write = self._feed_forward_streams(streams)
        return write(self._feed_forward(x)), selection


class _Connection:
    """A manifold-constrained hyper-connection: what a layer reads of the streams, normed, and writes to them."""

    def __init__(self, weights: Weights, h: Glm5Next, name: str, norm: str) -> None:
        self._ops = weights.ops
        self._eps, self._mixing_eps = h.attention_layer_norm_rms_epsilon, h.hyper_connection_epsilon
        self._iterations = h.hyper_connection_sinkhorn_iterations
        self._mixing = weights.matrix(f"{name}_fn.weight")  # [(2 + streams) streams, streams H]
        self._base = weights.vector(f"{name}_base.weight")
        self._scale = weights.vector(f"{name}_scale.weight")
        self._norm = weights.vector(norm)

    def __call__(self, streams: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The layer's input [rows, H] from streams [rows, streams, H], and what makes streams of its output."""
        mixed = self._ops.linear(self._ops.rms_norm(streams.flatten(1), None, self._eps), self._mixing)
        reads, writes, passes = self._ops.stream_weights(
            mixed, self._scale, self._base, self._iterations, self._mixing_eps
        )
        x = self._ops.read_streams(streams, reads, self._norm, self._eps)
        return x, lambda y: self._ops.spread(streams, y, writes, passes)


def _feed_forward(weights: Weights, h: Glm5Next, i: int) -> Dense | Experts:
    return Dense(weights, h, i) if h.is_dense(i) else Experts(weights, h, i)


def _own(weights: Weights, own: str, other: str) -> str:
    """The name of a tensor that the head may have of its own; else of the model's, whose absence is an error."""
    return own if own in weights else other


def _embedded(chunks: Sequence[Chunk], embedding: Matrix, dtype: torch.dtype) -> Tensor:
    """The embedding rows of all chunks [rows, H], whose positions are looked at before anything is written."""
    for chunk in chunks:
        chunk.places()
    return embedded(chunks, embedding.gather, embedding.shape[1]).to(dtype)


def _hyperparameters(contents: Contents) -> Glm5Next:
    """Those of a file; InputError for keys that are missing, and for what llama.cpp aborts at."""
    h = cast(Glm5Next, hyperparameters(GLM5_NEXT, contents))
    members, top_k = h.attention_indexer_kpool, h.attention_indexer_top_k
    wrong = {
        "attention.indexer.kpool": members < 2 and f"pools of {members} rows, want 2 or more",
        "attention.indexer.top_k": top_k % max(members, 1) and f"{top_k} rows are no whole pools of {members}",
        "rope.dimension_count": h.rope_dimension_count and f"{h.rope_dimension_count} rotated values, want none",
    }
    for key, message in wrong.items():
        if message:
            raise InputError("bad-key", message, subject=f"{contents.name}: {contents.architecture}.{key}")
    return h
