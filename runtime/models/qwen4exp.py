"""Qwen3.8-Flash-Next (`qwen4exp`): its trunk, and its draft head, which is looped.

The residual is wide: C streams of H values, which hyper-connections mix before each block and add to behind it. A
hidden row is the residual of a token behind the last block, all streams of it: that is what a head takes, and makes.

Source: models/qwen4_exp of transformers 5.24 (trunk), src/models/qwen4exp.cpp of llama.cpp b11549 (trunk and head).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from nextn.gguf_schema.errors import InputError, UsageError
from nextn.gguf_schema.nextn_generic import EMBEDDING, OUTPUT
from nextn.gguf_schema.qwen4exp import Qwen4Exp
from nextn.runtime.model import AXES, Chunk, embedded, joined, joined_axes, spans
from nextn.runtime.models.qwen4exp_attention import POSITIONS, Attention, axes_of
from nextn.runtime.models.qwen4exp_parts import Experts, HyperConnection, Mixer, hyperparameters
from nextn.runtime.models.qwen4exp_recurrent import TOKENS, DeltaNet, NGrams, token_rows
from nextn.runtime.state import ROLLBACK, Rows, State, Trail
from nextn.runtime.weights import Matrix, Weights

# How a head norms the hidden row: each stream by its own mean square, as llama.cpp does, or all of it by one, as vLLM
# and SGLang do. Which of them the real head was trained with is not published.
HiddenNorm = Literal["stream", "flat"]


class Block:
    """A layer of the trunk: n-grams where it has them, attention or a delta net, experts."""

    def __init__(self, weights: Weights, block: int, h: Qwen4Exp) -> None:
        linear_attention = h.is_linear(block)
        self.ngrams = NGrams(weights, block, h) if h.has_ngrams(block) else None
        self.around_mixing = HyperConnection(weights, f"blk.{block}.hc_attn_", h)
        self.delta_net = DeltaNet(weights, block, h) if linear_attention else None
        self.attention = None if linear_attention else Attention(weights, block, h)
        self.around_experts = HyperConnection(weights, f"blk.{block}.hc_ffn_", h)
        self.experts = Experts(weights, block, h)

    def __call__(self, streams: Tensor, chunks: Sequence[Chunk], positions: Tensor) -> Tensor:
        """Streams [rows, C, H]: [rows, C, H]."""
        if self.ngrams:
            streams = self.ngrams(streams, chunks)
        if self.delta_net:
            streams = self.around_mixing.around(streams, partial(self.delta_net, chunks=chunks))
        if self.attention:
            attention = partial(self.attention, chunks=chunks, positions=positions)
            streams = self.around_mixing.around(streams, attention)
        return self.around_experts.around(streams, self.experts)


class Trunk:
    """The main model. InputError when a tensor or a key that it needs is missing, or makes no sense."""

    def __init__(self, weights: Weights) -> None:
        h = hyperparameters(weights)
        self.contents = weights.contents
        self.dtype, self.device = weights.dtype, weights.device
        self.ops = weights.ops
        self.streams, self.width = h.hyper_connection_count, h.embedding_length
        self.hidden_width = h.streams_width
        self.axes = axes_of(h, weights.device)
        self.embedding = weights.table(EMBEDDING)
        self.output = output_matrix(weights)
        self.vocab_size = self.output.shape[0]
        self.blocks = [Block(weights, block, h) for block in range(h.trunk_blocks)]
        self.mixer = Mixer(weights, "output_hc_", h)
        # N-grams take this id for rows that came as embeddings.
        self.image_token = h.ple_eos_token_id if h.ple_image_token_id is None else h.ple_image_token_id

    def new_state(self, rollback: int = ROLLBACK) -> State:
        """The state of an empty sequence, of which so many rows can be taken back."""
        rows = token_rows(self.device) | position_rows(self.device)
        trails: dict[str, Trail] = {}
        for block in self.blocks:
            rows |= block.attention.new_rows() if block.attention else {}
            for part in (block.ngrams, block.delta_net):
                trails |= part.new_trails(rollback) if part else {}
        return State(rows, trails)

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Wide residual rows [all rows of all chunks, C*H] in their order; the states then hold them."""
        if any(chunk.start is not None for chunk in chunks):
            raise UsageError("rows", "a trunk's rows follow those that are counted: it has a state for each row")
        x = embedded(chunks, self.embedding.gather, self.width).to(self.dtype)  # [rows, H]
        positions = write_positions(chunks, self.axes)
        for chunk in chunks:
            ids = chunk.tokens if chunk.embeddings is None else [self.image_token or 0] * len(chunk)
            chunk.state.rows[TOKENS].write(chunk.first, torch.tensor(ids, dtype=torch.int64, device=self.device))
        streams = x[:, None].repeat(1, self.streams, 1)
        for block in self.blocks:
            streams = block(streams, chunks, positions)
        for chunk in chunks:
            chunk.advance()
        return streams.reshape(-1, self.hidden_width)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocabulary] from wide residual rows [rows, C*H]."""
        mixed, _ = self.mixer.read(hidden.reshape(-1, self.streams, self.width))
        return self.ops.linear(mixed, self.output)


class Heads:
    """The one draft head, which is looped: it takes its own wide residual for the later tokens of a draft.

    A row is a token with the wide residual of the token before it: the trunk's, or the head's own where the token
    before it is a draft. A sequence begins with its first token and a row of zeros, as in llama.cpp.

    The first step of a draft is `forward([Chunk(state, [token], hidden=pending)], 0)`, where `token` is not yet counted
    and `pending` is the trunk's row for the token before it. Step i is `forward([Chunk(state, [draft], hidden=last,
    start=state.length + i)], 0)` with the draft and the hidden row of the step before: it sees the rows that those
    steps left behind the counted ones. `catch_up` with the accepted tokens and the trunk's rows writes over them.

    InputError when a tensor or a key that it needs is missing or makes no sense, or the file does not have one head.
    """

    def __init__(self, weights: Weights, hnorm: HiddenNorm = "stream") -> None:
        h = hyperparameters(weights)
        if h.nextn_blocks != 1:
            raise InputError("heads", f"has {h.nextn_blocks} heads, want 1", subject=weights.contents.name)
        block = h.trunk_blocks
        nextn = f"blk.{block}.nextn."
        self.contents = weights.contents
        self.count = 1
        self.dtype, self.device = weights.dtype, weights.device
        self.ops = weights.ops
        self.streams, self.width = h.hyper_connection_count, h.embedding_length
        self.hidden_width = h.streams_width
        self.axes = axes_of(h, weights.device)
        self.eps = h.attention_layer_norm_rms_epsilon
        self.embedding = weights.table(EMBEDDING)
        self.output = output_matrix(weights)
        self.embedding_norm = weights.vector(f"{nextn}enorm.weight")
        self.flat = hnorm == "flat"
        self.hidden_norm = weights.vector(f"{nextn}hnorm.weight").reshape(self.streams, self.width)
        self.projection = weights.matrix(f"{nextn}eh_proj.weight")
        self.around_attention = HyperConnection(weights, f"blk.{block}.hc_attn_", h)
        self.attention = Attention(weights, block, h)
        self.around_experts = HyperConnection(weights, f"blk.{block}.hc_ffn_", h)
        self.experts = Experts(weights, block, h)
        self.mixer = Mixer(weights, f"{nextn}hc_head_", h)

    def new_state(self) -> State:
        """The state of an empty sequence."""
        return State(self.attention.new_rows() | position_rows(self.device))

    def catch_up(self, chunks: Sequence[Chunk]) -> None:
        """Write the keys, values and indexer keys of the rows, and count them: later steps read nothing else."""
        mixed, _ = self.around_attention.read(self._joined(chunks))
        self.attention.remember(mixed, chunks, write_positions(chunks, self.axes))
        for chunk in chunks:
            chunk.advance()

    def forward(self, chunks: Sequence[Chunk], head: int) -> Tensor:
        """Wide residual rows [rows, C*H] before the mixer; the caches hold the rows, which are not counted."""
        if head != 0:
            raise UsageError("head", f"there is one head, number 0; asked for {head}")
        attention = partial(self.attention, chunks=chunks, positions=write_positions(chunks, self.axes))
        streams = self.around_attention.around(self._joined(chunks), attention)
        return self.around_experts.around(streams, self.experts).reshape(-1, self.hidden_width)

    def logits(self, hidden: Tensor, head: int) -> Tensor:
        """Logits [rows, vocabulary] from wide residual rows [rows, C*H] of the head."""
        mixed, _ = self.mixer.read(hidden.reshape(-1, self.streams, self.width))
        return self.ops.linear(mixed, self.output)

    def _joined(self, chunks: Sequence[Chunk]) -> Tensor:
        """The head's input [rows, C, H]: the normed embedding beside each stream of the normed hidden row, projected.

        The projection's left half meets the embedding, its right half the hidden row.
        """
        rows = embedded(chunks, self.embedding.gather, self.width).to(self.dtype)
        embedding = self.ops.rms_norm(rows, self.embedding_norm, self.eps)
        hidden = joined([_hidden(chunk, self.hidden_width) for chunk in chunks]).to(self.dtype)
        if self.flat:
            normed = self.ops.rms_norm(hidden, self.hidden_norm.reshape(-1), self.eps).reshape(
                -1, self.streams, self.width
            )
        else:
            normed = self.ops.rms_norm(hidden.reshape(-1, self.streams, self.width), self.hidden_norm, self.eps)
        both = torch.cat((embedding[:, None].expand_as(normed), normed), dim=-1)
        return self.ops.linear(both.reshape(-1, 2 * self.width), self.projection).reshape(normed.shape)


def output_matrix(weights: Weights) -> Matrix:
    """The output matrix; the embedding, as in llama.cpp, when neither the file nor one it borrows from has its own."""
    if OUTPUT in weights or (weights.lender is not None and OUTPUT in weights.lender):
        return weights.matrix(OUTPUT)
    return weights.matrix(weights.instead(OUTPUT, EMBEDDING))


def position_rows(device: str) -> dict[str, Rows]:
    """Where blocks of keys look up their positions."""
    return {POSITIONS: Rows((len(AXES),), torch.int64, device)}


def write_positions(chunks: Sequence[Chunk], axes: Tensor) -> Tensor:
    """Put the positions of all rows on each axis into the states, and give them by frequency: [rows, frequencies]."""
    positions = joined_axes(chunks).to(axes.device)
    for chunk, span in spans(chunks):
        chunk.state.rows[POSITIONS].write(chunk.first, positions[span])
    return positions[:, axes]


def _hidden(chunk: Chunk, width: int) -> Tensor:
    """What a head takes beside the tokens; UsageError unless there is a row of the trunk's width for each."""
    shape = None if chunk.hidden is None else tuple(chunk.hidden.shape)
    if chunk.hidden is None or shape != (len(chunk), width):
        raise UsageError("hidden", f"hidden rows of shape {shape}, want {(len(chunk), width)}")
    return chunk.hidden
