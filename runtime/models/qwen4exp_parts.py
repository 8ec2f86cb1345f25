"""What blocks of Qwen3.8-Flash-Next have in common: hyper-connections around them, and experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor

from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.qwen4exp import QWEN4EXP, Qwen4Exp
from nextn.gguf_schema.reading import Kind, read_hyperparameters
from nextn.runtime.weights import Matrix, Weights


def hyperparameters(weights: Weights) -> Qwen4Exp:
    """The hyper-parameters of a file. InputError for a key that is wrong, or missing with nothing to assume for it."""
    read, problems = read_hyperparameters(QWEN4EXP, weights.contents)
    h = cast(Qwen4Exp, read)  # the class that the table names
    for problem in problems:
        field = problem.key.removeprefix(f"{QWEN4EXP.name}.").replace(".", "_")
        of_ngrams = field.startswith("ple_") or field == "embedding_length_per_layer_input"
        unused = of_ngrams and not h.ple_layers
        if problem.kind is not Kind.MISSING or (getattr(h, field, None) is None and not unused):
            message, remedy = f"key {problem.key!r} {problem.message}", "nextn validate says what else is wrong"
            raise InputError("key", message, subject=weights.contents.name, remedy=remedy)
    return h


class Mixer:
    """Reads one row from the wide residual."""

    def __init__(self, weights: Weights, prefix: str, h: Qwen4Exp) -> None:
        self.ops = weights.ops
        self.norm = weights.vector(f"{prefix}norm.weight").reshape(h.hyper_connection_count, h.embedding_length)
        self.down = weights.matrix(f"{prefix}down.weight")
        self.up = weights.matrix(f"{prefix}up.weight")
        self.eps = h.attention_layer_norm_rms_epsilon

    def read(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """Streams [rows, C, H] mixed: [rows, H]; and normed: [rows, C*H]."""
        return self.ops.hyper_connection_read(streams, self.norm, self.down, self.up, self.eps)


class HyperConnection(Mixer):
    """Stands around a block: what it reads from the wide residual, and how its result is added to it."""

    def __init__(self, weights: Weights, prefix: str, h: Qwen4Exp) -> None:
        super().__init__(weights, prefix, h)
        self.inject = weights.matrix(f"{prefix}inject.weight")

    def around(self, streams: Tensor, block: Callable[[Tensor], Tensor]) -> Tensor:
        """Streams [rows, C, H] with the result of a block, [rows, H] to [rows, H], added to each."""
        mixed, normed = self.read(streams)
        strengths = self.ops.hyper_connection_strengths(normed, self.inject, streams.shape[1])
        return self.ops.hyper_connection_write(streams, strengths, block(mixed))


class Experts:
    """A router, the experts it chooses from, and an expert that all rows share."""

    def __init__(self, weights: Weights, block: int, h: Qwen4Exp) -> None:
        prefix = f"blk.{block}.ffn_"
        self.ops = weights.ops
        self.used = h.expert_used_count
        self.router = weights.matrix(f"{prefix}gate_inp.weight")
        self.matrices = _matrices(weights, prefix, "_exps")
        self.shared_gate = weights.vector(f"{prefix}gate_inp_shexp.weight").reshape(-1)
        self.shared = _matrices(weights, prefix, "_shexp")

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, H]: [rows, H]."""
        chosen, shares = self.ops.softmax_router(self.ops.linear(x, self.router), self.used)
        routed = self.ops.experts(x, chosen, shares, self.matrices)
        return self.ops.add_gated(routed, self.ops.network(x, *self.shared), x, self.shared_gate)


def _matrices(weights: Weights, prefix: str, ending: str) -> tuple[Matrix, Matrix, Matrix]:
    gate, up, down = (weights.matrix(f"{prefix}{part}{ending}.weight") for part in ("gate", "up", "down"))
    return gate, up, down
