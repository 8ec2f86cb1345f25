"""Findings about the mark of a shared sidecar: a head that borrows embeddings and output from its target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.nextn_generic import EMBEDDING, OUTPUT, SHARED
from nextn.validators.wording import SIDECARS, typed

if TYPE_CHECKING:
    from nextn.gguf_schema.contents import Contents
    from nextn.validators.findings import Findings


def examine_marker(contents: Contents, role: Role | None, findings: Findings) -> None:
    """Whether the key of a shared sidecar and the tensors that one lacks agree."""
    value = contents.keys.get(SHARED)
    marked = value is not None and value.value is True
    held = [name for name in (EMBEDDING, OUTPUT) if name in contents.tensors]
    if marked and held:
        findings.error(
            "shared-marker",
            SHARED,
            f"says that the file borrows {EMBEDDING} and {OUTPUT} from its target, but it holds {' and '.join(held)}",
            "remove the key, or make the sidecar again: nextn split FILE -o DIR --emit mtp-shared",
            SIDECARS,
        )
    elif role is Role.MTP_SHARED and not marked and not held:
        is_ = f"is {typed(value)}" if value else "is not there"
        findings.warn(
            "shared-unmarked",
            SHARED,
            f"{is_}, but the head has neither {EMBEDDING} nor {OUTPUT}: it does not say which target it needs",
            "nextn join TRUNK FILE --emit mtp -o OUT.gguf makes a self-contained head",
            SIDECARS,
        )
