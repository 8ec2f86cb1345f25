"""Values from the bytes of ggml types, by the gguf package."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from nextn.gguf_schema.types import TensorType


def dequantized(type_: TensorType, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The values of rows of whole blocks: [..., row bytes] to [..., elements].

    NotImplementedError for a type that the package cannot decode.
    """
    # The package takes long to import, and most work does without it.
    from gguf import GGMLQuantizationType, quants

    try:
        id_ = GGMLQuantizationType(type_.id)
    except ValueError as error:
        raise NotImplementedError(f"the gguf package knows no type {type_.id}") from error
    values: npt.NDArray[np.float32] = quants.dequantize(rows, id_)
    return values


@lru_cache(maxsize=64)
def is_decodable(type_: TensorType) -> bool:
    """Whether values of a type can be had."""
    try:
        dequantized(type_, np.zeros((1, type_.size), np.uint8))
    except NotImplementedError:
        return False
    return type_.known
