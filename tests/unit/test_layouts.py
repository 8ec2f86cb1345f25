"""Layouts in circulation: each is recognised by its signature, and its view in upstream's names is upstream's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import pytest
from checkpoints import planned
from families import FAMILIES

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, TensorInfo, array, i32, string
from nextn.gguf_schema.layouts import NAMINGS, layout_for, layout_of, naming_of, upstream_view
from nextn.gguf_schema.nextn_architectures import OLD_SPELLINGS
from nextn.gguf_schema.types import ValueType

# The tiny model: 12 blocks before the head's, embeddings of 128, 4 streams.
HEAD = "blk.{}.nextn."


@cache
def contents(family: str, role: Role = Role.MTP) -> Contents:
    (file,) = planned(FAMILIES[family].checkpoint, role).files
    return file.contents


def head_of(file: Contents) -> int:
    return next(int(name.split(".")[1]) for name in file.tensors if ".nextn." in name)


def renamed(file: Contents, names: Mapping[str, str]) -> Contents:
    """The file with other names; `{}` stands for the head's block."""
    names = {old.format(head_of(file)): new.format(head_of(file)) for old, new in names.items()}
    assert names.keys() <= file.tensors.keys()
    tensors = [replace(tensor, name=names.get(tensor.name, tensor.name)) for tensor in file]
    return replace(file, tensors={tensor.name: tensor for tensor in tensors})


def with_keys(file: Contents, **keys: object) -> Contents:
    return replace(file, keys={**file.keys, **keys})


