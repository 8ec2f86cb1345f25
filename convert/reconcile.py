"""Configuration, index, headers and tables held against each other before anything is planned.

Tensors decide: where the configuration merely differs it is a finding, where a part of the model would be lost or
misread it is an error that says which file, tensor or key to look at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nextn.convert.checkpoint import Checkpoint
from nextn.convert.family import Facts, Family
from nextn.convert.mapping import Made, canonical, count_heads, layer_of
from nextn.gguf_schema.architecture import Hyperparameters, Role
from nextn.gguf_schema.errors import InputError, counted, listed

# LLAMA_MAX_LAYERS of llama.cpp b11549.
MAX_LAYERS = 512


def facts_of(checkpoint: Checkpoint, family: Family) -> Facts:
    """What names and configuration say; the number of heads is the tensors', held against the configuration's."""
    facts = Facts(checkpoint.text_config)
    trunk_blocks = facts.trunk_blocks = facts.integer("num_hidden_layers", least=1)
    facts.require(trunk_blocks <= MAX_LAYERS, "num_hidden_layers", f"is {trunk_blocks}; runtimes take {MAX_LAYERS}")
    names = {name: canonical(name, trunk_blocks) for name in (*checkpoint.tensors, *checkpoint.missing)}
    _check_spellings(names, checkpoint)
    facts.names = frozenset(names.values())
    facts.tensors = {names[name]: tensor for name, tensor in checkpoint.tensors.items()}
    facts.missing = {names[name]: part for name, part in checkpoint.missing.items()}
    facts.nextn_blocks = count_heads(facts.names, trunk_blocks)
    declared = facts.get(*family.head_count_keys, default=None)
    if (declared or 0) != facts.nextn_blocks:
        said = "does not say so" if declared is None else f"says {declared}"
        message = f"the tensors hold {counted(facts.nextn_blocks, 'head')}, config.json {said}; the tensors decide"
        facts.findings.warn("head-count", family.head_count_keys[0], message)
    return facts


def _check_spellings(names: Mapping[str, str], checkpoint: Checkpoint) -> None:
    """No two hub names, in shards or only in the index, are one tensor."""
    first: dict[str, str] = {}
    for name, canonical_name in names.items():
        if (other := first.setdefault(canonical_name, name)) != name:
            part = checkpoint.missing.get(name)
            raise InputError(
                "same-target",
                f"is there as both {other} and {name}"
                + (f", the latter only in the index, for {part}" if part else ""),
                subject=canonical_name,
                remedy=f"remove one of the two spellings from the {'index' if part else 'checkpoint'},"
                " or correct num_hidden_layers",
            )


def check_heads(family: Family, facts: Facts) -> None:
    """Every layer behind the trunk has tensors that only heads have; if not, num_hidden_layers is too small."""
    heads = {
        layer_of(name) for name in facts.names if any(".nextn." in target for target in family.names.targets(name))
    }
    behind = range(facts.trunk_blocks, facts.trunk_blocks + facts.nextn_blocks)
    if plain := [i for i in behind if i not in heads]:
        raise InputError(
            "config-contradicts-tensors",
            f"is {facts.trunk_blocks}, but layer {plain[0]} has none of a head's own tensors",
            subject="num_hidden_layers",
            remedy="correct num_hidden_layers in config.json",
        )


def check_places(family: Family, h: Hyperparameters, made: Mapping[str, Made], roles: Sequence[Role]) -> None:
    """Every tensor of the wanted part, trunk or head, has a place in a combined file."""
    places = {t.name for t in family.architecture.tensors_of(h, Role.COMBINED)}
    trunk, head = any(role.has_trunk for role in roles), any(role.has_head for role in roles)
    for target in made.values():
        wanted = head if target.block >= h.trunk_blocks else trunk
        if wanted and target.name not in places:
            raise InputError(
                "config-contradicts-tensors",
                f"becomes {target.name}, for which this model has no place by its configuration",
                subject=target.sources[0].name,
                remedy=f"check layer {target.block} in config.json (layer types, number of layers)",
            )


def check_complete(
    checkpoint: Checkpoint, family: Family, h: Hyperparameters, made: Mapping[str, Made], roles: Sequence[Role]
) -> None:
    """Every required tensor of every role can be made; otherwise the error names hub tensors, files and ways out."""
    lacking = {role: _lacking(family, h, role, made) for role in Role if role is Role.TRUNK or h.nextn_blocks}
    affected = [role for role in roles if lacking[role]]
    if not affected:
        return
    targets = dict.fromkeys(target for role in affected for target in lacking[role])
    names = [
        name
        for name in checkpoint.missing
        if not targets.keys().isdisjoint(family.names.targets(canonical(name, h.trunk_blocks)))
    ]
    parts = sorted({checkpoint.missing[name] for name in names})
    hub_names = names or [family.names.source(target) for target in targets]
    shown = listed(hub_names, 4)
    remedy = f"download {', '.join(parts)} again" if parts else "check config.json against the shards"
    if complete := [role for role in lacking if not lacking[role]]:
        remedy += f"; --emit {','.join(complete)} can proceed"
    raise InputError(
        "missing-tensors",
        f"{counted(len(hub_names), 'tensor')} needed for {' and '.join(affected)} not there: {shown}",
        subject=", ".join(parts) or checkpoint.name,
        remedy=remedy,
    )


def _lacking(family: Family, h: Hyperparameters, role: Role, made: Mapping[str, Made]) -> list[str]:
    return [t.name for t in family.architecture.tensors_of(h, role) if t.name not in made and not t.spec.optional]
