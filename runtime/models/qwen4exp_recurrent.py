"""The blocks of Qwen3.8-Flash-Next whose state is made anew with each row: gated delta nets, and n-gram embeddings.

Source: Qwen4ExpTextGatedDeltaNet and Qwen4ExpTextPLE of transformers 5.24; src/models/qwen4exp.cpp of llama.cpp b11549.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.qwen4exp import Qwen4Exp
from nextn.kernels.qwen4exp import ngram_rows
from nextn.runtime.model import Chunk
from nextn.runtime.recurrent import convolved_rows, recurrent_rows
from nextn.runtime.state import Rows, Trail
from nextn.runtime.weights import Weights

# The model's own, whatever epsilon its other norms have; llama.cpp takes theirs, which is the same in real models.
L2_EPS = 1e-6

# The id of each row; where embeddings came in its place, the one that stands for an image.
TOKENS = "tokens"


class DeltaNet:
    """A gated delta net. It keeps the inputs of its convolution's last rows, and a matrix for each value head.

    Value heads are in the order of the file: head n takes query and key n mod (number of key heads).
    """

    def __init__(self, weights: Weights, block: int, h: Qwen4Exp) -> None:
        prefix = f"blk.{block}."
        self.block, self.ops = block, weights.ops
        self.key_heads, self.heads, self.width = h.ssm_group_count, h.ssm_time_step_rank, h.ssm_state_size
        self.conv_width, self.taps = h.conv_width, h.ssm_conv_kernel
        self.eps = h.attention_layer_norm_rms_epsilon
        self.qkv = weights.matrix(f"{prefix}attn_qkv.weight")
        self.gate = weights.matrix(f"{prefix}attn_gate.weight")
        self.beta = weights.matrix(f"{prefix}ssm_beta.weight")
        self.alpha = weights.matrix(f"{prefix}ssm_alpha.weight")
        self.conv = weights.vector(f"{prefix}ssm_conv1d.weight")
        self.rates = weights.vector(f"{prefix}ssm_a")  # -exp(A_log)
        self.bias = weights.vector(f"{prefix}ssm_dt.bias")
        self.norm = weights.vector(f"{prefix}ssm_norm.weight")
        self.output = weights.matrix(f"{prefix}ssm_out.weight")

    def new_trails(self, keep: int) -> dict[str, Trail]:
        """The state before the first row, of which so many rows can be taken back."""
        past = self.conv.new_zeros(self.taps - 1, self.conv_width)
        state = self.conv.new_zeros(self.heads, self.width, self.width)
        return {f"{self.block}.conv": Trail(past, keep), f"{self.block}.delta": Trail(state, keep)}

    def __call__(self, x: Tensor, chunks: Sequence[Chunk]) -> Tensor:
        """x [rows, H]: [rows, H]."""
        inputs, alpha, beta, gates = self.ops.linears(x, (self.qkv, self.alpha, self.beta, self.gate))
        convolved = convolved_rows(self.ops, inputs, chunks, f"{self.block}.conv", self.conv)
        decay = self.ops.decays(alpha, self.rates, self.bias)[..., None]
        read = recurrent_rows(self.ops, (convolved, decay, beta), chunks, f"{self.block}.delta", self.key_heads, L2_EPS)
        return self.ops.linear(self.ops.normed_gated_heads(read, self.norm, self.eps, gates), self.output)


class NGrams:
    """Adds to the streams what a table holds for the n-grams that end with each token, and a convolution over it.

    The table stays where it is; its rows are read one by one. What the convolution saw of the last rows is kept, and
    the tokens are in the states. The convolution looks back past an EOS, the n-grams do not.
    """

    def __init__(self, weights: Weights, block: int, h: Qwen4Exp) -> None:
        prefix = f"blk.{block}.ple_"
        self.block, self.ops = block, weights.ops
        self.streams, self.width = h.hyper_connection_count, h.embedding_length
        self.eps = h.attention_layer_norm_rms_epsilon
        # Real files have all of these keys, or `hyperparameters` refuses them.
        self.eos = h.ple_eos_token_id or 0
        self.multipliers = h.ple_layer_multipliers or ()
        self.offsets, self.sizes = h.ple_head_offsets or (), h.ple_head_vocab_sizes or ()
        self.taps, self.dilation = h.ple_conv_kernel or 0, h.ple_ngram_size or 0
        self.table = weights.table("per_layer_token_embd.weight")
        _check(weights, h, self.table.shape[0])
        self.key = weights.matrix(f"{prefix}key.weight")
        self.value = weights.matrix(f"{prefix}value.weight")
        norms = (weights.vector(f"{prefix}norm_{what}.weight") for what in ("key", "query", "conv"))
        self.key_norm, self.query_norm, self.conv_norm = (norm.reshape(self.streams, self.width) for norm in norms)
        self.conv = weights.vector(f"{prefix}conv1d.weight")

    def new_trails(self, keep: int) -> dict[str, Trail]:
        """The state before the first row, of which so many rows can be taken back."""
        past = self.conv.new_zeros((self.taps - 1) * self.dilation, self.streams * self.width)
        return {f"{self.block}.ngrams": Trail(past, keep)}

    def __call__(self, streams: Tensor, chunks: Sequence[Chunk]) -> Tensor:
        """Streams [rows, C, H] with the n-grams added: [rows, C, H]."""
        rows = streams.shape[0]
        found = self.table.gather([index for chunk in chunks for index in self._indices(chunk)]).reshape(rows, -1)
        keys, values = self.ops.linears(found, (self.key, self.value))
        keys = self.ops.rms_norm(keys.reshape(streams.shape), self.key_norm, self.eps)
        queries = self.ops.rms_norm(streams, self.query_norm, self.eps)
        gated = self.ops.ngram_gates(keys, queries)[..., None] * values[:, None]
        normed = self.ops.rms_norm(gated, self.conv_norm, self.eps).reshape(rows, -1)
        convolved = convolved_rows(self.ops, normed, chunks, f"{self.block}.ngrams", self.conv, self.dilation)
        return streams + gated + convolved.reshape(streams.shape)

    def _indices(self, chunk: Chunk) -> list[int]:
        """Rows of the table for each token of a chunk and each head, one token after the other."""
        start = max(0, chunk.first + 1 - len(self.multipliers))
        tokens: list[int] = chunk.state.rows[TOKENS].first(chunk.first + len(chunk))[start:].tolist()
        ends = range(chunk.first + 1 - start, len(tokens) + 1)
        constants = (self.eos, self.multipliers, self.offsets, self.sizes)
        texts = (tokens[max(0, end - len(self.multipliers)) : end] for end in ends)
        return [row for text in texts for row in ngram_rows(text, *constants)]


def token_rows(device: str) -> dict[str, Rows]:
    """Where n-grams look up the tokens."""
    return {TOKENS: Rows((), torch.int64, device)}


def _check(weights: Weights, h: Qwen4Exp, rows: int) -> None:
    """InputError when the constants contradict each other or the table, as llama.cpp refuses them."""
    offsets, sizes = h.ple_head_offsets or (), h.ple_head_vocab_sizes or ()
    heads = ((h.ple_ngram_size or 0) - 1) * (h.ple_heads_per_ngram or 0)
    lengths = (len(h.ple_layer_multipliers or ()), len(offsets), len(sizes))
    if heads < 1 or lengths != (h.ple_ngram_size, heads, heads):
        message = f"n-gram constants: {lengths} multipliers, offsets and sizes for {heads} heads of {h.ple_ngram_size}"
        raise InputError("ngrams", message, subject=weights.contents.name)
    needed = max(map(sum, zip(offsets, sizes, strict=True)))
    if min(sizes) < 1 or needed > rows:
        message = f"n-gram table has {rows} rows, its heads' parts of {min(sizes)} and more end at {needed}"
        raise InputError("ngrams", message, subject=weights.contents.name)
