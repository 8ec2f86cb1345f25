"""Plans a conversion: from a checkpoint's headers to every key and tensor of the files to write."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nextn.convert.block_scales import join_scales, require_scales
from nextn.convert.checkpoint import Checkpoint
from nextn.convert.families import family_of
from nextn.convert.family import Facts, Family
from nextn.convert.mapping import Made, Mapped, Names, canonical, map_names, without_towers
from nextn.convert.metadata import ModelDescription, file_name, fill_template, read_description
from nextn.convert.plan import Dropped, Payload, Plan, PlannedFile, hash_placeholder
from nextn.convert.quantize import DECODERS
from nextn.convert.reconcile import check_complete, check_heads, check_places, facts_of
from nextn.convert.source_tensor import SourceTensor
from nextn.convert.splitting import Split, plan_shards
from nextn.convert.tensor_types import TypeChooser
from nextn.convert.tokenizer import tokenizer_keys
from nextn.convert.transforms import Recipe
from nextn.gguf_schema.architecture import ExpectedTensor, Hyperparameters, Role
from nextn.gguf_schema.contents import TensorInfo, Value, boolean, string, u32
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.nextn_generic import (
    EMBEDDING,
    OUTPUT,
    SHARED,
    TARGET_EMBEDDING_SHA256,
    TARGET_NAME,
    TIED_OUTPUT,
)
from nextn.gguf_schema.types import BF16, F16, F32, FILE_TYPES, TENSOR_TYPES, TensorType
from nextn.gguf_schema.values import encoded_once
from nextn.validators.findings import Findings

QUANTIZATION_VERSION = 2


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    roles: tuple[Role, ...] = (Role.COMBINED,)
    outtype: str = "auto"
    require_mtp: bool = False
    model_name: str | None = None
    metadata_file: Path | None = None
    pre: str | None = None
    tie: bool = False
    type_rules: tuple[tuple[re.Pattern[str], TensorType], ...] = ()
    fp8_as_q8: bool = False
    split: Split = field(default_factory=Split)
    outfile: str | None = None


def plan_conversion(checkpoint: Checkpoint, options: Options) -> Plan:
    """The plan of converting a checkpoint; reads headers, the tokenizer and tensors of at most 64 KiB.

    Raises InputError when the checkpoint is unsupported, incomplete for the asked roles, or contradicts itself.
    """
    family = family_of(checkpoint.config)
    checkpoint, towers = without_towers(checkpoint)
    checkpoint, unused_scales = join_scales(checkpoint)
    facts = facts_of(checkpoint, family)
    findings = facts.findings
    mapped = map_names(checkpoint.tensors.values(), family.names, facts.trunk_blocks)
    check_heads(family, facts)
    roles = _settle_roles(checkpoint, options, facts)
    h = family.hyperparameters(facts)
    made = _made(checkpoint, family, facts, h, mapped)
    _tie_output(checkpoint, family, facts, made, roles, options)
    check_places(family, h, made, roles)
    check_complete(checkpoint, family, h, made, roles)
    expected = {role: {t.name: t for t in family.architecture.tensors_of(h, role)} for role in roles}
    types = TypeChooser(_outtype(checkpoint, options), options.type_rules, options.fp8_as_q8)
    payload = tuple(_payload(family, made, h, expected, types, findings))
    if options.outtype == "auto":
        _warn_of_mixed_dtypes(payload, types.outtype, findings)
    require_scales((source for p in payload for source in p.recipe.sources), checkpoint)
    tokenizer = tokenizer_keys(
        checkpoint.folder, checkpoint.config, h.vocab_size, style=family.tokenizer, pre=options.pre
    )
    description = read_description(
        checkpoint.folder,
        name=checkpoint.repository.split("@")[0].rpartition("/")[2] if checkpoint.repository else None,
        model_name=options.model_name,
        overrides_file=options.metadata_file,
    )
    vocabulary = {key: encoded_once(key, value) for key, value in tokenizer.keys.items()}
    files = tuple(
        file
        for role in roles
        for file in _files(family, description, role, h, payload, expected[role], types.outtype, vocabulary, options)
    )
    dropped = [Dropped(name, reason) for name, reason in (*towers, *mapped.dropped, *unused_scales)]
    dropped += _left_out(made.values(), payload, facts.trunk_blocks)
    noticed = (*checkpoint.findings, *findings, *types.findings(), *tokenizer.findings, *description.findings)
    return Plan(files, payload, tuple(dropped), tuple(dict.fromkeys(noticed)), _inputs(checkpoint, options))


def _inputs(checkpoint: Checkpoint, options: Options) -> tuple[Path, ...]:
    """Every file that is read; a GGUF beside the checkpoint is an earlier output and may be replaced."""
    found = (path for pattern in ("*", "*/*") for path in checkpoint.folder.glob(pattern))
    files = [path for path in found if path.is_file() and path.suffix != ".gguf"]
    return (*files, options.metadata_file) if options.metadata_file else tuple(files)


def _settle_roles(checkpoint: Checkpoint, options: Options, facts: Facts) -> tuple[Role, ...]:
    """The roles to write. Without a head only a trunk can be written; for a trunk alone a head need not be complete."""
    roles = tuple(dict.fromkeys(options.roles))
    if facts.nextn_blocks == 0:
        wanted = next((role for role in roles if not role.has_trunk), None)
        if wanted or options.require_mtp:
            raise InputError(
                "no-head",
                f"holds no head, which {f'--emit {wanted}' if wanted else '--require-mtp'} needs",
                subject=checkpoint.name,
                remedy="take the head from the base model's repository, or use --emit trunk",
            )
        if Role.COMBINED in roles:
            facts.findings.warn(
                "no-head",
                checkpoint.name,
                "holds no head: a trunk file is written instead of a combined one",
                "give --require-mtp to stop instead",
            )
        roles = (Role.TRUNK,)
    elif roles == (Role.TRUNK,):
        facts.nextn_blocks = 0
    facts.trunk_wanted = any(role.has_trunk for role in roles)
    return roles


def _made(checkpoint: Checkpoint, family: Family, facts: Facts, h: Hyperparameters, mapped: Mapped) -> dict[str, Made]:
    """Every tensor that can be made, by GGUF name in upstream's order."""
    made = {name: _computed(name, recipe) for name, recipe in family.generated(facts, h)}
    made |= {target.name: target for target in mapped.targets}
    for name in checkpoint.missing:
        for target in family.names.targets(canonical(name, facts.trunk_blocks)):
            made.pop(target, None)
    return made


