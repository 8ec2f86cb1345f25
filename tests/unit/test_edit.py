"""What cannot be joined or divided is said so, before anything is written."""

from __future__ import annotations

import pytest

from nextn.gguf_schema.contents import TensorInfo
from nextn.gguf_schema.edit import divided, joined
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.types import F32, Q8_0, TensorType

UNKNOWN = TensorType(99, "type 99", 1, 0)


def tensor(name: str, *ne: int, type_: TensorType = F32) -> TensorInfo:
    return TensorInfo(name, ne, type_, type_.tensor_bytes(ne) if type_.known else 64)


@pytest.mark.parametrize(
    "parts",
    [
        (tensor("a", 8, 4), tensor("b", 16, 4)),
        (tensor("a", 8, 4), tensor("b", 8, 5)),
        (tensor("a", 8), tensor("b", 8)),
        (tensor("a", 8, 4, 2), tensor("b", 8, 4, 2)),
        (tensor("a", 32, 4), tensor("b", 32, 4, type_=Q8_0)),
        (tensor("a", 8, 4, type_=UNKNOWN), tensor("b", 8, 4, type_=UNKNOWN)),
    ],
    ids=["widths", "heights", "vectors", "three dimensions", "types", "unknown"],
)
def test_what_cannot_be_joined(parts: tuple[TensorInfo, TensorInfo]) -> None:
    with pytest.raises(InputError) as caught:
        joined("c", parts)
    assert (caught.value.code, caught.value.subject) == ("unlike-parts", "b")


def test_halves_stand_side_by_side() -> None:
    whole = joined("c", (tensor("a", 32, 4, type_=Q8_0), tensor("b", 32, 4, type_=Q8_0)))
    assert (whole.info.ne, whole.info.nbytes, whole.sources) == ((64, 4), 4 * 2 * 34, ("a", "b"))


@pytest.mark.parametrize(
    "whole", [tensor("c", 32, 4, type_=Q8_0), tensor("c", 8), tensor("c", 7, 4), tensor("c", 8, 4, type_=UNKNOWN)]
)
def test_what_cannot_be_divided(whole: TensorInfo) -> None:
    with pytest.raises(InputError) as caught:
        divided(whole, ("a", "b"))
    assert caught.value.code == "indivisible"
