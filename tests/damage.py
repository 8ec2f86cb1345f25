"""Damage to the container of good files, made on their bytes, and what real llama.cpp b11549 answers to it.

The texts are what `nextn.runtime.engines.llama_cpp.load` reports of the tiny step35 files; `tests/e2e/test_damage.py`
asks the library again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REFUSES, ABORTS, LOADS, WRONG = "refuses", "aborts", "loads", "loads silently wrong"
ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True)
class Damage:
    """What is done to a file's bytes; the rule and severity of the finding; what llama.cpp does, and in which words."""

    name: str
    change: Callable[[bytes], bytes]
    rule: str
    outcome: str
    text: str = ""
    severity: str = ERROR


def patched(raw: bytes, at: int, new: bytes) -> bytes:
    return raw[:at] + new + raw[at + len(new) :]


def text(name: str) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode()


def description(raw: bytes, tensor: str) -> int:
    """Where the description of a tensor goes on after its name: number of dimensions, dimensions, type, offset."""
    return raw.index(text(tensor)) + len(text(tensor))


MATRIX = "blk.0.attn_k.weight"  # two dimensions


def at_offset(by: int) -> Callable[[bytes], bytes]:
    """The data of one tensor is elsewhere."""

    def change(raw: bytes) -> bytes:
        at = description(raw, MATRIX) + 4 + 16 + 4
        return patched(raw, at, struct.pack("<Q", struct.unpack_from("<Q", raw, at)[0] + by))

    return change


def of_type(id_: int) -> Callable[[bytes], bytes]:
    return lambda raw: patched(raw, description(raw, MATRIX) + 4 + 16, struct.pack("<I", id_))


def with_dimension(size: int) -> Callable[[bytes], bytes]:
    return lambda raw: patched(raw, description(raw, MATRIX) + 4, struct.pack("<Q", size))


def named(old: str, new: str) -> Callable[[bytes], bytes]:
    """A key or tensor has the name of another one."""
    assert len(old) == len(new)
    return lambda raw: patched(raw, raw.index(text(old)), text(new))


def aligned(value: int) -> Callable[[bytes], bytes]:
    """Another alignment is declared, in the place of a key that nobody misses; no tensor moves."""

    def change(raw: bytes) -> bytes:
        raw = named("general.file_type", "general.alignment")(raw)
        return patched(raw, description(raw, "general.alignment") + 4, struct.pack("<I", value))

    return change


def moved_by_16(raw: bytes) -> bytes:
    """Sixteen bytes more in the header, and all data as much further on, as an alignment of 16 allows."""
    raw = aligned(16)(raw)
    at = description(raw, "general.name") + 4
    length = struct.unpack_from("<Q", raw, at)[0]
    return raw[:at] + struct.pack("<Q", length + 16) + b"x" * 16 + raw[at + 8 :]


MAPPED = 'GGML_ASSERT((uintptr_t)ptr % TENSOR_ALIGNMENT == 0 && "buffer pointer must be aligned") failed'
ELSEWHERE = "tensor 'blk.0.attn_k.weight' has offset "

DAMAGE = (
    Damage("cut", lambda raw: raw[:-100_000], "truncated", REFUSES,
           "data is not within the file bounds, model is corrupted or incomplete"),
    Damage("cut by a byte", lambda raw: raw[:-1], "truncated", REFUSES,
           "data is not within the file bounds, model is corrupted or incomplete"),
    Damage("bytes behind", lambda raw: raw + bytes(1000), "trailing-bytes", LOADS, severity=WARNING),
    Damage("version 2", lambda raw: patched(raw, 4, struct.pack("<I", 2)), "old-version", LOADS, severity=NOTE),
    Damage("misaligned", at_offset(4), "misaligned", REFUSES, ELSEWHERE),
    Damage("overlap", at_offset(-32), "overlap", REFUSES, ELSEWHERE),
    Damage("gap", at_offset(32), "gap", REFUSES, ELSEWHERE),
    Damage("tensor twice", named("token_embd.weight", "rope_freqs.weight"), "duplicate-tensor", REFUSES,
           "duplicate tensor name 'rope_freqs.weight' for tensor "),
    Damage("key twice", named("step35.rope.freq_base", "step35.context_length"), "duplicate-key", REFUSES,
           "duplicate key 'step35.context_length'"),
    Damage("unknown type", of_type(999), "unknown-type", REFUSES,
           "tensor 'blk.0.attn_k.weight' has invalid ggml type 999. should be in [0, 43)", WARNING),
    Damage("removed type", of_type(31), "unknown-type", REFUSES, "tensor 'blk.0.attn_k.weight' of type 31", WARNING),
    Damage("dimension below zero", with_dimension(2**63), "bad-dimensions", REFUSES,
           "tensor 'blk.0.attn_k.weight' dimension 0 has invalid number of elements: -9223372036854775808 < 0"),
    Damage("dimension of zero", with_dimension(0), "bad-dimensions", REFUSES, "has offset "),
    Damage("dimension too large", with_dimension(2**61), "bad-dimensions", REFUSES,
           "incorrect shape for a tensor 'blk.0.attn_k.weight' may cause overflow errors"),
    Damage("alignment 7", aligned(7), "bad-alignment", REFUSES, "alignment 7 is not a power of 2"),
    Damage("alignment 0", aligned(0), "bad-alignment", REFUSES, "alignment 0 is not a power of 2"),
    Damage("alignment 4", aligned(4), "bad-alignment", ABORTS, MAPPED),
    Damage("alignment 16", moved_by_16, "unaligned-data", ABORTS, MAPPED, WARNING),
)  # fmt: skip