def halved(file: Contents, first: str, second: str) -> Contents:
    """The projection in two halves."""
    b = head_of(file)
    joined = file.tensors[f"blk.{b}.nextn.eh_proj.weight"]
    half = replace(joined, ne=(joined.ne[0] // 2, joined.ne[1]), nbytes=joined.nbytes // 2)
    tensors = {name: tensor for name, tensor in file.tensors.items() if name != joined.name}
    for name in (first.format(b), second.format(b)):
        tensors[name] = replace(half, name=name)
    return replace(file, tensors=tensors)


def mixer(norm: str, down: str, up: str) -> dict[str, str]:
    old = (f"{HEAD}hc_head_norm.weight", f"{HEAD}hc_head_down.weight", f"{HEAD}hc_head_up.weight")
    return dict(zip(old, (norm, down, up), strict=True))


def ratios(file: Contents, *values: int) -> Contents:
    return with_keys(file, **{"qwen4exp.attention.compress_ratios": array(ValueType.INT32, values)})


# Names as section 6.5 of the specification of qwen4exp lists them.
OUTPUT_HC = mixer("output_hc_norm.weight", "output_hc_down.weight", "output_hc_up.weight")
IK = mixer(f"{HEAD}shared_head_norm.weight", "output_hc_down.weight", "output_hc_up.weight")
FC = mixer(f"{HEAD}hc_norm.weight", f"{HEAD}hc_down.weight", f"{HEAD}hc_up.weight")
MTP_MIXER = mixer("mtp.mixer_norm.weight", "mtp.mixer_down.weight", "mtp.mixer_up.weight")
MTP_NORMS = {f"{HEAD}enorm.weight": "mtp.pre_norm_embd.weight", f"{HEAD}hnorm.weight": "mtp.pre_norm_hidden.weight"}
RAW = mixer(*(f"mtp.hyper_connection_mixer.{part}.weight" for part in
              ("hc_norm", "input_mix_weight_down", "input_mix_weight_up"))) | {
    f"{HEAD}enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    f"{HEAD}hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
}  # fmt: skip

VARIANTS: dict[str, tuple[str, Callable[[Contents], Contents]]] = {
    "rocmfpx": ("B", lambda file: renamed(file, OUTPUT_HC)),
    "split-fc": ("C", lambda file: halved(renamed(file, FC), f"{HEAD}fc_embd.weight", f"{HEAD}fc_hidden.weight")),
    "split-proj": ("D", lambda file: halved(file, f"{HEAD}embed_proj.weight", f"{HEAD}hidden_proj.weight")),
    "ik-llama": ("E1", lambda file: renamed(file, IK)),
    "ik-llama-split": (
        "E2",
        lambda file: renamed(halved(file, "mtp.fc_embd.weight", "mtp.fc_hidden.weight"), MTP_MIXER | MTP_NORMS),
    ),
    "hf": ("HF", lambda file: renamed(halved(file, "mtp.fc_embedding.weight", "mtp.fc_hidden.weight"), RAW)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("role", Role)
def test_what_we_write_is_upstream(family: str, role: Role) -> None:
    file = contents(family, role)
    layout = layout_of(file)
    assert (layout.id, layout.ambiguous) == ("upstream", False)
    assert upstream_view(file, layout.id) is file


@pytest.mark.parametrize("role", [Role.MTP, Role.MTP_SHARED])
@pytest.mark.parametrize("layout", VARIANTS)
def test_forks_of_qwen4exp(layout: str, role: Role) -> None:
    file = contents("qwen4exp", role)
    letter, change = VARIANTS[layout]
    changed = change(file)
    found = layout_of(changed)
    assert (found.id, found.others) == (layout, ())
    assert found.evidence
    known = naming_of(letter)
    assert known is not None
    assert known.id == layout
    view = upstream_view(changed, found.id)
    assert {tensor.name: (tensor.ne, tensor.nbytes) for tensor in view} == {
        tensor.name: (tensor.ne, tensor.nbytes) for tensor in file
    }
    assert view.keys == file.keys


def test_a_combined_file_keeps_the_mixer_of_its_trunk() -> None:
    file = contents("qwen4exp", Role.COMBINED)
    b = head_of(file)
    norm = file.tensors[f"blk.{b}.nextn.hc_head_norm.weight"]
    without = {name: tensor for name, tensor in file.tensors.items() if ".nextn.hc_head_" not in name}
    lost = layout_of(replace(file, tensors=without))
    assert (lost.id, lost.others) == ("upstream", ("rocmfpx", "ik-llama")), "the trunk's may be the head's"
    assert "overwritten" in lost.evidence
    named = f"blk.{b}.nextn.shared_head_norm.weight"
    changed = replace(file, tensors={**without, named: replace(norm, name=named)})
    assert layout_of(changed).id == "ik-llama"
    assert "output_hc_down.weight" in upstream_view(changed, "ik-llama").tensors


@pytest.mark.parametrize("layout", ["rocmfpx", "split-fc"])
def test_the_view_of_a_dense_head_has_the_ratio_of_its_trunk(layout: str) -> None:
    file = contents("qwen4exp")
    old = VARIANTS[layout][1](ratios(file, *[4] * head_of(file), 0))
    assert layout_of(old).id == layout
    assert upstream_view(old, layout).keys == ratios(file, *[4] * (head_of(file) + 1)).keys
    short = VARIANTS[layout][1](ratios(file, *[4] * head_of(file)))
    assert upstream_view(short, layout).keys == short.keys, "a wrong length is for the validator of keys to tell"


def test_gammas_with_a_dimension_for_the_streams() -> None:
    """One build wrote [512], the next [128, 4]; whatever the ratios say beside it is not another layout's."""
    file = contents("qwen4exp")
    b = head_of(file)
    for name, ne, found in (
        ("hnorm", (128, 4), "matrix-gammas"),
        ("hc_head_norm", (128, 4), "matrix-gammas"),
        ("hc_head_norm", (512, 1), "upstream"),
        ("hnorm", (128, 3), "upstream"),
        ("enorm", (64, 2), "upstream"),
    ):
        gamma = replace(file.tensors[f"blk.{b}.nextn.{name}.weight"], ne=ne)
        changed = replace(file, tensors={**file.tensors, gamma.name: gamma})
        assert (layout_of(changed).id, layout_of(changed).others) == (found, ()), (name, ne)
        if found != "upstream":
            old = layout_of(ratios(changed, *[4] * b, 0))
            assert (old.id, old.others) == ("pull-request", ())
            fork = layout_of(halved(changed, f"{HEAD}fc_embd.weight", f"{HEAD}fc_hidden.weight"))
            assert (fork.id, fork.others) == ("split-fc", ())


def test_a_mixer_of_the_trunk_in_another_architecture() -> None:
    """Any architecture with a head and a tensor of this name was called ambiguous."""
    file = contents("glm5-next", Role.COMBINED)
    mixer = replace(file.tensors["output_norm.weight"], name="output_hc_down.weight")
    assert not layout_of(replace(file, tensors={**file.tensors, mixer.name: mixer})).ambiguous


def test_names_of_forks_and_no_block_that_is_declared() -> None:
    """The index of the head was -1, and an array without entries has no last one."""
    file = VARIANTS["hf"][1](contents("qwen4exp"))
    empty = with_keys(ratios(file), **{"qwen4exp.block_count": i32(0)})
    assert layout_of(empty).id == "hf"


def test_a_narrow_shared_norm_is_another_layout() -> None:
    file = contents("qwen4exp")
    b = head_of(file)
    narrow = replace(file.tensors[f"blk.{b}.nextn.enorm.weight"], name=f"blk.{b}.nextn.shared_head_norm.weight")
    tensors = {name: tensor for name, tensor in file.tensors.items() if ".nextn.hc_head_" not in name}
    assert layout_of(replace(file, tensors={**tensors, narrow.name: narrow})).id == "unsloth-draft"


def test_the_last_compress_ratio_tells_the_pull_request_from_upstream() -> None:
    file = contents("qwen4exp", Role.COMBINED)
    b = head_of(file)
    trunk = [4 if i % 4 == 3 else 0 for i in range(b)]
    assert layout_of(ratios(file, *trunk, 4)).id == "upstream"
    old = ratios(file, *trunk, 0)
    assert layout_of(old).id == "pull-request"
    assert naming_of("A") is naming_of("pull-request")
    view = upstream_view(old, "pull-request")
    assert view == ratios(file, *trunk, 4)
    dense = layout_of(ratios(file, *[0] * (b + 1)))
    assert (dense.id, dense.others) == ("upstream", ("pull-request",))
    # A wrong length is for the validator of keys to tell.
    assert layout_of(ratios(file, *trunk)).id == "upstream"


def test_the_old_spelling_of_glm() -> None:
    file = contents("glm5-next", Role.COMBINED)
    keys = {key.replace("glm5-next.", "glm5next."): value for key, value in file.keys.items()}
    keys["general.architecture"] = string("glm5next")
    keys["glm5next.attention.indexer.block_size"] = keys.pop("glm5next.attention.indexer.kpool")
    keys["glm5next.expert_shared_feed_forward_length"] = i32(64)
    old = replace(file, keys=keys)
    layout = layout_of(old)
    assert layout.id == "glm5next"
    assert upstream_view(old, layout.id) == file


def test_the_forks_of_step() -> None:
    file = contents("step35", Role.MTP)
    pre = with_keys(file, **{"tokenizer.ggml.pre": string("step35")})
    assert layout_of(pre).id == "stepfun-fork"
    b = head_of(file)
    heads = file.keys["step35.attention.head_count"]
    short = with_keys(file, **{"step35.attention.head_count": array(ValueType.INT32, heads.items[:b])})
    assert layout_of(short).id == "stepfun-arrays"


def test_a_file_without_anything_known() -> None:
    tensor = TensorInfo("blk.0.a", (4,), contents("step35").tensors["output_norm.weight"].type, 16)
    layout = layout_of(Contents({}, {"blk.0.a": tensor}))
    assert layout.id == "upstream"
    assert layout_of(Contents({}, {})).id == "upstream"


def test_maps_go_both_ways() -> None:
    ids = [naming.id for naming in NAMINGS]
    assert len(set(ids)) == len(ids)
    for naming in NAMINGS:
        parts = [(f"{whole} {i}", part) for whole, names in naming.fused for i, part in enumerate(names)]
        for pairs in ((*naming.names, *parts), naming.keys):
            assert len({old for old, _ in pairs}) == len({new for _, new in pairs}) == len(pairs), naming.id


def test_a_layout_is_named_by_id_or_letter_in_any_case() -> None:
    contents = Contents({"general.architecture": string("qwen4exp")}, {})
    assert {layout_for(contents, name).id for name in ("e1", "E1", "IK-LLAMA")} == {"ik-llama"}
    assert layout_for(contents, "Upstream").id == "upstream"


def test_a_spelling_of_a_layout_is_one_that_is_known_to_be_old() -> None:
    spellings = {naming.spelling: naming.architecture for naming in NAMINGS if naming.spelling}
    assert spellings == OLD_SPELLINGS
