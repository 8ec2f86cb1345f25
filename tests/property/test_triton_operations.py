"""Triton's operations, interpreted: the values of the definition, and the same bits whatever is beside a row."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import pytest
import torch
from kernel_cases import MOST, SEQUENCES, WIDTHS, Made
from torch import Tensor
from triton_cases import (
    OF_PACKED_WEIGHTS,
    ROWS,
    TOLERANCES,
    case_of,
    close,
    exact_case_of,
    exact_sequence_of,
    same,
    sequence_of,
)
from triton_cases import poisoned as poisoned

from nextn.kernels.operations import REFERENCE, Operations, operations
from nextn.kernels.triton import TritonOperations

# What is left to the definition, and why.
BY_DEFINITION = {"network": "products and `gated`, each of which has a kernel"}
# The interpreter takes a few milliseconds for a program, and these have one for each head, row and part.
SLOW = {"attend", "attend: window", "attend: one key head"}

ops = operations("triton")
each_case = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in ROWS]
)
each_sequence = pytest.mark.parametrize("name", SEQUENCES)

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "behind others": lambda x: torch.cat((x[:1], x))[1:],
    "part of wider rows": lambda x: torch.cat((x[..., :1], x, x[..., :1]), dim=-1)[..., 1:-1] if x.dim() > 1 else x,
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "with gaps": lambda x: torch.stack((x, x + 1), dim=-1)[..., 0],
}


def test_every_operation_has_a_kernel_and_a_case() -> None:
    public = {name for name, _ in inspect.getmembers(Operations, inspect.isfunction) if not name.startswith("_")}
    faster = {name for name in public if getattr(TritonOperations, name) is not getattr(Operations, name)}
    assert public - faster == set(BY_DEFINITION)
    assert public == {name.partition(":")[0] for name in (*ROWS, *SEQUENCES)} | OF_PACKED_WEIGHTS


@each_case
@pytest.mark.parametrize(("n", "dtype"), [(37, torch.float32), (130, torch.bfloat16)])
def test_values_of_rows_are_those_of_the_definition(name: str, n: int, dtype: torch.dtype) -> None:
    case, exact = case_of(name, n, dtype), exact_case_of(name, n, dtype)
    found, expected = (each(form, rows_of(each.rows, 0, 2)) for form, each in ((ops, case), (REFERENCE, exact)))
    assert all(part.dtype == dtype for part in found if part.is_floating_point())
    assert all(close(a, b, TOLERANCES[dtype]) for a, b in zip(found, expected, strict=True))


@each_sequence
@pytest.mark.parametrize(("n", "dtype"), [(37, torch.float32), (64, torch.bfloat16)])
def test_values_of_steps_are_those_of_the_definition(name: str, n: int, dtype: torch.dtype) -> None:
    case, exact = sequence_of(name, n, dtype), exact_sequence_of(name, n, dtype)
    found, expected = (
        each.call(form, each.state, 2, *rows_of(each.rows, 0, 4)) for form, each in ((ops, case), (REFERENCE, exact))
    )
    assert all(close(a, b, TOLERANCES[dtype]) for a, b in zip(found, expected, strict=True))


def rows_of(parts: Made, first: int, count: int) -> Made:
    return tuple(part[first : first + count] for part in parts)


def alone(name: str, n: int, dtype: torch.dtype, first: int, count: int) -> list[Made]:
    case = case_of(name, n, dtype)
    return [case(ops, tuple(part.clone() for part in rows_of(case.rows, i, 1))) for i in range(first, first + count)]


def check_rows(name: str, n: int, dtype: torch.dtype, first: int, single: list[Made], layout: str) -> None:
    """Rows together, as they lie in memory by a layout, give the bits that each gives alone."""
    case = case_of(name, n, dtype)
    together = case(ops, tuple(map(LAYOUTS[layout], rows_of(case.rows, first, len(single)))))
    for number, part in enumerate(together):
        assert same(part, torch.cat([row[number] for row in single])), (len(single), layout)


@each_case
def test_a_row_does_not_depend_on_those_beside_it(name: str) -> None:
    layout = sorted(LAYOUTS)[len(name) % len(LAYOUTS)]
    check_rows(name, 133, torch.float32, 7, alone(name, 133, torch.float32, 7, 4), layout)


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_row_does_not_depend_on_the_width(name: str, dtype: torch.dtype) -> None:
    n = 16 + len(name)
    single = alone(name, n, dtype, 0, MOST)
    for number, width in enumerate(WIDTHS):
        first = (7 * width) % (MOST - width + 1)
        layout = sorted(LAYOUTS)[number % len(LAYOUTS)]
        check_rows(name, n, dtype, first, single[first : first + width], layout)


def check_steps(name: str, dtype: torch.dtype, rows: int, steps: tuple[int, ...], keep: int) -> None:
    """What rows give, and the states behind them, is that of one row after the other, however they are cut."""
    case = sequence_of(name, 21, dtype)
    before, state, single, states = case.state.clone(), case.state, [], []
    for i in range(rows):
        result, kept = case.call(ops, state, 1, *(part.clone() for part in rows_of(case.rows, i, 1)))
        state = kept[-1]
        single.append(result[0])
        states.append(state)
    for number, step in enumerate(steps):
        layout, state = LAYOUTS[sorted(LAYOUTS)[number % len(LAYOUTS)]], case.state
        for start in range(0, rows, step):
            part = tuple(map(layout, rows_of(tuple(each[:rows] for each in case.rows), start, step)))
            result, kept = case.call(ops, layout(state), keep, *part)
            end = start + len(part[0])
            assert len(kept) == min(keep, end - start)
            assert same(result, torch.stack(single[start:end]))
            assert same(kept, torch.stack(states[end - len(kept) : end]))
            state = kept[-1]
    assert same(case.state, before)


@each_sequence
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_steps_do_not_depend_on_how_rows_are_cut(name: str, dtype: torch.dtype) -> None:
    check_steps(name, dtype, 5, (2, 5), keep=3)


@pytest.mark.long
@each_sequence
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("keep", [1, 3, MOST])
def test_steps_do_not_depend_on_the_width(name: str, dtype: torch.dtype, keep: int) -> None:
    check_steps(name, dtype, MOST, WIDTHS, keep)


@each_case
def test_what_is_no_number_stays_none(name: str) -> None:
    """A row with NaN in its inputs says so, and the rows beside it do not."""
    case = case_of(name, 20)
    spoiled = rows_of(tuple(part.clone() for part in case.rows), 0, 3)
    spoiled[0][1] = math.nan
    found, clean = case(ops, spoiled), case(ops, rows_of(case.rows, 0, 3))
    assert any(part[1].isnan().any() for part in found if part.is_floating_point())
    for row in (0, 2):
        assert all(same(a[row], b[row]) for a, b in zip(found, clean, strict=True))
