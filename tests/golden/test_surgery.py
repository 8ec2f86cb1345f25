"""Cutting and joining the converter's combined files gives the converter's own trunk and head, and back, to the byte.

The converter's files equal llama.cpp's (test_convert.py). That a cut equals them too is checked against the goldens
once more, size label included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from families import FAMILIES, FamilyFixture
from surgery import joined, retyped, seen, split
from verdicts import BLOCKS

from nextn.convert.pipeline import convert
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.shards import open_gguf
from nextn.validators.examine import examine
from nextn.validators.findings import Severity

COMBINED, TRUNK, MTP, SHARED = Role
OUTTYPES = ("f32", "f16", "bf16", "q8_0")
# Of the folder's name, or of the configuration of generating, which the goldens' converter run did not have.
LOOSE = ("general.name", "general.sampling.", "general.basename", "nextn.")
ARRAYS = {
    "step35": (
        "attention.head_count",
        "attention.head_count_kv",
        "attention.sliding_window_pattern",
        "swiglu_clamp_exp",
        "swiglu_clamp_shexp",
    ),
    "qwen4exp": ("attention.recurrent_layers", "attention.compress_ratios"),
    "glm5-next": ("attention.head_count_kv", "swiglu_clamp_exp", "swiglu_clamp_shexp"),
}


class Case(NamedTuple):
    """A family in a type: the converter's folder and files, and what cutting the combined one gave, for all roles."""

    family: FamilyFixture
    outtype: str
    theirs: dict[Role, Path]
    ours: dict[Role, Path]
    ours_folder: Path
    theirs_folder: Path


Converted = Callable[[str, str], tuple[Path, dict[Role, Path]]]


