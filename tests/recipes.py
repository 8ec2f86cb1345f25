"""Recipes evaluated: source tensors in memory, and what a recipe makes of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nextn.convert.payload import piece_bytes, pieces
from nextn.convert.plan import Payload
from nextn.convert.source_tensor import SourceTensor
from nextn.convert.transforms import Recipe
from nextn.gguf_schema.contents import MemoryFile, TensorInfo
from nextn.gguf_schema.types import F32

DTYPES: dict[str, npt.DTypeLike] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}


def source(values: npt.ArrayLike, dtype: str = "F32", name: str = "w") -> SourceTensor:
    """A source tensor in memory, with bytes of another tensor before and behind it."""
    array = np.asarray(values, dtype=DTYPES[dtype])
    return SourceTensor(name, dtype, array.shape, MemoryFile(b"\x7f" * 64 + array.tobytes() + b"\x7f" * 64), 64)


def counting(*shape: int, dtype: str = "F32", name: str = "w", start: int = 0) -> SourceTensor:
    """A source tensor with the values start, start + 1, …"""
    return source(np.arange(start, start + np.prod(shape)).reshape(shape), dtype, name)


def values(recipe: Recipe, elements: int | None = None) -> npt.NDArray[Any]:
    """What the recipe makes, in float32, in pieces of about so many elements."""
    info = TensorInfo("t", recipe.shape[::-1], F32, 4 * int(np.prod(recipe.shape)))
    payload = Payload(info, recipe)
    data = b"".join(piece_bytes(piece) for piece in (pieces(payload, elements) if elements else pieces(payload)))
    return np.frombuffer(data, "<f4").reshape(recipe.shape)