def _computed(name: str, recipe: Recipe) -> Made:
    return Made(name, -1, lambda *_: recipe, (), ())


def _tie_output(
    checkpoint: Checkpoint,
    family: Family,
    facts: Facts,
    made: dict[str, Made],
    roles: Iterable[Role],
    options: Options,
) -> None:
    """Settle where the output matrix comes from when the checkpoint has none; a shared sidecar borrows it anyway."""
    if OUTPUT in made or "lm_head.weight" in facts.names or EMBEDDING not in made or set(roles) == {Role.MTP_SHARED}:
        return
    declared = checkpoint.config.get("tie_word_embeddings") or facts.get("tie_word_embeddings", default=False)
    if not (declared or options.tie):
        raise InputError(
            "no-output",
            "is not there, and config.json does not tie the output matrix to the embeddings",
            subject="lm_head.weight",
            remedy="download the missing shard, or give --tie to use the embeddings",
        )
    if family.tied_output == "copy":
        made[OUTPUT] = made[EMBEDDING]._replace(name=OUTPUT)
    how = {"copy": "a copy of the embeddings is written", "absent": "runtimes use the embeddings"}[family.tied_output]
    facts.findings.note("tied-output", OUTPUT, f"the model has none of its own: {how}")


def _outtype(checkpoint: Checkpoint, options: Options) -> TensorType:
    """The type of matrices; `auto` follows the first matrix: F16 stays F16, all else becomes BF16."""
    if options.outtype != "auto":
        return TENSOR_TYPES[options.outtype.upper()]
    first = next((t.dtype for t in checkpoint.tensors.values() if len(t.shape) > 1), "BF16")
    return F16 if first == "F16" else BF16


def _warn_of_mixed_dtypes(payload: Iterable[Payload], outtype: TensorType, findings: Findings) -> None:
    """Say so when `auto` chose one type for matrices of several; those that are stored in F32 anyway do not count."""
    chosen = (p for p in payload if p.info.type != F32 and len(p.info.ne) > 1)
    sources = {source for p in chosen for source in p.recipe.sources if source.scale is None}
    counts = Counter(source.dtype for source in sources)
    if len(counts) > 1:
        held = ", ".join(f"{count} {dtype}" for dtype, count in counts.most_common())
        message = f"the matrices are of several types ({held}): auto follows the first one and takes {outtype.name}"
        findings.warn("mixed-dtypes", "--outtype auto", message, "give --outtype to choose")


