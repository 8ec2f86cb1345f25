"""Every transform against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from recipes import counting, source, values

from nextn.convert.transforms import (
    add_one,
    concatenate_rows,
    constant,
    copy,
    fuse_columns,
    llama3_frequency_factors,
    map_values,
    negative_exp,
    reorder_column_heads,
    reorder_row_heads,
    select_rows,
    split_kv_b_keys,
    split_kv_b_values,
    split_rows,
    stack,
    tiled_head_order,
)

# --- values


def test_copy_keeps_values_and_takes_a_shape() -> None:
    assert values(copy(counting(2, 3))).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert values(copy(counting(2, 1, 3), (2, 3))).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert values(copy(counting(3))).tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_every_float_type_is_read(dtype: str) -> None:
    assert values(copy(source([[1.5, -0.25], [96, 0]], dtype))).tolist() == [[1.5, -0.25], [96, 0]]


def test_map_values_works_in_float32() -> None:
    recipe = map_values(source([[1, 2], [3, 4]], "F16"), lambda x: x / np.float32(3), "third")
    assert values(recipe).tolist() == [[np.float32(1) / 3, np.float32(2) / 3], [1, np.float32(4) / 3]]
    assert recipe.note == "third"


def test_add_one() -> None:
    assert values(add_one(source([-1, 0, 0.5, 2]))).tolist() == [0, 1, 1.5, 3]


@pytest.mark.parametrize(("dtype", "weight"), [("F16", 2.0**-14), ("BF16", 2.0**-12)])
def test_add_one_keeps_bits_that_the_source_type_would_lose(dtype: str, weight: float) -> None:
    """1 + w has 14 bits behind the point: F16 keeps 10 there, BF16 7, float32 all."""
    assert values(add_one(source([weight], dtype))).tolist() == [1 + weight]


def test_negative_exp() -> None:
    # exp(1) = 2.718281828…, exp(-2) = 0.135335283…, rounded to float32.
    result = negative_exp(np.array([0, 1, -2], np.float32))
    assert result.dtype == np.float32
    assert result.tolist() == [-1, -2.7182817459106445, -0.1353352814912796]


def test_constant() -> None:
    recipe = constant("rope_freqs", [1, 0.1, 2])
    assert values(recipe).tolist() == [1, 0.10000000149011612, 2]


# --- joining


def test_concatenate_rows() -> None:
    recipe = concatenate_rows([counting(1, 2), counting(2, 2, start=10), counting(1, 2, start=20)])
    assert values(recipe).tolist() == [[0, 1], [10, 11], [12, 13], [20, 21]]


def test_stack() -> None:
    recipe = stack([counting(2, 2), counting(2, 2, start=10)])
    assert values(recipe).tolist() == [[[0, 1], [2, 3]], [[10, 11], [12, 13]]]


def test_fuse_columns_puts_the_first_source_first() -> None:
    """eh_proj = [fc_embedding | fc_hidden]: the embedding's columns come first in every row."""
    embedding, hidden = counting(2, 2), counting(2, 2, start=10)
    assert values(fuse_columns([embedding, hidden])).tolist() == [[0, 1, 10, 11], [2, 3, 12, 13]]


# --- selecting and splitting


def test_select_rows() -> None:
    assert values(select_rows(counting(4, 2), [(2, 2), (0, 1)])).tolist() == [[4, 5], [6, 7], [0, 1]]
    assert values(select_rows(counting(1, 1, 4, 1), [(1, 3)], width=1)).tolist() == [[1], [2], [3]]


def test_split_rows_of_a_matrix() -> None:
    assert values(split_rows(counting(3, 2), 1, 2)).tolist() == [[2, 3], [4, 5]]


def test_split_rows_of_each_expert() -> None:
    fused = counting(2, 4, 1)
    assert values(split_rows(fused, 0, 2)).tolist() == [[[0], [1]], [[4], [5]]]
    assert values(split_rows(fused, 2, 2)).tolist() == [[[2], [3]], [[6], [7]]]


