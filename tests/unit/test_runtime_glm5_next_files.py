"""Models of glm5-next from files: what they ask for, what they refuse, and what they do where a file leaves it open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from edited_weights import edited, load
from torch import Tensor

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Value, array
from nextn.gguf_schema.errors import InputError, UsageError
from nextn.gguf_schema.shards import open_gguf
from nextn.gguf_schema.types import ValueType
from nextn.runtime.model import Chunk
from nextn.runtime.models.glm5_next import Heads, Trunk
from nextn.runtime.models.glm5_next_attention import LatentAttention
from nextn.runtime.weights import Weights

Files = Callable[[str], dict[Role, Path]]
LATER_MLA_BLOCK, HEAD_BLOCK = 5, 6


def indexer_types(*full: bool) -> dict[str, Value | None]:
    return {"attention.indexer.types": array(ValueType.BOOL, full)}


def indexer_tensors(contents: Any, block: int) -> set[str]:
    return {name for name in contents.tensors if name.startswith(f"blk.{block}.indexer")}


def test_a_shared_layer_attends_to_what_the_last_full_one_chose(
    converted: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Across a block of linear attention, as llama.cpp does it; it needs no indexer of its own."""
    whole = load(converted("glm5-next")[Role.TRUNK])
    unneeded = indexer_tensors(whole.contents, LATER_MLA_BLOCK)
    assert len(unneeded) == 7
    shared = edited(whole, indexer_types(True, True, True, True, True, False), tuple(unneeded))
    trunk, full = Trunk(shared), Trunk(whole)
    attended: list[Any] = []
    original = LatentAttention._attended

    def spy(self: LatentAttention, query: Tensor, chunks: Any, selection: Any) -> Tensor:
        attended.append(selection)
        return original(self, query, chunks, selection)

    monkeypatch.setattr(LatentAttention, "_attended", spy)
    tokens = [(7 * i) % 480 for i in range(72)]
    for model in (trunk, full):
        model.forward([Chunk(model.new_state(), tokens)])
    chosen, reused, first, own = attended
    assert reused is chosen
    assert torch.equal(chosen[71], first[71])
    assert not torch.equal(chosen[71], own[71])


def test_a_shared_layer_needs_a_full_one_before_it(converted: Files) -> None:
    types = indexer_types(True, True, True, False, True, True)
    with pytest.raises(InputError, match="no indexer"):
        Trunk(edited(load(converted("glm5-next")[Role.TRUNK]), types))


def test_every_tensor_of_a_file_is_asked_for(converted: Files) -> None:
    files = converted("glm5-next")
    combined, trunk, mtp = (load(files[role]) for role in (Role.COMBINED, Role.TRUNK, Role.MTP))
    Trunk(trunk)
    assert trunk.read == set(trunk.contents.tensors)
    Heads(mtp)
    assert mtp.read == set(mtp.contents.tensors) - {"output_norm.weight"}  # its own norm takes that place
    Trunk(combined)
    assert combined.read == trunk.read
    Heads(combined)
    assert combined.read == set(combined.contents.tensors)
    sidecar = Weights(open_gguf(files[Role.MTP_SHARED]), lender=load(files[Role.TRUNK]))
    Heads(sidecar)
    assert sidecar.read == set(sidecar.contents.tensors) - {"output_norm.weight"}
    assert sidecar.lender is not None
    assert sidecar.lender.read == {"token_embd.weight", "output.weight"}


@pytest.mark.parametrize(
    "name",
    ["output_norm.weight", "output.weight", "token_embd.weight", "blk.0.attn_norm.weight", "blk.5.exp_probs_b.bias"],
)
def test_a_trunk_without_one_of_its_tensors_is_refused(converted: Files, name: str) -> None:
    with pytest.raises(InputError, match="is not there"):
        Trunk(edited(load(converted("glm5-next")[Role.TRUNK]), without=[name]))


