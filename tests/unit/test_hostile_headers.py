"""What a hostile header costs: less than a second, and a few MiB."""

from __future__ import annotations

import time
import tracemalloc
from contextlib import suppress

import pytest
from examined import examine
from gguf_bytes import STRING, UINT8, array_key, header, key, tensor, text

from nextn.gguf_schema.errors import InputError

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


def test_a_long_string_is_there_when_it_is_looked_at() -> None:
    long = "é" * (1 << 20)
    model, findings = examine(header([key("a", STRING, text(long)), key("b", STRING, text("after"))]))
    assert findings == []
    assert model is not None
    assert list(model.contents.keys["a"].items) == [long]
    assert model.contents.keys["b"].value == "after"
