"""Values that an output type cannot hold: what the error says, and that its remedy works."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from recipes import source

from nextn.convert.payload import piece_bytes, pieces
from nextn.convert.plan import Payload
from nextn.convert.tensor_types import parse_rule
from nextn.convert.transforms import copy
from nextn.gguf_schema.contents import TensorInfo
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.types import TENSOR_TYPES

NAME = "blk.0.ffn_up.weight"


def made(values: Any, dtype: str, type_name: str) -> bytes:
    recipe, type_ = copy(source(values, dtype, "hub.name")), TENSOR_TYPES[type_name]
    ne = recipe.shape[::-1]
    payload = Payload(TensorInfo(NAME, ne, type_, type_.tensor_bytes(ne)), recipe)
    return b"".join(piece_bytes(piece) for piece in pieces(payload))


def refused(values: Any, dtype: str, type_name: str) -> InputError:
    with pytest.raises(InputError) as caught:
        made(values, dtype, type_name)
    assert caught.value.subject == NAME
    assert "hub.name" in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("dtype", "value", "type_name", "wider"),
    [
        ("F32", 1e5, "F16", "bf16"),
        ("BF16", 1e30, "Q8_0", "bf16"),
        ("F32", 3.4e38, "BF16", "f32"),
        ("F64", 3.4e38, "F16", "f32"),
        ("F64", 3.4e38, "BF16", "f32"),
    ],
)
def test_the_remedy_of_an_overflow_works(dtype: str, value: float, type_name: str, wider: str) -> None:
    """The remedy was bf16 for a BF16 tensor too, and its pattern matched other names: dots were not escaped."""
    values = np.ones((2, 32))
    values[1, 5] = value
    error = refused(values, dtype, type_name)
    (rule,) = re.findall(r"--tensor-type '(\S+)'", str(error.remedy))
    pattern, type_ = parse_rule(rule)
    assert (error.code, type_.name.lower()) == ("overflow", wider)
    assert pattern.search(NAME)
    assert not pattern.search(NAME.replace("0.ffn", "0_ffn"))
    made(values, dtype, type_.name)


@pytest.mark.parametrize("type_name", ["F32", "F16", "Q8_0"])
def test_what_float32_cannot_hold_has_no_wider_type(type_name: str) -> None:
    error = refused(np.full((1, 32), 1e300), "F64", type_name)
    assert error.code == "overflow"
    assert "--tensor-type" not in str(error.remedy)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0", "Q5_1"])
def test_what_is_no_number_is_refused_in_blocks(value: float, type_name: str) -> None:
    """It passed silently, and took its block with it; llama-quantize refuses such rows."""
    values = np.ones((2, 32))
    values[1, 5] = value
    error = refused(values, "BF16", type_name)
    assert error.code == "not-finite"
    assert "1 NaN or infinite" in error.message
    assert len(made(values, "BF16", "BF16")) == 128
