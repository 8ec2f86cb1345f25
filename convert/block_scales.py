"""Block-scaled FP8 checkpoints: each FP8 weight is joined with its scales, and dequantized when it is read.

`X` has its scales in `X_scale_inv`, which multiply it despite the name: one for each block of rows and columns of each
matrix. Source: dequant_model in conversion/base.py of llama.cpp b11549.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from nextn.convert.checkpoint import Checkpoint
from nextn.convert.source_tensor import SourceTensor
from nextn.gguf_schema.errors import InputError, listed

FP8 = ("F8_E4M3", "F8_E5M2")
SCALE = "_scale_inv"
SCALE_DTYPES = ("F32", "BF16", "F16", "F8_E8M0")
DEFAULT_BLOCK = (128, 128)
# Scales of activations and caches: runtimes of GGUF do not quantize these by stored scales.
ACTIVATION_SCALES = (".input_scale", ".activation_scale", ".k_scale", ".v_scale")
# Companions and dtypes of schemes that are not block-scaled FP8.
FOREIGN_COMPANIONS = (".weight_scale", ".weight_scale_2", ".weight_packed", ".qweight", ".qzeros", ".weight_zero_point")
FOREIGN_DTYPES = ("U8", "I8", "I32")


def join_scales(checkpoint: Checkpoint) -> tuple[Checkpoint, list[tuple[str, str]]]:
    """Give FP8 weights their scales; returned beside the checkpoint are tensors that no file holds, with reasons.

    Raises InputError when a scale has no weight, when their shapes disagree, and when the weights are quantized in
    another way. A weight without scales is left as it is, for `require_scales` to find when it is needed.
    """
    _refuse_foreign(checkpoint)
    tensors = dict(checkpoint.tensors)
    block = _block(_quantization(checkpoint))
    dropped = []
    for name in checkpoint.tensors:
        if name.endswith(SCALE):
            weight = name.removesuffix(SCALE)
            scale = tensors.pop(name)
            if weight in tensors:
                tensors[weight] = _scaled(tensors[weight], scale, block)
            elif weight not in checkpoint.missing:
                raise _lonely(name, "is a scale", weight, "weight", checkpoint)
        elif name.endswith(ACTIVATION_SCALES):
            del tensors[name]
            dropped.append((name, "scale of activations: runtimes do not use it"))
    return replace(checkpoint, tensors=tensors), dropped


def require_scales(sources: Iterable[SourceTensor], checkpoint: Checkpoint) -> None:
    """Raise InputError when an FP8 weight that is to be read has no scales."""
    for source in sources:
        if source.dtype in FP8 and source.scale is None:
            raise _lonely(source.name, f"is {source.dtype}", source.name + SCALE, "scale", checkpoint)


def _quantization(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """How config.json says that the weights are quantized; empty when it does not."""
    for config in (checkpoint.text_config, checkpoint.config):
        if isinstance(held := config.get("quantization_config"), Mapping) and held:
            return held
    return {}


def _block(quantization: Mapping[str, Any]) -> tuple[int, int]:
    block = quantization.get("weight_block_size")
    if block is None:
        return DEFAULT_BLOCK
    if isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block):
        return (block[0], block[1])
    raise InputError("config-value", f"is {block!r}, want two sizes", subject="quantization_config.weight_block_size")


def _scaled(weight: SourceTensor, scale: SourceTensor, block: tuple[int, int]) -> SourceTensor:
    if weight.dtype not in FP8:
        raise InputError(
            "scale-without-fp8", f"is {weight.dtype} but has the scale {scale.name}", subject=weight.name,
            remedy="check which of the two belongs to the model",
        )  # fmt: skip
    if scale.dtype not in SCALE_DTYPES:
        raise InputError("scale-dtype", f"is {scale.dtype}; scales are {', '.join(SCALE_DTYPES)}", subject=scale.name)
    blocks = (-(-size // length) for size, length in zip(weight.shape[-2:], block, strict=False))
    want = (*weight.shape[:-2], *blocks)
    if scale.shape != want or len(weight.shape) < 2:
        raise InputError(
            "scale-shape",
            f"is {list(scale.shape)}; blocks of {block[0]} by {block[1]} of {list(weight.shape)} want {list(want)}",
            subject=scale.name,
            remedy="check quantization_config.weight_block_size in config.json",
        )
    # A block is never larger than its matrix, whatever the configuration says: readers make arrays of its size.
    rows, columns = (max(min(size, length), 1) for size, length in zip(weight.shape[-2:], block, strict=True))
    return replace(weight, scale=scale, block=(rows, columns))


def _lonely(name: str, what: str, other: str, kind: str, checkpoint: Checkpoint) -> InputError:
    part = checkpoint.missing.get(other)
    return InputError(
        f"no-{kind}",
        f"{what}, but its {kind} {other} is not there" + (f" (the index expects it in {part})" if part else ""),
        subject=name,
        remedy=f"download {part} again" if part else "the checkpoint is incomplete",
    )


def _refuse_foreign(checkpoint: Checkpoint) -> None:
    """Weights that are packed or scaled in another way cannot be converted; say what was seen."""
    seen = [
        f"{tensor.name} ({tensor.dtype})"
        for tensor in checkpoint.tensors.values()
        if tensor.name.endswith(FOREIGN_COMPANIONS)
        or (tensor.dtype in FOREIGN_DTYPES and tensor.name.endswith(".weight"))
    ]
    if seen:
        method = _quantization(checkpoint).get("quant_method", "no quant_method given")
        raise InputError(
            "unsupported-quantization",
            f"the weights are quantized in a way that is not supported ({method}): {listed(seen)}",
            subject=checkpoint.name,
            remedy="use the BF16 or FP8 repository of the model",
        )
