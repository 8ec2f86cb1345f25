"""Findings about one tensor that is there: dimensions that are not those of the tables, types that do not compute."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nextn.gguf_schema.architecture import Architecture, TensorSpec
from nextn.gguf_schema.contents import TensorInfo
from nextn.gguf_schema.errors import counted, listed
from nextn.gguf_schema.types import F32
from nextn.validators.findings import Findings
from nextn.validators.tensor_types import SOURCE as CPU_TYPES
from nextn.validators.tensor_types import no_product
from nextn.validators.wording import dims, loader_of

EIGHT_BITS = 8
# More wrong shapes than this are told as one.
MOST_SHAPES = 3

# Matrices that upstream stores in F32, where another type computes but loses what the router or the indexer needs.
PRECISE = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "indexer.proj.weight")
# Tensors of more than one dimension that are added or convolved, for which there is no operation in other types.
F32_ONLY = ("_norm.weight", "conv1d.weight", "conv1d_q.weight", "conv1d_k.weight", "conv1d_v.weight", "_ape.weight")


@dataclass(frozen=True)
class Wanted:
    """A tensor that the tables want: its dimensions as far as the keys tell them, and its specification.

    It is not `certain` when the keys do not tell whether the block has it.
    """

    name: str
    ne: tuple[int, ...] | None
    spec: TensorSpec
    certain: bool = True


def examine_product(tensor: TensorInfo, findings: Findings) -> None:
    """A matrix of a type that nothing multiplies in: such types are for numbers, not for weights."""
    if no_product(tensor):
        message = f"is {tensor.type.name}, in which llama.cpp b11549 has no products: it crashes when it computes"
        findings.error("tensor-type", tensor.name, message, "convert it again", CPU_TYPES)


def examine_shape(architecture: Architecture, tensor: Wanted, info: TensorInfo, findings: Findings) -> None:
    """Add a tensor of other dimensions than the tables want."""
    if tensor.ne is None or info.ne == tensor.ne:
        return
    message = f"has dimensions {dims(info.ne)}, want {dims(tensor.ne)}"
    elements = 1
    for n in tensor.ne:
        elements *= n
    if _plain(info.ne) == _plain(tensor.ne) or (tensor.spec.reshape and info.elements == elements):
        findings.note("tensor-reshaped", info.name, f"{message}: loaders take both", None, loader_of(architecture.name))
        return
    message += ": llama.cpp b11549 refuses the file ('has wrong shape')"
    findings.error("tensor-shape", info.name, message, "convert it again", loader_of(architecture.name))


def gather_shapes(findings: Findings) -> None:
    """Make one finding of many wrong shapes: one wrong key shows in the tensors of every block."""
    wrong = [finding for finding in findings if finding.rule == "tensor-shape"]
    if len(wrong) <= MOST_SHAPES:
        return
    first, *rest = wrong
    more = f"and {counted(len(rest), 'more tensor')} with other dimensions: {listed(each.subject for each in rest)}"
    remedy = f"one wrong key may be behind all of them; else {first.remedy}"
    findings[findings.index(first)] = replace(first, message=f"{first.message}; {more}", remedy=remedy)
    dropped = set(map(id, rest))
    findings[:] = [finding for finding in findings if id(finding) not in dropped]


def _plain(ne: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions without ones at the end, which GGUF may leave out."""
    while len(ne) > 1 and ne[-1] == 1:
        ne = ne[:-1]
    return ne


def examine_type(architecture: Architecture, tensor: Wanted, info: TensorInfo, findings: Findings) -> None:
    """Add a tensor of a type that the tables do not want: it does not compute, or loses what is needed."""
    spec, type_ = tensor.spec, info.type
    if not type_.known or type_ == F32 or no_product(info):
        return
    reason, remedy = loader_of(architecture.name), f"nextn retype FILE -o OUT.gguf --tensor-type {info.name}=f32"
    if spec.f32 and (len(_plain(info.ne)) == 1 or info.name.endswith(F32_ONLY)) and not info.name.endswith(PRECISE):
        message = f"is {type_.name}, want F32: llama.cpp aborts when it computes with it (unsupported types)"
        findings.error("tensor-type", info.name, message, remedy, reason)
    elif spec.f32 and info.name.endswith(PRECISE):
        message = f"is {type_.name}, upstream stores it in F32: it computes, and picks other experts or blocks"
        findings.warn("tensor-type", info.name, message, remedy, reason)
    elif (spec.f32 or spec.eight_bits) and type_.bits < EIGHT_BITS:
        message = f"is {type_.name}, which has {type_.bits:g} bits: below the 8 that a structural tensor needs"
        remedy = f"nextn convert keeps it at Q8_0; quantize from the source with --tensor-type {info.name}=q8_0"
        findings.warn("tensor-below-floor", info.name, message, remedy, "quantization policy of published files")
