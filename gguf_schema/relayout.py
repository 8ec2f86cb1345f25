"""A file in another layout: here → upstream → there, in one step for each tensor and key.

Pure: no data is looked at, and none is computed. What the other layout cannot say is refused, all reasons at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from nextn.gguf_schema.contents import Contents, Value, string
from nextn.gguf_schema.edit import Edit, Taken, divided, insert_key, joined, renamed, reshaped, taken, unchanged
from nextn.gguf_schema.errors import VerdictError
from nextn.gguf_schema.layout_signatures import Facts, Naming, facts_of
from nextn.gguf_schema.layouts import (
    OF_TRUNK,
    UPSTREAM,
    aliases,
    layout_for,
    layout_of,
    layouts_for,
    namings_of,
    regrouping,
    rekeyed,
    renaming,
    strange_keys,
    upstream,
)
from nextn.gguf_schema.nextn_generic import BLOCK_COUNT, SHARED
from nextn.gguf_schema.reading import ARCHITECTURES

REPAIR = "nextn repair FILE -o OUT.gguf"


def relayout(contents: Contents, to: str) -> Edit:
    """The edit that writes a file in layout `to`, an id or a letter; without changes where it says the same there.

    UsageError for a layout that the architecture does not have, VerdictError for a file that may be in several or that
    `to` cannot express, InputError for parts of a matrix that do not go together.
    """
    target = layout_for(contents, to)
    facts, layout = facts_of(contents), layout_of(contents)
    found = [naming for naming, _ in namings_of(contents, facts)] or [upstream(target.architecture)]
    settled = [naming.id for naming in found] == [target.id] and not layout.ambiguous
    if settled and not strange_keys(contents, target):
        return unchanged(contents)
    if layout.doubtful:
        message = f"may be in layout {' or '.join((layout.id, *layout.others))}: {layout.evidence}"
        remedy = "a file of the head alone, with the names of one of them alone, would settle it"
        raise VerdictError("ambiguous-layout", message, subject=contents.name, remedy=remedy)
    move = _Move(contents, facts, found, target)
    _examine(move)
    keys = _keys(move)
    move.stop()
    edit, before = Edit(keys, tuple(_tensors(move)), dropped=tuple(move.dropped)), unchanged(contents)
    if edit.tensors == before.tensors and [*keys.items()] == [*contents.keys.items()]:
        return before
    _recognise(move, edit)
    was = f"was in layout {layout.id} ({layout.description}): {layout.evidence}"
    return replace(edit, changes=(was, f"is in layout {target.id} ({target.description})", *move.changes))


@dataclass(frozen=True)
class _Move:
    """A file on its way from the layouts that were found to another; what changes, and reasons against it."""

    contents: Contents
    facts: Facts
    found: list[Naming]
    target: Naming
    changes: list[str] = field(default_factory=list)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    reasons: list[tuple[str, str, str | None]] = field(default_factory=list)

    @property
    def source(self) -> Naming:
        """The layout that the names are of."""
        return self.found[0]

    @property
    def both(self) -> tuple[Naming, Naming]:
        """The layouts of the names before and after."""
        return self.source, self.target

    def refuse(self, subject: str, reason: str, remedy: str | None = None) -> None:
        """Note why the target cannot say what the file says."""
        self.reasons.append((subject, reason, remedy))

    def stop(self) -> None:
        """VerdictError with all reasons, when there are any."""
        if self.reasons:
            (subject, reason, _), *rest = self.reasons
            message = "; ".join((reason, *(f"{other}: {why}" for other, why, _ in rest)))
            remedy = next((remedy for _, _, remedy in self.reasons if remedy), None)
            raise VerdictError("not-expressible", message, subject=subject, remedy=remedy)


def _examine(move: _Move) -> None:
    """Gather the reasons that tensors give against the map."""
    tensors, names, groups = move.contents.tensors, renaming(*move.both, move.facts), regrouping(*move.both, move.facts)
    for naming in move.both:
        if naming.closed:
            subject, reason, remedy = naming.closed
            move.refuse(subject, f"nothing is mapped to or from layout {naming.id}: {reason}", remedy)
        shared = [here for _, here in naming.names if here.startswith(OF_TRUNK)]
        if shared and move.facts.has_trunk and move.facts.head is not None:
            reason = f"is the trunk's in a file with a trunk, and layout {naming.id} has the head's mixer there"
            move.refuse(shared[0], reason, "nextn split FILE -o DIR --emit mtp")
    for name, held in ((name, [*filter(tensors.get, here)]) for here, _ in groups for name in here):
        if held and name not in tensors:
            move.refuse(name, f"is missing, the other half of {held[0]}")
    mapped = {*names, *(name for here, _ in groups for name in here)}
    for old, new in (*names.items(), *((here[0], name) for here, there in groups for name in there)):
        of_trunk = move.facts.has_trunk and new.startswith(OF_TRUNK)
        if old in tensors and new in tensors and new not in mapped and not of_trunk:
            move.refuse(old, f"becomes {new} in layout {move.target.id}, which is there too")
    # Scales of a matrix, blocks under a checkpoint's names, the tokens of an output matrix that lacks some.
    specs = ARCHITECTURES[move.target.architecture].tensors
    known = mapped | {spec.name.format(i=move.facts.head) for spec in specs}
    own = {name.format(i=move.facts.head) for naming in move.found for name in naming.own}
    stems = (f"blk.{move.facts.head}.nextn.", "mtp.", *(name.removesuffix("weight") for name in mapped))
    for name in tensors:
        if name in own or (mapped and name not in known and name.startswith(stems)):
            move.refuse(name, f"has no name in layout {move.target.id}", "nextn convert, from the checkpoint")


def _recognise(move: _Move, edit: Edit) -> None:
    """VerdictError unless the file is then of the target; only values that it does not have may leave it upstream's."""
    result = edit.contents(move.contents.name)
    layout, wanted = layout_of(result), {move.target.id, *(() if move.target.renames else (UPSTREAM,))}
    if layout.id not in wanted or layout.doubtful or facts_of(result).head != move.facts.head:
        move.refuse(result.name, f"would be of layout {layout.id}, not {move.target.id}: {layout.evidence}")
    move.stop()


