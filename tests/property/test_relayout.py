"""Laws of layouts: there and back again is the same file, keys in order, and every byte where it was."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nextn.gguf_schema.contents import Contents, TensorInfo, Value, array, boolean, f32, string, u32
from nextn.gguf_schema.edit import unchanged
from nextn.gguf_schema.errors import InputError, NextnError, VerdictError
from nextn.gguf_schema.layouts import NAMINGS, UPSTREAM, layout_of
from nextn.gguf_schema.relayout import relayout
from nextn.gguf_schema.types import TENSOR_TYPES, ValueType

if TYPE_CHECKING:
    from nextn.gguf_schema.edit import Edit

QWEN, GLM, STEP = "qwen4exp", "glm5-next", "step35"
LAYOUTS = {arch: [UPSTREAM, *(each.id for each in NAMINGS if each.architecture == arch)] for arch in (QWEN, GLM, STEP)}
RATIOS = f"{QWEN}.attention.compress_ratios"
Rows = tuple[bytes, ...]


@dataclass(frozen=True)
class File:
    """What a file says, and the bytes of each row of its tensors."""

    contents: Contents
    rows: dict[str, Rows]

    @property
    def said(self) -> tuple[object, ...]:
        """Everything, in order."""
        return [*self.contents.keys.items()], [*self.contents.tensors.items()], [*self.rows.items()]


def filled(contents: Contents) -> File:
    """Rows of numbers that never come twice."""
    numbers = count(1)
    rows = {}
    for tensor in contents:
        size = tensor.type.row_bytes(tensor.ne[0])
        raw = b"".join(next(numbers).to_bytes(4, "little") for _ in range(-(-tensor.nbytes // 4)))
        rows[tensor.name] = tuple(raw[at : at + size] for at in range(0, tensor.nbytes, size))
    return File(contents, rows)


def applied(edit: Edit, file: File) -> File:
    """An interpreter of edits: rows side by side, or a part of each, or the same bytes in rows of another length."""
    rows = {}
    for made in edit.tensors:
        taken = [b"".join(row) for row in zip(*(file.rows[name] for name in made.sources), strict=True)]
        cut = [row[len(row) * made.part // made.parts : len(row) * (made.part + 1) // made.parts] for row in taken]
        size, raw = made.info.type.row_bytes(made.info.ne[0]), b"".join(cut)
        assert len(raw) == made.info.nbytes == made.info.type.tensor_bytes(made.info.ne)
        rows[made.info.name] = tuple(raw[at : at + size] for at in range(0, len(raw), size))
    assert len(rows) == len(edit.tensors), "no name twice"
    return File(edit.contents("edited"), rows)


def moved(file: File, to: str) -> File:
    edit = relayout(file.contents, to)
    assert bool(edit.changes) is (edit.contents("") != file.contents or [*edit.keys] != [*file.contents.keys])
    return applied(edit, file)


def tensor(name: str, ne: tuple[int, ...], type_: str = "F32") -> TensorInfo:
    return TensorInfo(f"{name}.weight", ne, TENSOR_TYPES[type_], TENSOR_TYPES[type_].tensor_bytes(ne))


def some(draw: st.DrawFn, tensors: list[TensorInfo]) -> list[TensorInfo]:
    """The tensors in any order, and most often all of them."""
    lost = draw(st.sets(st.sampled_from(tensors), max_size=1)) if draw(st.integers(0, 3)) == 0 else set()
    return draw(st.permutations([each for each in tensors if each not in lost]))


@st.composite
def qwen(draw: st.DrawFn) -> Contents:
    """A file of qwen4exp with upstream's names: a head with or without embeddings, or one behind a trunk."""
    role = draw(st.sampled_from(("mtp", "mtp-shared", "combined")))
    type_ = draw(st.sampled_from(("F32", "BF16", "Q8_0", "Q4_K", "MXFP4")))
    width, blocks = draw(st.sampled_from((32, 64, 256))), draw(st.integers(1, 5))
    b, wide = f"blk.{blocks}.", 2 * width
    streams = draw(st.sampled_from(((wide,), (width, 2))))
    head = [
        tensor(f"{b}attn_q", (width, 2), type_ if width % TENSOR_TYPES[type_].block == 0 else "F16"),
        tensor(f"{b}nextn.eh_proj", (2 * width, 3), type_ if wide % TENSOR_TYPES[type_].block == 0 else "F16"),
        tensor(f"{b}nextn.enorm", (width,)),
        tensor(f"{b}nextn.hnorm", streams),
        tensor(f"{b}nextn.hc_head_norm", streams),
        tensor(f"{b}nextn.hc_head_down", (wide, 2)),
        tensor(f"{b}nextn.hc_head_up", (2, wide)),
    ]
    trunk = [tensor("blk.0.attn_q", (width, 2)), tensor("output_hc_norm", (wide,)), tensor("output_hc_down", (wide, 2))]
    ratio, last = draw(st.sampled_from((0, 4, 4, 4))), draw(st.booleans())
    ratios = (*([0] * (blocks - 1)), ratio, ratio * last)
    keys: dict[str, Value] = {
        "general.architecture": string(QWEN),
        f"{QWEN}.block_count": u32(blocks + 1),
        f"{QWEN}.embedding_length": u32(width),
        f"{QWEN}.nextn_predict_layers": u32(1),
        f"{QWEN}.hyper_connection.count": u32(2),
        RATIOS: array(ValueType.INT32, ratios),
    }
    if draw(st.integers(0, 4)) == 0:
        del keys[RATIOS]
    if role == "mtp-shared":
        keys |= {"nextn.shared": boolean(True), "nextn.target.name": string("it")}
    embedding = [tensor("token_embd", (width, 4)), tensor("output", (width, 4))]
    others = (embedding if role != "mtp-shared" else []) + (trunk if role == "combined" else [])
    ordered = draw(st.permutations([*keys.items()]))
    tensors = [*others, *some(draw, head)]
    return Contents(dict(ordered), {each.name: each for each in tensors}, "qwen")


