"""Laws of split and join, on small files of any architecture, with tensors, keys and shards in any order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from surgery import joined, seen, shards_of, split

from nextn.convert.metadata import size_label
from nextn.gguf_schema.architecture import Role, block_of
from nextn.gguf_schema.container import encode_header, lay_out
from nextn.gguf_schema.contents import TensorInfo, Value, array, boolean, string, u32
from nextn.gguf_schema.shards import open_gguf
from nextn.gguf_schema.types import TENSOR_TYPES, TensorType, ValueType

COMBINED, TRUNK, MTP, SHARED = Role
ARCHITECTURES = ("step35", "qwen4exp", "glm5-next", "qwen35moe", "deepseek32", "mimo2", "exaone-moe", "not-known-yet")
UNKNOWN = TensorType(99, "type 99", 1, 0)
TYPES = [
    UNKNOWN,
    *(
        TENSOR_TYPES[n]
        for n in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ4_NL", "IQ1_S", "MXFP4", "I32")
    ),
]
WIDTH, TOKENS = 256, 3
BLOCK = ("attn_norm.weight", "attn_q.weight", "ffn_down_exps.weight", "ffn_gate_inp.weight", "exp_probs_b.bias", "odd")
HEAD = ("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight")
OUTSIDE = ("output.weight", "output_norm.weight", "rope_freqs.weight", "something.new")


@dataclass(frozen=True)
class Model:
    """A combined model: keys, the tensors of each shard, alignment."""

    keys: dict[str, Value]
    shards: tuple[tuple[TensorInfo, ...], ...]
    trunk_blocks: int
    alignment: int

    @property
    def tensors(self) -> list[TensorInfo]:
        return [tensor for shard in self.shards for tensor in shard]

    def is_heads(self, tensor: TensorInfo) -> bool:
        block = block_of(tensor.name)
        return block is not None and block >= self.trunk_blocks

    @property
    def canonical_order(self) -> list[str]:
        """The trunk's tensors in their order, then the heads'."""
        return [tensor.name for tensor in sorted(self.tensors, key=self.is_heads)]

    @property
    def is_canonical(self) -> bool:
        """Whether the tensors are in that order, with the heads' all in the last file, which has some of the trunk's.

        A head, which is one file, does not tell where keys about the set stood: behind the others, as writers put them.
        """
        if len(self.shards) > 1 and any(key.startswith("split.") for key in list(self.keys)[:-3]):
            return False
        in_order = [tensor.name for tensor in self.tensors] == self.canonical_order
        *others, last = ([self.is_heads(tensor) for tensor in shard] for shard in self.shards)
        return in_order and not any(map(any, others)) and not all(last)

    def write(self, folder: Path) -> Path:
        """Write the file, or the shards; the first one."""
        count = len(self.shards)
        for index, shard in enumerate(self.shards):
            numbers = {} if count == 1 else split_keys(index, count, len(self.tensors))
            plain = {key: value for key, value in self.keys.items() if key == "general.alignment"}
            # The keys about the set stand anywhere in the first shard.
            keys = {k: numbers.get(k, v) for k, v in self.keys.items()} | numbers if index == 0 else plain | numbers
            keys = {key: value for key, value in keys.items() if count > 1 or not key.startswith("split.")}
            infos, _ = lay_out(shard, self.alignment)
            data = b"".join(payload(info) + bytes(-info.nbytes % self.alignment) for info in infos)
            name = "x.gguf" if count == 1 else f"x-{index + 1:05}-of-{count:05}.gguf"
            (folder / name).write_bytes(encode_header(keys, infos, self.alignment) + data)
        return min(folder.glob("*.gguf"))


def split_keys(index: int, count: int, tensors: int) -> dict[str, Value]:
    """As gguf-py writes them."""
    return {
        "split.no": Value(ValueType.UINT16, index),
        "split.count": Value(ValueType.UINT16, count),
        "split.tensors.count": Value(ValueType.INT32, tensors),
    }


def payload(info: TensorInfo) -> bytes:
    """Bytes that depend on the tensor's name."""
    seed = sum(info.name.encode())
    return bytes((seed + 7 * i) % 251 + 1 for i in range(info.nbytes))


