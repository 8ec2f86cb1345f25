"""Types of tensors that llama.cpp b11549 cannot compute with: what findings and forecasts look for.

Source: the traits of types in ggml/src/ggml-cpu of llama.cpp b11549, each seen with the library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nextn.gguf_schema.architecture import block_of
from nextn.gguf_schema.nextn_generic import EMBEDDING, OUTPUT
from nextn.gguf_schema.types import F32

if TYPE_CHECKING:
    from collections.abc import Callable

    from nextn.gguf_schema.contents import TensorInfo
    from nextn.validators.loader import Loaded

SOURCE = "types of ggml/src/ggml-cpu of llama.cpp b11549"

# Types that a matrix is not multiplied in, and those among them that rows of a table are not looked up in.
NO_PRODUCT = frozenset({"I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"})
NO_ROWS = frozenset({"I8", "I16", "I64", "F64"})
INTEGER_ROWS = frozenset({"I32"})  # looked up, and then no floats
TABLES = (EMBEDDING, "per_layer_token_embd.weight")
CONVOLUTION = "conv1d"


def is_matrix(info: TensorInfo) -> bool:
    """Whether a tensor is multiplied, or looked up by rows."""
    return info.elements > info.ne[0] and info.name.endswith(".weight") and CONVOLUTION not in info.name


def no_product(info: TensorInfo) -> bool:
    """Whether a tensor is a matrix of a type in which there is no product."""
    return info.type.name in NO_PRODUCT and is_matrix(info)


def used(loaded: Loaded, name: str, *, head: bool) -> bool:
    """Whether a graph computes with a tensor: the trunk's, or a head's."""
    block = block_of(name)
    if block is not None:
        return block in (loaded.heads if head else loaded.trunk)
    if name == OUTPUT and head:
        own = "nextn.shared_head_head.weight"
        return not all(loaded.has(i, own) for i in loaded.heads)
    return not head or name == EMBEDDING


def table_in(types: frozenset[str]) -> Callable[[Loaded, bool], str | None]:
    """A predicate: a table of such a type."""

    def found(loaded: Loaded, head: bool) -> str | None:
        infos = (loaded.contents.tensors[name] for name in TABLES if name in loaded.tensors)
        return next((i.name for i in infos if i.type.name in types and used(loaded, i.name, head=head)), None)

    return found


def matrix_without_product(loaded: Loaded, head: bool) -> str | None:
    """A matrix of a type in which there is no product, and that type."""
    for info in loaded.contents:
        if no_product(info) and info.name in loaded.tensors and used(loaded, info.name, head=head):
            return f"{info.name} in {info.type.name}"
    return None


def convolution_not_f32(loaded: Loaded, head: bool) -> str | None:
    """The kernel of a convolution in another type."""
    for info in loaded.contents:
        kernel = info.name.endswith(".ssm_conv1d.weight") and info.type != F32
        if kernel and info.name in loaded.tensors and used(loaded, info.name, head=head):
            return info.name
    return None
