"""What a file is, by its tensors; where its keys say something else; and where a loader's single probes are fooled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nextn.gguf_schema.architecture import MAX_BLOCKS, Role
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.errors import counted, listed
from nextn.gguf_schema.nextn_architectures import NEXTN_ARCHITECTURES
from nextn.gguf_schema.nextn_generic import (
    BLOCK_COUNT,
    EMBEDDING,
    NEXTN_PREDICT_LAYERS,
    OUTPUT,
    Declared,
    Flags,
    block_indices,
    blocks_of,
    declared,
    flags_of,
    head_blocks,
    head_probe,
    is_whole_head,
    role_of,
    trunk_probe,
)
from nextn.validators.findings import Findings
from nextn.validators.sidecar import examine_marker
from nextn.validators.wording import PROBES, SIDECARS, in_words, loader_of

LOADER = "src/llama-model.cpp of llama.cpp b11549"
REPAIR = "nextn repair FILE -o OUT.gguf"


@dataclass(frozen=True)
class RoleReport:
    """What a file is: `role` by its tensors, and in `contradictions` how they contradict each other, if they do.

    `trunk_blocks` and `nextn_blocks` count the blocks that are in the file. `first_head` is the index of the first
    head, which is also the number of trunk blocks of the model. `explained` are tensors whose absence the findings
    about the role report already.
    """

    architecture: str
    role: Role | None
    contradictions: tuple[str, ...]
    trunk_blocks: int
    nextn_blocks: int
    first_head: int
    declared: Declared
    flags: Flags
    explained: frozenset[str] = field(default=frozenset())

    @property
    def name(self) -> str | None:
        """The role as `--json` prints it: `contradictory` when the tensors are no role's."""
        return "contradictory" if self.contradictions else self.role

    @property
    def shown(self) -> Declared | None:
        """What the keys should declare, by the tensors; None where these do not tell."""
        if self.role is None or self.contradictions:
            return None
        return Declared(self.first_head + self.nextn_blocks, self.nextn_blocks or None)

    def as_json(self) -> dict[str, Any]:
        """The part of `--json` that is about roles and blocks."""
        return {
            "role": self.name,
            "flags": {"mtp_only": self.flags.mtp_only, "trunk_only": self.flags.trunk_only},
            "trunk_blocks": self.trunk_blocks,
            "nextn_blocks": self.nextn_blocks,
            "declared": {
                BLOCK_COUNT: self.declared.block_count,
                NEXTN_PREDICT_LAYERS: self.declared.nextn_predict_layers,
            },
        }


def examine_role(contents: Contents, findings: Findings) -> RoleReport:
    """The role of a file, with findings where tensors contradict each other, the keys, or a loader's probes."""
    blocks = block_indices(contents)
    first_head, _ = blocks_of(contents)
    if not head_blocks(contents):
        first_head = max(blocks, default=-1) + 1
    keys, role = declared(contents), role_of(contents)
    # Blocks past the declared trunk and none before: what is left of a head without a single tensor that marks one.
    unmarked = role is Role.TRUNK and keys.heads > 0 and 0 < (keys.trunk_blocks or 0) <= min(blocks)
    contradictions = tuple(_contradictions(contents, blocks, first_head, unmarked))
    for message in contradictions:
        remedy = (
            "convert it again, or join the trunk and the head that belong together: nextn join TRUNK HEAD -o OUT.gguf"
        )
        findings.error("role-contradictory", contents.name, message, remedy, "a file is a trunk, heads, or both")
    if role is None and not contradictions and contents.architecture in NEXTN_ARCHITECTURES:
        _no_blocks(contents, findings)
    flags = flags_of(contents)
    explained: set[str] = set()
    if not contradictions:
        agree = _compare_with_keys(contents, blocks, first_head, role, findings)
        if agree:
            explained = set(_fooled_probes(contents, blocks, first_head, flags, findings))
    if unmarked:
        role = None
    elif role is Role.TRUNK:
        _missing_blocks(contents, blocks, findings)
    examine_marker(contents, role, findings)
    return RoleReport(
        contents.architecture,
        role,
        contradictions,
        sum(block < first_head for block in blocks),
        sum(block >= first_head for block in blocks),
        first_head,
        keys,
        flags,
        frozenset(explained),
    )


