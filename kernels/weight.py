"""What operations know of a weight: a matrix as it lies in a file, that can be read decoded or as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor


class Weight(Protocol):
    """A matrix [out, in], or several of one shape [experts, out, in].

    `kept` is what a form of the operations keeps about it, None at first.
    """

    kept: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns, behind the number of matrices if there are several."""
        ...

    @property
    def type_name(self) -> str:
        """The ggml type that it is stored in, such as Q8_0."""
        ...

    @property
    def packed(self) -> Tensor:
        """Its bytes as they lie in the file: uint8 [..., out, bytes of a row]."""
        ...

    def blocks(self) -> Iterator[Tensor]:
        """The decoded rows of a matrix [out, in], in blocks that are always the same.

        Decoding all of a packed matrix at once may be too much.
        """
        ...

    def decoded(self) -> Tensor:
        """All of it as float32 [..., out, in]: for types that a form of the operations does not know."""
        ...

    def __getitem__(self, index: int) -> Weight:
        """One of several matrices."""
        ...
