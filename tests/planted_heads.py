"""GGUF files of the tiny models whose heads have one fault; their trunks say what they said before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.nextn_generic import head_blocks
from nextn.gguf_schema.shards import open_gguf

Values = npt.NDArray[np.float32]
WIDTH = 128  # of the residual stream, in all three
# Matrices of the blocks that write to the residual stream, and those that neither read nor write it.
WRITING = ("attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight")
WITHIN = ("attn_q_b.weight", "attn_k_b.weight", "attn_v_b.weight", "attn_q_a_norm.weight", "attn_kv_a_norm.weight",
          "attn_q_norm.weight", "attn_k_norm.weight", "indexer.q_norm.weight", "indexer.k_norm.weight",
          "indexer.k_norm.bias", "indexer.attn_q_b.weight", "indexer_compressor_ape.weight",
          "exp_probs_b.bias")  # fmt: skip
OUTPUT_NORM = {"step35": "output_norm", "qwen4exp": "output_hc_norm", "glm5-next": "output_norm"}


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file, by its short name: behind `blk.N.` in the heads' blocks, whole elsewhere."""

    name: str
    values: Values
    in_head: bool
    all: dict[str, Values]
    architecture: str

    @property
    def is_norm(self) -> bool:
        return self.in_head and self.name.endswith("norm.weight")


# New values of a tensor; None leaves it.
Plant = Callable[[Tensor], Values | None]


def plant(source: Path, target: Path, fault: Plant) -> Path:
    """A copy of an F32 file with a fault."""
    shutil.copy(source, target)
    file = open_gguf(target)
    places = {name: file.tensor_bytes(name) for name in file.contents.tensors}
    data = np.memmap(target, np.uint8, "r+")
    values = {
        name: data[offset : offset + nbytes].view(np.float32).reshape(file.contents.tensors[name].ne[::-1])
        for name, (_, offset, nbytes) in places.items()
        if file.contents.tensors[name].type.name == "F32"
    }
    before = {name: value.copy() for name, value in values.items()}
    for name, value in values.items():
        in_head, short = _short(file.contents, name)
        new = fault(Tensor(short, before[name], in_head, before, file.contents.architecture))
        if new is not None:
            value[...] = new
    data.flush()
    return target


def _short(contents: Contents, name: str) -> tuple[bool, str]:
    in_head = name.startswith(tuple(f"blk.{block}." for block in head_blocks(contents)))
    return in_head, name.split(".", 2)[2] if in_head else name


def right(_: Tensor) -> None:
    return None


def offset(by: float, *names: str) -> Plant:
    """All norms of the heads moved, or some."""
    return lambda t: t.values + np.float32(by) if t.is_norm and (not names or t.name in names) else None


def halves_swapped(t: Tensor) -> Values | None:
    return np.roll(t.values, WIDTH, axis=1) if t.name == "nextn.eh_proj.weight" else None


def noise(seed: int) -> Plant:
    """Independent values with the mean and deviation that each tensor had."""
    generator = np.random.default_rng(seed)
    return lambda t: generator.normal(t.values.mean(), t.values.std(), t.values.shape) if t.in_head else None


def foreign(seed: int, *, own_embedding: bool = False) -> Plant:
    """The head of another checkpoint: the same model with the places of its residual stream in another order.

    That is what it would be for a trunk whose stream is in that order: trained, and right for that one. With its own
    embedding it has that of the other checkpoint too.
    """
    order = np.random.default_rng(seed).permutation(WIDTH)

    def shuffled(values: Values, axis: int) -> Values:
        count = values.shape[axis] // WIDTH  # streams, or the halves of eh_proj
        places = np.concatenate([order + WIDTH * part for part in range(count)])
        return np.take(values, places, axis)

    def fault(t: Tensor) -> Values | None:
        if own_embedding and t.name in ("token_embd.weight", "output.weight", "output_norm.weight"):
            return shuffled(t.values, -1)
        if not t.in_head or t.name in WITHIN:
            return None
        if t.name == "nextn.eh_proj.weight":
            return shuffled(shuffled(t.values, 1), 0)
        is_writing = t.name in WRITING or ("hc_" in t.name and t.name.endswith("_up.weight"))
        return shuffled(t.values, -2 if is_writing else -1)

    return fault


def other_hidden_row(seed: int) -> Plant:
    """A head that wants the hidden row on the other side of the trunk's output norm, whose gains are far apart.

    Those of the tiny models are nearly equal, so that a head hardly notices; those of the large models are not. What
    the gains are multiplied by is divided out of the matrices behind, so that the trunk says what it said before.
    """
    gains = np.exp(np.random.default_rng(seed).normal(0, 1, WIDTH)).astype(np.float32)

    def fault(t: Tensor) -> Values | None:
        family = t.architecture
        norm = t.all[f"{OUTPUT_NORM[family]}.weight"]
        wide = np.tile(gains, norm.size // WIDTH).reshape(norm.shape)
        if t.name == f"{OUTPUT_NORM[family]}.weight":
            return t.values * wide
        if t.name in ("output.weight", "output_hc_down.weight"):
            return t.values / wide.reshape(-1)[: t.values.shape[1]]
        if t.name == "nextn.hnorm.weight":
            # glm5-next hands over rows behind the norm: a head that wants those before it multiplies by its gain.
            return (
                t.values * norm
                if family == "glm5-next"
                else (t.values.reshape(-1) / (norm * wide).reshape(-1)).reshape(t.values.shape)
            )
        if family == "glm5-next" and t.name == "nextn.shared_head_norm.weight":
            return t.values * gains
        if family == "qwen4exp" and t.name == "nextn.hc_head_norm.weight":
            return t.values * wide.reshape(t.values.shape)
        if family == "qwen4exp" and t.name == "nextn.hc_head_down.weight":
            return t.values / wide.reshape(-1)
        return None

    return fault
