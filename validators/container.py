"""Findings about the container: whether the files are whole, belong together, and are laid out as loaders want it.

A header that can be read gives findings; one that cannot raises InputError. A rule's id is the code of its error.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nextn.gguf_schema.container import MAX_TENSOR_NAME, Header, read_header
from nextn.gguf_schema.contents import ByteSource, LocalFile
from nextn.gguf_schema.errors import InputError, counted, listed
from nextn.gguf_schema.placement import layout_problems, order_problems
from nextn.gguf_schema.shards import (
    ONE_SET,
    SPLIT_COUNT,
    SPLIT_NO,
    SPLIT_TENSORS_COUNT,
    GGUFFile,
    join_shards,
    missing_shards,
    shard_paths,
)
from nextn.validators.findings import Finding, Findings, Severity

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
    "shard-keys": Rule(ERROR, f"{_LOADER} opens the other files because of this key"),
    "mixed-shards": Rule(ERROR, "one conversion writes all files of a set alike"),
}

_SHOWN = 4  # problems of one kind in one file; the others are counted


def examine_container(path: Path) -> tuple[GGUFFile | None, Findings]:
    """The model that `path` belongs to, as far as it can be read, and what is wrong with its files.

    There is no model when files of its set are missing: whatever else is missing would be due to that. InputError when
    a header cannot be read.
    """
    findings = Findings()
    paths = shard_paths(path)
    missing = missing_shards(path, paths)
    if missing is None:
        return examine_sources([LocalFile(shard) for shard in paths], findings), findings
    _add(findings, [missing])
    for shard in paths:
        if shard.exists():
            _examine_file(LocalFile(shard), findings)
    return None, findings


def examine_sources(sources: Sequence[ByteSource], findings: Findings) -> GGUFFile | None:
    """The model that the files of a whole set make, in order; what is wrong with them is added to the findings.

    There is no model when a file is one of more than there are. InputError when a header cannot be read.
    """
    headers = [_examine_file(source, findings) for source in sources]
    faults: list[InputError] = []
    file = join_shards(headers, faults)
    _add(findings, [*faults, *_missing_split_keys(headers)])
    count = file.contents.keys.get(SPLIT_COUNT)
    incomplete = count is not None and isinstance(count.value, int) and count.value > len(headers)
    return None if incomplete else file


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
    for tensor in header.described:
        length = len(tensor.name.encode())
        if not 1 <= length <= MAX_TENSOR_NAME:
            message = f"tensor {tensor.name[:80]!r}: a name of {length} bytes, want 1 to {MAX_TENSOR_NAME}"
            yield InputError("bad-name", message, subject=name)
    unknown: dict[int, list[str]] = {}
    for tensor in header.described:
        if not tensor.type.known:
            unknown.setdefault(tensor.type.id, []).append(repr(tensor.name))
    for id_, names in unknown.items():
        message = f"{counted(len(names), 'tensor')} of type {id_}, which is not known: {listed(names)}"
        yield InputError("unknown-type", message, subject=name)


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
