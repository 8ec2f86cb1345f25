"""GGUF files that are no models: what they say they are, and what takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nextn.gguf_schema.contents import Contents

PROJECTOR = "a vision or audio projector, not a model: llama.cpp takes it beside one, with --mmproj"
# By `general.type`. Source: GGUFType of the gguf package; tools/imatrix and tools/mtmd of llama.cpp.
TYPES: dict[str, str] = {
    "mmproj": PROJECTOR,
    "imatrix": "an importance matrix, not a model: llama-quantize takes it, with --imatrix",
    "adapter": "an adapter (LoRA), not a model: llama.cpp takes it beside one, with --lora",
}
# Files of programs that write no type, by their architecture.
ARCHITECTURES: dict[str, str] = {"clip": PROJECTOR}


def other_file(contents: Contents) -> str | None:
    """What a file is that is no model; None for one that may be."""
    kind = contents.keys.get("general.type")
    return TYPES.get(str(kind.value) if kind else "") or ARCHITECTURES.get(contents.architecture)
