"""Findings about small tensors whose values show how a file was made: signs of decays, means of norm gammas.

They are few and at most 64 KiB each, so they are read without `--deep` too; and without numpy, whose import takes
longer than all else that is done for a file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from nextn.gguf_schema.architecture import block_of
from nextn.gguf_schema.contents import TensorInfo
from nextn.gguf_schema.errors import counted
from nextn.gguf_schema.nextn_generic import head_blocks
from nextn.gguf_schema.shards import GGUFFile
from nextn.validators.findings import Findings
from nextn.validators.wording import VALUES

SMALL_BYTES = 1 << 16
_TYPES = frozenset({"F32", "F16", "BF16"})

# Architectures whose checkpoints store w where the model multiplies by 1 + w: the converter adds the 1 to every norm
# but these. Source: conversion/qwen.py of llama.cpp b11549.
PLUS_ONE_EXCEPT: dict[str, tuple[str, ...]] = {
    "step35": (),
    "qwen4exp": ("ssm_norm.weight",),
    "qwen3next": ("ssm_norm.weight",),
    "qwen35": ("ssm_norm.weight",),
    "qwen35moe": ("ssm_norm.weight",),
}

# Trained gammas stay near 1 after the addition. One alone may stray; most of a part do not, nor does a gamma get
# negative values. The tiny models of the tests lie between 0.65 and 1.5.
_NEAR_0 = 0.5
_NEAR_2 = 1.6
_NEGATIVE = 0.05  # share of values
_REASON = f"{VALUES}: 1 + w of norms; a mean is evidence, no proof"


@dataclass(frozen=True)
class Gamma:
    """A norm's gamma, and the mean of its values."""

    name: str
    mean: float
    values: Sequence[float]

    @property
    def negative(self) -> float:
        """The share of its values that are negative."""
        return sum(value < 0 for value in self.values) / len(self.values)


def examine_small(file: GGUFFile, findings: Findings) -> None:
    """Add what the values of small tensors show: a decay that is not negative, norms with 1 missing or added twice.

    Reads at most 64 KiB a tensor; those that are cut or of block types are passed over. InputError when the disk fails.
    """
    exceptions = PLUS_ONE_EXCEPT.get(file.contents.architecture)
    heads = head_blocks(file.contents)
    gammas: dict[str, list[Gamma]] = {}
    for tensor in file.contents:
        if tensor.name.endswith(".ssm_a"):
            values = _values(file, tensor)
            if values is not None:
                _examine_decay(tensor, values, findings)
        elif exceptions is not None and _is_gamma(tensor) and not tensor.name.endswith(exceptions):
            values = _values(file, tensor)
            # A sum is finite only when all values are.
            if values is not None and isfinite(total := sum(values)):
                block = block_of(tensor.name)
                part = f"head blk.{block}" if block in heads else "the trunk"
                mean = total / len(values)
                # Only those near 0 are looked at again.
                gamma = Gamma(tensor.name, mean, values if abs(mean) < _NEAR_0 else ())
                gammas.setdefault(part, []).append(gamma)
    for part, group in gammas.items():
        _examine_gammas(part, group, findings)


def _is_gamma(tensor: TensorInfo) -> bool:
    return len(tensor.ne) == 1 and "norm" in tensor.name and tensor.name.endswith(".weight")


def _values(file: GGUFFile, tensor: TensorInfo) -> Sequence[float] | None:
    """The values of a small tensor whose data is there and not in blocks."""
    source, offset, nbytes = file.tensor_bytes(tensor.name)
    sound = nbytes == tensor.type.tensor_bytes(tensor.ne) and offset + nbytes <= source.size
    if tensor.type.name not in _TYPES or not sound or not 0 < nbytes <= SMALL_BYTES:
        return None
    raw = source.read(offset, nbytes)
    if tensor.type.name == "F16":
        return struct.unpack(f"<{nbytes // 2}e", raw)
    if tensor.type.name == "BF16":
        # The upper half of an F32.
        wide = bytearray(2 * nbytes)
        wide[2::4], wide[3::4] = raw[::2], raw[1::2]
        raw = bytes(wide)
    return struct.unpack(f"<{len(raw) // 4}f", raw)


def _examine_decay(tensor: TensorInfo, values: Sequence[float], findings: Findings) -> None:
    # Written so that what is no number counts too.
    wrong = [index for index, value in enumerate(values) if not value < 0]
    if wrong:
        message = (
            f"{len(wrong)} of {len(values)} values are not negative, the first is value {wrong[0]}: "
            f"{values[wrong[0]]:.6g}; -exp(A_log) is negative everywhere"
        )
        remedy = "convert it again: the file holds A_log, or exp(A_log) without the sign"
        findings.error("ssm-a-not-negative", tensor.name, message, remedy, f"{VALUES}: -exp of decays")


def _examine_gammas(part: str, group: list[Gamma], findings: Findings) -> None:
    near_0 = [gamma for gamma in group if abs(gamma.mean) < _NEAR_0]
    near_2 = [gamma for gamma in group if gamma.mean > _NEAR_2]
    alone = [gamma for gamma in near_0 if gamma.negative >= _NEGATIVE]
    if 2 * len(near_0) < len(group):
        near_0 = alone
    if near_0:
        message = f"{_evidence(near_0, part, len(group))} near 0: as if the 1 of 1 + w was never added"
        findings.note("norm-offset-missing", near_0[0].name, message, "convert it again; it is added once", _REASON)
    if 2 * len(near_2) >= len(group):
        message = f"{_evidence(near_2, part, len(group))} near 2: as if the 1 of 1 + w was added twice"
        findings.note("norm-offset-twice", near_2[0].name, message, "convert it again; it is added once", _REASON)


def _evidence(gammas: list[Gamma], part: str, total: int) -> str:
    shown = ", ".join(_shown(gammas))
    return f"{len(gammas)} of {counted(total, 'norm gamma')} of {part} have a mean ({shown})"


def _shown(gammas: list[Gamma]) -> Iterator[str]:
    for gamma in gammas[:4]:
        yield f"{gamma.name} {gamma.mean:.3f}"
    if len(gammas) > 4:
        yield f"… {len(gammas) - 4} more"
