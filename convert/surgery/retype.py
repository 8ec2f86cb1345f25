"""Storing tensors in other types: decoded, and encoded by the quantizers of converting; all else is copied."""

from __future__ import annotations

import re
from dataclasses import replace

from nextn.convert.quantize import can_decode
from nextn.convert.surgery.cut import refuse_contradiction
from nextn.convert.tensor_types import TypeChooser
from nextn.gguf_schema.architecture import Architecture, ExpectedTensor, TensorSpec, block_of
from nextn.gguf_schema.contents import Contents, TensorInfo, Value, u32
from nextn.gguf_schema.edit import Edit, Taken, taken
from nextn.gguf_schema.errors import InputError, counted
from nextn.gguf_schema.nextn_generic import declared, head_blocks
from nextn.gguf_schema.reading import table_of
from nextn.gguf_schema.types import FILE_TYPES, TensorType
from nextn.validators.findings import Finding, Findings

FILE_TYPE = "general.file_type"
# Without tables: what llama.cpp computes with in F32 alone, whatever the architecture.
F32_ONLY = re.compile(r"_norm\.weight$|ffn_gate_inp|ssm_conv1d|(?<!\.weight)$")


def retype(
    contents: Contents,
    outtype: TensorType | None,
    rules: tuple[tuple[re.Pattern[str], TensorType], ...] = (),
) -> tuple[Edit, list[Finding]]:
    """The file with its matrices in `outtype`, and tensors that match a rule in that rule's type, the first one's.

    Without `outtype` only the latter change. Floors and fallbacks are those of converting. What cannot be decoded stays
    as it is, unless a rule matches it. Raises UsageError for a rule that matches nothing, InputError when a tensor that
    a rule matches cannot be decoded, VerdictError when keys about heads contradict the tensors: before any work.
    """
    if head_blocks(contents) or declared(contents).heads:
        refuse_contradiction(contents)
    findings = Findings()
    known = table_of(contents.architecture)
    types = TypeChooser(outtype or next(iter(rules))[1], rules)
    tensors: list[Taken] = []
    again, closed = [], []
    for tensor in contents:
        place = _place(tensor, known)
        by_rule = any(pattern.search(tensor.name) for pattern, _ in rules)
        asked = (by_rule or outtype is not None) and _is_number(tensor)
        type_ = types.choose(place, ()) if asked else tensor.type
        if type_ != tensor.type and not by_rule and not can_decode(tensor.type):
            closed.append(tensor.name)
            type_ = tensor.type
        if type_ != tensor.type and tensor.type.block > 1 and type_.block > 1:
            again.append(tensor.name)
        tensors.append(_retyped(tensor, type_))
    found = types.findings()
    changed = [t for t in tensors if t.info.type != contents.tensors[t.info.name].type]
    for rule, names, message in (
        ("requantized", again, "is quantized already, and loses by being quantized again"),
        ("undecodable", closed, "stays as it is: its type cannot be decoded here"),
    ):
        if names:
            more = f" (and {counted(len(names) - 1, 'more tensor')})" if len(names) > 1 else ""
            findings.warn(rule, names[0], message + more)
    keys: dict[str, Value] = dict(contents.keys)
    if outtype is not None:
        keys[FILE_TYPE] = u32(FILE_TYPES[outtype.name])
    changes = (f"{counted(len(changed), 'tensor')} of {len(tensors)} retyped",) if changed else ()
    return Edit(keys, tuple(tensors), changes), [*found, *findings]


def _is_number(tensor: TensorInfo) -> bool:
    """Whether the tensor holds weights; integers are indices, and stay."""
    return not re.fullmatch(r"I(8|16|32|64)", tensor.type.name)


def _place(tensor: TensorInfo, known: Architecture | None) -> ExpectedTensor:
    """A place for a tensor, with floors by its name: those of the tables, else what all architectures share."""
    block = block_of(tensor.name)
    name = tensor.name if block is None else tensor.name.replace(f"blk.{block}.", "blk.{i}.", 1)
    specs = [spec for spec in known.tensors if spec.name == name] if known else []
    vector = len(tensor.ne) < 2 or bool(F32_ONLY.search(tensor.name))
    f32 = any(spec.f32 for spec in specs) if specs else vector
    dims = " ".join(map(str, tensor.ne))
    spec = TensorSpec(tensor.name, dims, f32=f32, eight_bits=any(spec.eight_bits for spec in specs))
    return ExpectedTensor(tensor.name, tensor.ne, spec, -1 if block is None else block)


def _retyped(tensor: TensorInfo, type_: TensorType) -> Taken:
    if type_ == tensor.type:
        return taken(tensor)
    if not can_decode(tensor.type):
        message = f"is {tensor.type.name}, which cannot be decoded here, and is to become {type_.name}"
        remedy = "a --tensor-type whose pattern does not match it leaves it as it is"
        raise InputError("undecodable", message, subject=tensor.name, remedy=remedy)
    info = replace(tensor, type=type_, nbytes=type_.tensor_bytes(tensor.ne))
    return Taken(info, (tensor.name,))
