"""How long it takes to read a header with a large vocabulary, and to judge a whole file from it.

gguf-py's reader and ours read the same file; `nextn validate` is measured as a process, with the interpreter's start.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import asked
import gguf

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.container import encode_header, lay_out
from nextn.gguf_schema.contents import TensorInfo, array, boolean, string, u32
from nextn.gguf_schema.glm5_next import GLM5_NEXT, Glm5Next
from nextn.gguf_schema.shards import open_gguf
from nextn.gguf_schema.types import F16, F32, ValueType

if TYPE_CHECKING:
    from collections.abc import Callable

N_TOKENS = 250_000
PEER = """python -c 'import gguf, sys; gguf.GGUFReader(sys.argv[1])' FILE"""


# GLM-5.3-Flash with its head: 1412 tensors, so the file is judged by the largest of the tables.
MODEL = Glm5Next(
    trunk_blocks=45, nextn_blocks=1, vocab_size=N_TOKENS, context_length=1 << 20, embedding_length=4096,
    feed_forward_length=12288, attention_head_count=64,
    attention_head_count_kv=(*(int(i % 4 == 3) for i in range(45)), 1),
    attention_layer_norm_rms_epsilon=1e-5, attention_layer_norm_epsilon=1e-6, attention_q_lora_rank=1536,
    attention_kv_lora_rank=512, attention_key_length=512, attention_value_length=512, attention_key_length_mla=256,
    attention_value_length_mla=256, attention_indexer_head_count=32, attention_indexer_key_length=128,
    attention_indexer_top_k=2048, attention_indexer_kpool=4, attention_indexer_kpool_select_tail=True,
    attention_indexer_types=(True,) * 45, rope_dimension_count=0, ssm_conv_kernel=4, kda_head_dim=128,
    kda_gate_lower_bound=-5.0, hyper_connection_count=4, hyper_connection_sinkhorn_iterations=20,
    hyper_connection_epsilon=1e-6, leading_dense_block_count=3, expert_count=288, expert_used_count=8,
    expert_group_count=1, expert_group_used_count=1, expert_gating_func=2, expert_feed_forward_length=2048,
    expert_shared_count=1, expert_weights_scale=2.5, expert_weights_norm=True, swiglu_clamp_exp=(10.0,) * 46,
    swiglu_clamp_shexp=(10.0,) * 46,
)  # fmt: skip


def write_model(path: Path) -> None:
    """A healthy file, but for its data, which is a hole."""
    keys = {
        "general.architecture": string(GLM5_NEXT.name),
        "general.type": string("model"),
        **GLM5_NEXT.key_values(MODEL, Role.COMBINED, file_type=1),
        "general.quantization_version": u32(2),
        "tokenizer.ggml.model": string("gpt2"),
        "tokenizer.ggml.pre": string("glm4"),
        "tokenizer.ggml.tokens": array(ValueType.STRING, (f"token{i}" for i in range(N_TOKENS))),
        "tokenizer.ggml.token_type": array(ValueType.INT32, (1 for _ in range(N_TOKENS))),
        "tokenizer.ggml.merges": array(ValueType.STRING, (f"tok{i} en{i}" for i in range(N_TOKENS))),
        "tokenizer.ggml.bos_token_id": u32(0),
        "tokenizer.ggml.eos_token_id": u32(1),
        "tokenizer.ggml.add_bos_token": boolean(False),
    }
    described = []
    for tensor in GLM5_NEXT.tensors_of(MODEL, Role.COMBINED):
        if not tensor.spec.optional:
            type_ = F32 if tensor.spec.f32 else F16
            described.append(TensorInfo(tensor.name, tensor.ne, type_, type_.tensor_bytes(tensor.ne)))
    tensors, data_bytes = lay_out(described)
    with path.open("wb") as file:
        begin = file.write(encode_header(keys, tensors))
        file.truncate(begin + data_bytes)
        for tensor in tensors:
            # The one small tensor whose values are judged.
            if tensor.name.endswith(".ssm_a"):
                file.seek(begin + tensor.offset)
                file.write(struct.pack("<f", -1.0) * tensor.elements)


def children_seconds() -> float:
    """CPU time of all child processes so far; on a busy machine it says more than the clock."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def validate(path: Path) -> None:
    """`nextn validate` from start to end."""
    command = [str(Path(sys.executable).with_name("nextn")), "validate", str(path), "--json"]
    # As pip installs it: with the modules compiled.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, check=False, env=env)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["role"] == "combined"


def seconds(read: Callable[[Path], object], path: Path, times: int) -> float:
    """Median time of `times` calls."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        read(path)
        taken.append(time.perf_counter() - begin)
    return median(taken)


def main() -> None:
    asked.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path)
        theirs, ours = seconds(gguf.GGUFReader, path, 1), seconds(open_gguf, path, 9)
        before = children_seconds()
        judged = seconds(validate, path, 5)
        busy = (children_seconds() - before) / 5
        n_tensors = len(open_gguf(path).contents.tensors)
    print(f"{N_TOKENS} tokens, types and merges, {n_tensors} tensors")
    print(f"gguf-py  {theirs * 1000:9.1f} ms   {PEER}")
    print(f"nextn    {ours * 1000:9.1f} ms   python bench/headers.py")
    print(f"ratio    {theirs / ours:9.1f}")
    print(f"judged   {judged * 1000:9.1f} ms   nextn validate FILE --json; {busy * 1000:.0f} ms of CPU time")


if __name__ == "__main__":
    main()