@pytest.mark.parametrize("name", ["nextn.enorm.weight", "nextn.hnorm.weight", "indexer.k_norm.bias", "ffn_norm.weight"])
def test_a_head_without_one_of_its_tensors_is_refused(converted: Files, name: str) -> None:
    with pytest.raises(InputError, match="is not there"):
        Heads(edited(load(converted("glm5-next")[Role.MTP]), without=[f"blk.{HEAD_BLOCK}.{name}"]))


def test_a_head_without_a_norm_of_its_own_takes_the_models(converted: Files) -> None:
    whole = load(converted("glm5-next")[Role.MTP])
    bare = edited(whole, without=[f"blk.{HEAD_BLOCK}.nextn.shared_head_norm.weight"])
    own, models = Heads(whole), Heads(bare)
    assert "output_norm.weight" in bare.read
    hidden = torch.ones((1, own.hidden_width), dtype=torch.float64)
    rows = [heads.forward([Chunk(heads.new_state(), [5], hidden=hidden)], 0) for heads in (own, models)]
    norms = [whole.vector(name) for name in (f"blk.{HEAD_BLOCK}.nextn.shared_head_norm.weight", "output_norm.weight")]
    torch.testing.assert_close(rows[1], rows[0] / norms[0] * norms[1])


def test_a_file_without_a_head_has_no_heads(converted: Files) -> None:
    with pytest.raises(InputError, match="0 nextn blocks"):
        Heads(load(converted("glm5-next")[Role.TRUNK]))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.indexer.kpool", None, "is missing"),
        ("attention.indexer.kpool", 1, "2 or more"),
        ("attention.indexer.top_k", 30, "no whole pools of 4"),
        ("rope.dimension_count", 8, "want none"),
        ("expert_gating_func", 1, "which is 2"),
    ],
)
def test_keys_that_ask_for_something_else_are_refused(
    converted: Files, key: str, value: int | None, message: str
) -> None:
    changed: dict[str, Value | None] = {key: None if value is None else Value(ValueType.UINT32, value)}
    with pytest.raises(InputError, match=message):
        Trunk(edited(load(converted("glm5-next")[Role.TRUNK]), changed))


def test_dense_and_shared_networks_without_a_limit_take_the_experts(converted: Files) -> None:
    """As llama.cpp does for a file without swiglu_clamp_shexp; without either key there is no limit."""
    weights = load(converted("glm5-next")[Role.TRUNK])
    tokens = [425, 429, 220, 48, 84]

    def hidden(*missing: str) -> Tensor:
        trunk = Trunk(edited(weights, dict.fromkeys(missing)))
        return trunk.forward([Chunk(trunk.new_state(), tokens)])

    assert torch.equal(hidden("swiglu_clamp_shexp"), hidden())
    assert not torch.equal(hidden("swiglu_clamp_shexp", "swiglu_clamp_exp"), hidden())


def test_without_a_lower_bound_the_decay_is_by_softplus(converted: Files) -> None:
    weights = load(converted("glm5-next")[Role.TRUNK])
    bounded, free = (Trunk(edited(weights, keys)) for keys in (None, {"kda.gate_lower_bound": None}))
    rows = [trunk.forward([Chunk(trunk.new_state(), [425, 429, 220])]) for trunk in (bounded, free)]
    assert not torch.allclose(rows[0], rows[1])


def test_a_head_wants_hidden_rows_and_a_trunk_sensible_positions(converted: Files) -> None:
    weights = load(converted("glm5-next")[Role.COMBINED])
    trunk, heads = Trunk(weights), Heads(weights)
    for hidden in (None, torch.zeros((1, heads.hidden_width), dtype=torch.float64)):
        state = heads.new_state()
        with pytest.raises(UsageError, match="hidden row"):
            heads.catch_up([Chunk(state, [1, 2], hidden=hidden)])
        assert state.length == 0
    state = trunk.new_state()
    with pytest.raises(UsageError, match="positions"):
        trunk.forward([Chunk(state, [1, 2], positions=[4, 3])])
    assert state.length == 0
