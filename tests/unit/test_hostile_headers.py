"""What a hostile header costs: less than a second, and a few MiB."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from edited_contents import planned
from examined import examine
from gguf_bytes import STRING, UINT8, array_key, header, key, tensor, text

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.container import encode_header, lay_out
from nextn.gguf_schema.contents import MemoryFile, TensorInfo, Value, string, u32
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.types import F32, ValueType
from nextn.gguf_schema.values import StoredArray
from nextn.validators.examine import examine as validate

HOSTILE = {
    "strings": lambda: header([array_key("a", STRING, 1 << 22, bytes(8 << 22))]),
    "more strings": lambda: header([array_key(f"a{i}", STRING, 1 << 21, bytes(8 << 21)) for i in range(3)]),
    "one long string": lambda: header([key("a", STRING, text(b"x" * (60 << 20)))]),
    "long strings": lambda: header([key(f"a{i}", STRING, text(b"x" * (1 << 20))) for i in range(60)]),
    "small arrays": lambda: header([array_key(f"a{i}", UINT8, 1024, bytes(1024)) for i in range(4096)]),
    "tensors": lambda: header(tensors=[tensor(f"blk.{i}.weight", [32] * 4) for i in range(1 << 14)]),
    "long names": lambda: header(tensors=[tensor(f"{i:01000d}", [32] * 4) for i in range(1 << 14)]),
    "bad dimensions": lambda: header(tensors=[tensor(f"blk.{i}.weight", [0] * 16) for i in range(1 << 14)]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_cheap(case: str) -> None:
    data = HOSTILE[case]()
    begin = time.process_time()
    cost(data)
    assert time.process_time() - begin < 1.5, "about half of that, on a machine with nothing else to do"
    if "strings" in case:
        return  # Tracing millions of steps takes long; one more of them takes no memory.
    tracemalloc.start()
    cost(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 << 20


def cost(data: bytes) -> None:
    with suppress(InputError):
        examine(data)


def stored(element: ValueType, count: int, raw: bytes) -> Value:
    """An array of a header, which need not be made of Python's numbers."""
    return Value(ValueType.ARRAY, StoredArray(MemoryFile(raw), 0, len(raw), element, count, "made"), element)


def small(count: int, form: str) -> tuple[TensorInfo, ...]:
    """Many small tensors with names of this form, in all blocks that there may be."""
    infos = [TensorInfo(form.format(block=i % 512, i=i), (1,), F32, 4) for i in range(count)]
    return lay_out(infos)[0]


ENTRIES, TEXTS, TENSORS = 12_000_000, 3_000_000, 16_000
MANY = stored(ValueType.UINT32, ENTRIES, b"\1\2\3\4" * ENTRIES)
BLOCKS = small(TENSORS, "blk.{block}.x{i}.weight")
HEADS = small(TENSORS, "blk.{block}.nextn.x{i}.weight")
TOKEN_TEXTS = stored(ValueType.STRING, TEXTS, b"".join(struct.pack("<Q", 6) + b"%06x" % i for i in range(TEXTS)))


def as_qwen35(keys: Mapping[str, Value]) -> dict[str, Value]:
    """The keys of an architecture without tables."""
    renamed = {key.replace("step35.", "qwen35."): value for key, value in keys.items()}
    return renamed | {"general.architecture": string("qwen35")}


# What is changed in a head's file of step35: keys, and tensors in the place of all of its own.
MODELS: dict[str, tuple[dict[str, Value], tuple[TensorInfo, ...] | None]] = {
    **{
        f"many entries in {name}": ({f"step35.{name}": MANY}, None)
        for name in ("attention.head_count", "expert_used_count", "attention.sliding_window_pattern")
    },
    "many types of tokens": ({"tokenizer.ggml.token_type": MANY}, None),
    "many tokens": ({"tokenizer.ggml.tokens": TOKEN_TEXTS}, None),
    "a long pre-tokenizer": ({"tokenizer.ggml.pre": string("x" * (60 << 20))}, None),
    "a long architecture": ({"general.architecture": string("x" * (60 << 20))}, None),
    "dots": ({"." * 60_000 + str(i): u32(1) for i in range(15)}, None),
    "foreign prefixes": ({f"{'a.b.' * 20}{i}.block_count": u32(1) for i in range(3000)}, None),
    "ids": ({f"tokenizer.ggml.{i}_token_id": u32(1) for i in range(3000)}, None),
    "blocks": ({}, BLOCKS),
    "heads": ({}, HEADS),
}


@pytest.mark.parametrize("tables", [True, False], ids=["step35", "qwen35"])
@pytest.mark.parametrize("case", MODELS)
def test_all_that_is_said_of_a_hostile_model_is_cheap(case: str, tables: bool, tmp_path: Path) -> None:
    """16,000 tensors took two minutes, and 540 MiB an array: each rule looked at what another had refused."""
    changed, tensors = MODELS[case]
    good = planned("step35", Role.MTP)
    keys = {**good.keys, **changed}
    described = tuple(good) if tensors is None else tensors
    path = tmp_path / "hostile.gguf"
    path.write_bytes(encode_header(keys if tables else as_qwen35(keys), described))
    begin = time.process_time()
    report = validate(path)
    seconds = time.process_time() - begin
    assert seconds < 3, "half of that at most, on a machine with nothing else to do"
    assert len(report.findings) < 200
    if case in ("many tokens", "blocks", "heads"):
        return  # Tracing takes long.
    tracemalloc.start()
    validate(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 << 20


def test_one_file_of_a_hundred_thousand(tmp_path: Path) -> None:
    path = tmp_path / "x-00001-of-99999.gguf"
    path.write_bytes(header())
    begin = time.process_time()
    (finding,) = [finding for finding in validate(path).findings if finding.rule == "missing-shard"]
    assert time.process_time() - begin < 1
    assert finding.message.startswith("99998 of the 99999 files of the set are missing: x-00002-of-99999.gguf, ")


def test_a_long_string_is_there_when_it_is_looked_at() -> None:
    long = "é" * (1 << 20)
    model, findings = examine(header([key("a", STRING, text(long)), key("b", STRING, text("after"))]))
    assert findings == []
    assert model is not None
    assert list(model.contents.keys["a"].items) == [long]
    assert model.contents.keys["b"].value == "after"