@dataclass(frozen=True)
class SetDamage:
    """What is done to the second of three shards (or the set), the rule of the finding, and llama.cpp's answer.

    `{first}` and `{second}` in the text stand for paths.
    """

    name: str
    change: Callable[[list[Path]], Path]
    rule: str
    outcome: str
    text: str = ""


def key_of(shard: int, key: str, size: int, value: int) -> Callable[[list[Path]], Path]:
    """Another value of a key of one shard."""

    def change(paths: list[Path]) -> Path:
        raw = paths[shard].read_bytes()
        at = raw.index(text(key)) + len(text(key)) + 4
        paths[shard].write_bytes(patched(raw, at, value.to_bytes(size, "little")))
        return paths[0]

    return change


def lost(shard: int) -> Callable[[list[Path]], Path]:
    def change(paths: list[Path]) -> Path:
        paths[shard].unlink()
        return paths[0]

    return change


def no_key(shard: int, key: str) -> Callable[[list[Path]], Path]:
    def change(paths: list[Path]) -> Path:
        raw = paths[shard].read_bytes()
        paths[shard].write_bytes(raw.replace(text(key), text("x" * len(key)), 1))
        return paths[0]

    return change


def renamed(paths: list[Path]) -> Path:
    return paths[0].rename(paths[0].with_name("model.gguf"))


def copied(paths: list[Path]) -> Path:
    paths[2].write_bytes(paths[1].read_bytes())
    return paths[0]


def of_version_2(paths: list[Path]) -> Path:
    paths[1].write_bytes(patched(paths[1].read_bytes(), 4, struct.pack("<I", 2)))
    return paths[0]


COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"
ANOTHER_SET = "error loading model: corrupted model: 99 tensors expected but "
SET_DAMAGE = (
    SetDamage("a shard is missing", lost(1), "missing-shard", REFUSES, "failed to open GGUF file '{second}'"),
    SetDamage("under another name", renamed, "shard-count", REFUSES,
              "error loading model: invalid split file name: {first}"),
    SetDamage("another place", key_of(1, NUMBER, 2, 2), "shard-number", REFUSES,
              "error loading model: invalid split file idx: 2 (file: {second}), expected 1"),
    SetDamage("not the first", key_of(0, NUMBER, 2, 1), "shard-number", REFUSES,
              "error loading model: illegal split file idx: 1 (file: {first}), model must be loaded with the first"),
    SetDamage("another size", key_of(0, COUNT, 2, 4), "shard-count", REFUSES,
              "error loading model: invalid split file name: {first}"),
    SetDamage("another size in the second", key_of(1, COUNT, 2, 7), "shard-count", LOADS),
    SetDamage("a tensor too many", key_of(0, TENSORS, 4, 99), "mixed-shards", REFUSES, ANOTHER_SET),
    SetDamage("a twin", copied, "shard-number", REFUSES,
              "error loading model: invalid split file idx: 1 (file: {third}), expected 2"),
    SetDamage("no place", no_key(1, NUMBER), "shard-keys", REFUSES,
              "error loading model: missing key split.no in GGUF split {second}"),
    SetDamage("no place of the first", no_key(0, NUMBER), "shard-keys", REFUSES,
              "error loading model: key not found in model: split.no"),
    SetDamage("no number of tensors", no_key(0, TENSORS), "shard-keys", REFUSES,
              "error loading model: key not found in model: split.tensors.count"),
    SetDamage("another version", of_version_2, "mixed-shards", WRONG, "not of one set"),
)  # fmt: skip