@st.composite
def glm(draw: st.DrawFn) -> Contents:
    """A file of glm5-next, with or without what readers of the old spelling take for granted."""
    trunk, nextn, pool = draw(st.integers(1, 4)), draw(st.booleans()), draw(st.sampled_from((2, 4)))
    optional: dict[str, Value] = {
        "attention.indexer.kpool_select_tail": boolean(draw(st.integers(0, 4)) > 0),
        "attention.indexer.types": array(ValueType.BOOL, [True] * (trunk - 1) + [draw(st.integers(0, 4)) > 0]),
        "attention.indexer.index_share_mtp": boolean(True),
        "expert_weights_scale": f32(2.5),
    }
    names = draw(st.sets(st.sampled_from(sorted(optional))))
    keys: dict[str, Value] = {
        "block_count": u32(trunk + nextn),
        "expert_feed_forward_length": u32(8),
        "expert_shared_count": u32(2),
        "attention.indexer.kpool": u32(pool),
        **({"nextn_predict_layers": u32(1)} if nextn else {}),
        **{name: value for name, value in optional.items() if name in names},
    }
    ordered = draw(st.permutations([*keys.items()]))
    tensors = [tensor(f"blk.{trunk - 1}.indexer_compressor_ape", (4, pool)), tensor("output_norm", (4,))]
    if nextn:
        tensors.append(tensor(f"blk.{trunk}.nextn.eh_proj", (8, 4)))
    named = {"general.architecture": string(GLM), **{f"{GLM}.{name}": value for name, value in ordered}}
    return Contents(named, {each.name: each for each in tensors}, "glm")


@st.composite
def step(draw: st.DrawFn) -> Contents:
    """A file of step35, with any pre-tokenizer."""
    keys = {
        "general.architecture": string(STEP),
        f"{STEP}.block_count": u32(2),
        f"{STEP}.nextn_predict_layers": u32(1),
        "tokenizer.ggml.pre": string(draw(st.sampled_from(("deepseek-v3", "glm4")))),
    }
    tensors = [tensor("blk.1.nextn.eh_proj", (8, 4)), tensor("blk.1.attn_q", (4, 4))]
    return Contents(keys, {each.name: each for each in tensors}, "step")


files = st.one_of(qwen(), qwen(), glm(), step()).map(filled)


def arrived(file: File, to: str) -> File:
    """The file in a layout that can express it."""
    try:
        return moved(file, to)
    except (VerdictError, InputError):
        assume(False)
        raise


@given(st.data(), files)
@settings(max_examples=300, deadline=None)
def test_there_and_back(data: st.DataObject, file: File) -> None:
    """From layout A, as relayout writes it, to any B that can say the same and back: the same file, to the byte."""
    layouts = st.sampled_from(LAYOUTS[file.contents.architecture])
    through, a, b = data.draw(layouts), data.draw(layouts), data.draw(layouts)
    before = arrived(file, through)
    first = arrived(before, a)
    assume(first.said != before.said)
    assert moved(arrived(first, b), a).said == first.said


@given(st.data(), files)
@settings(max_examples=200, deadline=None)
def test_any_way_leads_to_the_same_file(data: st.DataObject, file: File) -> None:
    """By way of a third layout, or at once; and what is written is recognised, and is not written anew."""
    layouts = st.sampled_from(LAYOUTS[file.contents.architecture])
    a, b, c = data.draw(layouts), data.draw(layouts), data.draw(layouts)
    first = arrived(file, a)
    direct, indirect = arrived(first, c), arrived(arrived(first, b), c)
    assume(a != c or b == a)
    assert direct.said == indirect.said
    found = layout_of(direct.contents)
    # Without ratios nothing but a marker tells some layouts apart: no tensor is named otherwise.
    same_names = relayout(direct.contents, UPSTREAM).tensors == unchanged(direct.contents).tensors
    assert c in (found.id, *found.others) or same_names
    assert relayout(direct.contents, c).changes == ()


@given(st.data(), files)
@settings(max_examples=200, deadline=None)
def test_damage_is_refused_with_words(data: st.DataObject, file: File) -> None:
    """Values of any type, tensors of any shape and lost ones: an edit, or an error that a user can act on."""
    keys, tensors = dict(file.contents.keys), dict(file.contents.tensors)
    name = data.draw(st.sampled_from(sorted(keys.keys() - {"general.architecture"})))
    arrays = (array(ValueType.STRING, ["?"]), array(ValueType.INT32, [3]), array(ValueType.UINT8, []))
    keys[name] = data.draw(st.sampled_from((u32(0), u32(1 << 31), string("?"), boolean(False), f32(0.5), *arrays)))
    other = data.draw(st.sampled_from(sorted(tensors)))
    tensors[other] = replace(tensors[other], ne=data.draw(st.sampled_from(((8,), (4, 2), (2, 2, 2)))))
    damaged = Contents(keys, tensors, "damaged")
    to = data.draw(st.sampled_from(LAYOUTS[file.contents.architecture]))
    with suppress(NextnError):
        edit = relayout(damaged, to)
        assert len({made.info.name for made in edit.tensors}) == len(edit.tensors)
