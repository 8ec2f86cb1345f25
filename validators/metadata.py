"""Findings about the keys of a file: what is missing, of another type or length, under another name, out of range."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from difflib import get_close_matches
from typing import Any

from nextn.gguf_schema.architecture import FILE_TYPE, MAX_BLOCKS, Architecture, Hyperparameters, Without
from nextn.gguf_schema.contents import Contents, Value
from nextn.gguf_schema.errors import listed
from nextn.gguf_schema.nextn_architectures import (
    ARCHITECTURE_NAMES,
    COMMON_KEYS,
    NEXTN_ARCHITECTURES,
    OLD_SPELLINGS,
    array_keys,
)
from nextn.gguf_schema.nextn_generic import BLOCK_COUNT, NEXTN_PREDICT_LAYERS, Declared
from nextn.gguf_schema.reading import ARCHITECTURES, KeyProblem, Kind, read_hyperparameters
from nextn.gguf_schema.types import ValueType
from nextn.validators.findings import Findings
from nextn.validators.kinds import no_heads
from nextn.validators.layout import TO_UPSTREAM
from nextn.validators.limits import examine_limits
from nextn.validators.loader_keys import GENERAL
from nextn.validators.role import REPAIR, RoleReport
from nextn.validators.tokenizer import examine_tokenizer
from nextn.validators.traps import JUDGED_BY_TRAPS, examine_traps
from nextn.validators.wording import loader_of, typed

HPARAMS = "src/llama-model.cpp of llama.cpp b11549, load_hparams"
READER = "src/llama-model-loader.cpp of llama.cpp b11549"

# Prefixes of keys that are no architecture's.
OTHER_PREFIXES = ("general.", "split.", "nextn.", "quantize.", "imatrix.", "adapter.", "clip.")
SECTIONS_LENGTH = 4
FROM_SOURCE = "take the value from the source's config.json: nextn convert"
ARCHITECTURES_OF = "src/llama-arch.cpp of llama.cpp b11549"


def examine_metadata(contents: Contents, report: RoleReport, findings: Findings) -> None:
    """Add what is wrong with the keys of a file, by its architecture's tables or, without any, by the general rules."""
    name = contents.architecture
    if not examine_architecture(contents, findings):
        return
    if architecture_of_keys(contents) is not None:
        examine_tokenizer(contents, findings)
        return
    _examine_general(contents, findings)
    misplaced = _examine_prefixes(contents, findings)
    _examine_ranges(contents, report.declared, misplaced, findings)
    _examine_arrays(contents, report.declared, report.shown, findings)
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        examine_limits(contents, None, findings)
    else:
        h, problems = read_hyperparameters(architecture, contents)
        _examine_keys(architecture, contents, problems, misplaced, findings)
        _examine_sizes(contents, h, findings)
        examine_limits(contents, h, findings)
        examine_traps(contents, h, report, findings)
    if name in NEXTN_ARCHITECTURES:
        _examine_experts(contents, findings)
    examine_tokenizer(contents, findings)


def examine_architecture(contents: Contents, findings: Findings) -> bool:
    """Whether the file says which architecture it is; a finding when llama.cpp or the keys know another one only."""
    key, name, spoken = "general.architecture", contents.architecture, architecture_of_keys(contents)
    if not name:
        value = contents.keys.get(key)
        state = "is missing" if value is None else f"is {typed(value)}, want the name of an architecture"
        remedy = f"set it to {spoken!r}, as the keys {spoken}.* say" if spoken else "convert it again"
        findings.error("architecture-missing", key, f"{state}: nothing can load the file", remedy, READER)
        return False
    if spoken:
        known = "" if name in ARCHITECTURE_NAMES else ", which llama.cpp b11549 does not know"
        message = f"is {name!r}{known}, but the keys are {spoken}.*, did you mean {spoken!r}"
        rule = "architecture-contradicted" if name in ARCHITECTURE_NAMES else "architecture-spelling"
        findings.error(rule, key, message, f"{REPAIR}, or set it to {spoken!r}", READER)
        return True
    if name in ARCHITECTURE_NAMES:
        return True
    plain = {_plain(known): known for known in sorted(ARCHITECTURE_NAMES)}
    meant = OLD_SPELLINGS.get(name) or plain.get(_plain(name))
    if meant is None:
        close = get_close_matches(_plain(name), plain, 1, 0.85)
        meant = plain[close[0]] if close else None
    message = f"llama.cpp b11549 knows no architecture {name!r}" + (f", did you mean {meant!r}" if meant else "")
    remedy = "see which build or fork writes it"
    if meant:
        tool = TO_UPSTREAM if name in OLD_SPELLINGS else REPAIR
        remedy = f"{tool} writes {meant!r}, and {meant}.* for the keys {name}.*"
    findings.error("architecture-spelling" if meant else "architecture-unknown", key, message, remedy, ARCHITECTURES_OF)
    return True


def _examine_general(contents: Contents, findings: Findings) -> None:
    """Keys that say what a file is, and that the loader wants of one type."""
    for key, type_ in GENERAL.items():
        value = contents.keys.get(key)
        if value and value.type is not type_:
            message = f"is {typed(value)}, want {type_.name}: llama.cpp b11549 refuses the file"
            findings.error("key-type", key, message, "convert it again", READER)


