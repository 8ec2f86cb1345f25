"""Joining a trunk and a head to one file, and giving a shared sidecar its embeddings back.

Source of the rules: the surgery sections of the three families; the result is what the converter writes combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from nextn.convert.surgery.cut import (
    HEAD_KEYS,
    SIDECAR_KEYS,
    checked_blocks,
    cut,
    per_block_keys,
    refuse_missing_heads,
    relabelled,
    roles_outside_blocks,
)
from nextn.gguf_schema.architecture import EVERY_ROLE, Role, block_of
from nextn.gguf_schema.contents import Contents, Value, boolean
from nextn.gguf_schema.edit import Edit, Taken, taken
from nextn.gguf_schema.errors import UsageError, VerdictError, counted, listed
from nextn.gguf_schema.layouts import NAMINGS, layout_of, naming_of
from nextn.gguf_schema.nextn_architectures import array_keys
from nextn.gguf_schema.nextn_generic import (
    BLOCK_COUNT,
    EMBEDDING,
    NEXTN_PREDICT_LAYERS,
    OUTPUT,
    TIED_OUTPUT,
    blocks_of,
    head_blocks,
    is_tied,
    role_of,
)
from nextn.validators.findings import Finding, Findings, Severity
from nextn.validators.pair import examine_pair
from nextn.validators.wording import dims

# The borrowed tensors, which a sidecar gets back.
LENT = (EMBEDDING, OUTPUT)


def join(trunk: Contents, head: Contents, *, replace_head: bool = False) -> Edit:
    """The combined file of a trunk and the heads of `head`, which may itself be combined; keys and globals the trunk's.

    In canonical order: the trunk's tensors in its order, then the heads' in the order of their file. `replace_head`
    drops the heads that the trunk has. Raises VerdictError with every reason why the two do not fit.
    """
    changes: list[str] = []
    if role_of(head) is Role.TRUNK and role_of(trunk) is not Role.TRUNK:
        message = f"is a trunk, and {trunk.name} holds a head: they are the other way round"
        raise VerdictError("pair-refused", message, subject=head.name, remedy="nextn join TRUNK HEAD")
    if role_of(trunk) is Role.COMBINED:
        if not replace_head:
            remedy = "--replace-head puts the other in its place"
            raise UsageError("has-head", "has a head already", subject=trunk.name, remedy=remedy)
        changes = [f"{trunk.name}: {counted(len(head_blocks(trunk)), 'head')} replaced"]
        trunk = cut(trunk, Role.TRUNK).contents(trunk.name)
    refuse_mismatch(trunk, head, pair_reasons(trunk, head, _reasons))
    trunk_blocks, heads = checked_blocks(head)
    refuse_missing_heads(head, range(trunk_blocks, trunk_blocks + heads))
    blocks = head_blocks(head)
    last = max((tensor.shard for tensor in trunk), default=0)
    tensors = [*map(taken, trunk), *(_in_shard(taken(t, 1), last) for t in head if block_of(t.name) in blocks)]
    keys = relabelled(_joined_keys(trunk, head, trunk_blocks, heads), trunk, [tensor.info for tensor in tensors])
    if role_of(head) is Role.MTP and (own := [tensor.name for tensor in head if block_of(tensor.name) is None]):
        changes.append(f"{head.name}: {listed(own)} are left out, the trunk's are taken")
    return Edit(keys, tuple(tensors), (*changes, *ancestry(trunk, head)))


def rehydrate(trunk: Contents, head: Contents) -> Edit:
    """The draft model of a shared sidecar: its own tensors, and the embedding and output matrix of the trunk.

    Raises VerdictError with every reason why the two do not fit, UsageError when the head is no sidecar.
    """
    if role_of(head) is not Role.MTP_SHARED:
        raise UsageError("not-shared", f"is {role_of(head) or 'no model'}, want mtp-shared", subject=head.name)
    refuse_mismatch(trunk, head, pair_reasons(trunk, head))
    outside = [tensor for tensor in trunk if block_of(tensor.name) is None]
    tensors = [
        taken(head.tensors[tensor.name], 1) if tensor.name in head.tensors else taken(tensor)
        for tensor in outside
        if tensor.name in head.tensors or tensor.name in LENT
    ]
    placed = {tensor.info.name for tensor in tensors}
    tensors += [taken(tensor, 1) for tensor in head if tensor.name not in placed]
    tensors = [_in_shard(tensor, 0) for tensor in tensors]
    marks = {*SIDECAR_KEYS, *(naming.marker for naming in NAMINGS)}
    keys = {key: value for key, value in head.keys.items() if key not in marks}
    if is_tied(trunk):
        keys[TIED_OUTPUT] = boolean(True)
    keys = relabelled(keys, head, [tensor.info for tensor in tensors])
    return Edit(keys, tuple(tensors), tuple(ancestry(trunk, head)))


def _in_shard(tensor: Taken, shard: int) -> Taken:
    return replace(tensor, info=replace(tensor.info, shard=shard))


def refuse_mismatch(trunk: Contents, head: Contents, reasons: Sequence[str]) -> None:
    """Raise VerdictError when there are reasons against the pair."""
    if reasons:
        message = f"does not fit {trunk.name}: {'; '.join(reasons)}"
        remedy = f"nextn validate {trunk.name} --draft {head.name} says what to do"
        raise VerdictError("pair-refused", message, subject=head.name, remedy=remedy)


def pair_reasons(
    trunk: Contents, head: Contents, more: Callable[[Contents, Contents], Iterable[str]] = lambda *_: ()
) -> list[str]:
    """What the validator has against the pair, and `more`, which means nothing for another architecture."""
    findings = Findings()
    examine_pair(trunk, head, findings)
    reasons = [f"{f.subject} {f.message}" if f.subject != head.name else f.message for f in findings if _is_error(f)]
    return [*reasons, *more(trunk, head)] if trunk.architecture == head.architecture else reasons


def _is_error(finding: Finding) -> bool:
    """Special tokens are the trunk's in the joined file, so that a fine-tune may have others."""
    return finding.severity is Severity.ERROR and finding.rule != "pair-special-token"


