"""What loaders take for a key that a file does not have."""

from __future__ import annotations

from nextn.gguf_schema.architecture import Without
from nextn.gguf_schema.contents import Scalar
from nextn.gguf_schema.reading import ARCHITECTURES

# Read of every architecture, with these defaults. Source: load_hparams in src/llama-model.cpp of llama.cpp b11549.
COMMON: dict[str, Scalar] = {"rope.freq_base": 10000.0}


def assumed(architecture: str, key: str) -> tuple[Scalar | None, bool]:
    """The default of a key, without its architecture, and whether a file may lack it and then computes by that."""
    table = ARCHITECTURES.get(architecture)
    if table is None:
        return COMMON.get(key), key in COMMON
    spec = next((spec for spec in table.keys if spec.name == key), None)
    if spec is None or spec.unread:
        return None, False
    default = COMMON.get(key) if spec.default is None else spec.default
    return default, default is not None or spec.without is Without.WRONG