@st.composite
def tensors(draw: st.DrawFn, name: str, alignment: int) -> TensorInfo:
    type_ = draw(st.sampled_from(TYPES))
    lent = name in ("token_embd.weight", "output.weight")
    ne = (WIDTH, TOKENS) if lent else (WIDTH, *draw(st.lists(st.integers(1, 2), max_size=2)))
    # Of an unknown type only the place of the next tensor tells the size.
    nbytes = type_.tensor_bytes(ne) if type_.known else alignment * draw(st.integers(1, 3))
    return TensorInfo(name, ne, type_, nbytes)


@st.composite
def models(draw: st.DrawFn) -> Model:
    architecture, alignment = draw(st.sampled_from(ARCHITECTURES)), draw(st.sampled_from([32, 32, 64, 8]))
    trunk_blocks, heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    outside = ["token_embd.weight", *draw(st.lists(st.sampled_from(OUTSIDE), unique=True))]
    trunk, head = outside, []
    for block in range(trunk_blocks + heads):
        names = [f"blk.{block}.{name}" for name in (BLOCK[0], *draw(st.lists(st.sampled_from(BLOCK[1:]), unique=True)))]
        if block < trunk_blocks:
            trunk = trunk + names
        else:
            more = (HEAD[0], *draw(st.lists(st.sampled_from(HEAD[1:]), unique=True)))
            head += names + [f"blk.{block}.{name}" for name in more]
    if draw(st.booleans()):
        order = [*draw(st.permutations(trunk)), *draw(st.permutations(head))]
    else:
        order = draw(st.permutations([*trunk, *head]))
    infos = [draw(tensors(name, alignment)) for name in order]
    cuts = sorted(draw(st.sets(st.integers(0, len(infos) - 1), max_size=2)))
    bounds = [0, *cuts, len(infos)]
    shards = tuple(tuple(infos[a:b]) for a, b in pairwise(bounds))
    keys = draw(key_sets(architecture, trunk_blocks, heads, infos))
    if alignment != 32:
        keys["general.alignment"] = u32(alignment)
    numbers = split_keys(0, 1, 0)
    order = draw(st.permutations([*keys, *numbers]) | st.permutations(list(keys)).map(lambda keys: [*keys, *numbers]))
    return Model({key: (keys | numbers)[key] for key in order}, shards, trunk_blocks, alignment)


@st.composite
def key_sets(draw: st.DrawFn, name: str, trunk: int, heads: int, infos: Sequence[TensorInfo]) -> dict[str, Value]:
    """Keys that agree with the tensors: of blocks as a number or an array, and some that nobody knows."""
    both = trunk + heads
    number = st.sampled_from([u32, lambda n: Value(ValueType.UINT64, n), lambda n: Value(ValueType.INT32, n)])
    maybe: dict[str, st.SearchStrategy[Value]] = {
        "general.name": st.just(string("A Name")),
        "general.size_label": st.sampled_from([string("8x7B"), string(size_label(infos))]),
        "general.file_type": st.just(u32(15)),
        "tokenizer.ggml.tokens": st.just(array(ValueType.STRING, [f"<{i}>" for i in range(TOKENS)])),
        f"{name}.attention.head_count": integers(both) | st.just(u32(4)),
        f"{name}.attention.head_count_kv": integers(both),
        f"{name}.expert_feed_forward_length": integers(both) | st.just(u32(8)),
        f"{name}.swiglu_clamp_exp": st.just(array(ValueType.FLOAT32, [0.5 * i for i in range(both)])),
        f"{name}.attention.recurrent_layers": booleans(both),
        f"{name}.attention.sliding_window_pattern": st.integers(1, both).flatmap(booleans),
        f"{name}.attention.indexer.types": booleans(trunk),
        f"{name}.attention.indexer.index_share_mtp": st.just(boolean(True)),
        f"{name}.nobody.knows": integers(both),
        "odd key": st.just(Value(ValueType.FLOAT64, 0.1)),
    }
    chosen = draw(st.sets(st.sampled_from(list(maybe))))
    return {
        "general.architecture": string(name),
        f"{name}.block_count": draw(number)(both),
        f"{name}.nextn_predict_layers": draw(number)(heads),
        f"{name}.embedding_length": u32(WIDTH),
        **{key: draw(maybe[key]) for key in sorted(chosen)},
    }


def integers(count: int) -> st.SearchStrategy[Value]:
    return st.lists(st.integers(0, 9), min_size=count, max_size=count).map(lambda items: array(ValueType.INT32, items))


