"""Where the values of an output come from: a tensor of a checkpoint or of a GGUF file, read by range."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from nextn.convert.safetensors_header import DTYPE_BYTES
from nextn.gguf_schema.contents import ByteSource
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.shards import GGUFFile
from nextn.gguf_schema.types import TENSOR_TYPES

# Elements of a block and its bytes, by the name of a type; the names that both formats have mean the same.
BLOCKS: dict[str, tuple[int, int]] = {
    **{name: (1, size) for name, size in DTYPE_BYTES.items()},
    **{type_.name: (type_.block, type_.size) for type_ in TENSOR_TYPES.values()},
}
# What is known of neither is taken for bytes.
OPAQUE = (1, 1)


@dataclass(frozen=True, eq=False)
class SourceTensor:
    """A tensor: its name, the safetensors dtype or ggml type, torch shape, and where its bytes lie.

    It is equal only to itself. An FP8 weight has a `scale` for each `block` of rows and columns of its matrices.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: ByteSource
    offset: int
    scale: SourceTensor | None = None
    block: tuple[int, int] = (1, 1)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._bytes(self.elements)

    def _bytes(self, elements: int) -> int:
        """Bytes of so many elements; of types in blocks, whole blocks."""
        block, size = BLOCKS.get(self.dtype, OPAQUE)
        return elements // block * size

    @cached_property
    def identity(self) -> str:
        """A text that changes when the values may have changed."""
        scale = f" {self.block} {self.scale.identity}" if self.scale else ""
        return f"{self.source.identity} {self.name} {self.dtype} {self.shape} {self.offset}{scale}"

    def span(self, start: int, count: int) -> tuple[int, int]:
        """Where in the file `count` elements from element `start` are: their place and length in bytes.

        InputError when it has no such elements.
        """
        if start < 0 or start + count > self.elements:
            message = f"elements {start}…{start + count} are asked for, it has {self.elements}"
            raise InputError("beyond-tensor", message, subject=self.name)
        return self.offset + self._bytes(start), self._bytes(count)

    def read(self, start: int, count: int) -> bytes:
        """Bytes of `count` elements from element `start`, row-major; InputError when it has no such elements."""
        return self.source.read(*self.span(start, count))


def stored(file: GGUFFile, name: str) -> SourceTensor:
    """A tensor of a GGUF file, of any type: one that is not known is a row of bytes.

    InputError when there is no such tensor.
    """
    source, offset, nbytes = file.tensor_bytes(name)
    tensor = file.contents.tensors[name]
    shape = tensor.ne[::-1] if tensor.type.known else (nbytes,)
    return SourceTensor(name, tensor.type.name, shape, source, offset)
