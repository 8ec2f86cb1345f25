"""What is told of how a model is used: what stands for a missing tensor, what is decoded once, what is compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from by_hand import Hand, by_hand
from gguf import GGMLQuantizationType, GGUFReader, quants

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError, UsageError, VerdictError, extra
from nextn.runtime import load
from nextn.runtime.load import load_pair, watched_compiling
from nextn.runtime.models.step35 import Trunk
from nextn.runtime.segments import EmbeddingRows
from nextn.runtime.speculative import Speculator

Converted = Callable[[str], dict[Role, Path]]
FAMILIES = ("step35", "qwen4exp", "glm5-next")
# A matrix of the fixture whose rows are whole blocks of 256 values, as ternary types have them.
WIDE = "blk.0.hc_attn_down.weight"
GLM_NORM = "nextn.shared_head_norm.weight"


def ternary(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return quants.quantize(rows, GGMLQuantizationType.TQ2_0)


@pytest.mark.parametrize("family", FAMILIES)
def test_of_a_whole_model_there_is_nothing_to_tell(converted: Converted, family: str) -> None:
    files = converted(family)
    assert load_pair(files[Role.COMBINED]).notes == []
    assert load_pair(files[Role.TRUNK], files[Role.MTP_SHARED]).notes == []


def test_the_embedding_stands_for_a_missing_output(converted: Converted, tmp_path: Path) -> None:
    files = converted("qwen4exp")
    told = "has no output.weight: token_embd.weight is taken in its place, as in llama.cpp"
    trunk = by_hand(files[Role.TRUNK], tmp_path / "trunk.gguf", Hand(without=("output.weight",)))
    assert load_pair(trunk).notes == [f"{trunk} {told}"]
    combined = by_hand(files[Role.COMBINED], tmp_path / "combined.gguf", Hand(without=("output.weight",)))
    assert load_pair(combined).notes == [f"{combined} {told}"]


def test_the_models_norm_stands_for_a_missing_one_of_the_head(converted: Converted, tmp_path: Path) -> None:
    model = by_hand(
        converted("glm5-next")[Role.COMBINED], tmp_path / "model.gguf", Hand(without=("b.shared_head_norm",))
    )
    [note] = load_pair(model).notes
    assert note.startswith(f"{model} has no blk.")
    assert note.endswith(f".{GLM_NORM}: output_norm.weight is taken in its place, as in llama.cpp")
    assert load_pair(model, drafting=False).notes == []


def test_matrices_that_are_kept_decoded_are_told(converted: Converted, tmp_path: Path) -> None:
    hand = Hand(tensors={WIDE: ternary}, types={WIDE: "TQ2_0"})
    model = by_hand(converted("qwen4exp")[Role.COMBINED], tmp_path / "model.gguf", hand)
    [tensor] = [tensor for tensor in GGUFReader(model).tensors if tensor.name == WIDE]
    amount = f"{4 * int(np.prod(tensor.shape)) / 1e3:.3g} kB"
    told = f"decoded once, and kept: 1 tensor of TQ2_0, which these kernels do not read packed: {amount}"
    assert load_pair(model).notes == [told]
    # The definition decodes a block of rows at a time.
    assert load_pair(model, kernels="reference").notes == []
    assert load_pair(model, dtype="float64").notes == []


def test_rotary_factors_are_what_the_file_holds_whatever_is_computed_in(converted: Converted) -> None:
    model = converted("step35")[Role.TRUNK]
    [held] = [tensor.data for tensor in GGUFReader(model).tensors if tensor.name == "rope_freqs.weight"]
    assert not torch.equal(torch.tensor(held).bfloat16().float(), torch.tensor(held)), "the fixture cannot tell"
    for dtype in ("float32", "float64", "bfloat16"):
        trunk = load_pair(model, dtype=dtype).trunk
        assert isinstance(trunk, Trunk)
        factors = [block.attention.factors for block in trunk._blocks if not block.attention.slides]
        assert factors
        assert all(torch.equal(each.double(), torch.tensor(held).double()) for each in factors if each is not None)
        assert None not in factors


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(3, 7), (3,), (3, 1, 128)])
def test_embedding_rows_of_another_width_are_wrong_use(
    converted: Converted, family: str, shape: tuple[int, ...]
) -> None:
    pair = load_pair(converted(family)[Role.COMBINED])
    for heads in (pair.heads, None):
        with pytest.raises(UsageError, match=r"embedding rows of shape \[3.*want \[3, 128\]"):
            Speculator(pair.trunk, heads).generate([[5, EmbeddingRows(torch.zeros(shape))]], 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_embedding_rows_of_another_type_are_taken(converted: Converted, family: str) -> None:
    pair = load_pair(converted(family)[Role.COMBINED])
    rows = torch.linspace(-1, 1, 3 * 128, dtype=torch.float64).reshape(3, 128)
    said = [
        Speculator(pair.trunk, pair.heads).generate([[5, EmbeddingRows(each), 6]], 6)[0].tokens
        for each in (rows, rows.float())
    ]
    assert said[0] == said[1]


def test_a_pair_that_does_not_fit_names_the_file_once(converted: Converted) -> None:
    trunk = converted("step35")[Role.TRUNK]
    with pytest.raises(VerdictError) as caught:
        load_pair(trunk, trunk)
    assert caught.value.subject == str(trunk)
    assert caught.value.message.startswith("is trunk, want a file with a head")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("no room for libllvmlite.so"), "cannot be loaded: no room for libllvmlite.so"),
        (ImportError("undefined symbol"), "cannot be loaded: undefined symbol"),
        (ModuleNotFoundError("No module named 'numba'", name="numba"), "need numba, which is not installed"),
    ],
)
def test_kernels_that_cannot_be_loaded(
    converted: Converted, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(load, "operations", failing)
    with pytest.raises(InputError) as caught:
        load_pair(converted("step35")[Role.TRUNK])
    assert (caught.value.code, caught.value.message) == ("kernels-missing", told)
    assert caught.value.remedy == f"{extra('runtime')}; or compute with --kernels reference"
    assert "pip install '.[runtime]'" in caught.value.remedy


@pytest.mark.parametrize("value", ["1", "true", "YES", "on", "y"])
def test_triton_that_is_missing_is_in_another_extra(
    converted: Converted, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    def failing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'triton'", name="triton")

    monkeypatch.setattr(load, "operations", failing)
    monkeypatch.setenv("TRITON_INTERPRET", value)
    with pytest.raises(InputError, match=r"need triton, which is not installed\ninstall the extra 'gpu': "):
        load_pair(converted("step35")[Role.TRUNK], kernels="triton")


@pytest.mark.parametrize(
    ("kernels", "dtype", "form"),
    [
        (None, "float32", "cpu"),
        (None, "float64", "reference"),
        ("cpu", "bfloat16", "reference"),
        ("reference", "float32", "reference"),
    ],
)
def test_a_pair_knows_what_computes_it(converted: Converted, kernels: str | None, dtype: str, form: str) -> None:
    assert load_pair(converted("step35")[Role.TRUNK], kernels=kernels, dtype=dtype).kernels == form


def test_compiling_is_told_once() -> None:
    numba = pytest.importorskip("numba")
    told: list[str] = []
    first, second, third = (numba.njit(function) for function in (lambda x: x + 1, lambda x: x + 2, lambda x: x + 3))
    with watched_compiling(lambda: told.append("compiling")):
        assert told == []
        assert (first(1), second(1)) == (2, 3)
    assert told == ["compiling"]
    with watched_compiling(lambda: told.append("again")):
        assert first(2) == 3
    assert third(1) == 4
    assert told == ["compiling"]