def _tensors(move: _Move) -> Iterator[Taken]:
    """The tensors in order: a matrix stands where the first of its parts stood, and parts where the matrix stood."""
    tensors, names, shapes = move.contents.tensors, renaming(*move.both, move.facts), _gammas(move)
    groups: dict[str, tuple[Taken, ...]] = {}
    for here, there in regrouping(*move.both, move.facts):
        held = [name for name in tensors if name in here]
        groups |= dict.fromkeys(held, ()) | {name: _regrouped(move, here, there) for name in held[:1]}
    for tensor in move.contents:
        yield from groups.get(tensor.name, ())
        if tensor.name in groups:
            continue
        new, ne = names.get(tensor.name, tensor.name), shapes.get(tensor.name, tensor.ne)
        if new != tensor.name:
            move.changes.append(f"{tensor.name} → {new}")
        if ne != tensor.ne:
            move.changes.append(f"{new}: {list(tensor.ne)} → {list(ne)}")
        yield renamed(taken(tensor) if ne == tensor.ne else reshaped(tensor, ne), new)


def _regrouped(move: _Move, here: tuple[str, ...], there: tuple[str, ...]) -> tuple[Taken, ...]:
    """A matrix, whole or in parts, as another layout has it."""
    parts = [move.contents.tensors[name] for name in here]
    if here != there:
        move.changes.append(f"{' + '.join(here)} → {' + '.join(there)}")
    if len(here) == len(there):
        return tuple(renamed(taken(part), name) for part, name in zip(parts, there, strict=True))
    return divided(parts[0], there) if len(there) > 1 else (joined(there[0], parts),)


