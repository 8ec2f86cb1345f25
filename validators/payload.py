"""Findings about the data of tensors, which `--deep` reads by stream: values that cannot be, and copies."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from nextn.gguf_schema.contents import TensorInfo
from nextn.gguf_schema.errors import counted, listed
from nextn.gguf_schema.nextn_generic import EMBEDDING, OUTPUT
from nextn.gguf_schema.shards import GGUFFile
from nextn.validators.copies import compared, copies, equal_blocks, equal_experts
from nextn.validators.findings import Finding, Findings, Severity
from nextn.validators.scan import Scan, scan, sha256
from nextn.validators.structural import examine_small

CHECK_TENSORS = "ggml_validate_row_data of llama.cpp b11549, its --check-tensors"
_AGAIN = "download the file again, or convert it again from its source"

# Rows of tables are looked up, and those that nothing looks up stay as they were made.
_TABLES = frozenset({EMBEDDING, OUTPUT, "per_layer_token_embd.weight"})

_SHOWN = 4  # findings of one rule; the others are counted


def examine_payload(
    file: GGUFFile, findings: Findings, *, hashes: bool = False, jobs: int | None = None
) -> dict[str, str]:
    """Read the data of all tensors, add what is wrong with it, and return their sha256 when `hashes` are wanted.

    Includes what `examine_small` finds. Memory is bounded: some 20 MiB for each of the `jobs` threads (as many as there
    are processors, at most 8). Tensors that are cut are left to the findings about the container. InputError when the
    disk fails.
    """
    examine_small(file, findings)
    wanted = [tensor for tensor in file.contents if _is_there(file, tensor)]
    groups = compared(file, {tensor.name for tensor in wanted})
    grouped = {name for group in groups.values() for name in group}
    to_hash = {tensor.name for tensor in wanted} if hashes else grouped
    with ThreadPoolExecutor(jobs or min(os.cpu_count() or 1, 8)) as pool:
        scans = list(pool.map(partial(_scan, file, to_hash), wanted))
    problems = [problem for tensor, result in zip(wanted, scans, strict=True) for problem in _judge(tensor, result)]
    digests = {t.name: result.sha256 for t, result in zip(wanted, scans, strict=True) if result.sha256}
    distinct = [tensor for tensor, result in zip(wanted, scans, strict=True) if not result.all_zero]
    equal = (*copies(file, groups, digests), *equal_blocks(file, distinct, grouped), *equal_experts(file, distinct))
    _add(findings, [*problems, *equal])
    return digests if hashes else {}


def _is_there(file: GGUFFile, tensor: TensorInfo) -> bool:
    source, offset, nbytes = file.tensor_bytes(tensor.name)
    return nbytes > 0 and offset + nbytes <= source.size


def _scan(file: GGUFFile, to_hash: set[str], tensor: TensorInfo) -> Scan:
    source, offset, nbytes = file.tensor_bytes(tensor.name)
    hashed = tensor.name in to_hash
    if tensor.type.known and nbytes == tensor.type.tensor_bytes(tensor.ne):
        return scan(source, offset, tensor, hashed=hashed)
    # Of opaque data there is nothing to say.
    return Scan(all_zero=False, sha256=sha256(source, offset, nbytes) if hashed else None)


def _judge(tensor: TensorInfo, found: Scan) -> Iterator[Finding]:
    """What is wrong with the values of one tensor."""
    rows = tensor.elements // tensor.ne[0]
    what = "values" if tensor.type.block == 1 else "scales of blocks"
    if found.first_bad_block is not None:
        message = (
            f"{found.nans} NaN and {found.infinities} infinite {what} in {tensor.type.name} data, "
            f"the first in row {found.first_bad_row} of {rows}"
        )
        yield Finding(Severity.ERROR, "not-finite", tensor.name, message, _AGAIN, CHECK_TENSORS)
    if found.all_zero:
        # A bias may never have been used; a matrix or a norm of zeros says that data was lost.
        harmless = tensor.name.endswith(".bias")
        message = f"all {tensor.elements} values are zero"
        severity = Severity.NOTE if harmless else Severity.WARNING
        yield Finding(severity, "all-zero", tensor.name, message, _AGAIN, "a trained tensor is not zero")
    elif found.constant_rows:
        severity = Severity.NOTE if tensor.name in _TABLES else Severity.WARNING
        message = (
            f"{counted(found.constant_rows, 'row')} of {rows} hold one value throughout, "
            f"the first is row {found.first_constant_row}"
        )
        yield Finding(severity, "constant-rows", tensor.name, message, _AGAIN, "a trained row is not constant")


def _add(findings: Findings, problems: Iterable[Finding]) -> None:
    """Add the findings; of many of one rule the first, and which tensors the others are about."""
    by_rule: dict[tuple[str, Severity], list[Finding]] = {}
    for problem in problems:
        by_rule.setdefault((problem.rule, problem.severity), []).append(problem)
    for (rule, severity), same in by_rule.items():
        findings.extend(same[:_SHOWN])
        if rest := same[_SHOWN:]:
            message = f"and {counted(len(rest), 'tensor')} more: {listed(each.subject for each in rest)}"
            findings.append(Finding(severity, rule, rest[0].subject, message, rest[0].remedy, rest[0].reason))