def test_split_kv_b_with_key_and_value_of_different_width() -> None:
    """Two heads of 1 key row and 2 value rows, rank 2; a head's key rows come first and are transposed."""
    fused = source([[0, 1], [2, 3], [4, 5], [10, 11], [12, 13], [14, 15]])
    assert values(split_kv_b_keys(fused, 2, 1, 2)).tolist() == [[[0], [1]], [[10], [11]]]
    assert values(split_kv_b_values(fused, 2, 1, 2)).tolist() == [[[2, 3], [4, 5]], [[12, 13], [14, 15]]]


def test_split_kv_b_transposes_within_a_head() -> None:
    """One head of 3 key rows and 1 value row, rank 2."""
    fused = source([[0, 1], [2, 3], [4, 5], [6, 7]])
    assert values(split_kv_b_keys(fused, 1, 3, 1)).tolist() == [[[0, 2, 4], [1, 3, 5]]]
    assert values(split_kv_b_values(fused, 1, 3, 1)).tolist() == [[[6, 7]]]


# --- heads


def test_tiled_head_order_of_the_real_model() -> None:
    order = tiled_head_order(16, 48)
    assert order[:18] == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45, 1, 4]
    assert order[-1] == 47


def test_tiled_head_order() -> None:
    assert tiled_head_order(2, 6) == [0, 3, 1, 4, 2, 5]
    assert tiled_head_order(3, 3) == [0, 1, 2]


def test_reorder_row_heads() -> None:
    assert values(reorder_row_heads(counting(6, 1), [2, 0, 1], 2)).tolist() == [[4], [5], [0], [1], [2], [3]]


def test_reorder_row_heads_behind_rows_that_stay() -> None:
    assert values(reorder_row_heads(counting(5, 1), [1, 0], 2, first=1)).tolist() == [[0], [3], [4], [1], [2]]


def test_reorder_row_heads_of_a_vector_with_a_function() -> None:
    vector = source([0, 1, -2])
    assert values(reorder_row_heads(vector, [0, 2, 1], 1)).tolist() == [0, -2, 1]
    decays = reorder_row_heads(vector, [0, 2, 1], 1, function=negative_exp)
    assert values(decays).tolist() == [-1, -0.1353352814912796, -2.7182817459106445]


def test_reorder_row_heads_keeps_middle_dimensions() -> None:
    recipe = reorder_row_heads(counting(4, 1, 2), [1, 0], 2)
    assert recipe.shape == (4, 1, 2)
    assert values(replace(recipe, shape=(4, 2))).tolist() == [[4, 5], [6, 7], [0, 1], [2, 3]]


def test_reorder_column_heads() -> None:
    assert values(reorder_column_heads(counting(2, 4), [1, 0], 2)).tolist() == [[2, 3, 0, 1], [6, 7, 4, 5]]


# --- rotary factors


def test_frequency_factors_of_step_3_7() -> None:
    """The real model's values (step35.md, 3.4), as decimals of float32."""
    factors = llama3_frequency_factors(64, 5e6, factor=2.0, low=1.0, high=32.0, context=131072)
    between = [1.1383628845, 1.3744993210, 1.5764362812, 1.7337294817, 1.8475685120, 1.9256492853, 1.9772508144]
    assert np.float32(factors).tolist() == np.float32([*[1.0] * 14, *between, *[2.0] * 11]).tolist()


def test_frequency_factors_at_the_bounds() -> None:
    """Base 1 makes every wavelength 2π: below context/high, above context/low, and halfway between them."""
    assert llama3_frequency_factors(4, 1, factor=8, low=1, high=4, context=1000) == [1, 1]
    assert llama3_frequency_factors(4, 1, factor=8, low=1, high=4, context=6) == [8, 8]
    # context/wavelength = 2.5: smooth = (2.5 - 1) / (4 - 1) = 1/2, 1 / (1/2 / 8 + 1/2) = 16/9.
    halfway = llama3_frequency_factors(2, 1, factor=8, low=1, high=4, context=5 * np.pi)
    assert halfway == pytest.approx([16 / 9], rel=1e-15)