def _gammas(move: _Move) -> dict[str, tuple[int, ...]]:
    """The dimensions that gammas of all streams have in the target, by their names in the file.

    They are vectors unless the target wants matrices: forks abort with those (qwen4exp.md 7.3).
    """
    here, width = dict(move.source.names), move.facts.number("embedding_length")
    shapes: dict[str, tuple[int, ...]] = {}
    for name in (name for naming in layouts_for(move.target.architecture) for name in naming.matrices):
        tensor = move.contents.tensors.get(here.get(name, name).format(i=move.facts.head))
        if tensor and 0 < move.facts.wide == tensor.elements:
            matrix = (width, tensor.elements // width)
            shapes[tensor.name] = matrix if name in move.target.matrices else (tensor.elements,)
    return shapes


def _keys(move: _Move) -> dict[str, Value]:
    """The keys in the target's words, each in its place; new ones where the tables of the architecture have them."""
    keys, target = dict(move.contents.keys), move.target
    _drop_implied(move, keys)
    _drop_aliases(move, keys)
    keys = rekeyed(_with_marker(move, keys), replace(move.source, keys=aliases(target.architecture)), target)
    if move.source.prefix != target.prefix:
        move.changes.append(f"general.architecture, and what keys begin with: {move.source.prefix} → {target.prefix}")
    _change_values(move, keys)
    _change_last(move, keys)
    table = [spec.name for spec in ARCHITECTURES[target.architecture].keys]
    for implied in (*move.source.assumed, *target.extra):
        key, value = target.key(implied.key), implied.value(move.contents)
        if value is None:
            move.refuse(key, f"is wanted by layout {target.id}, and other keys do not say what it is", REPAIR)
        elif key not in keys:
            move.changes.append(f"{key} is added: {_shown(value)}")
            keys = insert_key(keys, key, value, map(target.key, table[table.index(implied.behind) + 1 :]))
    return keys


def _same(one: Value, other: Value) -> bool:
    """Whether values are the same, be they of another type of number or not."""
    return (one.element is None, *one.items) == (other.element is None, *other.items)


def _shown(value: Value) -> str:
    return str(value.value if value.element is None else list(value.items))


def _drop_implied(move: _Move, keys: dict[str, Value]) -> None:
    """Leave out keys that the target does not have, where they say what its readers take for granted."""
    for implied in (*move.source.extra, *move.target.assumed):
        key, want = f"{move.source.prefix}.{implied.key}", implied.value(move.contents)
        if key not in keys:
            continue
        if want is None or not _same(want, keys[key]):
            reads = f"readers of layout {move.target.id} take {_shown(want) if want else 'what it is'} for granted"
            move.refuse(key, f"is {_shown(keys[key])}, and {reads}")
        else:
            move.dropped.append((key, f"is {_shown(want)}, which readers of layout {move.target.id} take for granted"))
            del keys[key]


def _drop_aliases(move: _Move, keys: dict[str, Value]) -> None:
    """Leave one name of a key that has two; a reason when the names, or a tensor, say something else."""
    shown = [place for naming in layouts_for(move.target.architecture) for place in naming.shown]
    for ours, alias in aliases(move.target.architecture):
        names = [f"{move.source.prefix}.{name}" for name in (ours, alias)]
        _drop_second(move, keys, *names)
        for held in keys.keys() & names:
            if held != move.target.key(ours):
                move.changes.append(f"{held} → {move.target.key(ours)}")
            for info, (key, tensor, at) in product(move.contents, shown):
                if key == alias and info.name.endswith(f".{tensor}") and info.ne[at : at + 1] != (keys[held].value,):
                    move.refuse(held, f"is {_shown(keys[held])}, and {info.name} is {list(info.ne)}")


def _drop_second(move: _Move, keys: dict[str, Value], first: str, second: str) -> None:
    """Leave out the second of two keys that mean the same; a reason when they do not say the same."""
    if first in keys and second in keys:
        if _same(keys[first], keys[second]):
            move.dropped.append((second, f"says what {first} says"))
            del keys[second]
        else:
            move.refuse(second, f"is {_shown(keys[second])}, and {first}, which means the same, {_shown(keys[first])}")


def _with_marker(move: _Move, keys: dict[str, Value]) -> dict[str, Value]:
    """The keys with the mark of a shared sidecar under the target's name, in place."""
    marker, known = move.target.marker, layouts_for(move.target.architecture)
    held = [key for key in dict.fromkeys((marker, SHARED, *(naming.marker for naming in known))) if key in keys]
    for other in held[1:]:
        _drop_second(move, keys, held[0], other)
    if held and held[0] != marker:
        move.changes.append(f"{held[0]} → {marker}")
    return {marker if key in held else key: value for key, value in keys.items()}


def _change_values(move: _Move, keys: dict[str, Value]) -> None:
    """Texts that are others in another layout."""
    coming = {(key, here): ours for naming in move.found for key, ours, here in naming.values}
    going = {(key, ours): here for key, ours, here in move.target.values}
    for key in {key for key, _ in (*coming, *going)} & keys.keys():
        value = str(keys[key].value)
        ours = coming.get((key, value), value)
        new = going.get((key, ours), ours)
        if new == ours and key in (other for other, _ in going):
            move.refuse(key, f"is {value}, for which layout {move.target.id} has no word")
        elif new != value:
            move.changes.append(f"{key}: {value} → {new}")
            keys[key] = string(new)


def _change_last(move: _Move, keys: dict[str, Value]) -> None:
    """The head's entries: 0 in layouts of a dense head, elsewhere the ratio of the trunk; added where they lack.

    A head always selects as the trunk does, so that nothing is guessed; where the trunk is dense, so is the head.
    """
    head = move.facts.head
    for name in dict.fromkeys(name for naming in layouts_for(move.target.architecture) for name in naming.last):
        key = f"{move.target.prefix}.{name}"
        if head is None or key not in keys or keys[key].element is None:
            continue
        items = [item for item in keys[key].items if isinstance(item, int)]
        trunk, last = items[:head], sum(items[head:])
        used = sorted({*trunk, last} - {0})
        if move.facts.number(BLOCK_COUNT) != head + 1 or len(items) not in (head, head + 1):
            move.refuse(key, f"has {len(items)} entries, and head {head} is not the one after these", REPAIR)
        elif len(used) > 1 or (name in move.target.last and last and last not in trunk):
            move.refuse(key, f"has {trunk} for the trunk and {last} for the head, want one ratio for all", REPAIR)
        else:
            entry = 0 if name in move.target.last else max(used, default=0)
            if items != [*trunk, entry]:
                was = last if len(items) > head else "missing"
                move.changes.append(f"{key}: entry {head}, the head's: {was} → {entry}")
                keys[key] = replace(keys[key], value=(*trunk, entry))
