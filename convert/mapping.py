"""Names: which hub tensor becomes which GGUF tensor, by one table per family; what no table knows is an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, NamedTuple

from nextn.convert.checkpoint import Checkpoint
from nextn.convert.source_tensor import SourceTensor
from nextn.convert.transforms import Recipe, copy
from nextn.gguf_schema.architecture import block_of
from nextn.gguf_schema.errors import InputError, counted

# A transform gets the sources of one target in order, the hyper-parameters and the block.
Transform = Callable[[Sequence[SourceTensor], Any, int], Recipe]


def single(make: Callable[[SourceTensor], Recipe]) -> Transform:
    """The transform of a target with one source that needs no hyper-parameters."""
    return lambda sources, *_: make(sources[0])


def joined(make: Callable[[Sequence[SourceTensor]], Recipe]) -> Transform:
    """The transform of a target with several sources that needs no hyper-parameters."""
    return lambda sources, *_: make(sources)


COPY = single(copy)


@dataclass(frozen=True)
class To:
    """A target of a hub tensor; `part` is the source's place when a target is made from several named sources."""

    target: str
    transform: Transform = COPY
    part: int = 0


# A hub name with placeholders, to its targets; or to the reason why it is dropped on purpose. The first placeholder is
# the block; a second one numbers the parts of the target (experts, table shards).
NameTable = Mapping[str, To | tuple[To, ...] | str]

VISION = re.compile(
    r"(^|\.)(visual|vision_model|vision|vit_\w+|mm_projector|multi_modal_projector|patch_embed\w*)\.|audio"
)
VISION_REASON = "vision or audio tower: not part of a text model's GGUF"
PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
HEAD_PREFIX = "mtp."
# Nine digits are more than any model has; with leading zeros one layer would have several names.
_DIGITS = "(?:0|[1-9][0-9]{0,8})"
_NUMBER = re.compile(rf"(?<=[._]){_DIGITS}(?=\.|$)")
_PLACEHOLDER = re.compile(r"\{\w+\}")
_LAYER = re.compile(rf"layers\.({_DIGITS})\.")


def without_towers(checkpoint: Checkpoint) -> tuple[Checkpoint, list[tuple[str, str]]]:
    """The checkpoint of the text model alone, and the tensors left out, with the reason."""
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not VISION.search(name)}
    missing = {name: part for name, part in checkpoint.missing.items() if not VISION.search(name)}
    left_out = [(name, VISION_REASON) for name in checkpoint.tensors if name not in tensors]
    return replace(checkpoint, tensors=tensors, missing=missing), left_out