def architecture_of_keys(contents: Contents) -> str | None:
    """The known architecture that the keys are of, when none is of the one that the file names."""
    prefixes = Counter(key.partition(".")[0] for key in contents.keys)
    if contents.architecture and any(key.startswith(f"{contents.architecture}.") for key in contents.keys):
        return None
    known = [(number, prefix) for prefix, number in prefixes.items() if prefix in ARCHITECTURE_NAMES]
    return max(known)[1] if known else None


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _examine_ranges(contents: Contents, keys: Declared, misplaced: set[str], findings: Findings) -> None:
    """Block counts that no loader takes: these end the process, without a message that helps."""
    count, nextn = (f"{contents.architecture}.{key}" for key in (BLOCK_COUNT, NEXTN_PREDICT_LAYERS))
    for key, value in ((count, contents.get(BLOCK_COUNT)), (nextn, contents.get(NEXTN_PREDICT_LAYERS))):
        if value and value.type is not ValueType.UINT32:
            findings.error("key-type", key, f"is {typed(value)}, want UINT32", REPAIR, READER)
    if contents.get(BLOCK_COUNT) is None and BLOCK_COUNT not in misplaced:
        findings.error("key-missing", count, "is missing: no loader reads the file without it", REPAIR, HPARAMS)
    elif keys.block_count is not None and not 0 < keys.block_count <= MAX_BLOCKS:
        message = f"is {keys.block_count}, want 1 to {MAX_BLOCKS}: llama.cpp b11549 aborts"
        findings.error("block-count-range", count, message, REPAIR, HPARAMS)
    if keys.block_count is not None and keys.heads > keys.block_count:
        message = f"is {keys.heads}, more than the {keys.block_count} blocks of the file: llama.cpp b11549 aborts"
        findings.error("nextn-range", nextn, message, REPAIR, HPARAMS)
    known = NEXTN_ARCHITECTURES.get(contents.architecture)
    if known and known.heads == 1 and 1 < keys.heads <= (keys.block_count or 0):
        message = f"is {keys.heads}: llama.cpp b11549 drafts with one head of this architecture, and aborts with more"
        findings.warn("too-many-heads", nextn, message, "nextn split FILE -o DIR --heads 1", loader_of(known.name))


def _examine_arrays(contents: Contents, keys: Declared, shown: Declared | None, findings: Findings) -> None:
    """The length of every array over blocks, by what the file declares: that is what a loader goes by.

    Where the tensors show other blocks, the declaration is wrong and an array that fits the tensors is not.
    """
    if shown and shown.block_count is not None and keys.block_count is not None:
        fitting, keys = (keys, shown), shown
    else:
        fitting = (keys, keys)
    if keys.block_count is None or not keys.heads <= keys.block_count <= MAX_BLOCKS:
        return
    for name, rule in array_keys(contents.architecture).items():
        value = contents.get(name)
        if value is None or value.element is None:
            continue
        key, have = f"{contents.architecture}.{name}", len(value.items)
        want = rule.length(keys.block_count, keys.heads)
        lengths = {rule.length(each.block_count or 0, each.heads) for each in fitting}
        if have in lengths or (rule.at_least and have > want):
            continue
        trunk = f"(trunk {keys.trunk_blocks} + nextn {keys.heads})" if want == keys.block_count else "(the trunk alone)"
        message = f"length {have}, llama.cpp b11549 wants {want} {trunk}"
        if rule.lenient and have > MAX_BLOCKS:
            message = f"length {have}, llama.cpp b11549 takes at most {MAX_BLOCKS}, and refuses the file"
            findings.error("array-length", key, message, REPAIR, READER)
        elif rule.lenient and have > want:
            findings.warn("array-length", key, f"{message} and ignores the rest", REPAIR, READER)
        elif rule.lenient:
            message += " and reads what is missing as 0, silently: other layers than the model's"
            findings.error("array-length", key, message, "convert it again", READER)
        else:
            remedy = f"write one entry for each of {want} blocks; entries for heads are never guessed"
            findings.error("array-length", key, message, remedy, READER)
    sections = contents.get("rope.dimension_sections")
    if sections and sections.element is not None and len(sections.items) != SECTIONS_LENGTH:
        key = f"{contents.architecture}.rope.dimension_sections"
        message = f"length {len(sections.items)}, llama.cpp b11549 wants {SECTIONS_LENGTH}"
        findings.error("array-length", key, message, FROM_SOURCE, READER)


