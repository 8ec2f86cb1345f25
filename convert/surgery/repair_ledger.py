"""The ledger of a repair: the file as it becomes, what was changed and why, and what can be repaired in two ways."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from nextn.gguf_schema.contents import Contents, Value
from nextn.gguf_schema.edit import insert_key
from nextn.gguf_schema.nextn_architectures import upstream_spelling
from nextn.gguf_schema.reading import ARCHITECTURES

# Values come from files: a string may be long.
LONGEST = 60


@dataclass
class Ledger:
    """What a repair has done so far; `contents` is the file after the changes, one line each, in their order.

    `doubts` are faults that the tensors do not decide, each with the repairs that are possible.
    """

    contents: Contents
    changes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    @property
    def family(self) -> str:
        """The architecture as upstream spells it, by which tables are looked up."""
        return upstream_spelling(self.contents.architecture)

    def full(self, name: str) -> str:
        """The key of the file's architecture of this name."""
        return f"{self.contents.architecture}.{name}"

    def following(self, name: str) -> list[str]:
        """The keys of the file that stand behind this one where upstream writes it.

        By the table; without one the block count stands first, and what else there is behind the architecture's keys.
        """
        keys, own = list(self.contents.keys), self.full("")
        places = {key: place for place, key in enumerate(keys) if key.startswith(own)}
        if table := ARCHITECTURES.get(self.family):
            names = [spec.name for spec in table.keys]
            preceding = {self.full(each) for each in names[: names.index(name)]}
        else:
            preceding = set() if name == "block_count" else set(places)
        if before := [place for key, place in places.items() if key in preceding]:
            return keys[max(before) + 1 :]
        return keys[min(places.values(), default=len(keys)) :]

    def put(self, key: str, value: Value, why: str, before: Iterable[str] = ()) -> None:
        """Give a key a value; a new key stands before the first of `before`."""
        self.changes.append(f"{key} {shown(self.contents.keys.get(key), value)} → {shown(value)}: {why}")
        self._keys(insert_key(self.contents.keys, key, value, before))

    def put_array(self, key: str, value: Value, why: str) -> None:
        """Give an array another length."""
        old = self.contents.keys[key]
        self.changes.append(f"{key} {len(old.items)} → {len(value.items)} entries: {why}")
        self._keys({**self.contents.keys, key: value})

    def remove(self, key: str, why: str) -> None:
        """Take a key away."""
        self.changes.append(f"{key} {shown(self.contents.keys[key])} → (removed): {why}")
        self._keys({name: value for name, value in self.contents.keys.items() if name != key})

    def rename(self, names: dict[str, str], line: str) -> None:
        """Give keys other names at their old places; `line` says what and why."""
        self.changes.append(line)
        self._keys({names.get(key, key): value for key, value in self.contents.keys.items()})

    def doubt(self, text: str) -> None:
        """Note a fault that can be repaired in more than one way."""
        self.doubts.append(text)

    def _keys(self, keys: dict[str, Value]) -> None:
        self.contents = replace(self.contents, keys=keys)


def shown(value: Value | None, beside: Value | None = None) -> str:
    """A value as a change shows it, with its type where it is not that of the one `beside` it."""
    if value is None:
        return "(missing)"
    if value.element is not None:
        return f"{value.type_name} of {len(value.items)}"
    text = repr(value.value)
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return text if beside is None or value.type is beside.type else f"{text} ({value.type_name})"


def same(one: Value, other: Value) -> bool:
    """Whether two values say the same, whatever their integer types."""
    return (one.element is None) is (other.element is None) and list(one.items) == list(other.items)
