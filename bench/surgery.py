"""Surgery, measured: split, join and relayout of a large file beside `cp` + `sync` of the bytes that they write.

Everything runs in turn in the same session, on a file made in FOLDER and held in the page cache; the least time of each
counts. The peer for a change of metadata is gguf-new-metadata of the gguf package, on the same file.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asked
from measured import Measured, emptied, run

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.container import encode_header, lay_out
from nextn.gguf_schema.contents import TensorInfo, Value, array, boolean, string, u32
from nextn.gguf_schema.glm5_next import GLM5_NEXT, Glm5Next
from nextn.gguf_schema.shards import shard_name
from nextn.gguf_schema.types import F32, Q8_0, ValueType

N_TOKENS = 4096
BLOCKS, HIDDEN, FEED_FORWARD, EXPERTS = 8, 2048, 1024, 8
NEXTN = [sys.executable, "-m", "nextn"]
PEER = str(Path(sys.executable).with_name("gguf-new-metadata"))
SHARDS = 3


def model(gigabytes: float) -> Glm5Next:
    """A model whose combined file has about that size: as many experts as it takes."""
    per_expert = 3 * HIDDEN * FEED_FORWARD * (BLOCKS - 1) * 34 / 32
    experts = max(8, round((gigabytes * 1e9) / per_expert / 8) * 8)
    return Glm5Next(
        trunk_blocks=BLOCKS - 1, nextn_blocks=1, vocab_size=N_TOKENS, context_length=1 << 20, embedding_length=HIDDEN,
        feed_forward_length=4096, attention_head_count=16,
        attention_head_count_kv=(*(int(i % 4 == 3) for i in range(BLOCKS - 1)), 1),
        attention_layer_norm_rms_epsilon=1e-5, attention_layer_norm_epsilon=1e-6, attention_q_lora_rank=512,
        attention_kv_lora_rank=512, attention_key_length=512, attention_value_length=512,
        attention_key_length_mla=256, attention_value_length_mla=256, attention_indexer_head_count=8,
        attention_indexer_key_length=128, attention_indexer_top_k=2048, attention_indexer_kpool=4,
        attention_indexer_kpool_select_tail=True, attention_indexer_types=(True,) * (BLOCKS - 1),
        rope_dimension_count=0, ssm_conv_kernel=4, kda_head_dim=128, kda_gate_lower_bound=-5.0,
        hyper_connection_count=4, hyper_connection_sinkhorn_iterations=20, hyper_connection_epsilon=1e-6,
        leading_dense_block_count=1, expert_count=experts, expert_used_count=8, expert_group_count=1,
        expert_group_used_count=1, expert_gating_func=2, expert_feed_forward_length=FEED_FORWARD,
        expert_shared_count=1, expert_weights_scale=2.5, expert_weights_norm=True, swiglu_clamp_exp=(10.0,) * BLOCKS,
        swiglu_clamp_shexp=(10.0,) * BLOCKS,
    )  # fmt: skip


def keys_of(h: Glm5Next) -> dict[str, Value]:
    tokens = array(ValueType.STRING, (f"token{i}" for i in range(N_TOKENS)))
    return {
        "general.architecture": string(GLM5_NEXT.name),
        "general.type": string("model"),
        **GLM5_NEXT.key_values(h, Role.COMBINED, file_type=7),
        "general.quantization_version": u32(2),
        "tokenizer.ggml.model": string("gpt2"),
        "tokenizer.ggml.pre": string("glm4"),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": array(ValueType.INT32, (1 for _ in range(N_TOKENS))),
        "tokenizer.ggml.merges": array(ValueType.STRING, (f"tok{i} en{i}" for i in range(N_TOKENS))),
        "tokenizer.ggml.eos_token_id": u32(1),
        "tokenizer.ggml.add_bos_token": boolean(False),
    }


def noise() -> Iterator[bytes]:
    """Data that no file system compresses, or leaves out as a hole."""
    block = os.urandom(1 << 20)
    while True:
        yield block


def write(path: Path, keys: dict[str, Value], tensors: list[TensorInfo]) -> None:
    laid_out, data_bytes = lay_out(tensors)
    with path.open("wb") as file:
        file.write(encode_header(keys, laid_out))
        left, blocks = data_bytes, noise()
        while left:
            left -= file.write(next(blocks)[: min(left, 1 << 20)])


def write_models(folder: Path, gigabytes: float) -> tuple[Path, Path]:
    """One file, and the same in three shards of which the first holds metadata alone."""
    h = model(gigabytes)
    keys, tensors = keys_of(h), []
    for tensor in GLM5_NEXT.tensors_of(h, Role.COMBINED):
        if not tensor.spec.optional:
            type_ = F32 if tensor.spec.f32 or tensor.ne[0] % Q8_0.block else Q8_0
            tensors.append(TensorInfo(tensor.name, tensor.ne, type_, type_.tensor_bytes(tensor.ne)))
    whole = folder / "model.gguf"
    write(whole, keys, tensors)
    half = len(tensors) // 2
    for index, group in enumerate(([], tensors[:half], tensors[half:])):
        split = {
            "split.no": Value(ValueType.UINT16, index),
            "split.count": Value(ValueType.UINT16, SHARDS),
            "split.tensors.count": Value(ValueType.INT32, len(tensors)),
        }
        write(folder / shard_name("set", index, SHARDS), {**(keys if index == 0 else {}), **split}, group)
    return whole, folder / shard_name("set", 0, SHARDS)


@dataclass(frozen=True)
class Job:
    """One measured command; `copied` are files whose copy takes as many bytes."""

    name: str
    command: list[str]
    copied: list[Path]


def jobs(whole: Path, shards: Path, out: Path) -> list[Job]:
    parts = [out / "split" / "model-trunk.gguf", out / "split" / "mtp-model.gguf"]
    return [
        Job("split", [*NEXTN, "split", str(whole), "-o", str(out / "split"), "--quiet"], parts),
        Job("join", [*NEXTN, "join", *map(str, parts), "-o", str(out / "joined.gguf"), "--quiet"], [whole]),
        Job(
            "relayout, a file",
            [*NEXTN, "relayout", str(whole), "-o", str(out / "relaid.gguf"), "--to", "glm5next", "--quiet"],
            [whole],
        ),
        Job(
            "relayout, 3 shards",
            [*NEXTN, "relayout", str(shards), "-o", str(out / "set.gguf"), "--to", "glm5next", "--quiet"],
            [],
        ),
    ]


def main() -> None:
    parser = asked.parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where a folder surgery is made, and removed")
    parser.add_argument("--gigabytes", type=asked.amount, default=4.0, help="of the file [%(default)s]")
    parser.add_argument("--rounds", type=asked.whole(1), default=3, help="of which the least counts [%(default)s]")
    arguments = parser.parse_args()
    folder = arguments.folder / "surgery"
    whole, shards = write_models(emptied(folder), arguments.gigabytes)
    best: dict[str, Measured] = {}

    def note(name: str, measured: Measured) -> None:
        best[name] = min(best.get(name, measured), measured)

    for _ in range(arguments.rounds):
        out = emptied(folder / "out")
        for job in jobs(whole, shards, out):
            note(job.name, run(job.command))
            if job.copied:
                copies = emptied(folder / "copies")
                copy = ["sh", "-c", 'cp "$@" && sync', "sh", *map(str, job.copied), str(copies)]
                note(f"cp + sync for {job.name}", run(copy))
                shutil.rmtree(copies)
        note("gguf-new-metadata", run([PEER, str(whole), str(out / "peer.gguf"), "--general-name", "x", "--force"]))
    size = whole.stat().st_size
    print(f"{size / 1e9:.2f} GB, least of {arguments.rounds}")
    for name, measured in best.items():
        copy_ = best.get(f"cp + sync for {name}")
        ratio = f"{copy_.seconds / measured.seconds:5.2f} of cp + sync's throughput" if copy_ else ""
        print(f"  {name:<32} {measured.seconds:7.2f} s  {measured.peak_bytes / 1e6:6.0f} MB RSS  {ratio}")
    print(f"  peer: {PEER} model.gguf OUT --general-name x --force")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