def without_prefix(name: str) -> str:
    """A hub name without the prefixes that differ between repositories: `layers.3.…`, `lm_head.weight`, `mtp.…`."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def canonical(name: str, trunk_blocks: int) -> str:
    """The spelling that the tables use: no prefix, and a head's tensors under `layers.{N+k}.`.

    `mtp.layers.0.x` is `layers.{N}.x`, and what stands beside the layers, `mtp.x`, belongs to the first head.
    """
    name = without_prefix(name)
    if not name.startswith(HEAD_PREFIX):
        return name
    name = name.removeprefix(HEAD_PREFIX)
    layer = _LAYER.match(name)
    if layer is None:
        return f"layers.{trunk_blocks}.{name}"
    return f"layers.{trunk_blocks + int(layer[1])}.{name[layer.end() :]}"


def layer_of(canonical_name: str) -> int | None:
    """The layer of a canonical name, or None."""
    match = _LAYER.match(canonical_name)
    return int(match[1]) if match else None


def count_heads(canonical_names: Iterable[str], trunk_blocks: int) -> int:
    """Number of heads: the layers beyond the trunk, which must be consecutive.

    Raises InputError when a head between others is missing.
    """
    layers = {layer_of(name) for name in canonical_names}
    heads = sorted(i for i in layers if i is not None and i >= trunk_blocks)
    if heads != list(range(trunk_blocks, trunk_blocks + len(heads))):
        raise InputError(
            "head-gap",
            f"tensors of layers {heads} stand behind a trunk of {trunk_blocks}: a head between them is missing",
            subject="num_hidden_layers",
            remedy="check num_hidden_layers in config.json, or download the missing shards",
        )
    return len(heads)


class Made(NamedTuple):
    """A target tensor and what it is made from: sources in order, with the parts they are, and the transform."""

    name: str
    block: int
    transform: Transform
    sources: tuple[SourceTensor, ...]
    parts: tuple[int, ...]


class Mapped(NamedTuple):
    """Targets in the order in which their last source stands in the checkpoint, and what is dropped, with reasons."""

    targets: tuple[Made, ...]
    dropped: tuple[tuple[str, str], ...]


class Names:
    """A name table made ready for look-ups by canonical name."""

    def __init__(self, table: NameTable) -> None:
        self.rules = {_PLACEHOLDER.sub("{}", pattern): rule for pattern, rule in table.items()}
        self._patterns: dict[str, dict[int, str]] = {}
        for pattern, rule in table.items():
            for to in _targets(rule):
                self._patterns.setdefault(to.target, {}).setdefault(to.part, pattern)

    def rule(self, canonical_name: str) -> To | tuple[To, ...] | str | None:
        """The rule for a name, or None when no rule knows it."""
        return self.rules.get(_NUMBER.sub("{}", canonical_name))

    def targets(self, canonical_name: str) -> list[str]:
        """GGUF names of what the tensor becomes; empty when it is dropped or unknown."""
        return [to.target.format(i=_numbers(canonical_name)[0]) for to in _targets(self.rule(canonical_name))]

    def source(self, target: str, part: int = 0) -> str:
        """The canonical hub name that a GGUF tensor, or a named part of it, is made from; numbers stay placeholders."""
        named, block = self._named_parts(target)
        return named.get(part, target).replace("{i}", str(block))

    def absent_part(self, made: Made) -> str | None:
        """The hub name of a part that a tensor lacks by what is there, or None."""
        named, _ = self._named_parts(made.name)
        wanted = range(max(len(named), len(made.parts)))
        part = next((part for part in wanted if part not in made.parts), None)
        if part is None:
            return None
        if len(named) > 1:
            return self.source(made.name, part)
        name = made.sources[0].name
        *_, number = _NUMBER.finditer(name)
        return f"{name[: number.start()]}{part}{name[number.end() :]}"

    def _named_parts(self, target: str) -> tuple[Mapping[int, str], int | None]:
        block = block_of(target)
        pattern = target if block is None else target.replace(f"blk.{block}.", "blk.{i}.", 1)
        return self._patterns.get(pattern, {}), block


def _targets(rule: To | tuple[To, ...] | str | None) -> tuple[To, ...]:
    return rule if isinstance(rule, tuple) else (rule,) if isinstance(rule, To) else ()


def map_names(tensors: Iterable[SourceTensor], names: Names, trunk_blocks: int) -> Mapped:
    """Give every source its targets by the table.

    Raises InputError with the full list when names are unknown: nothing is dropped without a rule.
    """
    gathered: dict[tuple[str, int], list[tuple[int, SourceTensor, Transform]]] = {}
    dropped: list[tuple[str, str]] = []
    unknown: list[str] = []
    for tensor in tensors:
        name = canonical(tensor.name, trunk_blocks)
        rule = names.rule(name)
        if rule is None:
            unknown.append(tensor.name)
        elif isinstance(rule, str):
            dropped.append((tensor.name, rule))
        else:
            block, *part = _numbers(name)
            for to in _targets(rule):
                key = (to.target.format(i=block), block)
                # A target moves to the place of its last source, as upstream writes it.
                parts = gathered.pop(key, [])
                gathered[key] = [*parts, (part[0] if part else to.part, tensor, to.transform)]
    if unknown:
        raise _unknown_names(unknown, names, trunk_blocks)
    return Mapped(tuple(_made(gathered)), tuple(dropped))


def _numbers(name: str) -> list[int]:
    numbers = [int(number) for number in _NUMBER.findall(name)]
    return numbers if name.startswith("layers.") else [-1, *numbers]


def _made(gathered: Mapping[tuple[str, int], list[tuple[int, SourceTensor, Transform]]]) -> Iterator[Made]:
    for (target, block), made in gathered.items():
        made.sort(key=lambda item: item[0])
        parts = tuple(part for part, _, _ in made)
        sources = tuple(tensor for _, tensor, _ in made)
        for (first, a, way), (second, b, other_way) in pairwise(made):
            if first == second or way is not other_way:
                raise InputError(
                    "same-target",
                    f"is made by both {a.name} and {b.name}",
                    subject=target,
                    remedy="remove one of the two spellings from the checkpoint, or correct num_hidden_layers",
                )
        yield Made(target, block, made[0][2], sources, parts)


def _looks_like_a_heads(name: str, trunk_blocks: int) -> bool:
    layer = layer_of(canonical(name, trunk_blocks))
    return "mtp" in name or "nextn" in name or (layer is not None and layer >= trunk_blocks)


def _unknown_names(unknown: list[str], names: Names, trunk_blocks: int) -> InputError:
    lines = []
    for name in unknown[:8]:
        near = get_close_matches(_NUMBER.sub("{}", canonical(name, trunk_blocks)), names.rules, 1)
        lines.append(f"  {name:.200}" + (f"  (nearest rule: {near[0]})" if near else ""))
    if len(unknown) > 8:
        lines.append(f"  … {len(unknown) - 8} more")
    of_head = [name for name in unknown if _looks_like_a_heads(name, trunk_blocks)]
    kind = f"{len(of_head)} of them look like a head's in an unknown spelling; " if of_head else ""
    tensors = counted(len(unknown), "tensor")
    return InputError(
        "unknown-tensors",
        "\n".join([f"{tensors} with names that no rule knows ({kind}the trunk has {trunk_blocks} layers):", *lines]),
        remedy="nothing is converted, so that no part of the model is lost; report the names or rename the tensors",
    )