def _payload(
    family: Family,
    made: Mapping[str, Made],
    h: Hyperparameters,
    expected: Mapping[Role, Mapping[str, ExpectedTensor]],
    types: TypeChooser,
    findings: Findings,
) -> Iterable[Payload]:
    """Every tensor of any file, in canonical order: the trunk file's in upstream's order, then the heads' own.

    The embedding is among them for a shared sidecar alone, too: its hash goes into the sidecar.
    """
    places = {name: t for tensors in expected.values() for name, t in tensors.items()}
    if Role.MTP_SHARED in expected:
        places |= {t.name: t for t in family.architecture.tensors_of(h, Role.MTP) if t.name == EMBEDDING}
        if EMBEDDING not in made:
            message = "is not there, so the sidecar cannot say by its hash which target it belongs to"
            findings.warn("no-target-hash", family.names.source(EMBEDDING), message)
    chosen = [target for target in made.values() if target.name in places]
    for target in sorted(chosen, key=lambda target: target.block >= h.trunk_blocks):
        place = places[target.name]
        recipe = _recipe(target, family.names, h, place)
        type_ = types.choose(place, recipe.sources)
        yield Payload(TensorInfo(target.name, place.ne, type_, type_.tensor_bytes(place.ne)), recipe)


def _recipe(target: Made, names: Names, h: Hyperparameters, place: ExpectedTensor) -> Recipe:
    """The recipe of a target, checked: dtypes that can be read, parts without a gap, the shape that the tables want."""
    for source in target.sources:
        if source.dtype not in DECODERS:
            raise InputError(
                "unsupported-dtype",
                f"is {source.dtype}; weights must be {', '.join(DECODERS)}",
                subject=source.name,
                remedy="the shard is damaged, or of another model",
            )
    if target.parts and (absent := names.absent_part(target)):
        raise InputError(
            "missing-part",
            f"is not there; {target.name} is made from it, {target.sources[0].name} and others like it",
            subject=absent,
            remedy="download the missing shard",
        )
    try:
        recipe = target.transform(target.sources, h, target.block)
    except (ValueError, IndexError) as error:
        raise _wrong_shape(target, place) from error
    if recipe.shape[::-1] != place.ne:
        raise _wrong_shape(target, place)
    return recipe


def _wrong_shape(target: Made, place: ExpectedTensor) -> InputError:
    shapes = Counter(source.shape for source in target.sources)
    ((usual, _),) = shapes.most_common(1)
    odd = next((source for source in target.sources if source.shape != usual), target.sources[0])
    beside = f" beside {len(target.sources) - 1} of {list(usual)}" if len(target.sources) > 1 else ""
    return InputError(
        "wrong-shape",
        f"{list(odd.shape)}{beside} cannot become {target.name} {list(place.ne)} ({place.spec.dims})",
        subject=odd.name,
        remedy="config.json and the shards do not belong together, or a shard is damaged",
    )


def _files(
    family: Family,
    description: ModelDescription,
    role: Role,
    h: Hyperparameters,
    payload: Sequence[Payload],
    expected: Mapping[str, ExpectedTensor],
    outtype: TensorType,
    tokenizer: Mapping[str, Value],
    options: Options,
) -> tuple[PlannedFile, ...]:
    """The file of a role, or its shards."""
    tensors = [p.info for p in payload if p.info.name in expected]
    keys = description.general_keys(family.architecture.name, tensors)
    keys |= family.architecture.key_values(h, role, FILE_TYPES[outtype.name])
    keys |= {"general.quantization_version": u32(QUANTIZATION_VERSION), **tokenizer}
    hashed: tuple[str, ...] = ()
    if role is Role.MTP_SHARED:
        keys |= {SHARED: boolean(True), TARGET_NAME: keys["general.name"]}
        if any(p.info.name == EMBEDDING for p in payload):
            keys[TARGET_EMBEDDING_SHA256] = string(hash_placeholder(EMBEDDING))
            hashed = (EMBEDDING,)
    elif OUTPUT not in expected:
        keys[TIED_OUTPUT] = boolean(True)
    name = description.stem()
    path = (
        fill_template(options.outfile, role, name, outtype.name)
        if options.outfile
        else file_name(role, name, outtype.name)
    )
    return plan_shards(role, PurePosixPath(path), keys, tensors, options.split, hashed)


def _left_out(made: Iterable[Made], payload: Iterable[Payload], trunk_blocks: int) -> Iterable[Dropped]:
    """Sources that no file of the asked roles holds."""
    used: set[SourceTensor] = {source for p in payload for source in p.recipe.sources}
    unused = {source: target for target in made for source in target.sources if source not in used}
    for source, target in unused.items():
        part = "head" if target.block >= trunk_blocks else "trunk"
        yield Dropped(source.name, f"belongs to the {part}, which no asked file holds")
