"""Findings about the layout of a file: the names and shapes of a fork, which llama.cpp does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nextn.validators.wording import FORMATS

if TYPE_CHECKING:
    from nextn.gguf_schema.layout_signatures import Naming
    from nextn.gguf_schema.layouts import Layout
    from nextn.validators.findings import Findings

TO_UPSTREAM = "nextn relayout FILE -o OUT.gguf --to upstream"


def examine_layout(name: str, layout: Layout, naming: Naming | None, findings: Findings) -> None:
    """Say that a file is in another layout, or may be; where only values differ, the rules about these say more."""
    is_in = f"is in layout {layout.id} ({layout.description}): {layout.evidence}"
    if layout.ambiguous:
        may_be = f"{layout.evidence}: may be in layout {' or '.join((layout.id, *layout.others))}"
        findings.note("layout-ambiguous", name, may_be, None, FORMATS)
    elif naming is None or not naming.renames:
        findings.note("layout", name, is_in, None, FORMATS)
    elif naming.spelling:
        message = f"llama.cpp b11549 knows no architecture {naming.spelling!r}, did you mean {naming.architecture!r}"
        findings.error("architecture-spelling", "general.architecture", message, TO_UPSTREAM, FORMATS)
    else:
        findings.error("layout", name, f"{is_in}; llama.cpp b11549 does not know these names", TO_UPSTREAM, FORMATS)
