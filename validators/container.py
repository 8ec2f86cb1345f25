"""Findings about the container: whether the files are whole, belong together, and are laid out as loaders want it.

A header that can be read gives findings; one that cannot raises InputError. A rule's id is the code of its error.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nextn.gguf_schema.container import MAX_TENSOR_NAME, Header, read_header
from nextn.gguf_schema.contents import DEFAULT_ALIGNMENT, ByteSource
from nextn.gguf_schema.errors import InputError, counted, listed
from nextn.gguf_schema.placement import layout_problems, order_problems
from nextn.gguf_schema.shards import (
    ONE_SET,
    SPLIT_COUNT,
    SPLIT_NO,
    SPLIT_TENSORS_COUNT,
    FileSet,
    GGUFFile,
    join_shards,
    local_set,
)
from nextn.gguf_schema.types import ValueType
from nextn.validators.findings import Finding, Findings, Severity
from nextn.validators.loader_container import container_stop
from nextn.validators.loader_keys import Outcome, Stop
from nextn.validators.wording import typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_GGUF_CPP = "llama.cpp, ggml/src/gguf.cpp"
_LOADER = "llama.cpp, src/llama-model-loader.cpp"
_FORMAT = "GGUF format description"

_WRITE_AGAIN = "write the file again with a tool that follows the format, such as nextn convert"


@dataclass(frozen=True)
class Rule:
    """What a problem of the container means: how bad it is, who says so, and what helps unless the error says it."""

    severity: Severity
    reason: str
    remedy: str | None = None


ERROR, WARNING, NOTE = Severity

RULES: dict[str, Rule] = {
    # In the header.
    "duplicate-key": Rule(ERROR, f"{_GGUF_CPP} refuses a key that is there twice", _WRITE_AGAIN),
    "duplicate-tensor": Rule(ERROR, f"{_GGUF_CPP} and {_LOADER} refuse a second one", _WRITE_AGAIN),
    "bad-alignment": Rule(ERROR, f"{_FORMAT}: a multiple of 8; {_GGUF_CPP}: a power of two", _WRITE_AGAIN),
    "bad-dimensions": Rule(ERROR, f"{_GGUF_CPP}: 1 to 4 dimensions, whole blocks, sizes within 64 bits", _WRITE_AGAIN),
    "bad-name": Rule(ERROR, f"{_GGUF_CPP}: a name has at most {MAX_TENSOR_NAME} bytes", "rename the tensor"),
    "unknown-type": Rule(WARNING, "ggml.h of llama.cpp b11549: the types it knows", "see which build writes the type"),
    "unaligned-data": Rule(
        WARNING,
        "ggml/src/ggml-backend.cpp of llama.cpp b11549: it maps a file, and tensors lie at multiples of 32 bytes",
        "write it again with an alignment of 32, or load it with --no-mmap",
    ),
    "old-version": Rule(NOTE, f"{_GGUF_CPP} reads versions 2 and 3 alike and refuses 1"),
    # Where the data is.
    "misaligned": Rule(ERROR, f"{_FORMAT}: offsets are multiples of the alignment", _WRITE_AGAIN),
    "overlap": Rule(ERROR, f"{_GGUF_CPP}: data follows data, padded to the alignment", _WRITE_AGAIN),
    "gap": Rule(ERROR, f"{_GGUF_CPP}: offsets are the running sum of the padded sizes", _WRITE_AGAIN),
    "truncated": Rule(ERROR, f"{_LOADER}: data must be within the file", "download or copy the file again"),
    "trailing-bytes": Rule(
        WARNING, f"{_FORMAT}: a file ends with its last tensor", "compare the size with the publisher's"
    ),
    # Sets of shards.
    "missing-shard": Rule(ERROR, f"{_LOADER} opens all files of a set"),
    "shard-number": Rule(ERROR, f"{_LOADER}: split.no is the file's place in the set"),
    "shard-count": Rule(ERROR, f"{_LOADER}: split.count is the number of files"),
    "shard-tensors": Rule(ERROR, f"{_LOADER}: split.tensors.count counts the tensors of all files"),
    "shard-keys": Rule(ERROR, f"{_LOADER} reads this key, and opens the other files because of it", _WRITE_AGAIN),
    "mixed-shards": Rule(ERROR, "one conversion writes all files of a set alike"),
}

SPLIT_TYPES = {SPLIT_NO: ValueType.UINT16, SPLIT_COUNT: ValueType.UINT16, SPLIT_TENSORS_COUNT: ValueType.INT32}

# What shows that the files of a set are no model: there is nothing to be said of its tensors.
NO_SET = frozenset({"shard-number", "shard-count", "shard-tensors", "duplicate-tensor"})

_SHOWN = 4  # problems of one kind in one file; the others are counted


@dataclass(frozen=True)
class Container:
    """The files of a model: what they say together, what is wrong with them, and where llama.cpp stops at them, if so.

    `file` holds what is there. Unless it is `whole`, that is no model: files are missing or do not belong together.
    """

    file: GGUFFile
    whole: bool
    findings: Findings
    stop: Stop | None


def examine_container(place: Path | FileSet) -> Container:
    """The model that a path belongs to, or a set of files; InputError when a header cannot be read."""
    files = place if isinstance(place, FileSet) else local_set(place)
    return examine_sources(files.sources, files.paths, files.missing)


def examine_sources(
    sources: Sequence[ByteSource], paths: Sequence[str] = (), missing: InputError | None = None
) -> Container:
    """The model that the files of a set make; `paths` are those of the whole set, `missing` the error about the others.

    InputError when a header cannot be read.
    """
    findings = Findings()
    if missing:
        _add(findings, [missing])
    headers = [_examine_file(source, findings) for source in sources]
    faults: list[InputError] = []
    file = join_shards(headers, faults)
    # What else is missing is due to the files that are.
    _add(findings, () if missing else [*faults, *_missing_split_keys(headers)])
    no_set = len(headers) > 1 and any(finding.rule in NO_SET for finding in findings)
    count = file.contents.keys.get(SPLIT_COUNT)
    incomplete = count is not None and isinstance(count.value, int) and count.value > len(headers)
    by_name = {header.source.name: header for header in headers}
    there: list[Header | None] = [by_name.get(path) for path in paths] if paths else [*headers]
    names = paths or [source.name for source in sources]
    stop = container_stop(names, there)
    if stop is None and any(finding.rule == "mixed-shards" for finding in findings):
        stop = Stop(Outcome.WRONG, "the files are not of one set, which is not checked")
    return Container(file, not (missing or no_set or incomplete), findings, stop)


def _examine_file(source: ByteSource, findings: Findings) -> Header:
    faults: list[InputError] = []
    header = read_header(source, faults)
    _add(findings, faults)
    _add(findings, _header_problems(header))
    # Without a usable alignment nobody knows where the data begins.
    if all(fault.code != "bad-alignment" for fault in faults):
        _add(findings, layout_problems(header))
        _add(findings, order_problems(header))
    return header


def _header_problems(header: Header) -> Iterator[InputError]:
    """What loaders mind, though it can be read."""
    name = header.source.name
    if header.version == 2:
        yield InputError("old-version", "GGUF version 2, which is read like version 3", subject=name)
    if header.described and header.data_offset % DEFAULT_ALIGNMENT:
        message = f"data begins at byte {header.data_offset}, want a multiple of {DEFAULT_ALIGNMENT}"
        yield InputError("unaligned-data", message, subject=name)
    for tensor in header.described:
        length = len(tensor.name.encode())
        if not 1 <= length <= MAX_TENSOR_NAME:
            message = f"tensor {tensor.name[:80]!r}: a name of {length} bytes, want 1 to {MAX_TENSOR_NAME}"
            yield InputError("bad-name", message, subject=name)
    yield from _split_types(header)
    unknown: dict[int, list[str]] = {}
    for tensor in header.described:
        if not tensor.type.known:
            unknown.setdefault(tensor.type.id, []).append(repr(tensor.name))
    for id_, names in unknown.items():
        message = f"{counted(len(names), 'tensor')} of type {id_}, which is not known: {listed(names)}"
        yield InputError("unknown-type", message, subject=name)


def _split_types(header: Header) -> Iterator[InputError]:
    """Keys about splitting that the loader reads, and wants of one type."""
    keys = header.contents.keys
    count = keys.get(SPLIT_COUNT)
    split = count is not None and isinstance(count.value, int) and count.value > 1
    for key, type_ in SPLIT_TYPES.items() if split else ((SPLIT_COUNT, SPLIT_TYPES[SPLIT_COUNT]),):
        value = keys.get(key)
        if value and value.type is not type_:
            message = f"key {key!r}: {typed(value)}, want {type_.name}"
            yield InputError("shard-keys", message, subject=header.source.name)


def _missing_split_keys(headers: Sequence[Header]) -> Iterator[InputError]:
    """The keys of a set without which a loader takes the first file for the whole, or refuses a later one."""
    if len(headers) == 1:
        return
    for index, header in enumerate(headers):
        for key in (SPLIT_NO,) if index else (SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS_COUNT):
            if key not in header.contents.keys:
                message = f"key {key!r}: missing in file {index + 1} of {len(headers)}"
                yield InputError("shard-keys", message, subject=header.source.name, remedy=ONE_SET)


def _add(findings: Findings, problems: Iterable[InputError]) -> None:
    """Problems of one file as findings; of many of a kind the first, and how many more there are."""
    # A hostile header has thousands of them: only those that are shown are kept.
    seen: Counter[str] = Counter()
    last: dict[str, InputError] = {}
    for problem in problems:
        seen[problem.code] += 1
        last[problem.code] = problem
        if seen[problem.code] <= _SHOWN:
            findings.append(_finding(problem))
    for code, number in seen.items():
        if number > _SHOWN:
            message = f"{number - _SHOWN} more of these, the last: {last[code].message}"
            findings.append(_finding(InputError(code, message, subject=last[code].subject, remedy=last[code].remedy)))


def _finding(problem: InputError) -> Finding:
    rule = RULES[problem.code]
    remedy = (problem.remedy[0].lower() + problem.remedy[1:]).rstrip(".") if problem.remedy else rule.remedy
    return Finding(rule.severity, problem.code, problem.subject or "", problem.message, remedy, rule.reason)
