"""Properties of recipes: pieces do not matter, reorders are permutations, parts make up the whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from recipes import counting, source, values

from nextn.convert.transforms import (
    Recipe,
    add_one,
    concatenate_rows,
    copy,
    fuse_columns,
    reorder_column_heads,
    reorder_row_heads,
    split_kv_b_keys,
    split_kv_b_values,
    split_rows,
    stack,
    tiled_head_order,
)

small = st.integers(1, 6)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Any recipe over small tensors."""
    a, b, c = draw(small), draw(small), draw(small)
    start = draw(st.integers(0, a - 1))
    order = draw(st.permutations(range(a)))
    return draw(
        st.sampled_from(
            [
                copy(counting(a, b)),
                add_one(counting(a, b, dtype="F16")),
                concatenate_rows([counting(a, c), counting(b, c, start=100), counting(a, c, start=200)]),
                stack([counting(a, b, start=100 * i) for i in range(c)]),
                fuse_columns([counting(a, b), counting(a, b, start=100)]),
                split_rows(counting(c, a, b), start, a - start),
                split_kv_b_keys(counting(a * (b + c), 3), a, b, c),
                split_kv_b_values(counting(a * (b + c), 3), a, b, c),
                reorder_row_heads(counting(c + a * b, 2), order, b, first=c),
                reorder_column_heads(counting(c, a * b), order, b),
            ]
        )
    )


@given(recipes(), st.integers(1, 300))
def test_the_size_of_pieces_does_not_matter(recipe: Recipe, elements: int) -> None:
    whole = values(recipe, elements=1 << 30)
    assert np.array_equal(values(recipe, elements=elements), whole)


@given(st.integers(1, 8), st.integers(1, 8))
def test_tiled_order_is_a_permutation_and_its_inverse_swaps_the_counts(key_heads: int, repeats: int) -> None:
    order = tiled_head_order(key_heads, key_heads * repeats)
    assert sorted(order) == list(range(key_heads * repeats))
    assert np.argsort(order).tolist() == tiled_head_order(repeats, key_heads * repeats)


@given(st.permutations(range(5)), small, st.integers(0, 3))
def test_reordered_rows_go_back(order: list[int], rows: int, first: int) -> None:
    original = np.arange((first + 5 * rows) * 2, dtype="<f4").reshape(-1, 2)
    there = values(reorder_row_heads(source(original), order, rows, first=first))
    assert np.array_equal(np.sort(there, axis=0), original)
    inverse = np.argsort(order).tolist()
    assert np.array_equal(values(reorder_row_heads(source(there), inverse, rows, first=first)), original)


@given(st.permutations(range(5)), small)
def test_reordered_columns_go_back(order: list[int], columns: int) -> None:
    original = np.arange(2 * 5 * columns, dtype="<f4").reshape(2, -1)
    there = values(reorder_column_heads(source(original), order, columns))
    assert np.array_equal(np.sort(there, axis=1), original)
    assert np.array_equal(values(reorder_column_heads(source(there), np.argsort(order).tolist(), columns)), original)


@given(small, small, small, small)
def test_split_parts_make_up_the_source(experts: int, gate: int, up: int, width: int) -> None:
    fused = counting(experts, gate + up, width)
    parts = [values(split_rows(fused, 0, gate)), values(split_rows(fused, gate, up))]
    assert np.array_equal(np.concatenate(parts, axis=1), values(copy(fused)))


@given(small, small, small, small)
def test_key_and_value_halves_make_up_the_source(heads: int, key: int, value: int, rank: int) -> None:
    fused = counting(heads * (key + value), rank)
    keys, halves = (
        values(split_kv_b_keys(fused, heads, key, value)),
        values(split_kv_b_values(fused, heads, key, value)),
    )
    together = np.concatenate([keys.transpose(0, 2, 1), halves], axis=1)
    assert np.array_equal(together.reshape(-1, rank), values(copy(fused)))


@given(small, small)
def test_stacked_and_joined_matrices_come_apart(rows: int, width: int) -> None:
    a, b = counting(rows, width), counting(rows, width, start=100)
    for recipe, axis in ((stack([a, b]), None), (concatenate_rows([a, b]), 0), (fuse_columns([a, b]), 1)):
        whole = values(recipe)
        first, second = whole if axis is None else np.split(whole, 2, axis=axis)
        assert np.array_equal(first, values(copy(a)))
        assert np.array_equal(second, values(copy(b)))
