"""Random weights of Step models in the memory of a device, for measuring: no file is written."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch
from packed import PLAIN, SCALES
from torch import Tensor

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, TensorInfo, Value
from nextn.gguf_schema.dequantize import dequantized
from nextn.gguf_schema.shards import GGUFFile
from nextn.gguf_schema.step35 import STEP35, Step35
from nextn.gguf_schema.types import TENSOR_TYPES, TensorType, ValueType
from nextn.kernels.operations import Operations
from nextn.runtime.weights import Matrix, Weights

# How far values are from zero.
SPREAD = 0.02


def widths(*, toy: bool, layers: int) -> Step35:
    """Hyper-parameters of Step-3.7-Flash with fewer layers: one dense, then such with experts; every fourth is full.

    Source: config.json of stepfun-ai/Step-3.7-Flash.
    """
    heads = 1 if toy else 3
    blocks = layers + heads
    slides = tuple(i % 4 != 0 or i >= layers for i in range(blocks))
    full, sliding, kv = (2, 4, 2) if toy else (64, 96, 8)
    return Step35(
        trunk_blocks=layers,
        nextn_blocks=heads,
        vocab_size=64 if toy else 128896,
        context_length=4096,
        embedding_length=64 if toy else 4096,
        feed_forward_length=64 if toy else 11264,
        attention_head_count=tuple(sliding if slid else full for slid in slides),
        attention_head_count_kv=(kv,) * blocks,
        attention_key_length=32 if toy else 128,
        attention_value_length=32 if toy else 128,
        attention_layer_norm_rms_epsilon=1e-5,
        attention_sliding_window=4 if toy else 512,
        attention_sliding_window_pattern=slides,
        rope_freq_base=5e6,
        rope_freq_base_swa=1e4,
        rope_factor_count=0,
        expert_blocks=frozenset(range(1, layers)),
        expert_gating_func=2,
        expert_count=6 if toy else 288,
        expert_used_count=2 if toy else 8,
        expert_feed_forward_length=64 if toy else 1280,
        expert_shared_feed_forward_length=64 if toy else 1280,
        expert_weights_scale=3.0,
        expert_weights_norm=True,
        leading_dense_block_count=1,
        moe_every_n_layers=1,
        swiglu_clamp_exp=None,
        swiglu_clamp_shexp=None,
    )


class RandomWeights(Weights):
    """All weights of a combined model, matrices of one type but for the embedding: a row of it is taken as it is."""

    def __init__(self, h: Step35, type_name: str, device: str, ops: Operations) -> None:
        keys = {"general.architecture": Value(ValueType.STRING, STEP35.name)}
        tensors = {}
        for held in STEP35.tensors_of(h, Role.COMBINED):
            if not held.spec.optional:
                name = "F32" if held.spec.f32 else "BF16" if held.name == "token_embd.weight" else type_name
                type_ = TENSOR_TYPES[name]
                tensors[held.name] = TensorInfo(held.name, held.ne, type_, type_.tensor_bytes(held.ne))
        contents = Contents(keys | STEP35.key_values(h, Role.COMBINED, 0), tensors, f"random {type_name}")
        super().__init__(cast(GGUFFile, SimpleNamespace(contents=contents)), device=device, ops=ops)

    def _bytes(self, tensor: TensorInfo) -> Tensor:
        shape = tensor.ne[::-1]
        if "norm" in tensor.name:
            return torch.ones(shape, device=self.device).view(torch.uint8)
        return matrix_of(tensor.type.name, shape, self.device).packed


@lru_cache
def chance(device: str) -> torch.Generator:
    """What random values are drawn from: torch's own may be left useless by a capture in a graph that failed."""
    return torch.Generator(device)


def noise(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=chance(device), device=device, dtype=dtype)


def matrix_of(type_name: str, shape: tuple[int, ...], device: str) -> Matrix:
    """A random matrix of a type, on a device."""
    type_ = TENSOR_TYPES[type_name]
    if type_name in PLAIN:
        values = noise(*shape, device=device, dtype=PLAIN[type_name]) * SPREAD
        data = values.view(torch.uint8)
    else:
        row_bytes = type_.row_bytes(shape[-1])
        size = (*shape[:-1], row_bytes)
        data = torch.randint(0, 256, size, dtype=torch.uint8, device=device, generator=chance(device))
        blocks = data.view(-1, type_.size)
        for place, value in _scales(type_).items():
            blocks[:, place] = value
    return Matrix(type_name, shape, type_, data, torch.float32)


@lru_cache(maxsize=32)
def _scales(type_: TensorType) -> dict[int, int]:
    """Bytes of a block, by their places, that give random ones values of the right size."""
    if not SCALES[type_.name]:
        return {0: 118}  # the exponent of MXFP4: values of 2^-10 and up
    one, blocks = np.ones(1, np.float16), np.random.default_rng(0).integers(0, 256, (64, type_.size), np.uint8)
    for place in SCALES[type_.name]:
        blocks[:, place : place + 2] = one.view(np.uint8)
    scale = (SPREAD / np.std(dequantized(type_, blocks)) * one).astype(np.float16).view(np.uint8)
    return {place + i: int(scale[i]) for place in SCALES[type_.name] for i in range(2)}


def step_bytes(contents: Contents, h: Step35, rows: int) -> float:
    """Bytes of matrices that a step of the trunk reads, when rows choose different experts."""
    total = 0.0
    for name, tensor in contents.tensors.items():
        block = int(name.split(".")[1]) if name.startswith("blk.") else 0
        if block < h.trunk_blocks and name != "token_embd.weight":
            share = min(rows * h.expert_used_count / h.expert_count, 1) if "_exps" in name else 1
            total += share * tensor.nbytes
    return total
