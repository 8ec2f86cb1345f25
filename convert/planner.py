"""Plans a conversion: from a checkpoint's headers to every key and tensor of the files to write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nextn.convert.checkpoint import Checkpoint, SourceTensor
from nextn.convert.families import family_of
from nextn.convert.family import Facts, Family
from nextn.convert.mapping import VISION, Made, canonical, count_heads, map_names
from nextn.convert.metadata import ModelDescription, file_name, read_description
from nextn.convert.plan import Dropped, Payload, Plan, PlannedFile, hash_placeholder, plan_file
from nextn.convert.quantize import DECODERS
from nextn.convert.tokenizer import TokenizerKeys, tokenizer_keys
from nextn.convert.transforms import Recipe
from nextn.gguf_schema.architecture import ExpectedTensor, Hyperparameters, Role
from nextn.gguf_schema.contents import TensorInfo, boolean, string, u32
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.nextn_generic import EMBEDDING, SHARED, TARGET_EMBEDDING_SHA256, TARGET_NAME
from nextn.gguf_schema.types import BF16, F16, F32, FILE_TYPES, TENSOR_TYPES, TensorType
from nextn.validators.findings import Finding, Severity

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


def plan_conversion(checkpoint: Checkpoint, options: Options) -> Plan:
    """The plan of converting a checkpoint; reads headers, the tokenizer and tensors of at most 64 KiB.

    Raises InputError when the checkpoint is unsupported, incomplete for the asked roles, or contradicts itself.
    """
    findings = list(checkpoint.findings)
    family = family_of(checkpoint.config)
    facts = _facts(checkpoint, family, findings)
    roles = _settle_roles(checkpoint, options, facts, findings)
    h = family.hyperparameters(facts)
    made, dropped = _made(checkpoint, family, facts, h, options, findings)
    expected = {role: {t.name: t for t in family.architecture.tensors_of(h, role)} for role in roles}
    _check_complete(checkpoint, family, facts.trunk_blocks, made, expected)
    _check_places(family, h, made)
    outtype = _outtype(checkpoint, options)
    payload = tuple(_payload(family, made, h, expected, outtype, findings))
    tokenizer = tokenizer_keys(
        checkpoint.folder, checkpoint.config, h.vocab_size, style=family.tokenizer, pre=options.pre
    )
    description = read_description(
        checkpoint.folder, model_name=options.model_name, overrides_file=options.metadata_file
    )
    files = tuple(
        _file(
            family, description, role, h, [p.info for p in payload if p.info.name in expected[role]], outtype, tokenizer
        )
        for role in roles
    )
    left_out = _left_out(made.values(), payload, facts.trunk_blocks)
    findings += [*facts.findings, *tokenizer.findings, *description.findings]
    return Plan(files, payload, (*dropped, *left_out), tuple(dict.fromkeys(findings)))


def _facts(checkpoint: Checkpoint, family: Family, findings: list[Finding]) -> Facts:
    """What names and configuration say; the number of heads is the tensors', held against the configuration's."""
    config = checkpoint.text_config
    trunk_blocks = Facts(config).integer("num_hidden_layers")
    names = {
        name: canonical(name, trunk_blocks)
        for name in (*checkpoint.tensors, *checkpoint.missing)
        if not VISION.search(name)
    }
    heads = count_heads(names.values(), trunk_blocks)
    declared = next((config[key] for key in family.head_count_keys if config.get(key) is not None), None)
    if (declared or 0) != heads:
        said = "does not say so" if declared is None else f"says {declared}"
        message = f"the tensors hold {heads} heads, config.json {said}; the tensors decide"
        findings.append(Finding(Severity.WARNING, "head-count", family.head_count_keys[0], message))
    tensors = {names[name]: tensor for name, tensor in checkpoint.tensors.items() if name in names}
    return Facts(config, tensors, frozenset(names.values()), trunk_blocks, heads)


def _settle_roles(checkpoint: Checkpoint, options: Options, facts: Facts, findings: list[Finding]) -> tuple[Role, ...]:
    """The roles to write. Without a head only a trunk can be written; for a trunk alone a head need not be complete."""
    roles = tuple(dict.fromkeys(options.roles))
    if facts.nextn_blocks == 0:
        wanted = next((role for role in roles if role in (Role.MTP, Role.MTP_SHARED)), None)
        if wanted or options.require_mtp:
            raise InputError(
                "no-head",
                f"holds no head, which {f'--emit {wanted}' if wanted else '--require-mtp'} needs",
                subject=str(checkpoint.folder),
                remedy="take the head from the base model's repository, or use --emit trunk",
            )
        if Role.COMBINED in roles:
            message = "holds no head: a trunk file is written instead of a combined one"
            findings.append(Finding(Severity.WARNING, "no-head", str(checkpoint.folder), message))
        roles = (Role.TRUNK,)
    elif roles == (Role.TRUNK,):
        facts.nextn_blocks = 0
    return roles


def _made(
    checkpoint: Checkpoint,
    family: Family,
    facts: Facts,
    h: Hyperparameters,
    options: Options,
    findings: list[Finding],
) -> tuple[dict[str, Made], tuple[Dropped, ...]]:
    """Every tensor that can be made, by GGUF name in upstream's order, and the source tensors dropped by a rule."""
    mapped = map_names(checkpoint.tensors.values(), family.names, facts.trunk_blocks)
    made = {name: _computed(name, recipe) for name, recipe in family.generated(facts, h)}
    made |= {target.name: target for target in mapped.targets}
    for name in checkpoint.missing:
        for target in family.names.targets(canonical(name, facts.trunk_blocks)):
            made.pop(target, None)
    if "output.weight" not in made and "lm_head.weight" not in facts.names and "token_embd.weight" in made:
        if not (
            checkpoint.config.get("tie_word_embeddings")
            or facts.get("tie_word_embeddings", default=False)
            or options.tie
        ):
            raise InputError(
                "no-output",
                "is not there, and config.json does not tie the output matrix to the embeddings",
                subject="lm_head.weight",
                remedy="download the missing shard, or give --tie to use the embeddings",
            )
        if family.tied_output == "copy":
            made["output.weight"] = made["token_embd.weight"]._replace(name="output.weight")
        how = {"copy": "a copy of the embeddings is written", "absent": "runtimes use the embeddings"}[
            family.tied_output
        ]
        findings.append(Finding(Severity.NOTE, "tied-output", "output.weight", f"the model has none of its own: {how}"))
    return made, tuple(Dropped(name, reason) for name, reason in mapped.dropped)


