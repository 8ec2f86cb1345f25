"""Weights of converted files, also as if their headers said something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from nextn.gguf_schema.contents import Value
from nextn.gguf_schema.shards import open_gguf
from nextn.runtime.weights import Weights


def load(path: Path, dtype: torch.dtype = torch.float64) -> Weights:
    return Weights(open_gguf(path), dtype)


def edited(weights: Weights, keys: Mapping[str, Value | None] | None = None, without: Sequence[str] = ()) -> Weights:
    """The same file, as if its header said something else; a key that is None is left out."""
    contents = weights.contents
    changed = {f"{contents.architecture}.{name}": value for name, value in (keys or {}).items()}
    kept = {name: value for name, value in (contents.keys | changed).items() if value is not None}
    tensors = {name: tensor for name, tensor in contents.tensors.items() if name not in without}
    file = replace(weights.file, contents=replace(contents, keys=kept, tensors=tensors))
    return Weights(file, weights.dtype, lender=weights.lender)
