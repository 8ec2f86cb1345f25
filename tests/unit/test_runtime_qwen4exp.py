"""The Qwen model: what it keeps, what it takes in place of tokens, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from qwen4exp_models import HEAD, PROMPTS, beside, model, with_keys, without
from torch import Tensor

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import array, u32
from nextn.gguf_schema.errors import InputError, UsageError
from nextn.gguf_schema.shards import GGUFFile, open_gguf
from nextn.gguf_schema.types import ValueType
from nextn.runtime.model import Chunk
from nextn.runtime.models.qwen4exp import Heads, Trunk
from nextn.runtime.models.qwen4exp_attention import Attention
from nextn.runtime.weights import Weights

BUDGET, RATIO = 32, 4


@pytest.fixture(scope="module")
def files(converted: Callable[[str], dict[Role, Path]]) -> dict[Role, Path]:
    return converted("qwen4exp")


@pytest.fixture(scope="module")
def combined(files: dict[Role, Path]) -> GGUFFile:
    return open_gguf(files[Role.COMBINED])


@pytest.fixture(scope="module")
def models(files: dict[Role, Path]) -> tuple[Trunk, Heads]:
    return model(files[Role.COMBINED])


def block_by_hand(attention: Attention, raw: Tensor, place: int) -> Tensor:
    """A pooled key: the mean of four raw ones, normed, its first 16 values rotated by the position of the first key."""
    mean = raw.double().mean(0)
    normed = mean / (mean.square().mean() + 1e-6).sqrt() * attention.indexer_key_norm.double()
    angles = [place * 1e7 ** (-2 * m / 16) for m in range(8)]
    cos, sin = (torch.tensor([f(angle) for angle in angles]).double() for f in (math.cos, math.sin))
    a, b = normed[:8], normed[8:16]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, normed[16:]))


@pytest.mark.parametrize("size", [1, 3, RATIO, RATIO + 1, 64])
def test_a_pooled_key_stands_at_the_row_that_completes_its_block(models: tuple[Trunk, Heads], size: int) -> None:
    trunk, _ = models
    attention = trunk.blocks[3].attention
    assert attention
    state, tokens = trunk.new_state(), PROMPTS["code31"]
    for start in range(0, len(tokens), size):
        trunk.forward([Chunk(state, tokens[start : start + size])])
    raw, held = state.rows["3.indexer"].first(len(tokens)), state.rows["3.pooled"].first(len(tokens))
    for row in range(len(tokens)):
        if row % RATIO == RATIO - 1:
            first = row - RATIO + 1
            assert torch.allclose(held[row].double(), block_by_hand(attention, raw[first : row + 1], first), atol=1e-5)
        else:
            assert not held[row].any()


@pytest.mark.parametrize("visible", [BUDGET, BUDGET + RATIO - 1, BUDGET + RATIO, BUDGET + RATIO + 1])
def test_up_to_the_budget_a_query_sees_everything(
    combined: GGUFFile, models: tuple[Trunk, Heads], visible: int
) -> None:
    """A model that attends densely, by its keys, has the same last row as long as nine blocks are not complete."""
    key = "qwen4exp.attention.compress_ratios"
    dense = Trunk(Weights(with_keys(combined, {key: array(ValueType.INT32, [0] * 9)})))
    assert "3.pooled" not in dense.new_state().rows
    tokens = PROMPTS["dialogue120"][:visible]
    rows, wanted = (trunk.forward([Chunk(trunk.new_state(), tokens)])[-1] for trunk in (models[0], dense))
    assert torch.equal(rows, wanted) == (visible < BUDGET + RATIO)


def test_every_tensor_is_asked_for(files: dict[Role, Path], combined: GGUFFile) -> None:
    weights = Weights(combined)
    Trunk(weights)
    Heads(weights)
    assert weights.read == set(combined.contents.tensors)
    trunk = Weights(open_gguf(files[Role.TRUNK]))
    Trunk(trunk)
    assert trunk.read == set(trunk.contents.tensors)
    for role in (Role.MTP, Role.MTP_SHARED):
        head = Weights(open_gguf(files[role]), lender=trunk)
        Heads(head)
        assert head.read == set(head.contents.tensors)


def test_a_missing_tensor_is_an_error_that_names_it(combined: GGUFFile) -> None:
    """None of the 256 may be missing but the output matrix: llama.cpp then takes the embedding, and so do we."""
    for name in combined.contents.tensors:
        weights = Weights(without(combined, name))
        if name == "output.weight":
            assert torch.equal(Trunk(weights).output.gather([7]), Trunk(weights).embedding.gather([7]))
            continue
        with pytest.raises(InputError) as error:
            Heads(weights) if ".8." in name else Trunk(weights)
        assert error.value.code == "missing-weight"
        assert repr(name) in str(error.value)


def test_a_shared_sidecar_takes_the_output_matrix_of_its_lender(files: dict[Role, Path], combined: GGUFFile) -> None:
    sidecar = open_gguf(files[Role.MTP_SHARED])
    assert Heads(Weights(sidecar, lender=Weights(combined))).output.name == "output.weight"
    tied = Weights(without(combined, "output.weight"))
    assert Heads(Weights(sidecar, lender=tied)).output.name == "token_embd.weight"
    with pytest.raises(InputError, match=r"token_embd\.weight"):
        Heads(Weights(sidecar))


@pytest.mark.parametrize("key", ["rope.freq_base", "embedding_length", "hyper_connection.count", "ple.ngram_size"])
def test_a_missing_key_is_an_error_that_names_it(combined: GGUFFile, key: str) -> None:
    with pytest.raises(InputError, match=f"'qwen4exp.{key}'"):
        Trunk(Weights(without(combined, f"qwen4exp.{key}")))


def test_without_ratios_attention_is_dense_as_in_llama_cpp(combined: GGUFFile) -> None:
    trunk = Trunk(Weights(without(combined, "qwen4exp.attention.compress_ratios")))
    assert "3.pooled" not in trunk.new_state().rows


@pytest.mark.parametrize("ratio", [1, 3])
def test_a_ratio_that_llama_cpp_refuses(combined: GGUFFile, ratio: int) -> None:
    ratios = array(ValueType.INT32, [0, 0, 0, ratio, 0, 0, 0, ratio, ratio])
    with pytest.raises(InputError, match=f"ratio {ratio}, want one above 1 that divides the budget 32"):
        Trunk(Weights(with_keys(combined, {"qwen4exp.attention.compress_ratios": ratios})))


def test_ngram_constants_that_do_not_fit(combined: GGUFFile) -> None:
    last = combined.contents.tensors["per_layer_token_embd.weight"].ne[1]
    for key, values, message in (
        ("head_offsets", [0, 0, 0, last], "end at"),
        ("head_vocab_sizes", [1, 1, 1, 0], "parts of 0"),
        ("layer_multipliers", [1, 1], r"\(2, 4, 4\) multipliers"),
    ):
        with pytest.raises(InputError, match=message):
            Trunk(Weights(with_keys(combined, {f"qwen4exp.ple.{key}": array(ValueType.UINT64, values)})))


def test_a_file_without_a_head(files: dict[Role, Path]) -> None:
    with pytest.raises(InputError, match="has 0 heads, want 1"):
        Heads(Weights(open_gguf(files[Role.TRUNK])))


def test_uses_that_make_no_sense(models: tuple[Trunk, Heads]) -> None:
    trunk, heads = models
    with pytest.raises(UsageError, match="one head"):
        heads.forward([Chunk(heads.new_state(), [1], hidden=torch.zeros(1, 512))], 1)
    for hidden in (None, torch.zeros(1, 128), torch.zeros(2, 512)):
        with pytest.raises(UsageError, match=r"want \(1, 512\)"):
            heads.catch_up([Chunk(heads.new_state(), [1], hidden=hidden)])
    with pytest.raises(UsageError, match="follow those that are counted"):
        trunk.forward([Chunk(trunk.new_state(), [1], start=0)])


IMAGE = 508


@pytest.mark.parametrize("key", [IMAGE, None])
def test_embeddings_in_place_of_tokens_are_an_image_to_the_ngrams(combined: GGUFFile, key: int | None) -> None:
    """Without the key for the image's id it is the EOS that stands for it."""
    name = "qwen4exp.ple.image_token_id"
    trunk = Trunk(Weights(with_keys(combined, {name: u32(key)}) if key else without(combined, name)))
    stands_for = key or 503
    plain, rows = trunk.new_state(), trunk.new_state()
    text, image = PROMPTS["len5"], [stands_for] * 4
    wanted = trunk.forward([Chunk(plain, [*text, *image, *text])])
    first = trunk.forward([Chunk(rows, text)])
    middle = trunk.forward([Chunk(rows, embeddings=trunk.embedding.gather(image), positions=range(5, 9))])
    assert torch.equal(torch.cat((first, middle, trunk.forward([Chunk(rows, text)]))), wanted)
    assert rows.position == 14