def assert_role(report: RoleReport | None, wanted: Role, subject: str, findings: Findings) -> None:
    """Add an error when a file is not of the role that the user asserts; one that is no model has no report."""
    if report is None or report.name != wanted:
        is_ = report.name or "no model: it has no blocks" if report else "no model"
        role = report.role if report else None
        remedy = f"nextn split FILE -o DIR --emit {wanted}" if role is Role.COMBINED else None
        if role and not role.has_trunk and wanted.has_trunk:
            is_, remedy = f"{role}", "this is a draft head; give its trunk"
        findings.error("role-not-asserted", subject, f"is {is_}, want {wanted}", remedy, "asked for with --role")


def _no_blocks(contents: Contents, findings: Findings) -> None:
    unknown = [name for name in contents.tensors if name not in (EMBEDDING, OUTPUT)]
    message = "has no block: neither a trunk nor a head, a shard of metadata or a vocabulary alone"
    remedy = "give the whole set of shards"
    if unknown:
        message = (
            f"{counted(len(unknown), 'tensor')} with unknown names, for example {listed(unknown)}: none is blk.N.*"
        )
        remedy = "convert it again, or give the tensors the names of llama.cpp: docs/formats.md, Tensors"
    findings.error("no-blocks", contents.name, message, remedy, "a model has blocks")


def _contradictions(contents: Contents, blocks: set[int], first_head: int, unmarked: bool) -> Iterable[str]:
    heads = head_blocks(contents)
    if unmarked:
        yield (
            f"has only {in_words(blocks)}, past the {declared(contents).trunk_blocks} trunk blocks that the keys "
            "declare, and none has a nextn tensor: neither a trunk nor a head"
        )
    if not heads or is_whole_head(contents):
        return
    if late := {block for block in blocks if block > max(heads)}:
        yield f"has trunk blocks behind the heads: {in_words(late)} behind {in_words(heads)}; heads come last"
    trunk = {block for block in blocks if block < first_head}
    if trunk and (missing := set(range(first_head)) - trunk):
        yield (
            f"has heads ({in_words(heads)}) and only a part of the trunk: {in_words(trunk)}, not {in_words(missing)}: "
            "neither a combined nor an MTP-only file"
        )


def _compare_with_keys(
    contents: Contents, blocks: set[int], first_head: int, role: Role | None, findings: Findings
) -> bool:
    """Whether the keys declare the blocks that the tensors show; a finding when they do not."""
    keys, prefix = declared(contents), contents.architecture
    total, heads = max(blocks, default=-1) + 1, sum(block >= first_head for block in blocks)
    count, nextn = f"{prefix}.{BLOCK_COUNT}", f"{prefix}.{NEXTN_PREDICT_LAYERS}"
    if role is None or keys.block_count is None or not keys.heads <= keys.block_count <= MAX_BLOCKS:
        return False  # Those are findings about the keys, whatever the tensors are.
    says = f"{count} {keys.block_count} and {nextn} {_shown(keys.nextn_predict_layers)}"
    if heads == 0 and keys.heads and keys.block_count == total + keys.heads:
        known = NEXTN_ARCHITECTURES.get(prefix)
        effect = (
            "llama.cpp b11549 loads it as a trunk and fails when it drafts; older builds refuse it"
            if known and known.trunk_only
            else f"llama.cpp b11549 stops: blk.{total} is not there"
        )
        findings.error(
            "head-declared-not-there",
            nextn,
            f"{says} declare a head behind {total} trunk blocks, the tensors hold none ({in_words(blocks)}): {effect}",
            f"{REPAIR}, or set {count} to {total}, remove {nextn} and cut the arrays over blocks to {total}",
            PROBES,
        )
        return False
    if heads and is_whole_head(contents):
        if (keys.block_count, keys.heads) == (total, total):
            return True
        message = f"{says}, but all {total} blocks are the head's and both must be {total}"
        findings.error(
            "blocks-declared-wrong", nextn, message, f"set both to {total}", loader_of(contents.architecture)
        )
        return False
    if heads and first_head == 0:
        findings.error(
            "head-renumbered",
            "blk.0",
            f"the head stands at blk.0 ({says}); heads keep the numbers behind the trunk, blk.N for N trunk blocks",
            "make the head again from its source: nextn split FILE -o DIR --emit mtp, or nextn convert --emit mtp",
            SIDECARS,
        )
        return False
    if heads and not keys.heads:
        state = "is missing" if keys.nextn_predict_layers is None else "is 0"
        findings.error(
            "head-not-declared",
            nextn,
            f"{state}, but the tensors show {counted(heads, 'head')} from blk.{first_head} on: llama.cpp b11549 stops "
            "with 'wrong number of tensors'",
            f"{REPAIR}, or set {nextn} to {heads}{_and_count(count, keys, total)}",
            PROBES,
        )
        return False
    if (keys.block_count, keys.heads) == (total, heads):
        return True
    rule, subject, effect = _difference(keys, total, heads, first_head, count, nextn)
    findings.error(
        rule,
        subject,
        f"{says}; the tensors show {counted(first_head, 'trunk block')} and {counted(heads, 'head')}: {effect}",
        f"{REPAIR}, or set {count} to {total} and " + (f"{nextn} to {heads}" if heads else f"remove {nextn}"),
        PROBES,
    )
    return False


