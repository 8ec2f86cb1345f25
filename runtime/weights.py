"""The weights of a GGUF file: mapped, not read; decoded when they are used, or once when they are small."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nextn.gguf_schema.contents import ByteSource, Contents, LocalFile, TensorInfo
from nextn.gguf_schema.dequantize import dequantized, is_decodable
from nextn.gguf_schema.errors import InputError, reason
from nextn.gguf_schema.nextn_generic import EMBEDDING, OUTPUT
from nextn.gguf_schema.shards import GGUFFile
from nextn.gguf_schema.types import TensorType
from nextn.kernels.operations import REFERENCE, Operations

# Types that torch has: their bytes are used as they lie.
PLAIN: dict[str, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# A matrix that is no larger than this when decoded is decoded once; of larger ones a block of rows at a time.
DECODED_BYTES = 64 << 20
BLOCK_BYTES = 8 << 20
# Of Linux: no memory is set aside for pages that are written to. Python has no name for it yet.
MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0


class Matrix:
    """A weight [..., out, in] as it is stored; `name` is for messages."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        type_: TensorType,
        data: Tensor,
        dtype: torch.dtype,
        device: str = "cpu",
    ) -> None:
        self.name = name
        self.shape = shape
        self._type = type_
        self._data = data  # bytes [..., out, row bytes]
        self._dtype = dtype
        self._device = device  # where gathered rows are wanted
        self._decoded: Tensor | None = None
        self.kept: Any = None

    def __getitem__(self, index: int) -> Matrix:
        """The matrix at a place of the first dimension, for example an expert's.

        What is decoded of all of them together is kept; of those that are too large for that, nothing is.
        """
        if self._decoded is None and self._fits:
            self._decoded = self._decode(self._data)
        part = Matrix(self.name, self.shape[1:], self._type, self._data[index], self._dtype)
        part._decoded = None if self._decoded is None else self._decoded[index]
        return part

    @property
    def type_name(self) -> str:
        """The ggml type that it is stored in."""
        return self._type.name

    @property
    def packed(self) -> Tensor:
        """Its bytes as they lie in the file: uint8 [..., out, bytes of a row]."""
        return self._data

    @property
    def _fits(self) -> bool:
        return prod(self.shape) * self._dtype.itemsize <= DECODED_BYTES

    def _decode(self, data: Tensor) -> Tensor:
        """Values of rows of bytes [..., row bytes]."""
        plain = PLAIN.get(self._type.name)
        if plain is not None:
            return data.view(plain).to(self._dtype)
        values = dequantized(self._type, data.cpu().numpy())
        return torch.from_numpy(values).to(data.device, self._dtype)

    def decoded(self) -> Tensor:
        """All of it as float32."""
        return self._decode(self._data).float().contiguous()

    def blocks(self) -> Iterator[Tensor]:
        """The rows of a matrix [out, in], in blocks that are always the same: all of it when that is small."""
        if self._decoded is None and self._fits:
            self._decoded = self._decode(self._data)
        if self._decoded is not None:
            yield self._decoded
            return
        rows = max(1, BLOCK_BYTES // (self.shape[-1] * self._dtype.itemsize))
        for start in range(0, self.shape[0], rows):
            yield self._decode(self._data[start : start + rows])

    def gather(self, rows: Sequence[int]) -> Tensor:
        """Rows of a matrix [out, in] by their indices: [rows, in]. What is not asked for stays on the disk.

        IndexError for an index that is none.
        """
        if min(rows, default=0) < 0:
            raise IndexError(f"{self.name} has no row {min(rows)}")
        return self._decode(self._data[torch.tensor(rows, dtype=torch.int64)]).to(self._device)


class Weights:
    """The tensors of a model's files; `lender` has the embedding and the output, which a shared sidecar borrows.

    Nothing else is borrowed: a head block in the lender is another head's. `ops` is what models compute with. `read`
    are the tensors of the files that were asked for, `notes` what a user should know of how they are used.
    """

    def __init__(
        self,
        file: GGUFFile,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        lender: Weights | None = None,
        ops: Operations = REFERENCE,
    ) -> None:
        self.file = file
        self.contents: Contents = file.contents
        self.dtype = dtype
        self.device = device
        self.lender = lender
        self.ops = ops
        self.read: set[str] = set()
        self.notes: list[str] = []
        self._maps: dict[str, npt.NDArray[np.uint8]] = {}
        self._moved: dict[str, Tensor] = {}
        self._multiplied: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Whether the files themselves have a tensor."""
        return name in self.contents.tensors

    def matrix(self, name: str, dtype: torch.dtype | None = None) -> Matrix:
        """A weight as it is stored; InputError when it is missing, or of a type that cannot be decoded.

        Its values are of `dtype`, if that is to be another than all others'.
        """
        if self._lends(name):
            return cast(Weights, self.lender).matrix(name, dtype)
        tensor, data = self._held(name)
        self._multiplied.add(name)
        if self.device != "cpu":
            # Once, however many parts of a model ask for it.
            if name not in self._moved:
                self._moved[name] = data.to(self.device)
            data = self._moved[name]
        return Matrix(name, tensor.ne[::-1], tensor.type, data, dtype or self.dtype)

    def table(self, name: str) -> Matrix:
        """A weight of which single rows are read: it stays where it is, and only these go to the device."""
        if self._lends(name):
            return cast(Weights, self.lender).table(name)
        tensor, data = self._held(name)
        return Matrix(name, tensor.ne[::-1], tensor.type, data, self.dtype, self.device)

    def _lends(self, name: str) -> bool:
        return self.lender is not None and name not in self and name in (EMBEDDING, OUTPUT)

    def _held(self, name: str) -> tuple[TensorInfo, Tensor]:
        """A tensor of the files, and its bytes [..., out, row bytes] as they are mapped."""
        tensor = self.contents.tensors.get(name)
        if tensor is None:
            message, remedy = f"tensor {name!r} is not there", "nextn validate says what else is wrong with the file"
            raise InputError("missing-weight", message, subject=self.contents.name, remedy=remedy)
        self.read.add(name)
        return tensor, self._bytes(tensor)

    def vector(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A small tensor, decoded: of torch shape."""
        matrix = self.matrix(name, dtype)
        return matrix._decode(matrix._data).contiguous()

    def optional(self, name: str, dtype: torch.dtype | None = None) -> Tensor | None:
        """A small tensor, or None."""
        return self.vector(name, dtype) if name in self else None

    def instead(self, missing: str, other: str) -> str:
        """The other name, in place of one that the files lack where loaders do with the other; it is noted."""
        self.notes.append(f"{self.contents.name} has no {missing}: {other} is taken in its place, as in llama.cpp")
        return other

    @property
    def unpacked(self) -> list[TensorInfo]:
        """The matrices among those that were asked for which `ops` decode once, and keep decoded."""
        packed = self.ops.packed_types
        asked = [tensor for name, tensor in self.contents.tensors.items() if name in self._multiplied]
        return [tensor for tensor in asked if packed and tensor.type.name not in packed]

    def _bytes(self, tensor: TensorInfo) -> Tensor:
        type_, shape = tensor.type, tensor.ne[::-1]
        if type_.name not in PLAIN and not is_decodable(type_):
            message = f"tensor {tensor.name!r} is {type_.name}, which cannot be decoded"
            remedy = "convert the checkpoint to another type: nextn convert SOURCE --outtype q8_0"
            raise InputError("undecodable", message, subject=self.contents.name, remedy=remedy)
        source, offset, nbytes = self.file.tensor_bytes(tensor.name)
        if source.name not in self._maps:
            self._maps[source.name] = _mapped(source)
        mapped = self._maps[source.name][offset : offset + nbytes]
        return torch.from_numpy(mapped.reshape(*shape[:-1], type_.row_bytes(shape[-1])))


def _mapped(source: ByteSource) -> npt.NDArray[np.uint8]:
    """The bytes of a file as memory of this process; InputError when it is not what was opened any more.

    Nothing that is written to this memory reaches the file: torch has no tensors that cannot be written to.
    """
    try:
        with Path(source.name).open("rb") as file:
            flags, access = mmap.MAP_PRIVATE | MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            memory = mmap.mmap(file.fileno(), 0, flags=flags, prot=access)
    except (OSError, ValueError) as error:
        raise InputError("unreadable", f"cannot be mapped: {reason(error)}", subject=source.name) from error
    if len(memory) != source.size or LocalFile(Path(source.name)).identity != source.identity:
        raise InputError("changed", "was written anew since it was opened", subject=source.name)
    return np.frombuffer(memory, np.uint8)
