"""The five operations on GGUF files, each from paths to a plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from nextn.convert.plan import Plan
from nextn.convert.splitting import Split
from nextn.convert.surgery.cut import cut
from nextn.convert.surgery.joining import join, rehydrate
from nextn.convert.surgery.planning import Target, open_input, path_of, plan_edits
from nextn.convert.surgery.repair import repair
from nextn.convert.surgery.retype import retype
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.edit import Edit
from nextn.gguf_schema.errors import counted
from nextn.gguf_schema.nextn_generic import EMBEDDING, TARGET_EMBEDDING_SHA256
from nextn.gguf_schema.relayout import relayout
from nextn.gguf_schema.shards import GGUFFile, shard_names
from nextn.gguf_schema.types import TensorType
from nextn.validators.examine import examine_contents
from nextn.validators.findings import Finding, Findings, Severity
from nextn.validators.pair import examine_target_hash
from nextn.validators.scan import sha256

# What keys left over in a file that was merged contradict.
SPLIT_FAULTS = ("shard-number", "shard-count", "shard-tensors")


@dataclass(frozen=True)
class Operation:
    """A planned operation, and a line about each thing that becomes different.

    `beyond_repair` is what is wrong with a file that no repair changes.
    """

    plan: Plan
    changes: tuple[str, ...] = ()
    beyond_repair: tuple[Finding, ...] = ()


def plan_split(
    source: Path,
    emit: Sequence[Role],
    heads: int | None = None,
    split: Split | None = None,
    *,
    provenance: bool = False,
) -> Operation:
    """Cut a file into one for each role, named after it; raises what `open_input` and `cut` raise."""
    findings = Findings()
    file = open_input(source, findings)
    targets = [Target(path_of(source, role), cut(file.contents, role, heads), split) for role in dict.fromkeys(emit)]
    plan = plan_edits([file], targets, findings, "split" if provenance else None)
    return Operation(plan, tuple(_saved(file, target) for target in targets))


def _saved(file: GGUFFile, target: Target) -> str:
    """How much less a cut holds."""
    kept = [tensor.info for tensor in target.edit.tensors]
    whole = list(file.contents)
    saved = sum(tensor.nbytes for tensor in whole) - sum(tensor.nbytes for tensor in kept)
    return f"{target.path}: {len(kept)} of {counted(len(whole), 'tensor')}, {saved:,} bytes of data less"


def plan_join(
    trunk: Path,
    head: Path,
    output: Path,
    emit: Role = Role.COMBINED,
    split: Split | None = None,
    *,
    replace_head: bool = False,
    provenance: bool = False,
) -> Operation:
    """Join a trunk and a head, or with `emit` mtp give a sidecar its embeddings; raises what these raise."""
    findings = Findings()
    files = [open_input(path, findings) for path in (trunk, head)]
    contents = [file.contents for file in files]
    edit = rehydrate(*contents) if emit is Role.MTP else join(*contents, replace_head=replace_head)
    _compare_target(files[0], files[1], findings)
    plan = plan_edits(files, [_target(output, edit, split)], findings, "join" if provenance else None)
    return Operation(plan, edit.changes)


def _compare_target(trunk: GGUFFile, head: GGUFFile, findings: Findings) -> None:
    """Say so when the head was made for another embedding, as far as it tells."""
    if TARGET_EMBEDDING_SHA256 in head.contents.keys and EMBEDDING in trunk.contents.tensors:
        ours = trunk.contents.tensors[EMBEDDING]
        examine_target_hash(head.contents, sha256(*trunk.tensor_bytes(EMBEDDING)), findings, ours.type)


def plan_relayout(source: Path, output: Path, layout: str, *, provenance: bool = False) -> Operation:
    """Rename tensors and keys; raises what `open_input` and `relayout` raise."""
    findings = Findings()
    file = open_input(source, findings)
    return _one(file, output, relayout(file.contents, layout), findings, "relayout" if provenance else None)


def plan_retype(
    source: Path,
    output: Path,
    outtype: TensorType | None,
    rules: tuple[tuple[re.Pattern[str], TensorType], ...] = (),
    split: Split | None = None,
    *,
    provenance: bool = False,
) -> Operation:
    """Store tensors in other types; raises what `open_input` and `retype` raise."""
    findings = Findings()
    file = open_input(source, findings)
    edit, noticed = retype(file.contents, outtype, rules)
    return _one(file, output, edit, Findings([*findings, *noticed]), "retype" if provenance else None, split)


def plan_repair(source: Path, output: Path, *, provenance: bool = False) -> Operation:
    """Set keys right; raises what `open_input` and `repair` raise. No changes: there is nothing to repair."""
    findings = Findings()
    # In a set they may show that a file is another set's.
    file = open_input(source, findings, SPLIT_FAULTS if len(shard_names(source)) == 1 else ())
    edit = repair(file.contents, len(file.headers))
    wrong = () if edit.changes else examine_contents(file.contents).findings
    errors = tuple(finding for finding in wrong if finding.severity is Severity.ERROR)
    return replace(_one(file, output, edit, findings, "repair" if provenance else None), beyond_repair=errors)


def _one(
    file: GGUFFile, output: Path, edit: Edit, findings: Findings, provenance: str | None, split: Split | None = None
) -> Operation:
    return Operation(plan_edits([file], [_target(output, edit, split)], findings, provenance), edit.changes)


def _target(output: Path, edit: Edit, split: Split | None) -> Target:
    return Target(PurePosixPath(output.name), edit, split)