def _difference(
    keys: Declared, total: int, heads: int, first_head: int, count: str, nextn: str
) -> tuple[str, str, str]:
    """The rule, the subject and the effect of keys that declare other blocks than the tensors show."""
    assumed = keys.trunk_blocks if keys.trunk_blocks is not None else 0
    if assumed < first_head and keys.heads > heads and keys.block_count == total:
        taken = in_words(range(assumed, first_head))
        effect = f"{taken} would be taken for a head and never run in the trunk; no nextn tensor says that it is one"
        return "nextn-too-large", nextn, effect
    if keys.heads > heads:
        return "nextn-too-large", nextn, f"{counted(keys.heads - heads, 'declared head')} not there"
    if keys.heads < heads:
        return "nextn-too-small", nextn, f"{in_words(range(first_head, max(assumed, first_head + 1)))} would be trunk"
    more = "blocks past it are never asked for" if (keys.block_count or 0) < total else "the missing blocks are wanted"
    return "block-count-wrong", count, more


def _fooled_probes(
    contents: Contents, blocks: set[int], first_head: int, flags: Flags, findings: Findings
) -> Iterable[str]:
    """Tensors whose single absence makes llama.cpp b11549 take a file for what it is not."""
    trunk, head = trunk_probe(contents), head_probe(contents)
    has_trunk = any(block < first_head for block in blocks)
    if trunk and flags.mtp_only and has_trunk:
        findings.error(
            "trunk-probe-missing",
            trunk,
            "is missing: by this one tensor llama.cpp b11549 takes the file for MTP-only, makes the whole trunk "
            "optional and computes without it, or crashes; the trunk is there",
            "take the tensor from the source: nextn convert",
            PROBES,
        )
        yield trunk
    if head and flags.trunk_only and any(block >= first_head for block in blocks):
        findings.error(
            "head-probe-missing",
            head,
            "is missing: by this one tensor llama.cpp b11549 takes the file for trunk-only, loads it without the head "
            "and aborts when it drafts; the head is there",
            "take the tensor from the source: nextn convert",
            PROBES,
        )
        yield head


def _missing_blocks(contents: Contents, blocks: set[int], findings: Findings) -> None:
    missing = set(range(max(blocks) + 1)) - blocks
    if missing:
        findings.error(
            "blocks-missing",
            f"blk.{min(missing)}",
            f"the trunk has {in_words(blocks)}, not {in_words(missing)}: the file is incomplete",
            "convert it again, or fetch the missing shard",
            f"{LOADER}, load_tensors",
        )


def _and_count(count: str, keys: Declared, total: int) -> str:
    return "" if keys.block_count == total else f" and {count} to {total}"


def _shown(value: int | None) -> str:
    return "(missing)" if value is None else str(value)
