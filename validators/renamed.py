"""A tensor that is missing and one that nobody wants, of one block and shape: perhaps the same under another name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from nextn.gguf_schema.architecture import block_of
from nextn.gguf_schema.contents import Contents
from nextn.validators.findings import Finding, Findings

MISSING, UNEXPECTED = "tensor-missing", "tensor-unexpected"


def suggest_names(contents: Contents, shapes: Mapping[str, tuple[int, ...] | None], findings: Findings) -> None:
    """Ask in the remedies of such two findings whether it was renamed; `shapes` are those of the missing tensors."""
    blocks: defaultdict[tuple[str, int | None], list[Finding]] = defaultdict(list)
    place = {id(finding): index for index, finding in enumerate(findings)}
    for finding in findings:
        if finding.rule in (MISSING, UNEXPECTED):
            blocks[finding.rule, block_of(finding.subject)].append(finding)
    for (rule, block), found in list(blocks.items()):
        others = blocks.get((UNEXPECTED, block), [])
        if rule != MISSING or len(found) != 1 or len(others) != 1:
            continue
        name, other = found[0].subject, others[0].subject
        if shapes.get(name) == contents.tensors[other].ne:
            remedy = f"renamed? {other} has the dimensions of {name}, which is missing: give it that name"
            for finding in (found[0], others[0]):
                findings[place[id(finding)]] = replace(finding, remedy=remedy)
