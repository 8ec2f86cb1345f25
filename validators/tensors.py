"""Findings about the tensors of a file: missing, unexpected, of another shape or of a type that does not compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nextn.gguf_schema.architecture import Architecture, Hyperparameters, Role, TensorSpec, Without, block_of
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.layouts import UPSTREAM, layout_of, naming_of
from nextn.gguf_schema.nextn_architectures import ARCHITECTURE_NAMES
from nextn.gguf_schema.nextn_generic import EMBEDDING, OUTPUT, TIED_OUTPUT, is_tied
from nextn.gguf_schema.reading import ARCHITECTURES, read_hyperparameters
from nextn.validators.blocks import examine_blocks
from nextn.validators.findings import Findings
from nextn.validators.kinds import as_shown
from nextn.validators.layout import TO_UPSTREAM
from nextn.validators.renamed import suggest_names
from nextn.validators.role import RoleReport
from nextn.validators.shapes import Wanted, examine_product, examine_shape, examine_type, gather_shapes
from nextn.validators.traps import NGRAM_TABLE
from nextn.validators.wording import SIDECARS, loader_of

OWN_OUTPUT = ".nextn.shared_head_head.weight"
DENSE = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
READER = "src/llama-model-loader.cpp of llama.cpp b11549"


# Tensors that loaders take in one piece: the joined tensor, its parts in order, joined along the second dimension.
FUSED: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "step35": (("attn_qkv.weight", ("attn_q.weight", "attn_k.weight", "attn_v.weight")),),
    "qwen4exp": (
        ("attn_qkv.weight", ("attn_q.weight", "attn_k.weight", "attn_v.weight")),
        ("ffn_gate_up_exps.weight", ("ffn_gate_exps.weight", "ffn_up_exps.weight")),
    ),
}
# What the loaders of all families read beside the tables, when it is there.
READ_IF_THERE = ("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias")
COMPANIONS = (".scale", ".input_scale")
# A file of heads may hold the trunk's mixer: it is read, and of no use.
UNUSED_IN_HEAD = {"qwen4exp": ("output_hc_norm.weight", "output_hc_down.weight", "output_hc_up.weight")}


def examine_tensors(contents: Contents, report: RoleReport, findings: Findings) -> None:
    """Add what is wrong with the tensors, by the tables of the three families, or by what heads have in common."""
    for tensor in contents:
        if tensor.type.known and tensor.ne and tensor.ne[0] % tensor.type.block:
            message = (
                f"rows of {tensor.ne[0]} cannot be {tensor.type.name}, which comes in blocks of {tensor.type.block}"
            )
            findings.error("tensor-rows", tensor.name, message, "nextn retype FILE -o OUT.gguf --outtype f16", READER)
    if contents.architecture in ARCHITECTURE_NAMES:
        for tensor in contents:
            examine_product(tensor, findings)
    architecture = ARCHITECTURES.get(contents.architecture)
    if architecture is None:
        examine_blocks(contents, report, findings)
    elif report.role is not None:
        _examine_family(architecture, contents, report.role, report, findings)


def _examine_family(
    architecture: Architecture, contents: Contents, role: Role, report: RoleReport, findings: Findings
) -> None:
    h = as_shown(contents, read_hyperparameters(architecture, contents)[0])
    layout = layout_of(contents).id
    wanted = {tensor.name: tensor for tensor in _wanted(architecture, contents, h, role)}
    _join_fused(architecture, contents, wanted)
    for tensor in wanted.values():
        info = contents.tensors.get(tensor.name)
        if info is None:
            if tensor.certain and tensor.name not in report.explained:
                _missing(architecture, role, tensor, layout, findings, tied=is_tied(contents))
            continue
        examine_shape(architecture, tensor, info, findings)
        examine_type(architecture, tensor, info, findings)
    gather_shapes(findings)
    unnamed = {name: tensor.ne for name, tensor in wanted.items() if name not in contents.tensors}
    _unexpected(architecture, contents, report, layout, wanted, findings)
    suggest_names(contents, unnamed, findings)


def _wanted(architecture: Architecture, contents: Contents, h: Hyperparameters, role: Role) -> Iterator[Wanted]:
    """The tensors of the tables for the blocks that are there; what the keys do not tell is left out."""
    held = {block for name in contents.tensors if (block := block_of(name)) is not None}
    blocks = [-1, *(i for i in h.blocks(role) if i in held)]
    if role is Role.TRUNK:
        blocks = [-1, *sorted(held)]
    for i in blocks:
        for spec in architecture.tensors:
            if spec.per_block is (i < 0) or (i < 0 and role not in spec.roles):
                continue
            applies = _applies(spec, h, i)
            if applies is not False:
                yield Wanted(spec.name.format(i=i), _dimensions(spec, h, i), spec, certain=applies is True)


def _applies(spec: TensorSpec, h: Hyperparameters, block: int) -> bool | None:
    """Whether the block has the tensor; None when a key that tells is missing, or too short."""
    try:
        return spec.when(h, block)
    except (TypeError, IndexError):
        return None


def _dimensions(spec: TensorSpec, h: Any, block: int) -> tuple[int, ...] | None:
    if spec.name == "rope_freqs.weight":
        return _rope_factors(h)
    try:
        return spec.ne(h, block)
    except (TypeError, IndexError):
        return None


def _rope_factors(h: Any) -> tuple[int, ...] | None:
    """One factor for each pair of dimensions that any layer of the trunk rotates: half of them in a full layer."""
    length, pattern = h.attention_key_length, (h.attention_sliding_window_pattern or ())[: h.trunk_blocks]
    if not length or not pattern:
        return None
    return (length // 2 if any(pattern) else length // 4,)


def _join_fused(architecture: Architecture, contents: Contents, wanted: dict[str, Wanted]) -> None:
    """Where a file has the tensors of a block in one piece, want that piece instead of the parts."""
    for joined, parts in FUSED.get(architecture.name, ()):
        for name in [name for name in contents.tensors if name.endswith(f".{joined}") and name not in wanted]:
            block = name.removesuffix(joined)
            pieces = [wanted[f"{block}{part}"] for part in parts if f"{block}{part}" in wanted]
            if len(pieces) != len(parts) or any(piece.name in contents.tensors for piece in pieces):
                continue
            shapes = [piece.ne for piece in pieces]
            first = shapes[0]
            known = [ne for ne in shapes if ne is not None]
            ne = None
            if first is not None and len(known) == len(shapes):
                ne = (first[0], sum(ne[1] for ne in known), *first[2:])
            wanted[name] = Wanted(name, ne, pieces[0].spec)
            for piece in pieces:
                del wanted[piece.name]


def _missing(
    architecture: Architecture, role: Role, tensor: Wanted, layout: str, findings: Findings, *, tied: bool
) -> None:
    spec = tensor.spec
    without = spec.without if role.has_trunk else spec.without_in_head or spec.without
    if spec.optional:
        return
    message = f"is missing: llama.cpp b11549 {without}"
    if tensor.name == OUTPUT and without is Without.WRONG and tied:
        message = f"is not there, as {TIED_OUTPUT} says: llama.cpp b11549 takes {EMBEDDING} for it"
        findings.note("tensor-missing", tensor.name, message, None, loader_of(architecture.name))
        return
    if tensor.name.endswith(OWN_OUTPUT) and without is Without.WRONG:
        message = f"{message}: it borrows the target's {OUTPUT}"
    if tensor.name == OUTPUT and without is Without.WRONG:
        message = f"is missing: llama.cpp b11549 silently takes {EMBEDDING} for it, right only for a tied model"
    remedy = "take it from the source (nextn convert) or from the file it was cut from"
    if not role.has_trunk and tensor.name in (EMBEDDING, OUTPUT):
        remedy = "nextn join TRUNK FILE --emit mtp -o OUT.gguf takes it from the trunk"
    elif layout != UPSTREAM:
        remedy = _out_of(layout)
    add = findings.note if without is Without.TOLERATES else findings.error
    add("tensor-missing", tensor.name, message, remedy, loader_of(architecture.name))


def _unexpected(
    architecture: Architecture,
    contents: Contents,
    report: RoleReport,
    layout: str,
    wanted: dict[str, Wanted],
    findings: Findings,
) -> None:
    """Tensors that no table wants: the loader counts what it asked for, and refuses a file that has more."""
    reason, role = loader_of(architecture.name), report.role or Role.COMBINED
    mixer = f"blk.{report.first_head}.nextn.hc_head_norm.weight" in contents.tensors
    for name in contents.tensors:
        if name in wanted:
            continue
        local = name.split(".", 2)[-1] if block_of(name) is not None else name
        weight = next((f"{name.removesuffix(end)}.weight" for end in COMPANIONS if name.endswith(end)), None)
        if name == NGRAM_TABLE and role.has_trunk:
            continue  # Its keys are missing, which is a finding about them.
        if weight in wanted and role.has_trunk and ".nextn." in name:
            message = "is asked for only where heads are loaded: as a main model llama.cpp b11549 refuses the file"
            findings.error("tensor-unexpected", name, message, "write the file without it", reason)
            continue
        if weight in wanted or local in READ_IF_THERE or _is_optional_part(architecture, contents, name):
            continue
        if role is Role.MTP_SHARED and name in (EMBEDDING, OUTPUT):
            message = "is there, but a shared sidecar borrows it from its target"
            findings.warn("tensor-unexpected", name, message, "write the file without it", SIDECARS)
        elif not role.has_trunk and mixer and name in UNUSED_IN_HEAD.get(architecture.name, ()):
            message = "is the trunk's: llama.cpp b11549 reads it and does not use it in a file of heads"
            findings.note("tensor-unexpected", name, message, "nextn split FILE -o DIR --emit mtp", reason)
        else:
            moe = local in DENSE and name.replace(local, "ffn_gate_inp.weight") in contents.tensors
            why = ": this block is MoE, and has no dense network" if moe else ""
            message = f"is not a tensor of {_part(role)}{why}: llama.cpp b11549 stops with 'wrong number of tensors'"
            remedy = "write the file without it"
            if layout != UPSTREAM:
                remedy = _out_of(layout)
            findings.error("tensor-unexpected", name, message, remedy, reason)


def _out_of(layout: str) -> str:
    """How to make a file of upstream's layout of one in another, where that can be done."""
    naming = naming_of(layout)
    way = naming.closed[-1] if naming and naming.closed else TO_UPSTREAM
    return f"the file is in the layout {layout}: {way}"


def _is_optional_part(architecture: Architecture, contents: Contents, name: str) -> bool:
    """Whether the loader reads the tensor although its block is said to do without: an indexer that is left unused."""
    block = block_of(name)
    if architecture.name != "glm5-next" or block is None or ".indexer" not in name:
        return False
    return f"blk.{block}.attn_kv_a_mqa.weight" in contents.tensors


def _part(role: Role) -> str:
    return {Role.COMBINED: "a combined file", Role.TRUNK: "a trunk"}.get(role, "a file of heads")
