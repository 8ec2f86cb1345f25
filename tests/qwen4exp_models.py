"""Qwen models of the fixture, and files that lack or say something else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from families import FAMILIES
from torch import Tensor

from nextn.gguf_schema.contents import Value
from nextn.gguf_schema.shards import GGUFFile, open_gguf
from nextn.kernels.operations import operations
from nextn.runtime.model import Chunk
from nextn.runtime.models.qwen4exp import Heads, HiddenNorm, Trunk
from nextn.runtime.state import State
from nextn.runtime.weights import Weights

FAMILY = FAMILIES["qwen4exp"]
PROMPTS: dict[str, list[int]] = {prompt["name"]: prompt["ids"] for prompt in FAMILY.prompts}
HEAD = 0


def model(
    path: Path, dtype: torch.dtype = torch.float32, hnorm: HiddenNorm = "stream", form: str = "reference"
) -> tuple[Trunk, Heads]:
    """The trunk and the head of a combined file."""
    weights = Weights(open_gguf(path), dtype, ops=operations(form))
    return Trunk(weights), Heads(weights, hnorm)


def without(file: GGUFFile, *names: str) -> GGUFFile:
    """The file as if it lacked these tensors and keys."""
    contents = file.contents
    tensors = {name: tensor for name, tensor in contents.tensors.items() if name not in names}
    keys = {key: value for key, value in contents.keys.items() if key not in names}
    return replace(file, contents=replace(contents, keys=keys, tensors=tensors))


def with_keys(file: GGUFFile, keys: dict[str, Value]) -> GGUFFile:
    """The file as if some keys said something else."""
    return replace(file, contents=replace(file.contents, keys={**file.contents.keys, **keys}))


def beside(hidden: Tensor) -> Tensor:
    """What a head takes beside tokens whose own hidden rows are `hidden`: the row before, zeros for the first."""
    return torch.cat((torch.zeros_like(hidden[:1]), hidden[:-1]))


def in_parts(trunk: Trunk, state: State, tokens: Sequence[int], size: int) -> Tensor:
    """The hidden rows of tokens, so many in a forward."""
    starts = range(0, len(tokens), size)
    return torch.cat([trunk.forward([Chunk(state, tokens[start : start + size])]) for start in starts])


def draft(heads: Heads, state: State, token: int, hidden: Tensor, count: int) -> tuple[list[int], Tensor]:
    """The head looped: drafted tokens, and the logits [count, vocabulary] that they come from; nothing is counted."""
    drafted: list[int] = []
    logits = []
    for step in range(count):
        hidden = heads.forward([Chunk(state, [token], hidden=hidden, start=state.length + step)], HEAD)
        logits.append(heads.logits(hidden, HEAD)[0])
        token = int(logits[-1].argmax())
        drafted.append(token)
    return drafted, torch.stack(logits)


def same(one: State, other: State) -> bool:
    """Whether two states hold the same, bit for bit; trails only where both reach."""
    a, b = one.tensors(), other.tensors()
    common = a.keys() & b.keys()
    trails = {name for name in a.keys() ^ b.keys() if name.startswith("trail.")}
    return a.keys() ^ b.keys() == trails and all(torch.equal(a[name], b[name]) for name in common)
