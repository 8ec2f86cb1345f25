"""What blocks of Qwen3.8-Flash-Next have in common: hyper-connections around them, and experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.qwen4exp import QWEN4EXP, Qwen4Exp
from nextn.gguf_schema.reading import Kind, read_hyperparameters
from nextn.kernels.qwen4exp import hyper_connection_read, hyper_connection_strengths
from nextn.kernels.reference import dot, linear, sigmoid, softmax, swiglu, top
from nextn.runtime.weights import Weights


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
        self.norm = weights.vector(f"{prefix}norm.weight").reshape(h.hyper_connection_count, h.embedding_length)
        self.down = weights.matrix(f"{prefix}down.weight")
        self.up = weights.matrix(f"{prefix}up.weight")
        self.eps = h.attention_layer_norm_rms_epsilon

    def read(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """Streams [rows, C, H] mixed: [rows, H]; and normed: [rows, C*H]."""
        return hyper_connection_read(streams, self.norm, self.down, self.up, self.eps)


class HyperConnection(Mixer):
    """Stands around a block: what it reads from the wide residual, and how its result is added to it."""

    def __init__(self, weights: Weights, prefix: str, h: Qwen4Exp) -> None:
        super().__init__(weights, prefix, h)
        self.inject = weights.matrix(f"{prefix}inject.weight")

    def around(self, streams: Tensor, block: Callable[[Tensor], Tensor]) -> Tensor:
        """Streams [rows, C, H] with the result of a block, [rows, H] to [rows, H], added to each."""
        mixed, normed = self.read(streams)
        strengths = hyper_connection_strengths(normed, self.inject, streams.shape[1])
        return streams + strengths[..., None] * block(mixed)[:, None]


class Experts:
    """A router, the experts it chooses from, and an expert that all rows share."""

    def __init__(self, weights: Weights, block: int, h: Qwen4Exp) -> None:
        prefix = f"blk.{block}.ffn_"
        self.chosen = h.expert_used_count
        self.count = h.expert_count
        self.router = weights.matrix(f"{prefix}gate_inp.weight")
        self.gate = weights.matrix(f"{prefix}gate_exps.weight")
        self.up = weights.matrix(f"{prefix}up_exps.weight")
        self.down = weights.matrix(f"{prefix}down_exps.weight")
        self.shared_gate_input = weights.vector(f"{prefix}gate_inp_shexp.weight").reshape(-1)
        self.shared_gate = weights.matrix(f"{prefix}gate_shexp.weight")
        self.shared_up = weights.matrix(f"{prefix}up_shexp.weight")
        self.shared_down = weights.matrix(f"{prefix}down_shexp.weight")

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, H]: [rows, H]."""
        inner = swiglu(linear(x, self.shared_gate), linear(x, self.shared_up))
        gate = sigmoid(dot(x, self.shared_gate_input.expand_as(x))[:, None])
        return self._routed(x) + gate * linear(inner, self.shared_down)

    def _routed(self, x: Tensor) -> Tensor:
        """The chosen experts' results by their probabilities, which are made to sum to one."""
        shares: dict[int, dict[int, Tensor]] = {}  # expert: row: share
        for row, probabilities in enumerate(softmax(linear(x, self.router))):
            chosen = top(probabilities, self.chosen)
            total = probabilities[chosen].sum()
            for expert in chosen:
                shares.setdefault(expert, {})[row] = probabilities[expert] / total
        result = torch.zeros_like(x)
        # A row's experts are added in the order of their numbers, whatever other rows choose.
        for expert in sorted(shares):
            rows, share = list(shares[expert]), torch.stack(list(shares[expert].values()))
            inner = swiglu(linear(x[rows], self.gate[expert]), linear(x[rows], self.up[expert]))
            result[rows] = result[rows] + share[:, None] * linear(inner, self.down[expert])
        return result