def _examine_prefixes(contents: Contents, findings: Findings) -> set[str]:
    """The known keys that are there only under a prefix that is not the file's architecture: no loader sees them."""
    own = contents.architecture
    known = set(COMMON_KEYS)
    if architecture := ARCHITECTURES.get(own):
        known |= {spec.name for spec in architecture.keys if spec is not FILE_TYPE}
    parts = max(name.count(".") for name in known) + 1
    foreign: dict[str, list[str]] = defaultdict(list)
    for key in contents.keys:
        if key.startswith((f"{own}.", *OTHER_PREFIXES)):
            continue
        # No known key has more parts than that: a hostile one has thousands.
        prefix, *rest = key.rsplit(".", parts)
        while rest and ".".join(rest) not in known:
            prefix = f"{prefix}.{rest.pop(0)}"
        if rest:
            foreign[prefix].append(".".join(rest))
    misplaced: set[str] = set()
    ordered = sorted(contents.keys)
    for prefix, names in foreign.items():
        subject = f"{prefix}.{names[0] if len(names) == 1 else '*'}"
        absent = [name for name in names if contents.get(name) is None]
        misplaced.update(absent)
        state = "which is missing" if absent else "which is there too"
        message = f"known key under an unknown prefix, did you mean {own}.{(absent or names)[0]} ({state})"
        if len(names) > 1:
            message += f"; so are {len(names) - 1} more, {len(absent)} of {len(names)} missing under {own}"
        # Others under the prefix may be where they belong: those of the tokenizer are.
        all_there = bisect_left(ordered, f"{prefix}/") - bisect_left(ordered, f"{prefix}.")
        star = ["*"] if len(names) > 1 and all_there == len(names) else names
        renames = listed(f"{prefix}.{name} to {own}.{name}" for name in star)
        add = findings.error if absent else findings.warn
        add("foreign-prefix", subject, message, f"{REPAIR}, or rename {renames}", READER)
    return misplaced


def _examine_keys(
    architecture: Architecture, contents: Contents, problems: list[KeyProblem], misplaced: set[str], findings: Findings
) -> None:
    """What the tables of a family find, except what other rules report with more to say."""
    passed_over = {BLOCK_COUNT, NEXTN_PREDICT_LAYERS, *misplaced, *JUDGED_BY_TRAPS.get(architecture.name, ())}
    reason = loader_of(architecture.name)
    for problem in problems:
        name = problem.key.removeprefix(f"{architecture.name}.")
        if problem.kind is Kind.LENGTH or (problem.kind is Kind.MISSING and name in passed_over):
            continue
        if problem.kind is Kind.TYPE and name in (BLOCK_COUNT, NEXTN_PREDICT_LAYERS):
            continue
        rule = "key-missing" if problem.kind is Kind.MISSING else "key-type"
        value = contents.keys.get(problem.key)
        # With the value, by which people find where it comes from.
        said = problem.message.replace(value.type_name, typed(value), 1) if value and problem.kind is Kind.TYPE else ""
        message = f"{said or problem.message}: llama.cpp b11549 {problem.without}"
        add = findings.note if problem.without is Without.TOLERATES else findings.error
        add(rule, problem.key, message, FROM_SOURCE, reason)


def _examine_sizes(contents: Contents, h: Hyperparameters, findings: Findings) -> None:
    """Query heads of which there are none."""
    prefix = contents.architecture
    if no_heads(h):
        message = "says 0 for a block, and every block has query heads: llama.cpp b11549 refuses the shapes"
        findings.error("head-count", f"{prefix}.attention.head_count", message, FROM_SOURCE, loader_of(prefix))


def _examine_experts(contents: Contents, findings: Findings) -> None:
    """Numbers of experts on which the loader asserts."""
    prefix = contents.architecture
    experts, used = _number(contents.get("expert_count")), contents.get("expert_used_count")
    most = max((item for item in used.items[:MAX_BLOCKS] if isinstance(item, int)), default=0) if used else 0
    groups = _number(contents.get("expert_group_count"))
    by_tables = prefix in ARCHITECTURES  # Those report a missing key themselves.
    if experts and most == 0:
        message = f"is {0 if used else 'missing'} with {experts} experts: llama.cpp b11549 aborts"
        if used or not by_tables:
            findings.error("expert-count", f"{prefix}.expert_used_count", message, FROM_SOURCE, HPARAMS)
    elif most > experts and (contents.get("expert_count") or not by_tables):
        message = f"is {most}, more than the {experts} experts: llama.cpp b11549 aborts"
        findings.error("expert-count", f"{prefix}.expert_used_count", message, FROM_SOURCE, HPARAMS)
    if experts and groups >= experts:
        message = f"is {groups}, not fewer than the {experts} experts: llama.cpp b11549 aborts"
        findings.error("expert-count", f"{prefix}.expert_group_count", message, FROM_SOURCE, HPARAMS)
    elif experts and groups > 1 and experts % groups:
        message = f"is {groups}, which {experts} experts cannot be divided by: llama.cpp b11549 aborts"
        findings.error("expert-count", f"{prefix}.expert_group_count", message, FROM_SOURCE, HPARAMS)
    elif experts and groups > 1 and not 0 < _number(contents.get("expert_group_used_count")) < groups:
        message = f"is not between 0 and the {groups} groups of experts: llama.cpp b11549 aborts"
        findings.error("expert-count", f"{prefix}.expert_group_used_count", message, FROM_SOURCE, HPARAMS)


def _number(value: Value | None) -> int:
    held: Any = value.value if value else 0
    return held if isinstance(held, int) else 0
