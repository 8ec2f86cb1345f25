"""The operations in every form: the same bits for a row at every width, and the values of the definition in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from types import SimpleNamespace

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import CASES, MOST, SEQUENCES, WIDTHS, Case, Draw, Made
from torch import Tensor

from nextn.kernels.cpu import memory
from nextn.kernels.operations import REFERENCE, Operations, operations
from nextn.kernels.routing import Router

FORMS = ("reference", "cpu")
# What the definition computes in; the compiled forms know float32 alone.
DTYPES = {"reference": (torch.float32, torch.float64, torch.bfloat16), "cpu": (torch.float32,)}
# Of one vector and of several, with and without a rest.
lengths = st.integers(1, 70) | st.sampled_from((127, 128, 129, 400))
seeds = st.integers(0, 2**31)
few = settings(max_examples=4, deadline=None)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(count)
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a form is to fill says so where it was not."""

    def filled(shape: tuple[int, ...], dtype: type) -> object:
        return np.full(shape, -(2**62) if dtype is np.int64 else math.nan, dtype)

    numpy = SimpleNamespace(empty=filled, float32=np.float32, int64=np.int64)
    monkeypatch.setattr(memory, "np", numpy)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal, and zeros of one sign."""
    return torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())


# How rows [rows, ...] may lie in memory when a model hands them over.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "behind others": lambda x: torch.cat((x[:1], x))[1:],
    "part of wider rows": lambda x: torch.cat((x[..., :1], x, x[..., :1]), dim=-1)[..., 1:-1] if x.dim() > 1 else x,
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "with gaps": lambda x: torch.stack((x, x + 1), dim=-1)[..., 0],
}


def made_alone(case: Case, ops: Operations) -> list[Made]:
    return [case(ops, tuple(rows[i : i + 1].clone() for rows in case.rows)) for i in range(MOST)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
@few
@given(n=lengths, seed=seeds, layout=st.sampled_from(tuple(LAYOUTS)), data=st.data())
def test_a_row_does_not_depend_on_the_others(
    name: str, form: str, n: int, seed: int, layout: str, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from(DTYPES[form]))
    ops, case = operations(form), CASES[name](Draw(seed, dtype), n)
    with threads(data.draw(st.sampled_from((1, 2)))):
        alone = made_alone(case, ops)
        for width in WIDTHS:
            first = seed % (MOST - width + 1)
            rows = tuple(LAYOUTS[layout](each[first : first + width]) for each in case.rows)
            for number, together in enumerate(case(ops, rows)):
                assert len(together) == width
                assert all(same(together[i], alone[first + i][number][0]) for i in range(width)), width


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SEQUENCES)
@few
@given(n=st.integers(1, 70), seed=seeds, layout=st.sampled_from(tuple(LAYOUTS)), data=st.data())
def test_steps_do_not_depend_on_chunks(
    name: str, form: str, n: int, seed: int, layout: str, data: st.DataObject
) -> None:
    """What the rows give, and each of the states behind them, is that of steps one by one."""
    dtype, step = data.draw(st.sampled_from(DTYPES[form])), data.draw(st.sampled_from(WIDTHS))
    ops, case = operations(form), SEQUENCES[name](Draw(seed, dtype), n)
    before, state, alone, states = case.state.clone(), case.state, [], []
    for i in range(MOST):
        result, kept = case.call(ops, state, 1, *(rows[i : i + 1].clone() for rows in case.rows))
        state = kept[-1]
        alone.append(result[0])
        states.append(state)
    for keep in (1, 3, MOST):
        state = LAYOUTS[layout](case.state)
        for start in range(0, MOST, step):
            part = tuple(LAYOUTS[layout](rows[start : start + step]) for rows in case.rows)
            result, kept = case.call(ops, state, keep, *part)
            end = start + len(part[0])
            assert len(kept) == min(keep, end - start)
            assert all(same(a, b) for a, b in zip(result, alone[start:end], strict=True))
            assert all(same(a, b) for a, b in zip(kept, states[end - len(kept) : end], strict=True))
            state = kept[-1]
    assert same(case.state, before)


@pytest.mark.parametrize("form", FORMS)
def test_a_first_state_may_lie_transposed(form: str) -> None:
    """States behind rows do not: a library would multiply them in another order."""
    ops, draw = operations(form), Draw(9)
    first = draw(3, 5, 96).transpose(1, 2)
    rows = (draw(4, 3, 96), draw(4, 3, 96), draw(4, 3, 5), draw.share(4, 3, 1), draw.share(4, 3))
    together, _ = ops.delta_rule(first, *rows, 4)
    state = first
    for i in range(4):
        alone, kept = ops.delta_rule(state, *(each[i : i + 1] for each in rows), 1)
        assert same(alone[0], together[i])
        state = kept[-1]


def close(actual: Tensor, expected: Tensor) -> bool:
    if not actual.is_floating_point():
        return torch.equal(actual, expected)
    return bool((actual.double() - expected).norm() <= 1e-5 * expected.norm())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
@few
@given(n=lengths, seed=seeds)
def test_values_of_rows_are_those_of_the_definition(name: str, form: str, n: int, seed: int) -> None:
    case, exact = CASES[name](Draw(seed), n), CASES[name](Draw(seed, torch.float64), n)
    found, expected = case(operations(form), case.rows), exact(REFERENCE, exact.rows)
    assert all(close(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SEQUENCES)
@few
@given(n=st.integers(1, 70), seed=seeds)
def test_values_of_steps_are_those_of_the_definition(name: str, form: str, n: int, seed: int) -> None:
    case, exact = SEQUENCES[name](Draw(seed), n), SEQUENCES[name](Draw(seed, torch.float64), n)
    found = case.call(operations(form), case.state, 5, *case.rows)
    assert all(close(a, b) for a, b in zip(found, exact.call(REFERENCE, exact.state, 5, *exact.rows), strict=True))


def test_every_operation_has_a_case() -> None:
    """An operation without one is tested in no form."""
    public = {name for name in dir(Operations) if not name.startswith("_") and callable(getattr(Operations, name))}
    assert public == {name.partition(":")[0] for name in (*CASES, *SEQUENCES)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_what_is_no_number_stays_none(name: str, form: str) -> None:
    """A row with NaN in its inputs says so, and the rows beside it do not."""
    case, ops = CASES[name](Draw(1), 40), operations(form)
    spoiled = tuple(rows[:5].clone() for rows in case.rows)
    spoiled[0][2] = math.nan
    found, clean = case(ops, spoiled), case(ops, tuple(rows[:5] for rows in case.rows))
    assert any(part[2].isnan().any() for part in found if part.is_floating_point()) or name.startswith("attend")
    for row in (0, 1, 3, 4):
        assert all(same(a[row], b[row]) for a, b in zip(found, clean, strict=True))


@pytest.mark.parametrize("name", ["attend", "attend: one key head", "delta_attention: channels"])
def test_threads_change_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ops, found = operations("cpu"), []
    for worth in (10**12, 0):
        monkeypatch.setattr(memory, "WORTH_THREADS", worth)
        if name in CASES:
            case = CASES[name](Draw(3), 64)
            found.append(case(ops, case.rows))
        else:
            sequence = SEQUENCES[name](Draw(3), 64)
            found.append(sequence.call(ops, sequence.state, 4, *sequence.rows))
    assert all(same(a, b) for a, b in zip(*found, strict=True))


# Vectors that libraries may share among threads, of operations that take little time with them.
LONG = (
    *("linear", "dot", "rms_norm", "l2_norm", "layer_norm", "added_and_normed", "gated_heads", "add_gated", "softmax"),
    *("sigmoid", "silu", "exp", "softplus", "gated", "read_streams", "ngram_gates", "pooled_key"),
)


# All but the definition's attention, for which a library multiplies matrices.
SAME_BY_THREADS = [
    (name, n, form)
    for form in FORMS
    for name, n in (*((name, 17) for name in CASES), *product(LONG, (128, 3000, 12288)))
    if not (form == "reference" and name.startswith("attend"))
]


@pytest.mark.parametrize(("name", "n", "form"), SAME_BY_THREADS)
def test_numbers_of_threads_change_no_bit(name: str, n: int, form: str) -> None:
    found, ops, case = [], operations(form), CASES[name](Draw(4), n)
    for count in (1, 2, 3, 8):
        with threads(count):
            found.append(case(ops, tuple(rows[:3] for rows in case.rows)))
    assert all(same(a, b) for made in found[1:] for a, b in zip(found[0], made, strict=True))


def test_keys_that_score_nothing_are_read_past() -> None:
    """More of them than are scored together, before such that score something."""
    query, values = torch.full((1, 1, 4), 1e20), Draw(5)(70, 1, 4)
    keys = torch.cat((torch.full((64, 1, 4), -1e20), torch.zeros(6, 1, 4)))
    found = operations("cpu").attend(query, keys, values, [0], [70], 0.5)
    torch.testing.assert_close(found[0, 0], values[64:, 0].mean(dim=0))
    keys[3] = math.nan
    assert operations("cpu").attend(query, keys, values, [0], [70], 0.5).isnan().all()


# Arguments beside a row x [2, 8] that are too short, or would be read with gaps.
SHORT: dict[str, Callable[[Operations, Tensor], object]] = {
    "rms_norm": lambda ops, x: ops.rms_norm(x, torch.ones(7), 1e-6),
    "layer_norm": lambda ops, x: ops.layer_norm(x, torch.ones(8), torch.ones(3), 1e-6),
    "dot": lambda ops, x: ops.dot(x, x[0]),
    "gated": lambda ops, x: ops.gated(x, x[:1]),
    "rope": lambda ops, x: ops.rope(x[:, None], torch.arange(1), 8, 1e4),
    "decays": lambda ops, x: ops.decays(x, torch.ones(8), torch.ones(1)),
    "sigmoid_router": lambda ops, x: ops.sigmoid_router(x, torch.ones(3), Router(2)),
    "short_convolution": lambda ops, x: ops.short_convolution(x, x[:1], torch.ones(8, 4), 1, 1),
    "heads of values": lambda ops, x: ops.attend(x.view(1, 4, 4), x.view(1, 4, 4), x.view(1, 1, 16), [0], [1], 1.0),
    "heads in no groups": lambda ops, x: ops.attend(x.view(1, 4, 4), x.view(1, 4, 4)[:, :3], x[None], [0], [1], 1.0),
    "delta_attention": lambda ops, x: ops.delta_attention(
        torch.zeros(2, 4, 4), x, torch.ones(2, 2, 1), torch.ones(2, 2), 2, 1e-6, 1
    ),
}


@pytest.mark.parametrize("name", SHORT)
def test_what_would_be_read_beyond_its_end_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"are read|cannot attend|are not for"):
        SHORT[name](operations("cpu"), Draw(6)(2, 8))


def test_parameters_may_have_gaps() -> None:
    x, wide = Draw(7)(2, 3, 8), Draw(8)(8, 2)
    ops, weight, bias = operations("cpu"), wide[:, 0], wide[:, 1]
    assert same(ops.rms_norm(x, weight, 1e-6), ops.rms_norm(x, weight.clone(), 1e-6))
    assert same(ops.layer_norm(x, weight, bias, 1e-6), ops.layer_norm(x, weight.clone(), bias.clone(), 1e-6))
    assert same(ops.decays(x[:, 0], weight, bias), ops.decays(x[:, 0], weight.clone(), bias.clone()))


@pytest.mark.parametrize("form", FORMS)
def test_of_equal_scores_the_first_are_chosen(form: str) -> None:
    ops, scores = operations(form), torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0]])
    assert ops.softmax_router(scores, 3)[0].tolist() == [[1, 2, 3]]
    assert ops.softmax_router(torch.zeros(1, 200), 3)[0].tolist() == [[0, 1, 2]]
    assert ops.sigmoid_router(scores, torch.zeros(6), Router(4))[0].tolist() == [[1, 2, 3, 4]]
    # Groups of two: the first and the last are equal, and the first one counts.
    grouped = torch.tensor([[2.0, 1.0, 0.0, 0.0, 1.0, 2.0]])
    assert ops.sigmoid_router(grouped, torch.zeros(6), Router(2, groups=3, groups_used=1))[0].tolist() == [[0, 1]]


# Where float32 has all of its digits, beyond, and where it ends.
SWEEP = torch.cat((torch.linspace(-110, 95, 200_001), torch.linspace(-1, 1, 20_001)))
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
SMALLEST = torch.finfo(torch.float32).smallest_normal * 2.0**-23
UNIT = 2.0**-23


@pytest.mark.parametrize(
    ("name", "exact", "units"),
    [
        ("exp", torch.exp, 1),
        ("sigmoid", torch.sigmoid, 2),
        ("silu", torch.nn.functional.silu, 2),
        ("softplus", lambda x: torch.nn.functional.softplus(x, threshold=50), 2),
    ],
)
def test_functions_are_exact_to_a_unit_or_two(name: str, exact: Callable[[Tensor], Tensor], units: float) -> None:
    found, expected = getattr(operations("cpu"), name)(SWEEP[None])[0].double(), exact(SWEEP.double())
    normal = (expected.abs() >= SMALLEST_NORMAL) & (expected.abs() <= torch.finfo(torch.float32).max)
    # silu is a product, whose other factor has few digits far down.
    assert ((found - expected).abs() <= units * UNIT * expected.abs() + 128 * SMALLEST)[normal].all()
    small = expected.abs() < SMALLEST_NORMAL
    assert ((found - expected).abs() <= SMALLEST_NORMAL)[small].all()
    assert found[expected > torch.finfo(torch.float32).max].isinf().all()


def test_functions_of_what_is_no_usual_number() -> None:
    ops, denormal = operations("cpu"), 1e-40
    x = torch.tensor([[math.inf, -math.inf, math.nan, 0.0, -0.0, denormal, -denormal, 88.72, 88.73, -103.9, -104.1]])
    assert ops.exp(x)[0, :7].tolist()[:2] == [math.inf, 0]
    assert ops.exp(x)[0, 3:7].tolist() == [1] * 4
    assert ops.exp(x)[0, 7:].tolist() == pytest.approx([math.exp(x[0, 7]), math.inf, 2.0**-149, 0], rel=1e-6)
    assert ops.sigmoid(x)[0].tolist()[:2] == [1, 0]
    assert ops.sigmoid(x)[0, 3:7].tolist() == [0.5] * 4
    assert ops.softplus(x)[0].tolist()[:2] == [math.inf, 0]
    assert ops.silu(x)[0, 3:7].tolist() == pytest.approx([0, 0, denormal / 2, -denormal / 2], rel=1e-4)
    for function in (ops.exp, ops.sigmoid, ops.softplus, ops.silu):
        assert function(x)[0, 2].isnan()


def test_other_types_are_computed_by_the_definition() -> None:
    """The compiled forms would take their bytes for float32: asked directly, they refuse."""
    assert operations("cpu", torch.float64) is REFERENCE
    for dtype in (torch.float64, torch.bfloat16):
        with pytest.raises(TypeError, match="float32"):
            operations("cpu").silu(torch.ones(2, 3, dtype=dtype))


def test_no_more_experts_are_chosen_than_there_are() -> None:
    for router in (Router(7), Router(2, groups=4)):
        with pytest.raises(ValueError, match="experts"):
            operations("cpu").sigmoid_router(torch.zeros(1, 6), torch.zeros(6), router)
    with pytest.raises(ValueError, match="experts"):
        operations("cpu").softmax_router(torch.zeros(1, 6), 7)


def test_attention_reads_no_key_that_is_not_there() -> None:
    query, keys = torch.ones(1, 1, 4), torch.ones(3, 1, 4)
    for begin, end in ((0, 4), (-1, 2)):
        with pytest.raises(ValueError, match="attend"):
            operations("cpu").attend(query, keys, keys, [begin], [end], 1.0)