def test_positions_of_an_image(models: tuple[Trunk, Heads]) -> None:
    """Four rows at one position: the text behind them stands right behind that one."""
    trunk, heads = models
    state, head_state = trunk.new_state(), heads.new_state()
    text, image = PROMPTS["len3"], trunk.embedding.gather([IMAGE] * 4)
    rows = [trunk.forward([Chunk(state, text)])]
    rows.append(trunk.forward([Chunk(state, embeddings=image, positions=[3] * 4)]))
    assert (state.length, state.position) == (7, 4)
    assert state.rows["positions"].first(7).tolist() == [[place] * 3 for place in (0, 1, 2, 3, 3, 3, 3)]
    before = beside(torch.cat(rows))
    heads.catch_up([Chunk(head_state, text, hidden=before[:3])])
    heads.catch_up([Chunk(head_state, embeddings=image, positions=[3] * 4, hidden=before[3:])])
    assert (head_state.length, head_state.position) == (7, 4)
    step = [Chunk(head_state, [text[0]], hidden=rows[-1][-1:])]
    assert torch.isfinite(heads.logits(heads.forward(step, HEAD), HEAD)).all()
    assert head_state.rows["positions"].first(8).tolist() == [[place] * 3 for place in (0, 1, 2, 3, 3, 3, 3, 4)]


def test_the_table_stays_on_the_disk(combined: GGUFFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither it nor the embeddings are decoded as a whole."""
    trunk = Trunk(Weights(combined))
    for matrix in (trunk.embedding, trunk.blocks[1].ngrams.table if trunk.blocks[1].ngrams else None):
        assert matrix
        monkeypatch.setattr(matrix, "blocks", lambda: pytest.fail("decoded as a whole"))
        assert matrix._decoded is None
    trunk.forward([Chunk(trunk.new_state(), PROMPTS["len9"])])
