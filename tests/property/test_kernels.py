"""Functions beside the operations: the same bits for a row whatever its place, and the first of equal scores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from families import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import MOST, WIDTHS, Draw

from nextn.kernels.reference import by_row, mean_of, top

OPERATIONS = Path(__file__).with_name("test_kernels_forms.py")
few = settings(max_examples=8, deadline=None)


@few
@given(n=st.integers(1, 70), seed=st.integers(0, 2**31))
def test_rows_of_functions_of_vectors(n: int, seed: int) -> None:
    rows, vector = Draw(seed)(MOST, n), Draw(seed + 1)(n)
    for width in WIDTHS:
        part = rows[MOST - width :]
        for function in (lambda x: by_row(torch.tanh, x), lambda x: mean_of([x, vector * x, x + vector])):
            alone = torch.cat([function(row[None].clone()) for row in part])
            assert torch.equal(function(part), alone)


@few
@given(st.lists(st.sampled_from((-1.0, -0.0, 0.0, 0.5, 1.0, 2.0)), min_size=1, max_size=200), st.integers(0, 20))
def test_the_best_scores_are_chosen_and_of_equal_ones_the_first(scores: list[float], count: int) -> None:
    ranked = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    assert top(torch.tensor(scores), count) == sorted(ranked[:count])


@pytest.mark.long
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MKL_ENABLE_INSTRUCTIONS", "SSE4_2"),
        ("MKL_ENABLE_INSTRUCTIONS", "AVX2"),
        ("ATEN_CPU_CAPABILITY", "default"),
        ("NUMBA_CPU_NAME", "x86-64-v3"),
    ],
)
def test_older_processors_too(variable: str, value: str, tmp_path: Path) -> None:
    """With SSE 4.2 the math library sums vectors in another order when they do not begin at a multiple of 64 bytes."""
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", str(OPERATIONS)]
    environment = {**os.environ, variable: value, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(tests, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
