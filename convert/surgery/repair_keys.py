"""Repair of names: the architecture's spelling, keys under a prefix that no loader looks at, left-over split keys.

Sources: src/llama-arch.cpp and src/llama-model-loader.cpp of llama.cpp b11549; cases C16 and V11.
"""

from __future__ import annotations

from collections import defaultdict
from difflib import get_close_matches

from nextn.convert.surgery.repair_ledger import Ledger, same, shown
from nextn.gguf_schema.architecture import FILE_TYPE, block_of
from nextn.gguf_schema.contents import Contents, Value, string
from nextn.gguf_schema.errors import counted, listed
from nextn.gguf_schema.nextn_architectures import ARCHITECTURE_NAMES, COMMON_KEYS, NEXTN_ARCHITECTURES, OLD_SPELLINGS
from nextn.gguf_schema.reading import ARCHITECTURES, table_of
from nextn.gguf_schema.shards import SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS_COUNT
from nextn.validators.metadata import OTHER_PREFIXES

ARCHITECTURE = "general.architecture"
# How like a spelling must be, as in the validator: step3p5 for step35.
LIKE = 0.85


def repair_spelling(ledger: Ledger) -> bool:
    """Set `general.architecture` where spelling or keys name one architecture, and the tensors fit only that.

    Whether the architecture is known, so that other repairs make sense. An old spelling (`glm5next`) is a layout, not a
    fault, as long as keys begin with it.
    """
    contents = ledger.contents
    name, prefixes = contents.architecture, _prefixes(contents)
    own = name in prefixes or any(key.startswith(f"{name}.") for key in contents.keys)
    if name in OLD_SPELLINGS and (own or not prefixes):
        return True
    if name in ARCHITECTURE_NAMES:
        others = prefixes & ARCHITECTURE_NAMES | {a for a in ARCHITECTURES if a != name and _meant(prefixes, a)}
        return own or not others or _contradicted(ledger, others)
    known = sorted(prefixes & NEXTN_ARCHITECTURES.keys())
    candidates = {a for a in ARCHITECTURES if _like(name, a) or _meant(prefixes, a)}
    fitting = [candidate for candidate in sorted(candidates) if fits(contents, candidate)]
    if len(fitting) == 1:
        _set_architecture(ledger, fitting[0], f"the tensors' names are those of {fitting[0]}, and of no other family")
    elif candidates:
        spelt = f"{ARCHITECTURE} {shown(contents.keys.get(ARCHITECTURE))}"
        what = "the tensors' names are not those of" if not fitting else "the tensors' names are those of"
        ledger.doubt(f"{spelt}: {what} {' or '.join(fitting or sorted(candidates))}: it may be another model's")
        return False
    elif len(known) == 1 and (not name or plain(known[0]) == plain(name)):
        differs = ", which differs in its spelling alone" if name else ""
        _set_architecture(ledger, known[0], f"the keys begin with {known[0]}.{differs}")
    return ledger.contents.architecture in ARCHITECTURE_NAMES


def _contradicted(ledger: Ledger, others: frozenset[str]) -> bool:
    """A known architecture without a single key, in a file with the keys of another: the tensors may tell."""
    contents, name = ledger.contents, ledger.contents.architecture
    fitting = [other for other in {name, *others} if fits(contents, other)]
    if len(fitting) != 1 or len(others) > 1:
        keys = " and ".join(f"{other}.*" for other in sorted(others))
        says = f"{ARCHITECTURE} {name!r}, but the keys are {keys}"
        ledger.doubt(f"{says}: either may be wrong, and the tensors do not show which")
        return False
    if fitting[0] != name:
        _set_architecture(ledger, fitting[0], f"keys and tensors are those of {fitting[0]}")
    return True


def _set_architecture(ledger: Ledger, name: str, why: str) -> None:
    old = ledger.contents.architecture
    ledger.put(ARCHITECTURE, string(name), why, ledger.contents.keys)
    if old:
        _move_all(ledger, old)


def fits(contents: Contents, family: str) -> bool:
    """Whether a family's table knows the names of all tensors; those of a head alone differ from fork to fork."""
    table = ARCHITECTURES.get(family)
    names = {_pattern(name) for name in contents.tensors if ".nextn." not in name and not name.startswith("mtp.")}
    if table is None or not any("{i}" in name for name in names):
        return False
    return names <= {spec.name for spec in table.tensors}


def _pattern(name: str) -> str:
    return name if block_of(name) is None else f"blk.{{i}}.{name.split('.', 2)[2]}"


def plain(name: str) -> str:
    """A spelling without what spellings differ in."""
    return name.translate(str.maketrans("", "", "-_. ")).lower()


def _meant(prefixes: frozenset[str], architecture: str) -> bool:
    return any(_like(prefix, architecture) for prefix in prefixes)


def _like(name: str, architecture: str) -> bool:
    if name in ARCHITECTURE_NAMES:
        return name == architecture
    return bool(get_close_matches(plain(name)[:LONGEST_NAME], [plain(architecture)], 1, LIKE))


# Names come from files.
LONGEST_NAME = 64