@pytest.fixture(scope="module")
def converted_in(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """The converter's files of a family in a type, made once."""
    made: dict[tuple[str, str], tuple[Path, dict[Role, Path]]] = {}

    def get(name: str, outtype: str) -> tuple[Path, dict[Role, Path]]:
        if (name, outtype) not in made:
            folder = tmp_path_factory.mktemp(f"{name}-{outtype}")
            done = convert(FAMILIES[name].checkpoint, folder, tuple(Role), outtype)
            made[name, outtype] = folder, {output.role: output.path for output in done.outputs if output.role}
        return made[name, outtype]

    return get


@pytest.fixture(scope="module", params=[(family, outtype) for family in FAMILIES for outtype in OUTTYPES], ids="-".join)
def case(request: pytest.FixtureRequest, converted_in: Converted, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name, outtype = request.param
    theirs_folder, theirs = converted_in(name, outtype)
    ours_folder = tmp_path_factory.mktemp("cut")
    return Case(FAMILIES[name], outtype, theirs, split(theirs[COMBINED], ours_folder), ours_folder, theirs_folder)


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("role", Role)
def test_a_cut_is_the_converters_file(case: Case, role: Role) -> None:
    """Its name too; of the combined file itself, and of the sidecar with the hash of the embedding."""
    ours, theirs = case.ours[role], case.theirs[role]
    assert ours.relative_to(case.ours_folder) == theirs.relative_to(case.theirs_folder)
    assert same(ours, theirs)


@pytest.mark.parametrize("role", [TRUNK, MTP])
def test_a_cut_is_the_upstream_converters(case: Case, role: Role) -> None:
    golden = case.family.read(f"gguf/{role}-{case.outtype}.json")
    file = seen(case.ours[role])
    assert [(name, shape, hashlib.sha256(data).hexdigest()) for name, (shape, _, data) in file.tensors.items()] == [
        (tensor["name"], tensor["ne"], tensor["sha256"]) for tensor in golden["tensors"]
    ]
    strict = {key["key"]: key.get("value") for key in golden["keys"] if not key["key"].startswith(LOOSE)}
    assert [key for key in file.keys if not key.startswith(LOOSE)] == list(strict)
    # Long arrays stand as hashes in the goldens: test_convert.py compares these.
    assert {key: file.keys[key][1] for key, value in strict.items() if value is not None} == {
        key: pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
        for key, value in strict.items()
        if value is not None
    }


def test_joining_the_parts_gives_the_whole(case: Case, tmp_path: Path) -> None:
    whole = case.theirs[COMBINED]
    for head in (MTP, SHARED, COMBINED):
        assert same(joined(case.ours[TRUNK], case.ours[head], tmp_path / f"{head}.gguf"), whole)


def test_a_sidecar_gets_its_matrices_back(case: Case, tmp_path: Path) -> None:
    for lender in (TRUNK, COMBINED):
        assert same(joined(case.theirs[lender], case.ours[SHARED], tmp_path / f"{lender}.gguf", MTP), case.theirs[MTP])


def test_a_draft_model_becomes_a_sidecar(case: Case, tmp_path: Path) -> None:
    """From the draft alone: the embedding that it holds is the target's."""
    assert same(split(case.theirs[MTP], tmp_path, SHARED)[SHARED], case.theirs[SHARED])


def test_outputs_are_what_they_should_be(case: Case, tmp_path: Path) -> None:
    """As `validate --strict --role` judges them."""
    files = case.ours | {COMBINED: joined(case.ours[TRUNK], case.ours[MTP], tmp_path / "joined.gguf")}
    for role, path in files.items():
        report = examine(path, role=role, strict=True)
        assert report.ok
        assert [str(finding) for finding in report.findings if finding.severity is not Severity.NOTE] == []


def test_a_fine_tune_without_head_gets_that_of_its_base(case: Case, converted_in: Converted, tmp_path: Path) -> None:
    """Case C09. The base is in another type; the trunk's tensors stay, the head's come as they are."""
    other = "q8_0" if case.outtype == "f32" else "f32"
    _, base = converted_in(case.family.name, other)
    file = seen(joined(case.theirs[TRUNK], base[COMBINED], tmp_path / "joined.gguf"))
    trunk, head = seen(case.theirs[TRUNK]).tensors, seen(base[MTP]).tensors
    assert file.tensors == trunk | {name: tensor for name, tensor in head.items() if name not in trunk}
    assert list(file.tensors) == list(seen(case.theirs[COMBINED]).tensors)
    assert file.keys == seen(case.theirs[COMBINED]).keys


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("outtype", ["f16", "bf16", "q8_0"])
def test_retyping_is_converting(converted_in: Converted, family: str, outtype: str, tmp_path: Path) -> None:
    """Every role of a file in f32, to the byte; and from bf16, in which the checkpoint is, to q8_0."""
    _, wide = converted_in(family, "f32")
    _, wanted = converted_in(family, outtype)
    for role in Role:
        made = retyped(wide[role], tmp_path / f"{role}.gguf", outtype)
        a, b = seen(made), seen(wanted[role])
        assert a.tensors == b.tensors
        # A sidecar's target has another embedding when it is of another type.
        marks = {"nextn.target.token_embd_sha256"}
        assert {k: v for k, v in a.keys.items() if k not in marks} == {
            k: v for k, v in b.keys.items() if k not in marks
        }
        assert list(a.keys) == list(b.keys)
        assert role is SHARED or same(made, wanted[role])


@pytest.mark.parametrize("family", FAMILIES)
def test_retyping_from_bf16(converted_in: Converted, family: str, tmp_path: Path) -> None:
    """Tensors that bf16 holds to the last bit come out as from the checkpoint: these are in bf16 there."""
    (_, half), (_, wanted) = converted_in(family, "bf16"), converted_in(family, "q8_0")
    ours, theirs = seen(retyped(half[COMBINED], tmp_path / "q8_0.gguf", "q8_0")), seen(wanted[COMBINED])
    assert ours.keys == theirs.keys
    assert ours.tensors == theirs.tensors


@pytest.mark.parametrize("role", [COMBINED, MTP, SHARED])
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_pruned_heads(converted_in: Converted, role: Role, heads: int, tmp_path: Path) -> None:
    """step35.md 6.7: blk.N to blk.N+K'-1 stay, under their numbers; block_count, the heads and the arrays say so."""
    family = FAMILIES["step35"]
    trunk_blocks, _ = BLOCKS["step35"]
    _, files = converted_in("step35", "f32")
    whole = seen(files[role])
    path = split(files[role], tmp_path, role, heads=heads)[role]
    pruned = seen(path)
    gone = tuple(f"blk.{trunk_blocks + index}." for index in range(heads, 3))
    assert pruned.tensors == {n: t for n, t in whole.tensors.items() if not gone or not n.startswith(gone)}
    assert (pruned.number("block_count"), pruned.number("nextn_predict_layers")) == (trunk_blocks + heads, heads)
    golden: dict[str, Any] = {key["key"]: key.get("value") for key in family.read("gguf/combined-f32.json")["keys"]}
    for array in ARRAYS["step35"]:
        want = golden[f"step35.{array}"][: trunk_blocks + heads]
        assert pruned.number(array) == pytest.approx(want)
        assert len(want) == trunk_blocks + heads
    assert list(pruned.keys) == list(whole.keys)
    assert examine(path, role=role, strict=True).ok


def test_size_label_of_a_pruned_head(converted_in: Converted, tmp_path: Path) -> None:
    """By hand: of 848K, what blk.6 and blk.7 have is taken away."""
    _, files = converted_in("step35", "f32")
    (_, label), elements = seen(files[MTP]).keys["general.size_label"], 0
    assert label == "848K"
    for name, (shape, _, _) in seen(files[MTP]).tensors.items():
        size = 1
        for dimension in shape:
            size *= dimension
        elements += 0 if name.startswith(("blk.6.", "blk.7.")) else size
    pruned = seen(split(files[MTP], tmp_path, MTP, heads=1)[MTP])
    assert pruned.keys["general.size_label"][1] == f"{round(elements / 1000)}K"


@pytest.mark.parametrize("family", FAMILIES)
def test_arrays_of_a_trunk_end_with_it(converted_in: Converted, family: str, tmp_path: Path) -> None:
    trunk_blocks, heads = BLOCKS[family]
    _, files = converted_in(family, "q8_0")
    cuts = {role: seen(path) for role, path in split(files[COMBINED], tmp_path, TRUNK, MTP).items()}
    for array in ARRAYS[family]:
        whole = seen(files[COMBINED]).number(array)
        assert len(whole) == trunk_blocks + heads
        assert cuts[TRUNK].number(array) == whole[:trunk_blocks]
        assert cuts[MTP].number(array) == whole
    assert cuts[TRUNK].number("nextn_predict_layers") is None
    assert cuts[TRUNK].number("block_count") == trunk_blocks


def test_payload_is_the_same_in_every_file(case: Case) -> None:
    """Case S06: bytes are moved, never made again."""
    whole = open_gguf(case.theirs[COMBINED])
    for path in case.ours.values():
        file = open_gguf(path)
        assert all(file.read_tensor(tensor.name) == whole.read_tensor(tensor.name) for tensor in file.contents)
