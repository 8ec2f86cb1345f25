"""Cutting a file by role: which tensors and keys of it a trunk, a head or a shared sidecar keeps.

Sources: the surgery rules of the three families as llama.cpp's converter writes them with --no-mtp and --mtp, and the
array lengths that the loaders want (`nextn_architectures`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from nextn.convert.metadata import size_label
from nextn.convert.plan import hash_placeholder
from nextn.gguf_schema.architecture import EVERY_ROLE, WITHOUT_SHARED, Role, Rule, block_of
from nextn.gguf_schema.contents import Contents, TensorInfo, Value, boolean, string
from nextn.gguf_schema.edit import Edit, taken
from nextn.gguf_schema.errors import UsageError, VerdictError, counted
from nextn.gguf_schema.layouts import layout_of, naming_of
from nextn.gguf_schema.nextn_architectures import array_keys, upstream_spelling
from nextn.gguf_schema.nextn_generic import (
    BLOCK_COUNT,
    EMBEDDING,
    NEXTN_PREDICT_LAYERS,
    OUTPUT,
    SHARED,
    TARGET_EMBEDDING_SHA256,
    TARGET_NAME,
    TIED_OUTPUT,
    blocks_of,
    declared,
    head_blocks,
    is_whole_head,
    role_of,
)
from nextn.gguf_schema.reading import table_of

# Which roles can be cut from a file of which.
CUTS: Mapping[Role, frozenset[Role]] = {
    Role.COMBINED: EVERY_ROLE,
    Role.TRUNK: frozenset({Role.TRUNK}),
    Role.MTP: frozenset({Role.MTP, Role.MTP_SHARED}),
    Role.MTP_SHARED: frozenset({Role.MTP_SHARED}),
}
# Keys about heads that a trunk does not carry; the second is of old glm5next files.
HEAD_KEYS = (NEXTN_PREDICT_LAYERS, "attention.indexer.index_share_mtp")
# What a sidecar says of itself and its target.
SIDECAR_KEYS = (SHARED, TARGET_NAME, TARGET_EMBEDDING_SHA256)
SIZE_LABEL = "general.size_label"


def cut(contents: Contents, role: Role, heads: int | None = None) -> Edit:
    """What of a file one of `role` keeps, with the first `heads` of its heads (all of them unless given).

    A shared sidecar gets the placeholder of its target's embedding's hash where the file holds the embedding.
    Raises VerdictError when the file does not hold what the role needs, or when its keys contradict its tensors;
    UsageError for more heads than there are.
    """
    trunk_blocks, nextn_blocks = checked_blocks(contents)
    _check_role(contents, role)
    if heads is not None and not 1 <= heads <= nextn_blocks:
        message = f"has {counted(nextn_blocks, 'head')}: {heads} cannot be kept"
        raise UsageError("no-such-heads", message, subject=contents.name, remedy=f"--heads 1 to {nextn_blocks}")
    kept = nextn_blocks if heads is None else heads
    if role.has_head:
        refuse_missing_heads(contents, range(trunk_blocks, trunk_blocks + kept))
    blocks = range(0 if role.has_trunk else trunk_blocks, trunk_blocks + (kept if role.has_head else 0))
    outside = roles_outside_blocks(contents)
    tensors = [tensor for tensor in contents if _keeps(tensor, role, blocks, outside)]
    if not role.has_trunk:
        # A draft model is one file: loaders look for its head in the first one alone.
        tensors = [replace(tensor, shard=0) for tensor in tensors]
    keys = cut_keys(contents, role, blocks.stop, kept)
    if role is Role.MTP_SHARED and role_of(contents) is not role:
        keys |= _sidecar_keys(contents)
    names = {tensor.name for tensor in tensors}
    return Edit(
        relabelled(keys, contents, tensors),
        tuple(map(taken, tensors)),
        dropped=tuple((tensor.name, _reason(tensor, blocks.stop)) for tensor in contents if tensor.name not in names),
    )


def refuse_missing_heads(contents: Contents, blocks: range) -> None:
    """Raise VerdictError when there is no head at one of these blocks."""
    absent = set(blocks) - head_blocks(contents)
    if absent:
        places = ", ".join(f"blk.{block}" for block in sorted(absent))
        message = f"holds no head at {places}, where its keys declare one"
        remedy = "--heads keeps those before it; nextn join --replace-head puts all in from another file"
        raise VerdictError("head-missing", message, subject=contents.name, remedy=remedy)


def checked_blocks(contents: Contents) -> tuple[int, int]:
    """The numbers of trunk blocks and of heads.

    Raises VerdictError when the file cannot be cut by them: for names of another layout, files that are a head as a
    whole, and keys that contradict the tensors.
    """
    layout = layout_of(contents)
    naming = naming_of(layout.id)
    if layout.ambiguous or (naming and (naming.names or naming.fused)):
        names = " or ".join((layout.id, *layout.others))
        message = f"has the names of layout {names} ({layout.evidence}): which of them are the head's is not certain"
        raise VerdictError("layout", message, subject=contents.name, remedy="nextn relayout FILE -o OUT --to upstream")
    if is_whole_head(contents):
        raise VerdictError("whole-head", "is a head as a whole: there is no trunk to it", subject=contents.name)
    refuse_contradiction(contents)
    return blocks_of(contents)


def refuse_contradiction(contents: Contents) -> None:
    """Raise VerdictError when the keys say other numbers of blocks and heads than the tensors."""
    trunk_blocks, nextn_blocks = blocks_of(contents)
    keys = declared(contents)
    if (keys.block_count, keys.heads) != (trunk_blocks + nextn_blocks, nextn_blocks):
        says = (BLOCK_COUNT, keys.block_count), (NEXTN_PREDICT_LAYERS, keys.nextn_predict_layers)
        told = " and ".join(f"{name} {'absent' if value is None else value}" for name, value in says)
        message = (
            f"has the keys {told}, and holds {counted(trunk_blocks, 'trunk block')} and {counted(nextn_blocks, 'head')}"
        )
        raise VerdictError("contradictory", message, subject=contents.name, remedy="nextn repair FILE -o OUT")


def _check_role(contents: Contents, role: Role) -> None:
    have = role_of(contents)
    if have is None:
        raise VerdictError("no-blocks", "holds no block of a model", subject=contents.name)
    if role not in CUTS[have]:
        lacks = "trunk" if role.has_trunk and not have.has_trunk else "head"
        if {role, have} == {Role.MTP, Role.MTP_SHARED}:
            lacks = "embeddings"
        message = f"is {have}: it has no {lacks}, which {role} needs"
        remedies = {"head": "nextn join TRUNK HEAD gives it one", "embeddings": "nextn join TRUNK HEAD --emit mtp"}
        raise VerdictError("lacks-part", message, subject=contents.name, remedy=remedies.get(lacks))


def roles_outside_blocks(contents: Contents) -> dict[str, frozenset[Role]]:
    """The roles that hold each tensor outside blocks; without tables a head keeps them all, which its loader allows."""
    known = table_of(contents.architecture)
    roles = {spec.name: spec.roles for spec in known.tensors if not spec.per_block} if known else {}
    return {EMBEDDING: WITHOUT_SHARED, OUTPUT: WITHOUT_SHARED, **roles}


def _keeps(tensor: TensorInfo, role: Role, blocks: Collection[int], outside: Mapping[str, frozenset[Role]]) -> bool:
    block = block_of(tensor.name)
    return role in outside.get(tensor.name, EVERY_ROLE) if block is None else block in blocks


def _reason(tensor: TensorInfo, end: int) -> str:
    block = block_of(tensor.name)
    if block is None:
        return "no asked file has it"
    return f"belongs to a head, and no asked file has blk.{block}" if block >= end else "belongs to the trunk"


def cut_keys(contents: Contents, role: Role, block_count: int, heads: int) -> dict[str, Value]:
    """The keys of a file of `role` with that many blocks, `heads` of them the heads', in their order."""
    prefix = f"{contents.architecture}."
    known = table_of(contents.architecture)
    roles = {spec.name: spec.roles for spec in known.keys} if known else {}
    arrays = per_block_keys(contents.architecture)
    numbers = {BLOCK_COUNT: block_count, NEXTN_PREDICT_LAYERS: heads}
    keys: dict[str, Value] = {}
    for key, value in contents.keys.items():
        name = key.removeprefix(prefix) if key.startswith(prefix) else ""
        if key == TIED_OUTPUT and role is Role.MTP_SHARED:
            continue
        if (name in HEAD_KEYS and not role.has_head) or role not in roles.get(name, EVERY_ROLE):
            continue
        if name in numbers:
            keys[key] = replace(value, value=numbers[name])
        elif name in arrays and value.element is not None and block_count < (declared(contents).block_count or 0):
            keys[key] = replace(value, value=tuple(value.items[:block_count]))
        else:
            keys[key] = value
    return keys


def per_block_keys(architecture: str) -> frozenset[str]:
    """Keys that may hold an array with an entry for each block of the file, without their prefix."""
    name = upstream_spelling(architecture)
    known = table_of(architecture)
    of_tables = {spec.name for spec in known.keys if spec.rule is Rule.PER_BLOCK} if known else set()
    return frozenset(of_tables | {key for key, rule in array_keys(name).items() if rule.rule is Rule.PER_BLOCK})


def _sidecar_keys(contents: Contents) -> dict[str, Value]:
    """The marks of a sidecar that is cut from a file which holds its target's embedding."""
    keys = {SHARED: boolean(True)}
    if name := contents.keys.get("general.name"):
        keys[TARGET_NAME] = name
    if EMBEDDING in contents.tensors:
        keys[TARGET_EMBEDDING_SHA256] = string(hash_placeholder(EMBEDDING))
    return keys


def relabelled(keys: Mapping[str, Value], old: Contents, tensors: Iterable[TensorInfo]) -> dict[str, Value]:
    """The keys with the size label of the tensors, unless somebody chose the file's own."""
    label = keys.get(SIZE_LABEL)
    if label is None or label.value != size_label(old):
        return dict(keys)
    return {**keys, SIZE_LABEL: string(size_label(tensors))}
