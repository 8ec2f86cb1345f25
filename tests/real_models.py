"""Every tensor of the four real checkpoints: names, torch shapes and dtypes, written down from the specifications.

Nothing here comes from the tables under test; `checkpoint` makes a checkpoint of them that has headers but no data.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from families import FAMILIES, FIXTURES

from nextn.convert.checkpoint import Checkpoint
from nextn.convert.families import family_of
from nextn.convert.family import Facts
from nextn.convert.source_tensor import SourceTensor
from nextn.gguf_schema.contents import MemoryFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nextn.gguf_schema.architecture import Hyperparameters

Tensors = dict[str, tuple[int, ...]]


def under(prefix: str, tensors: Tensors, suffix: str = ".weight") -> Tensors:
    return {f"{prefix}{name}{suffix}": shape for name, shape in tensors.items()}


def step() -> Tensors:
    """Step-3.5-Flash and Step-3.7-Flash, 45 layers and 3 heads; step35.md, section 2."""
    V, H, d, I, E, F = 128896, 4096, 128, 11264, 288, 1280  # noqa: E741
    tensors: Tensors = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,), "lm_head.weight": (V, H)}
    for i in range(48):
        heads = 64 if i % 4 == 0 and i < 45 else 96
        layer: Tensors = {"input_layernorm": (H,), "post_attention_layernorm": (H,)}
        layer |= {
            "self_attn.q_proj": (heads * d, H),
            "self_attn.o_proj": (H, heads * d),
            "self_attn.g_proj": (heads, H),
        }
        layer |= {"self_attn.k_proj": (8 * d, H), "self_attn.v_proj": (8 * d, H)}
        layer |= {"self_attn.q_norm": (d,), "self_attn.k_norm": (d,)}
        if i in (0, 1, 2, 45, 46, 47):
            layer |= {"mlp.gate_proj": (I, H), "mlp.up_proj": (I, H), "mlp.down_proj": (H, I)}
        else:
            layer |= {
                "moe.gate": (E, H),
                "moe.gate_proj": (E, F, H),
                "moe.up_proj": (E, F, H),
                "moe.down_proj": (E, H, F),
            }
            layer |= {
                "share_expert.gate_proj": (F, H),
                "share_expert.up_proj": (F, H),
                "share_expert.down_proj": (H, F),
            }
            tensors[f"model.layers.{i}.moe.router_bias"] = (E,)
        if i >= 45:
            layer |= {"enorm": (H,), "hnorm": (H,), "eh_proj": (H, 2 * H)}
            layer |= {"transformer.shared_head.norm": (H,), "transformer.shared_head.output": (V, H)}
        tensors |= under(f"model.layers.{i}.", layer)
    return tensors


# The integer constants of the n-gram embedding; qwen4exp.md, section 3.7.
NGRAM_CONSTANTS: dict[str, tuple[int, ...]] = {
    "layer_multipliers": (23703573157769, 20109073645365, 8052911324071),
    "ngram_heads_vocab_sizes": (
        20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
        20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171,
    ),
    "ngram_heads_offsets": (
        0, 20000003, 40000026, 60000059, 80000106, 100000165, 120000228, 140000297,
        160000374, 180000455, 200000548, 220000655, 240000802, 260000955, 280001114, 300001275,
    ),
}  # fmt: skip
NGRAM_TABLE = "model.language_model.layers.1.ple.ple_embedding."


def qwen() -> Tensors:
    """Qwen3.8-Flash-Next, 48 layers and a head; qwen4exp.md, section 2. Vision: a Qwen3-VL tower of 27 blocks."""
    V, H, CH, R, E, F = 248320, 2560, 10240, 320, 512, 640
    mixer: Tensors = {"hc_norm": (CH,), "input_mix_weight_down": (R, CH), "input_mix_weight_up": (CH, R)}
    connection = mixer | {"block_inject_weight": (4, CH)}
    linear = {"in_proj_qkv": (10240, H), "in_proj_z": (6144, H), "in_proj_b": (48, H), "in_proj_a": (48, H)}
    linear |= {"conv1d": (10240, 1, 4), "norm": (128,), "out_proj": (H, 6144)}
    attention = {"q_proj": (24 * 2 * 256, H), "k_proj": (2 * 256, H), "v_proj": (2 * 256, H), "o_proj": (H, 24 * 256)}
    attention |= {"q_norm": (256,), "k_norm": (256,), "indexer.index_qk_proj": (5 * 128, H)}
    attention |= {"indexer.q_layernorm": (128,), "indexer.k_layernorm": (128,)}
    experts = {"mlp.gate": (E, H), "mlp.shared_expert.gate_proj": (F, H), "mlp.shared_expert.up_proj": (F, H)}
    experts |= {"mlp.shared_expert.down_proj": (H, F), "mlp.shared_expert_gate": (1, H)}
    ngrams = {"key_proj": (CH, H), "value_proj": (H, H), "conv1d": (CH, 1, 4)}
    ngrams |= {"norm_key": (CH,), "norm_query": (CH,), "norm_conv": (CH,)}
    ngrams |= {f"ple_embedding.ngram_embedding.shard_{s}": (2500012, 160) for s in range(128)}

    def layer(prefix: str, is_linear: bool) -> Tensors:
        found = under(f"{prefix}attn_hyper_connection.", connection) | under(
            f"{prefix}mlp_hyper_connection.", connection
        )
        found |= under(prefix, experts)
        found |= {f"{prefix}mlp.experts.gate_up_proj": (E, 2 * F, H), f"{prefix}mlp.experts.down_proj": (E, H, F)}
        if not is_linear:
            return found | under(f"{prefix}self_attn.", attention)
        found |= {f"{prefix}linear_attn.A_log": (48,), f"{prefix}linear_attn.dt_bias": (48,)}
        return found | under(f"{prefix}linear_attn.", linear)

    root = "model.language_model."
    tensors: Tensors = {f"{root}embed_tokens.weight": (V, H), "lm_head.weight": (V, H)}
    tensors |= under(f"{root}hyper_connection_mixer.", mixer)
    for i in range(48):
        tensors |= layer(f"{root}layers.{i}.", i % 4 != 3)
    tensors |= under(f"{root}layers.1.ple.", ngrams)
    tensors |= {NGRAM_TABLE + name: (len(values),) for name, values in NGRAM_CONSTANTS.items()}
    tensors |= layer("mtp.layers.0.", False) | under("mtp.hyper_connection_mixer.", mixer)
    head = {"fc_embedding": (H, H), "fc_hidden": (H, H), "pre_fc_norm_embedding": (H,), "pre_fc_norm_hidden": (CH,)}
    tensors |= under("mtp.", head)
    width, inner = 1152, 4304
    block: Tensors = {"norm1": (width,), "norm2": (width,), "attn.qkv": (3 * width, width), "attn.proj": (width, width)}
    block |= {"mlp.linear_fc1": (inner, width), "mlp.linear_fc2": (width, inner)}
    tower = {f"blocks.{i}.{name}": shape for i in range(27) for name, shape in block.items()}
    tower |= {"patch_embed.proj": (width, 3, 2, 16, 16), "merger.norm": (width,)}
    tower |= {"merger.linear_fc1": (4 * width, 4 * width), "merger.linear_fc2": (H, 4 * width)}
    biases = {name: shape[:1] for name, shape in tower.items()}
    tensors |= under("model.visual.", tower) | under("model.visual.", biases, ".bias")
    return tensors | {"model.visual.pos_embed.weight": (2304, width)}


def glm() -> Tensors:
    """GLM-5.3-Flash, 45 layers and a head; glm5-next.md, section 2. Vision tensors are known by number only."""
    V, H, D, heads, I, E, F = 154880, 4096, 8192, 64, 12288, 288, 2048  # noqa: E741
    kda = {"q_proj": (D, H), "k_proj": (D, H), "v_proj": (D, H), "o_proj": (H, D), "o_norm": (128,), "b_proj": (64, H)}
    kda |= {"q_conv1d": (D, 1, 4), "k_conv1d": (D, 1, 4), "v_conv1d": (D, 1, 4)}
    kda |= {"f_a_proj": (128, H), "f_b_proj": (D, 128), "g_a_proj": (128, H), "g_b_proj": (D, 128)}
    mla = {"q_a_proj": (1536, H), "q_a_layernorm": (1536,), "q_b_proj": (heads * 256, 1536)}
    mla |= {"kv_a_proj_with_mqa": (512, H), "kv_a_layernorm": (512,), "kv_b_proj": (heads * (256 + 256), 512)}
    mla |= {"o_proj": (H, heads * 256), "indexer.wq_b": (32 * 128, 1536), "indexer.wk": (128, H)}
    mla |= {"indexer.k_norm": (128,), "indexer.weights_proj": (32, H)}
    bare_mla = {"k_norm.bias": (128,), "index_kpool_compress_ape": (4, 128), "index_kpool_compress_gate": (128, H)}
    dense = {"gate_proj": (I, H), "up_proj": (I, H), "down_proj": (H, I)}
    expert = {"gate_proj": (F, H), "up_proj": (F, H), "down_proj": (H, F)}
    connection = {"fn": (24, 4 * H), "base": (24,), "scale": (3,)}
    tensors: Tensors = {"model.language_model.embed_tokens.weight": (V, H), "lm_head.weight": (V, H)}
    tensors["model.language_model.norm.weight"] = (H,)
    for i in range(46):
        layer = f"model.language_model.layers.{i}."
        tensors |= under(layer, {"input_layernorm": (H,), "post_attention_layernorm": (H,)})
        if i < 45:
            tensors |= {f"{layer}hc_{part}_{k}": shape for part in ("attn", "ffn") for k, shape in connection.items()}
        else:
            tensors |= under(layer, {"eh_proj": (H, 2 * H), "enorm": (H,), "hnorm": (H,), "shared_head.norm": (H,)})
        if i % 4 == 3 or i == 45:
            tensors |= under(f"{layer}self_attn.", mla) | under(f"{layer}self_attn.indexer.", bare_mla, "")
        else:
            tensors |= under(f"{layer}self_attn.", kda)
            tensors |= {f"{layer}self_attn.A_log": (heads,), f"{layer}self_attn.dt_bias": (D,)}
        if i < 3:
            tensors |= under(f"{layer}mlp.", dense)
            continue
        tensors |= {f"{layer}mlp.gate.weight": (E, H), f"{layer}mlp.gate.e_score_correction_bias": (E,)}
        tensors |= under(f"{layer}mlp.shared_experts.", expert)
        for e in range(E):
            tensors |= under(f"{layer}mlp.experts.{e}.", expert)
    return tensors | {f"model.visual.number_{i}.weight": (1,) for i in range(347)}


# Stored in 8 bits in the FP8 repository, and in 32 bits in every repository; glm5-next.md, section 1.
GLM_FP8 = (
    ".mlp.experts.",
    ".mlp.shared_experts.",
    *(f"layers.{i}.mlp." for i in range(3)),
    "q_a_proj.",
    "q_b_proj.",
    "kv_a_proj_with_mqa.",
    *(f"layers.{i}.self_attn.o_proj." for i in (*range(3, 45, 4), 45)),
)
GLM_F32 = ("e_score_correction_bias", ".A_log", ".dt_bias", "_base", "_scale")


def in_fp8(tensors: Tensors) -> dict[str, tuple[str, tuple[int, ...]]]:
    """GLM-5.3-Flash as it is published: dtypes and shapes, with a scale for each block of 128 by 128 values."""
    stored: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shape in tensors.items():
        stored[name] = (glm_dtype(name, "BF16"), shape)
        if any(part in name for part in GLM_FP8):
            stored[name] = ("F8_E4M3", shape)
            stored[f"{name}_scale_inv"] = ("F32", (ceil(shape[0] / 128), ceil(shape[1] / 128)))
    return stored


def glm_dtype(name: str, other: str) -> str:
    return "F32" if name.endswith(GLM_F32) else other


class NoData:
    """A shard that must not be read."""

    name = identity = "model.safetensors"
    size = 1 << 62

    def read(self, offset: int, length: int) -> bytes:
        raise AssertionError(f"{length} bytes at {offset} are read while planning")


@dataclass(frozen=True)
class RealModel:
    """A real checkpoint: its configuration, every tensor of it, and the family whose tiny tokenizer stands in."""

    folder: str
    family: str
    prefix: str  # of the heads' tensors

    @cached_property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((FIXTURES / "configs" / self.folder / "config.json").read_text())
        return config

    @cached_property
    def tensors(self) -> Tensors:
        return {"step35": step, "qwen4exp": qwen, "glm5-next": glm}[self.family]()

    @cached_property
    def text(self) -> Tensors:
        return {name: shape for name, shape in self.tensors.items() if ".visual." not in name}

    @cached_property
    def head(self) -> Tensors:
        numbers = ("45.", "46.", "47.") if self.prefix.endswith("layers.") else ("",)
        starts = tuple(self.prefix + number for number in numbers)
        return {name: shape for name, shape in self.text.items() if name.startswith(starts)}

    def sources(self, *, fp8: bool = False) -> Iterator[SourceTensor]:
        """Tensors in the order of their names, as in one shard; only the integer constants can be read."""
        shard, offset = NoData(), 0
        bf16 = {name: (glm_dtype(name, "BF16"), shape) for name, shape in self.tensors.items()}
        for name, (dtype, shape) in sorted((in_fp8(self.tensors) if fp8 else bf16).items()):
            if (values := NGRAM_CONSTANTS.get(name.removeprefix(NGRAM_TABLE))) is not None:
                yield SourceTensor(name, "I64", shape, MemoryFile(np.array(values, "<i8").tobytes(), name), 0)
                continue
            yield (tensor := SourceTensor(name, dtype, shape, shard, offset))
            offset += tensor.nbytes

    @cached_property
    def hyperparameters(self) -> Hyperparameters:
        """By the configuration alone, and by the constants and the table of the n-gram embedding."""
        config = {**self.config, **self.config.get("text_config", {})}
        ngrams = {s.name.removeprefix("model.language_model."): s for s in self.sources() if NGRAM_TABLE in s.name}
        heads = 3 if self.family == "step35" else 1
        names = {*ngrams, "lm_head.weight"} if ngrams else ()
        facts = Facts(config, ngrams, names, trunk_blocks=config["num_hidden_layers"], nextn_blocks=heads)
        return family_of(self.config).hyperparameters(facts)

    def checkpoint(self, folder: Path, *, fp8: bool = False) -> Checkpoint:
        """A checkpoint in `folder` with headers only; the tiny fixture lends its tokenizer, more ids are padding."""
        tiny = FAMILIES[self.family].checkpoint
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny / name, folder / name)
        return Checkpoint(folder, self.config, {tensor.name: tensor for tensor in self.sources(fp8=fp8)})


MODELS = {
    "step-3.5-flash": RealModel("step-3.5-flash", "step35", "model.layers."),
    "step-3.7-flash": RealModel("step-3.7-flash", "step35", "model.layers."),
    "qwen3.8-flash-next": RealModel("qwen3.8-flash-next", "qwen4exp", "mtp."),
    "glm-5.3-flash": RealModel("glm-5.3-flash", "glm5-next", "model.language_model.layers."),
}


def elements(tensors: Tensors) -> int:
    return sum(map(prod, tensors.values()))
