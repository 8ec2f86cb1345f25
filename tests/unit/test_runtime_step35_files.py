"""What a file of a Step model must have, and what is said when it lacks something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from step35_models import FAMILY, PROMPTS, with_key, without

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Value, array
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.reading import read_hyperparameters
from nextn.gguf_schema.shards import GGUFFile, open_gguf
from nextn.gguf_schema.step35 import STEP35
from nextn.gguf_schema.types import ValueType
from nextn.runtime.model import Chunk
from nextn.runtime.models.step35 import Heads, Trunk
from nextn.runtime.weights import Weights


@pytest.fixture(scope="module")
def files(converted: Callable[[str], dict[Role, Path]]) -> dict[Role, GGUFFile]:
    return {role: open_gguf(path) for role, path in converted("step35").items()}


def test_every_tensor_is_asked_for_when_a_model_is_made(files: dict[Role, GGUFFile]) -> None:
    trunk, head = Weights(files[Role.TRUNK]), Weights(files[Role.MTP])
    Trunk(trunk)
    assert trunk.read == set(trunk.contents.tensors)
    Heads(head)
    # Rotary factors are for full layers, which no head of the fixture is; norm and output are the trunk's.
    assert set(head.contents.tensors) - head.read == {"rope_freqs.weight", "output_norm.weight", "output.weight"}


NAMES = [tensor["name"] for tensor in FAMILY.read("gguf/combined-f32.json")["tensors"]]
OF_HEADS = [name for name in NAMES if name.startswith(("blk.5", "blk.6", "blk.7"))]


@pytest.mark.parametrize("block", range(5))
def test_a_trunk_without_one_of_its_tensors_is_refused(files: dict[Role, GGUFFile], block: int) -> None:
    outside = ["token_embd.weight", "output_norm.weight", "output.weight"] if block == 0 else []
    for name in [*outside, *(name for name in NAMES if name.startswith(f"blk.{block}."))]:
        if name.endswith("ffn_gate_inp.weight") or "exps" in name:
            continue  # See below: which blocks have experts is read from these.
        with pytest.raises(InputError, match=f"'{name}' is not there"):
            Trunk(Weights(without(files[Role.COMBINED], name)))


@pytest.mark.parametrize("part", ["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"])
def test_a_block_with_some_tensors_of_experts_must_have_all(files: dict[Role, GGUFFile], part: str) -> None:
    with pytest.raises(InputError, match=rf"'blk\.3\.{part}\.weight' is not there"):
        Trunk(Weights(without(files[Role.COMBINED], f"blk.3.{part}.weight")))


def test_heads_without_one_of_their_tensors_are_refused(files: dict[Role, GGUFFile]) -> None:
    for name in [*OF_HEADS, "token_embd.weight"]:
        with pytest.raises(InputError, match=f"'{name}' is not there"):
            Heads(Weights(without(files[Role.MTP], name)))


def test_rotary_factors_are_only_there_if_the_model_has_them(files: dict[Role, GGUFFile]) -> None:
    """As in llama.cpp: full layers then turn by their plain angles, and the far positions show it."""
    plain = Trunk(Weights(without(files[Role.COMBINED], "rope_freqs.weight")))
    trunk = Trunk(Weights(files[Role.COMBINED]))
    tokens = PROMPTS["long_120"]
    rows, others = (t.forward([Chunk(t.new_state(), tokens)]) for t in (trunk, plain))
    assert torch.equal(rows[0], others[0])
    assert not torch.allclose(rows[-1], others[-1], atol=1e-2)


def test_a_trunk_alone_has_no_heads(files: dict[Role, GGUFFile]) -> None:
    with pytest.raises(InputError, match="no nextn blocks") as raised:
        Heads(Weights(files[Role.TRUNK]))
    assert raised.value.code == "no-heads"


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("expert_gating_func", Value(ValueType.UINT32, 1), "unsupported-router"),
        ("attention.sliding_window", Value(ValueType.FLOAT32, 16.0), "bad-key"),
        ("attention.head_count", array(ValueType.INT32, [4, 6, 6, 6, 4]), "bad-key"),
    ],
)
def test_keys_that_cannot_be_followed(files: dict[Role, GGUFFile], key: str, value: Value, code: str) -> None:
    file = with_key(files[Role.COMBINED], f"step35.{key}", value)
    for model_ in (Trunk, Heads):
        with pytest.raises(InputError, match=key.replace(".", r"\.")) as raised:
            model_(Weights(file))
        assert raised.value.code == code


@pytest.mark.parametrize("role", Role)
def test_converted_files_have_nothing_to_complain_about(files: dict[Role, GGUFFile], role: Role) -> None:
    assert read_hyperparameters(STEP35, files[role].contents)[1] == []