def repair_prefixes(ledger: Ledger) -> None:
    """Move keys that loaders know from a prefix that they do not look at to the architecture's."""
    own = ledger.contents.architecture
    if own not in ARCHITECTURE_NAMES and own not in OLD_SPELLINGS:
        return
    foreign = _foreign(ledger.contents, own)
    for prefix in sorted(prefix for prefix in foreign if plain(prefix) == plain(own)):
        _move_all(ledger, prefix)
        del foreign[prefix]
    found: dict[str, list[str]] = defaultdict(list)
    for prefix, names in foreign.items():
        for name in names:
            found[name].append(f"{prefix}.{name}")
    for name, keys in found.items():
        key, held = ledger.full(name), ledger.contents.get(name)
        values = [ledger.contents.keys[each] for each in keys]
        if held is None and all(same(value, values[0]) for value in values):
            why = f"loaders look for it under {own}., where there is none"
            ledger.rename({keys[0]: key}, f"{keys[0]} → {key} ({shown(values[0])}): {why}")
            del keys[0]
            held = values[0]
        if held is None or not all(same(value, held) for value in values):
            _differ(ledger, [key] * (held is not None) + keys)
            continue
        for each in keys:
            ledger.remove(each, f"{key} says the same, and only that is read")


def _differ(ledger: Ledger, keys: list[str]) -> None:
    says = " and ".join(f"{key} {shown(ledger.contents.keys[key])}" for key in keys)
    ledger.doubt(f"{says}: either may be right; remove the one that is not")


def _move_all(ledger: Ledger, prefix: str) -> None:
    """Move all keys under another spelling of the architecture's name."""
    own = ledger.contents.architecture
    pairs = {key: ledger.full(key.removeprefix(f"{prefix}.")) for key in _under(ledger.contents, prefix)}
    keys = ledger.contents.keys
    moved = {old: new for old, new in pairs.items() if new not in keys}
    if moved:
        names = listed((old.removeprefix(f"{prefix}.") for old in moved), 4)
        line = f"{counted(len(moved), 'key')} {prefix}.* → {own}.* ({names}): loaders look under {own}. only"
        ledger.rename(moved, line)
    for old, new in pairs.items():
        if old in moved:
            continue
        if same(keys[old], keys[new]):
            ledger.remove(old, f"{new} says the same, and only that is read")
        else:
            _differ(ledger, [new, old])


def _under(contents: Contents, prefix: str) -> list[str]:
    return [key for key in contents.keys if key.startswith(f"{prefix}.")]


def _prefixes(contents: Contents) -> frozenset[str]:
    """What known keys begin with that may be an architecture's name."""
    return frozenset(_foreign(contents, "")) - {""}


def _foreign(contents: Contents, own: str) -> dict[str, list[str]]:
    """The known keys under prefixes that are not the architecture's `own`, without these."""
    known = set(COMMON_KEYS)
    if table := table_of(own):
        known |= {spec.name for spec in table.keys if spec is not FILE_TYPE}
    foreign: dict[str, list[str]] = defaultdict(list)
    for key in contents.keys:
        if key.startswith((f"{own}.", *OTHER_PREFIXES)):
            continue
        prefix, dot, rest = key.partition(".")
        while dot and rest not in known:
            more, dot, rest = rest.partition(".")
            prefix = f"{prefix}.{more}"
        if dot:
            foreign[prefix].append(rest)
    return foreign


def repair_split_keys(ledger: Ledger, shards: int) -> None:
    """Keys about splitting that contradict the files: removed from a single one, set in a set of them.

    That a single file is no shard shows in its tensors: it holds all that the set is said to have.
    """
    keys = ledger.contents.keys
    tensors = len(ledger.contents.tensors)
    count, number, total = (_integer(keys.get(key)) for key in (SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS_COUNT))
    left_over = shards == 1 and ((count or 0) > 1 or (number or 0) > 0)
    wrong_set = shards > 1 and count is not None and count != shards
    suspect = (left_over and count not in (0, 1)) or wrong_set
    if (suspect and total is None) or ((total or 0) > tensors and (left_over or wrong_set)):
        said = "an unknown number of tensors" if total is None else counted(total, "tensor")
        files = counted(shards, "file")
        says = f"{SPLIT_COUNT} {shown(keys.get(SPLIT_COUNT))} and {said}, but {files} with {counted(tensors, 'tensor')}"
        ledger.doubt(f"{says}: either shards are missing, or they were merged and tensors lost")
    elif left_over:
        for key in (SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS_COUNT):
            if key in keys:
                ledger.remove(key, f"it is one file with all {counted(tensors, 'tensor')}")
    else:
        wanted = {SPLIT_NO: (number, 0), SPLIT_TENSORS_COUNT: (total, tensors)}
        if shards > 1:
            wanted[SPLIT_COUNT] = count, shards
        for key, (have, want) in wanted.items():
            if have is not None and have != want:
                why = f"there are {counted(shards, 'file')} with {counted(tensors, 'tensor')}; this is the first"
                ledger.put(key, Value(keys[key].type, want), why)


def _integer(value: Value | None) -> int | None:
    return value.value if value and isinstance(value.value, int) and not isinstance(value.value, bool) else None