def booleans(count: int) -> st.SearchStrategy[Value]:
    return st.lists(st.booleans(), min_size=count, max_size=count).map(lambda items: array(ValueType.BOOL, items))


def raw(first: Path) -> list[bytes]:
    return [path.read_bytes() for path in shards_of(first)]


def stored(first: Path) -> Iterator[tuple[str, tuple[int, ...], int, bytes]]:
    """Name, dimensions, type and bytes of the tensors in order; the bytes from where the headers say that they are."""
    file = open_gguf(first)
    whole = raw(first)
    for tensor in file.contents:
        start = file.headers[tensor.shard].data_offset + tensor.offset
        data = whole[tensor.shard][start : start + tensor.nbytes]
        yield tensor.name, tensor.ne, tensor.type.id, data


def plain(keys: Mapping[str, Value]) -> list[tuple[str, str, object]]:
    """Keys in order, with types and values; those about a set of shards aside."""
    told = [(key, value) for key, value in keys.items() if not key.startswith("split.")]
    return [(key, v.type_name, list(v.items) if v.element is not None else v.value) for key, v in told]


EVERY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module", autouse=True)
def hasty() -> Iterator[None]:
    """Nothing is forced to the disk, which takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@EVERY
@given(models())
def test_joining_what_was_split(model: Model) -> None:
    """The same bytes when the file is in canonical order; else the same keys, and tensors in canonical order."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        x = model.write(place)
        before = raw(x)
        parts = split(x, place / "parts", TRUNK, MTP)
        y = joined(parts[TRUNK], parts[MTP], place / "joined" / "x.gguf")
        if model.is_canonical:
            assert [path.name for path in shards_of(y)] == [path.name for path in shards_of(x)]
            assert raw(y) == before
        told = {info.name: (info.name, info.ne, info.type.id, payload(info)) for info in model.tensors}
        assert list(stored(y)) == [told[name] for name in model.canonical_order]
        assert plain(open_gguf(y).contents.keys) == plain(open_gguf(x).contents.keys)
        # Doing it again changes nothing.
        again = split(y, place / "again", TRUNK, MTP)
        assert raw(again[TRUNK]) == raw(parts[TRUNK])
        assert raw(again[MTP]) == raw(parts[MTP]) or not model.is_canonical
        assert raw(joined(again[TRUNK], again[MTP], place / "twice" / "x.gguf")) == raw(y)
        assert raw(x) == before


@EVERY
@given(models())
def test_each_cut_holds_its_part(model: Model) -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder)
        parts = split(model.write(place), place / "parts")
        told = {info.name: (info.name, info.ne, info.type.id, payload(info)) for info in model.tensors}
        held = {role: list(stored(path)) for role, path in parts.items()}
        assert held[COMBINED] == list(told.values())
        assert held[TRUNK] == [told[info.name] for info in model.tensors if not model.is_heads(info)]
        heads = [told[info.name] for info in model.tensors if model.is_heads(info)]
        for role in (MTP, SHARED):
            assert [tensor for tensor in held[role] if tensor[0].startswith("blk.")] == heads
            assert all(tensor == told[tensor[0]] for tensor in held[role])
        names = {role: {tensor[0] for tensor in tensors} for role, tensors in held.items()}
        assert names[MTP] - names[SHARED] == {"token_embd.weight", "output.weight"} & names[COMBINED]
        if all(info.type.known for info in model.tensors):
            # What another reader sees.
            for role, path in parts.items():
                theirs = [(name, tuple(ne), type_, data) for name, (ne, type_, data) in seen(path).tensors.items()]
                assert theirs == held[role]


@EVERY
@given(models())
def test_a_sidecar_comes_back(model: Model) -> None:
    """With the matrices of the trunk it is the draft model: to the byte, or in canonical order."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        parts = split(model.write(place), place / "parts", TRUNK, MTP, SHARED)
        back = joined(parts[TRUNK], parts[SHARED], place / "back.gguf", MTP)
        if model.is_canonical:
            assert raw(back) == raw(parts[MTP])
        assert sorted(stored(back)) == sorted(stored(parts[MTP]))
        assert plain(open_gguf(back).contents.keys) == plain(open_gguf(parts[MTP]).contents.keys)
