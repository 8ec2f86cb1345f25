"""How to run the files of a repository, for its model card."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from nextn.convert.hub.facts import LOADS, RUNTIME, Facts, PairRow, Row
from nextn.convert.hub.picks import picks
from nextn.gguf_schema.architecture import Role

PROMPT = '-p "Once upon a time" -n 64'


@dataclass(frozen=True)
class Example:
    """How to run something: a title, command lines, and remarks."""

    title: str
    lines: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def examples(facts: Facts, repo_id: str) -> Iterable[Example]:
    """How to run the first of each kind: what `-hf` picks, a model alone, and a model with each kind of draft."""
    rows = {row.path: row for row in facts.rows}
    picked = picks(list(rows))
    if picked.model and picked.draft:
        title = f"llama.cpp itself downloads {picked.model[0]}, and {picked.draft} as its draft:"
        yield Example(title, (f"llama-server -hf {repo_id} --spec-type draft-mtp",))
    shown: set[str] = set()
    for row in facts.rows:
        if row.role in (Role.COMBINED, Role.TRUNK) and row.first and row.role not in shown:
            shown.add(row.role)
            yield _alone(row)
    # A trunk has no other draft, so it comes first.
    for pair in sorted(facts.pairs, key=lambda pair: rows[pair.model].role != Role.TRUNK):
        model_role, draft_role = rows[pair.model].role, rows[pair.draft].role
        if draft_role not in shown:
            shown.add(draft_role)
            yield _together(pair, model_role, draft_role)


def _alone(row: Row) -> Example:
    file, drafts = shlex.quote(row.path), row.role == Role.COMBINED
    llama = f"llama-server -m {file}{' --spec-type draft-mtp' if drafts else ''}"
    lines = (llama,) if row.loads == LOADS else ()
    remarks = () if row.loads == LOADS else (f"{RUNTIME}: {row.loads}",)
    title = "A combined file, drafting for itself:" if drafts else f"The {row.role} alone:"
    return Example(title, (*lines, f"nextn generate -m {file} {PROMPT}"), remarks)


def _together(pair: PairRow, model_role: str, draft_role: str) -> Example:
    model, draft = shlex.quote(pair.model), shlex.quote(pair.draft)
    lines = [f"nextn generate -m {model} -d {draft} {PROMPT}"]
    remarks = []
    if pair.loads == LOADS:
        lines.insert(0, f"llama-server -m {model} -md {draft} --spec-type draft-mtp")
    else:
        remarks.append(f"{RUNTIME}, given this pair: {pair.loads}")
    if draft_role == Role.MTP_SHARED:
        lines.append(f"nextn join {model} {draft} --emit mtp -o mtp.gguf")
        remarks.append("The last command makes a head with embeddings and output of its own, which llama.cpp loads.")
    return Example(f"{model_role} with {draft_role}:", tuple(lines), tuple(remarks))
