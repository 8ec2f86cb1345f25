"""Small GGUF files in memory, with the data that a test wants."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from nextn.gguf_schema.container import encode_header, lay_out, read_header
from nextn.gguf_schema.contents import MemoryFile, TensorInfo, string
from nextn.gguf_schema.shards import GGUFFile, join_shards
from nextn.gguf_schema.types import TENSOR_TYPES

# Name to type, dimensions and bytes.
Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]


def make(tensors: Tensors, architecture: str = "toy", cut: int = 0) -> GGUFFile:
    """A file in memory, without its last `cut` bytes."""
    infos, _ = lay_out(
        TensorInfo(name, ne, TENSOR_TYPES[kind], TENSOR_TYPES[kind].tensor_bytes(ne))
        for name, (kind, ne, _) in tensors.items()
    )
    data = b"".join(raw + bytes(-len(raw) % 32) for _, _, raw in tensors.values())
    whole = encode_header({"general.architecture": string(architecture)}, infos) + data
    return join_shards([read_header(MemoryFile(whole[: len(whole) - cut]))])


def f32(values: npt.ArrayLike) -> tuple[str, tuple[int, ...], bytes]:
    array = np.asarray(values, np.float32)
    return "F32", tuple(reversed(array.shape)), array.tobytes()


def noise(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)
