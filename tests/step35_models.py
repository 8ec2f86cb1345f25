"""Step models of the fixture, and files that lack or say something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from families import FAMILIES
from torch import Tensor

from nextn.gguf_schema.contents import TensorInfo, Value
from nextn.gguf_schema.shards import GGUFFile, open_gguf
from nextn.kernels.operations import operations
from nextn.runtime.model import Chunk
from nextn.runtime.models.step35 import Heads, Trunk
from nextn.runtime.weights import Weights

FAMILY = FAMILIES["step35"]
# The matrices are small: threads that wait for each other on busy cores make the tests ten times slower.
torch.set_num_threads(1)

PROMPTS: dict[str, list[int]] = {prompt["name"]: prompt["ids"] for prompt in FAMILY.prompts}


def model(path: Path, dtype: torch.dtype = torch.float32, form: str = "reference") -> tuple[Trunk, Heads]:
    """The trunk and the heads of a combined file, with operations in a form."""
    weights = Weights(open_gguf(path), dtype, ops=operations(form))
    return Trunk(weights), Heads(weights)


def without(file: GGUFFile, *names: str) -> GGUFFile:
    """The file as if it lacked these tensors."""
    tensors = {name: tensor for name, tensor in file.contents.tensors.items() if name not in names}
    return replace(file, contents=replace(file.contents, tensors=tensors))


def with_key(file: GGUFFile, name: str, value: Value) -> GGUFFile:
    """The file as if a key said something else."""
    return replace(file, contents=replace(file.contents, keys={**file.contents.keys, name: value}))


def with_alias(file: GGUFFile, aliases: Mapping[str, str]) -> GGUFFile:
    """The file as if some tensors were there under other names too."""
    held = file.contents.tensors
    more: dict[str, TensorInfo] = {new: replace(held[old], name=new) for new, old in aliases.items()}
    return replace(file, contents=replace(file.contents, tensors={**held, **more}))


def one_by_one(trunk: Trunk, tokens: Sequence[int]) -> Tensor:
    """The hidden rows of tokens, each computed alone."""
    state = trunk.new_state()
    return torch.cat([trunk.forward([Chunk(state, [token])]) for token in tokens])


def beside(hidden: Tensor) -> Tensor:
    """What heads take beside tokens whose own hidden rows are `hidden`: the row before, zeros for the first."""
    return torch.cat((torch.zeros_like(hidden[:1]), hidden[:-1]))