def _computed(name: str, recipe: Recipe) -> Made:
    return Made(name, -1, lambda *_: recipe, (), ())


def _check_complete(
    checkpoint: Checkpoint,
    family: Family,
    trunk_blocks: int,
    made: Mapping[str, Made],
    expected: Mapping[Role, Mapping[str, ExpectedTensor]],
) -> None:
    """Every required tensor of every role can be made; otherwise the error names hub tensors, files and ways out."""
    lacking: dict[str, ExpectedTensor] = {}
    affected = []
    for role, tensors in expected.items():
        absent = {name: t for name, t in tensors.items() if name not in made and not t.spec.optional}
        lacking |= absent
        affected += [role] if absent else []
    if not lacking:
        return
    names = [
        name
        for name in checkpoint.missing
        if not lacking.keys().isdisjoint(family.names.targets(canonical(name, trunk_blocks)))
    ]
    parts = sorted({checkpoint.missing[name] for name in names})
    hub_names = names or [family.names.source(name) for name in lacking]
    shown = ", ".join(hub_names[:4]) + (f", … {len(hub_names) - 4} more" if len(hub_names) > 4 else "")
    remedy = f"download {', '.join(parts)} again" if parts else "check config.json against the shards"
    if all(t.block >= trunk_blocks for t in lacking.values()):
        remedy += "; only the head is affected, --emit trunk can proceed"
    raise InputError(
        "missing-tensors",
        f"{len(hub_names)} tensors that {' and '.join(affected)} need are not there: {shown}",
        subject=", ".join(parts) or str(checkpoint.folder),
        remedy=remedy,
    )


def _check_places(family: Family, h: Hyperparameters, made: Mapping[str, Made]) -> None:
    """Every tensor has a place in a combined file, except those of heads that are not wanted at all."""
    places = {t.name for t in family.architecture.tensors_of(h, Role.COMBINED)}
    for target in made.values():
        if target.name not in places and target.block < h.block_count(Role.COMBINED):
            raise InputError(
                "config-contradicts-tensors",
                f"becomes {target.name}, for which this model has no place by its configuration",
                subject=target.sources[0].name,
                remedy=f"check layer {target.block} in config.json (layer types, number of layers)",
            )


def _outtype(checkpoint: Checkpoint, options: Options) -> TensorType:
    """The type of matrices; `auto` follows the first matrix: F16 stays F16, all else becomes BF16."""
    if options.outtype != "auto":
        return TENSOR_TYPES[options.outtype.upper()]
    first = next((t.dtype for t in checkpoint.tensors.values() if len(t.shape) > 1), "BF16")
    return F16 if first == "F16" else BF16


