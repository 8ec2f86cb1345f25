"""What a head would be if it were right: corrections of its weights, and of the hidden rows that it is given.

Each undoes one fault that files and runtimes were seen with; the one that restores acceptance names the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from nextn.gguf_schema.nextn_generic import head_blocks
from nextn.gguf_schema.types import F32
from nextn.runtime.identity.scoring import Rows, unchanged
from nextn.runtime.weights import Matrix, Weights

MISSING, TWICE, SWAPPED, HIDDEN = "norm-offset-missing", "norm-offset-twice", "halves-swapped", "hidden-row"
# What undoes a wrong offset.
OFFSETS = {MISSING: 1.0, TWICE: -1.0}
NORM, JOINING = "norm.weight", "nextn.eh_proj.weight"
# The norm of the trunk from which the logits follow, and that of the head, where they are not named alike.
OUTPUT_NORMS = {
    "nextn.shared_head_norm.weight": "output_norm.weight",
    "nextn.hc_head_norm.weight": "output_hc_norm.weight",
}
# The norms of a part are this near to where the trunk's are, in the mean, when nothing is wrong with them.
NEAR = 0.4
# Chance brings right so many standard deviations more guesses than wrong once in 700 times, and once in 20 times. When
# the means of most norms show a wrong offset, that is certain by itself: its correction must only do no harm.
SURE, SUPPORTED, HARMLESS = 3.0, 1.64, -1.64
Edit = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Correction:
    """One thing done otherwise: to tensors by their names, or to the trunk's hidden rows. `fault` is what it undoes.

    `where` tells people what it is about. `needed` is by how many standard deviations more guesses must become right
    than wrong: fewer when the weights themselves speak for it.
    """

    fault: str
    where: str
    edits: Mapping[str, Edit] = field(default_factory=dict)
    rows: Rows = unchanged
    needed: float = SURE


class Corrected(Weights):
    """The weights of a file with some tensors edited."""

    def __init__(self, weights: Weights, edits: Mapping[str, Edit]) -> None:
        vars(self).update(vars(weights))
        self._edits = edits

    def matrix(self, name: str, dtype: torch.dtype | None = None) -> Matrix:
        """A weight, edited if it is one of those."""
        matrix = super().matrix(name, dtype)
        if name not in self._edits:
            return matrix
        values = self._edits[name](whole(matrix)).contiguous()
        return Matrix(name, matrix.shape, F32, values.view(torch.uint8), dtype or self.dtype)


def whole(matrix: Matrix) -> Tensor:
    """All values of a weight, as float32, of torch shape."""
    return torch.cat(list(matrix.blocks())).float()


def corrections(trunk: Weights, head: Weights) -> Iterator[Correction]:
    """All that could be wrong with the heads of a file: of those that do equally well the first is to be believed."""
    names = [name for block in sorted(head_blocks(head.contents)) for name in _of_block(head, block)]
    off = {name: _off(trunk, head, name) for name in names if name.endswith(NORM)}
    for fault, offset in OFFSETS.items():
        nearer = [name for name in off if abs(off[name] + offset) < abs(off[name])]
        if nearer:
            distance = sum(abs(off[name] + offset) for name in nearer) / len(nearer)
            needed = SURE if distance > NEAR else SUPPORTED if 2 * len(nearer) < len(off) else HARMLESS
            yield Correction(fault, _listed(nearer), _moved(nearer, offset), needed=needed)
    yield Correction(SWAPPED, "eh_proj", {name: _swapped for name in names if name.endswith(JOINING)})
    yield Correction(HIDDEN, "hidden rows", rows=OTHER_SIDE[trunk.contents.architecture](trunk))
    for where, norms in _norm_groups(list(off)).items():
        for fault, offset in OFFSETS.items():
            if sum(abs(off[name] + offset) - abs(off[name]) for name in norms) < 0:
                yield Correction(fault, where, _moved(norms, offset))


def _of_block(weights: Weights, block: int) -> list[str]:
    return [name for name in weights.contents.tensors if name.startswith(f"blk.{block}.")]


def _kind(name: str) -> str:
    return name.split(".", 2)[2]


def _off(trunk: Weights, head: Weights, name: str) -> float:
    """How far the mean of a norm's weights is from that of the trunk's norms of its kind; from 1 if it has none."""
    kind = _kind(name)
    names = [other for other in trunk.contents.tensors if other.endswith(f".{kind}")]
    like = [other for other in names if int(other.split(".")[1]) not in head_blocks(trunk.contents)]
    like += [other for other in [OUTPUT_NORMS.get(kind, "")] if other in trunk]
    means = [float(trunk.vector(other).mean()) for other in like] or [1.0]
    return float(head.vector(name).mean()) - sum(means) / len(means)


def _norm_groups(norms: Sequence[str]) -> dict[str, list[str]]:
    """Norms that would be wrong together, whatever their means say: of a part, and of a kind."""
    groups: dict[str, list[str]] = {"all norms": list(norms)}
    for name in norms:
        groups.setdefault("the norms of the block" if ".nextn." not in name else "the nextn norms", []).append(name)
    for name in norms:
        groups.setdefault(_listed([name]), []).append(name)
    return groups


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(_kind(name).removesuffix(".weight") for name in names))


def _moved(names: Sequence[str], offset: float) -> dict[str, Edit]:
    return dict.fromkeys(names, lambda values: values + offset)


def _swapped(matrix: Tensor) -> Tensor:
    """The left half of the columns where the right one is."""
    left, right = matrix.chunk(2, dim=1)
    return torch.cat((right, left), dim=1)


def _eps(trunk: Weights) -> float:
    return float(trunk.contents.keys[f"{trunk.contents.architecture}.attention.layer_norm_rms_epsilon"].items[0])


def _behind_output_norm(trunk: Weights) -> Rows:
    """step35 hands rows over before its output norm."""
    norm, eps = trunk.vector("output_norm.weight"), _eps(trunk)
    return lambda rows: rms_norm(rows, norm.shape, norm, eps)


def _before_output_norm(trunk: Weights) -> Rows:
    """glm5-next hands rows over behind its output norm; their length, which is lost there, a head norms away anyway."""
    norm = trunk.vector("output_norm.weight")
    return lambda rows: rows / norm


def _behind_stream_norm(trunk: Weights) -> Rows:
    """qwen4exp hands streams over before the norm of its mixer, which norms each by itself."""
    norm, eps = trunk.vector("output_hc_norm.weight"), _eps(trunk)
    count = int(trunk.contents.keys["qwen4exp.hyper_connection.count"].items[0])

    def normed(rows: Tensor) -> Tensor:
        streams = rows.reshape(len(rows), count, -1)
        return (rms_norm(streams, streams.shape[-1:], None, eps) * norm.reshape(count, -1)).reshape(rows.shape)

    return normed


# The trunk's hidden rows on the other side of the norm from which its logits follow.
OTHER_SIDE: dict[str, Callable[[Weights], Rows]] = {
    "step35": _behind_output_norm,
    "qwen4exp": _behind_stream_norm,
    "glm5-next": _before_output_norm,
}
