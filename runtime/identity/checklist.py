"""What cannot be the reason for bad acceptance, because it was checked before anything ran (cases I12 and R16)."""

from __future__ import annotations

from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.nextn_generic import TARGET_EMBEDDING_SHA256
from nextn.validators.findings import Findings, Severity
from nextn.validators.pair import examine_pair

ALWAYS = ("sampling is greedy", "every prompt is read from position 0, and nothing is reused")


def checklist(trunk: Contents, draft: Contents | None) -> list[str]:
    """What is known to be right about the files of a pair; `draft` is None when one file holds both."""
    if draft is None:
        return [*ALWAYS, "trunk and head are of one file"]
    findings = Findings()
    examine_pair(trunk, draft, findings)
    doubtful = [finding.rule for finding in findings if finding.severity is not Severity.NOTE]
    found = list(ALWAYS)
    if TARGET_EMBEDDING_SHA256 in draft.keys and not any(f.rule == "pair-target-hash" for f in findings):
        found.append("the pairing hash fits")
    if not any(rule.startswith(("pair-vocabulary", "pair-token")) for rule in doubtful):
        found.append("the vocabularies fit")
    if not doubtful:
        found.append("the validator finds nothing wrong with the pair")
    return found
