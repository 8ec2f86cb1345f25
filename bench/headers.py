"""How long it takes to read a header with a large vocabulary: gguf-py's reader and ours, on the same file."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import gguf

from nextn.gguf_schema.container import encode_header, lay_out
from nextn.gguf_schema.contents import TensorInfo, array, string
from nextn.gguf_schema.shards import open_gguf
from nextn.gguf_schema.types import F16, ValueType

if TYPE_CHECKING:
    from collections.abc import Callable

N_TOKENS = 250_000
N_TENSORS = 1_400
PEER = """python -c 'import gguf, sys; gguf.GGUFReader(sys.argv[1])' FILE"""


def write_model(path: Path) -> None:
    """A file with a vocabulary and merges, and with tensors whose data is a hole."""
    keys = {
        "general.architecture": string("toy"),
        "tokenizer.ggml.tokens": array(ValueType.STRING, (f"token{i}" for i in range(N_TOKENS))),
        "tokenizer.ggml.token_type": array(ValueType.INT32, (1 for _ in range(N_TOKENS))),
        "tokenizer.ggml.merges": array(ValueType.STRING, (f"tok{i} en{i}" for i in range(N_TOKENS))),
    }
    ne = (1024, 256)
    tensors, data_bytes = lay_out(
        [TensorInfo(f"blk.{i // 20}.tensor_{i % 20}.weight", ne, F16, F16.tensor_bytes(ne)) for i in range(N_TENSORS)]
    )
    with path.open("wb") as file:
        file.truncate(file.write(encode_header(keys, tensors)) + data_bytes)


def seconds(read: Callable[[Path], object], path: Path, times: int) -> float:
    """Median time of `times` calls."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        read(path)
        taken.append(time.perf_counter() - begin)
    return median(taken)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path)
        theirs, ours = seconds(gguf.GGUFReader, path, 1), seconds(open_gguf, path, 9)
    print(f"{N_TOKENS} tokens, types and merges, {N_TENSORS} tensors")
    print(f"gguf-py  {theirs * 1000:9.1f} ms   {PEER}")
    print(f"nextn    {ours * 1000:9.1f} ms   python bench/headers.py")
    print(f"ratio    {theirs / ours:9.1f}")


if __name__ == "__main__":
    main()