def _reasons(trunk: Contents, head: Contents) -> Iterator[str]:
    """What a pair may do and a joined file may not: tensors and arrays of the head that would be the trunk's too."""
    layout = layout_of(head)
    # Names of other layouts are refused by themselves.
    if (naming := naming_of(layout.id)) and naming.last and not naming.renames:
        yield f"it is in layout {layout.id} ({layout.evidence}), which must be relaid to upstream first"
    roles = roles_outside_blocks(head)
    for tensor in head:
        if block_of(tensor.name) is not None:
            continue
        ours = trunk.tensors.get(tensor.name)
        if ours is None and (role_of(head) is not Role.COMBINED or Role.MTP in roles.get(tensor.name, EVERY_ROLE)):
            yield f"{tensor.name} is in the head alone, and would be the trunk's too"
        elif ours is not None and ours.ne != tensor.ne and tensor.name not in LENT:
            yield f"{tensor.name} has dimensions {dims(tensor.ne)} in the head, {dims(ours.ne)} in the trunk"
    yield from _array_reasons(trunk, head)


def _array_reasons(trunk: Contents, head: Contents) -> Iterator[str]:
    """Arrays over blocks that would lack entries of the joined file, or have them at other blocks' places."""
    blocks, heads = blocks_of(head)
    for name in sorted(per_block_keys(trunk.architecture)):
        key = f"{trunk.architecture}.{name}"
        ours, theirs = (_entries(contents.get(name)) for contents in (trunk, head))
        if theirs is not None and trunk.get(name) is None:
            yield f"{key} is in the head alone, and says something of the trunk's blocks too"
        elif ours is not None and head.get(name) is None and ours < blocks + heads:
            yield f"{key} has an entry for each block, and the head's file has none for its own"
        elif (
            theirs is not None
            and theirs < blocks + heads
            and not (ours == min(theirs, blocks) and _is_lenient(head, name))
        ):
            yield f"{key} has {theirs} entries in the head, which should have {blocks + heads}"
        elif ours is not None and ours < blocks and ours != theirs:
            yield f"{key} has {ours} entries in the trunk, which should have {blocks}"


def _entries(value: Value | None) -> int | None:
    """The length of an array; None for a single value, which stands for all blocks."""
    return None if value is None or value.element is None else len(value.items)


def _is_lenient(contents: Contents, name: str) -> bool:
    """Whether the loader takes a shorter array, and reads what is missing as 0."""
    rule = array_keys(contents.architecture).get(name)
    return rule is not None and rule.lenient


def _joined_keys(trunk: Contents, head: Contents, blocks: int, heads: int) -> dict[str, Value]:
    """The trunk's keys with the head's entries, and the keys about heads where the head's file has them."""
    prefix = f"{trunk.architecture}."
    keys = dict(trunk.keys)
    for name in per_block_keys(trunk.architecture):
        if (ours := trunk.get(name)) and (theirs := head.get(name)):
            keys[prefix + name] = _extended(ours, theirs, blocks, heads)
    keys[prefix + BLOCK_COUNT] = replace(keys[prefix + BLOCK_COUNT], value=blocks + heads)
    added = {prefix + name: value for name in HEAD_KEYS if (value := head.get(name))}
    added[prefix + NEXTN_PREDICT_LAYERS] = replace(added[prefix + NEXTN_PREDICT_LAYERS], value=heads)
    return _merged(keys, added, head.keys)


def _extended(ours: Value, theirs: Value, blocks: int, heads: int) -> Value:
    """The trunk's entries and the heads'; a single value stands for all blocks."""
    if ours.element is None and theirs.element is None:
        return ours
    array = ours if ours.element is not None else theirs
    trunk, head = (
        [*value.items] * (blocks + heads) if value.element is None else value.items for value in (ours, theirs)
    )
    return replace(array, value=(*trunk[:blocks], *head[blocks:]))


def _merged(keys: Mapping[str, Value], added: Mapping[str, Value], order: Mapping[str, Value]) -> dict[str, Value]:
    """Keys with others, which replace those of the same name, or stand behind the one that they follow in `order`."""
    merged = list(keys)
    last = -1
    for key in order:
        if key in keys:
            last = merged.index(key)
        elif key in added:
            last += 1
            merged.insert(last, key)
    return {key: added[key] if key in added else keys[key] for key in merged}


def ancestry(trunk: Contents, head: Contents) -> Iterator[str]:
    """What the files say of where they come from."""
    for what, contents in (("trunk", trunk), ("head", head)):
        told = [
            f"{word} {value.value}"
            for key, word in (
                ("general.name", "called"),
                ("general.base_model.0.name", "made from"),
                ("general.base_model.0.repo_url", "at"),
                ("nextn.target.name", "for the target"),
            )
            if (value := contents.keys.get(key))
        ]
        yield f"{what}: {contents.name}: {', '.join(told) or 'says nothing of its origin'}"
