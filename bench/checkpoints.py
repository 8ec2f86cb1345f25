"""Random checkpoints in hub format, for measuring: Step-shaped in BF16, GLM-shaped in block FP8.

The families' tiny fixtures give configuration and tokenizer; sizes are scaled up until the weights take GB gigabytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import count, product
from math import ceil, prod
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import asked
import numpy as np

ROOT = Path(__file__).parents[1]
TINY = {"step35": ROOT / "nextn/demo/step35-tiny", "glm5-next": ROOT / "tests/fixtures/glm5-next-tiny/checkpoint"}
SIZES = {"BF16": 2, "F32": 4, "F8_E4M3": 1}
BLOCK = 128
Tensor = tuple[str, str, tuple[int, ...]]


def step35(gigabytes: float, text: dict[str, Any]) -> list[list[Tensor]]:
    """One list of tensors a shard: globals, then a layer each; the configuration is adapted in place."""
    H, d, V, W, E, F, K, nq, ns, nkv = 2048, 128, 512, 4096, 32, 640, 3, 16, 24, 4
    heads = K * (V * H + 3 * W * H + 2 * H * H + 2 * ns * d * H)
    N = max(5, int((gigabytes * 1e9 / 2 - heads) / (3 * (E + 1) * F * H + 2 * ns * d * H)))
    kinds = ["full_attention" if i % 4 == 0 and i < N else "sliding_attention" for i in range(N + K)]
    other = {"attention_type": "sliding_attention", "num_attention_heads": ns, "num_attention_groups": nkv}
    text |= {
        "hidden_size": H, "intermediate_size": W, "num_hidden_layers": N, "head_dim": d, "layer_types": kinds,
        "num_attention_heads": nq, "num_attention_groups": nkv, "attention_other_setting": other | {"head_dim": d},
        "vocab_size": V,
        "rope_theta": [5e6 if kind == "full_attention" else 1e4 for kind in kinds],
        "partial_rotary_factors": [0.5 if kind == "full_attention" else 1.0 for kind in kinds],
        "moe_layers_enum": ",".join(str(i) for i in range(2, N)), "moe_num_experts": E, "moe_top_k": 4,
        "moe_intermediate_size": F, "share_expert_dim": F, "num_nextn_predict_layers": K,
        "swiglu_limits": [0.0] * (N + K), "swiglu_limits_shared": [0.0] * (N + K), "sliding_window": 512,
    }  # fmt: skip
    shards = [[("model.embed_tokens.weight", (V, H)), ("model.norm.weight", (H,)), ("lm_head.weight", (V, H))]]
    for i in range(N + K):
        p, q = f"model.layers.{i}.", (nq if kinds[i] == "full_attention" else ns) * d
        layer: list[tuple[str, tuple[int, ...]]] = [
            (p + "input_layernorm.weight", (H,)), (p + "post_attention_layernorm.weight", (H,)),
            (p + "self_attn.q_proj.weight", (q, H)), (p + "self_attn.k_proj.weight", (nkv * d, H)),
            (p + "self_attn.v_proj.weight", (nkv * d, H)), (p + "self_attn.o_proj.weight", (H, q)),
            (p + "self_attn.q_norm.weight", (d,)), (p + "self_attn.k_norm.weight", (d,)),
            (p + "self_attn.g_proj.weight", (q // d, H)),
        ]  # fmt: skip
        if 2 <= i < N:
            layer += [(p + "moe.gate.weight", (E, H)), (p + "moe.router_bias", (E,))]
            layer += [(p + f"moe.{x}_proj.weight", (E, F, H)) for x in ("gate", "up")]
            layer += [(p + "moe.down_proj.weight", (E, H, F))]
            layer += [(p + f"share_expert.{x}_proj.weight", (F, H)) for x in ("gate", "up")]
            layer += [(p + "share_expert.down_proj.weight", (H, F))]
        else:
            layer += [(p + f"mlp.{x}_proj.weight", (W, H)) for x in ("gate", "up")]
            layer += [(p + "mlp.down_proj.weight", (H, W))]
        if i >= N:
            layer += [(p + "enorm.weight", (H,)), (p + "hnorm.weight", (H,)), (p + "eh_proj.weight", (H, 2 * H))]
            layer += [(p + "transformer.shared_head.norm.weight", (H,))]
            layer += [(p + "transformer.shared_head.output.weight", (V, H))]
        shards.append(layer)
    return [[(name, "BF16", shape) for name, shape in shard] for shard in shards]


def glm5_next(gigabytes: float, text: dict[str, Any]) -> list[list[Tensor]]:
    """As `step35`; experts, dense and latent projections are FP8 with a scale for each block of 128 by 128."""
    H, V, W, F, E, nh, d = 1024, 150_000, 2048, 512, 64, 8, 128
    ql, r, dn, dv, ih, di, pool = 384, 256, 128, 128, 16, 128, 4
    expert_layer = 3 * (E + 1) * F * H + 4 * nh * d * H * 2
    L = max(5, int((gigabytes * 1e9 - 4 * V * H) / expert_layer) - 1)
    kda = [i % 4 != 3 for i in range(L)]
    text |= {
        "hidden_size": H, "vocab_size": V, "intermediate_size": W, "moe_intermediate_size": F, "n_routed_experts": E,
        "num_hidden_layers": L, "num_attention_heads": nh, "num_key_value_heads": nh, "q_lora_rank": ql,
        "kv_lora_rank": r, "qk_nope_head_dim": dn, "qk_head_dim": dn, "v_head_dim": dv, "index_n_heads": ih,
        "index_head_dim": di, "index_kpool": pool, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
        "indexer_types": ["full"] * L, "mlp_layer_types": ["dense", *["sparse"] * (L - 1)],
        "layer_types": ["linear_attention" if k else "deepseek_sparse_attention" for k in kda],
        "linear_attn_config": {
            "num_heads": nh, "head_dim": d, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
            "kda_layers": [i for i in range(L) if kda[i]], "full_attn_layers": [i for i in range(L) if not kda[i]],
        },
    }  # fmt: skip
    m = "model.language_model."
    shards: list[list[Tensor]] = [
        [
            (m + "embed_tokens.weight", "BF16", (V, H)),
            (m + "norm.weight", "BF16", (H,)),
            ("lm_head.weight", "BF16", (V, H)),
        ]
    ]
    for i in range(L + 1):
        p, a = f"{m}layers.{i}.", f"{m}layers.{i}.self_attn."
        layer: list[Tensor] = [(p + f"{x}_layernorm.weight", "BF16", (H,)) for x in ("input", "post_attention")]
        for x in ("attn", "ffn") if i < L else ():
            shapes = {"fn": (24, 4 * H), "base": (24,), "scale": (3,)}
            layer += [(p + f"hc_{x}_{part}", "BF16", shape) for part, shape in shapes.items()]
        if i < L and kda[i]:
            layer += [(a + f"{x}_proj.weight", "BF16", (nh * d, H)) for x in "qkv"]
            layer += [(a + f"{x}_conv1d.weight", "BF16", (nh * d, 1, 4)) for x in "qkv"]
            layer += [(a + f"{x}_a_proj.weight", "BF16", (d, H)) for x in "fg"]
            layer += [(a + f"{x}_b_proj.weight", "BF16", (nh * d, d)) for x in "fg"]
            layer += [(a + "b_proj.weight", "BF16", (nh, H)), (a + "A_log", "BF16", (nh,))]
            layer += [(a + "dt_bias", "BF16", (nh * d,)), (a + "o_norm.weight", "BF16", (d,))]
            layer += [(a + "o_proj.weight", "BF16", (H, nh * d))]
        else:
            layer += _fp8(a + "q_a_proj", ql, H) + _fp8(a + "q_b_proj", nh * dn, ql) + _fp8(a + "o_proj", H, nh * dv)
            layer += _fp8(a + "kv_a_proj_with_mqa", r, H)
            layer += [(a + "kv_b_proj.weight", "BF16", (nh * (dn + dv), r))]
            layer += [(a + "q_a_layernorm.weight", "BF16", (ql,)), (a + "kv_a_layernorm.weight", "BF16", (r,))]
            x = a + "indexer."
            layer += [(x + "wq_b.weight", "BF16", (ih * di, ql)), (x + "wk.weight", "BF16", (di, H))]
            layer += [(x + f"k_norm.{part}", "BF16", (di,)) for part in ("weight", "bias")]
            layer += [
                (x + "weights_proj.weight", "BF16", (ih, H)),
                (x + "index_kpool_compress_ape", "BF16", (pool, di)),
            ]
            layer += [(x + "index_kpool_compress_gate", "BF16", (di, H))]
        if i == 0:
            layer += _fp8(p + "mlp.gate_proj", W, H) + _fp8(p + "mlp.up_proj", W, H) + _fp8(p + "mlp.down_proj", H, W)
        else:
            layer += [(p + "mlp.gate.weight", "BF16", (E, H)), (p + "mlp.gate.e_score_correction_bias", "F32", (E,))]
            for e in (*(f"experts.{e}" for e in range(E)), "shared_experts"):
                layer += _fp8(f"{p}mlp.{e}.gate_proj", F, H) + _fp8(f"{p}mlp.{e}.up_proj", F, H)
                layer += _fp8(f"{p}mlp.{e}.down_proj", H, F)
        if i == L:
            layer += [(p + f"{x}.weight", "BF16", (H,)) for x in ("enorm", "hnorm", "shared_head.norm")]
            layer += [(p + "eh_proj.weight", "BF16", (H, 2 * H))]
        shards.append(layer)
    return shards


def _fp8(name: str, rows: int, columns: int) -> list[Tensor]:
    scales = (ceil(rows / BLOCK), ceil(columns / BLOCK))
    return [(name + ".weight", "F8_E4M3", (rows, columns)), (name + ".weight_scale_inv", "F32", scales)]


def write(family: str, folder: Path, gigabytes: float) -> int:
    """Write a checkpoint and return the bytes of its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((TINY[family] / "config.json").read_text())
    shards = {"step35": step35, "glm5-next": glm5_next}[family](gigabytes, config["text_config"])
    if family == "glm5-next":
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(TINY[family] / name, folder)
    if family == "glm5-next":
        _grow_vocabulary(folder / "tokenizer.json", config["text_config"]["vocab_size"])
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    random = np.random.default_rng(0)
    weight_map: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, 1):
        part = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= dict.fromkeys((name for name, _, _ in shard), part)
        total += _write_shard(folder / part, shard, random)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def _write_shard(path: Path, tensors: list[Tensor], random: np.random.Generator) -> int:
    entries, offset = {}, 0
    for name, dtype, shape in tensors:
        end = offset + prod(shape) * SIZES[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _, dtype, shape in tensors:
            for data in _random(dtype, prod(shape), random):
                file.write(data)
    return offset


def _random(dtype: str, values: int, random: np.random.Generator) -> Iterator[bytes]:
    """Values that look like weights: about 0.02 wide; FP8 bytes without NaN; scales near one part in a thousand."""
    for start in range(0, values, 1 << 22):
        n = min(1 << 22, values - start)
        if dtype == "F8_E4M3":
            sign = random.integers(0, 2, n, dtype=np.uint8) << 7
            yield (random.integers(0, 0x7F, n, dtype=np.uint8) | sign).tobytes()
        elif dtype == "F32":
            yield (random.random(n, dtype=np.float32) * 1e-3 + 1e-4).tobytes()
        else:
            floats = random.standard_normal(n, dtype=np.float32) * np.float32(0.02)
            yield (floats.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def _grow_vocabulary(path: Path, size: int) -> None:
    """A long vocabulary costs time of its own: fill it up with letter strings, each merged from a shorter one."""
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    taken = set(vocabulary.values()) | {token["id"] for token in tokenizer["added_tokens"]}
    pairs = isinstance(merges[0], list)
    strings = (text for length in count(2) for text in map("".join, product(ascii_lowercase, repeat=length)))
    new = (text for text in strings if text not in vocabulary)
    for id_ in (i for i in range(size) if i not in taken):
        token = next(new)
        vocabulary[token] = id_
        merges.append([token[:-1], token[-1]] if pairs else f"{token[:-1]} {token[-1]}")
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def main() -> None:
    parser = asked.parser(__doc__)
    parser.add_argument("family", choices=TINY, help="which the checkpoint is of")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder that it is written to")
    help_ = "gigabytes of weights at most, but there are at least five layers"
    parser.add_argument("gigabytes", type=asked.amount, metavar="GB", help=help_)
    options = parser.parse_args()
    made = write(options.family, options.out, options.gigabytes)
    print(f"{options.out}: {made / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