def _payload(
    family: Family,
    made: Mapping[str, Made],
    h: Hyperparameters,
    expected: Mapping[Role, Mapping[str, ExpectedTensor]],
    outtype: TensorType,
    findings: list[Finding],
) -> Iterable[Payload]:
    """Every tensor of any file, in canonical order: the trunk file's in upstream's order, then the heads' own.

    The embedding is among them for a shared sidecar alone, too: its hash goes into the sidecar.
    """
    places = {name: t for tensors in expected.values() for name, t in tensors.items()}
    if Role.MTP_SHARED in expected:
        places |= {t.name: t for t in family.architecture.tensors_of(h, Role.MTP) if t.name == EMBEDDING}
    chosen = [target for target in made.values() if target.name in places]
    for target in sorted(chosen, key=lambda target: target.block >= h.trunk_blocks):
        place = places[target.name]
        recipe = _recipe(target, h, place)
        type_ = F32 if place.spec.f32 else outtype
        if place.ne[0] % type_.block:
            message = f"rows of {place.ne[0]} are not whole blocks of {type_.name}: stored as F16"
            findings.append(Finding(Severity.WARNING, "type-fallback", target.name, message))
            type_ = F16
        yield Payload(TensorInfo(target.name, place.ne, type_, type_.tensor_bytes(place.ne)), recipe)


def _recipe(target: Made, h: Hyperparameters, place: ExpectedTensor) -> Recipe:
    """The recipe of a target, checked: dtypes that can be read, parts without a gap, the shape that the tables want."""
    for source in target.sources:
        if source.dtype not in DECODERS:
            raise InputError(
                "unsupported-dtype",
                f"is {source.dtype}; weights must be {', '.join(DECODERS)}",
                subject=source.name,
                remedy="use the model's BF16 repository",
            )
    gap = next((want for want, have in enumerate(target.parts) if want != have), None)
    if gap is not None:
        raise InputError(
            "missing-part", f"part {gap} of {len(target.parts)} is not there", subject=_numbered(target, gap)
        )
    try:
        recipe = target.transform(target.sources, h, target.block)
    except (ValueError, IndexError) as error:
        raise _wrong_shape(target, place) from error
    if recipe.shape[::-1] != place.ne or any(s.shape != target.sources[0].shape for s in target.sources[1:]):
        raise _wrong_shape(target, place)
    return recipe


def _numbered(target: Made, part: int) -> str:
    return f"{target.name} (sources like {target.sources[0].name}, number {part})"


def _wrong_shape(target: Made, place: ExpectedTensor) -> InputError:
    source = target.sources[0]
    more = f" and {len(target.sources) - 1} more" if len(target.sources) > 1 else ""
    return InputError(
        "wrong-shape",
        f"{list(source.shape)}{more} cannot become {target.name} {list(place.ne)} ({place.spec.dims})",
        subject=source.name,
        remedy="config.json and the shards do not belong together, or a shard is damaged",
    )


def _file(
    family: Family,
    description: ModelDescription,
    role: Role,
    h: Hyperparameters,
    tensors: Sequence[TensorInfo],
    outtype: TensorType,
    tokenizer: TokenizerKeys,
) -> PlannedFile:
    keys = description.general_keys(family.architecture.name, tensors)
    keys |= family.architecture.key_values(h, role, FILE_TYPES[outtype.name])
    keys |= {"general.quantization_version": u32(QUANTIZATION_VERSION), **tokenizer.keys}
    hashed: tuple[str, ...] = ()
    if role is Role.MTP_SHARED:
        keys |= {
            SHARED: boolean(True),
            TARGET_NAME: keys["general.name"],
            TARGET_EMBEDDING_SHA256: string(hash_placeholder(EMBEDDING)),
        }
        hashed = (EMBEDDING,)
    # No size in the name: it is another for each file, and the names of a pair should match.
    path = PurePosixPath(file_name(role, description.stem(()), outtype.name))
    return plan_file(role, path, keys, tensors, hashed)


def _left_out(made: Iterable[Made], payload: Iterable[Payload], trunk_blocks: int) -> Iterable[Dropped]:
    """Sources that no file of the asked roles holds."""
    used: set[SourceTensor] = {source for p in payload for source in p.recipe.sources}
    for target in made:
        for source in target.sources:
            if source not in used:
                part = "head" if target.block >= trunk_blocks else "trunk"
                yield Dropped(source.name, f"belongs to the {part}, which no asked file holds")
