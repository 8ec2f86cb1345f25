"""Runs llama.cpp's own converter unchanged, as the peer of our measurements, in a Python of its own.

usage: UPSTREAM=TREE UPSTREAM_PRE=deepseek-v3|glm4 PYTHON bench/upstream.py CHECKPOINT --outfile F --outtype T [--mtp]

TREE is a llama.cpp source tree (the sdist of xllamacpp bundles build 11549 under thirdparty/llama.cpp); PYTHON needs
torch, transformers<5, safetensors and sentencepiece. Two things of the environment are set straight, nothing else: the
configuration is read as it is, since newer transformers rewrite it, and the pre-tokenizer is named, since the converter
knows tokenizers by the hash of a token sequence that a made-up vocabulary cannot have.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

if "UPSTREAM" not in os.environ:
    sys.exit(__doc__)
TREE = Path(os.environ["UPSTREAM"])
sys.path[:1] = [str(TREE), str(TREE / "gguf-py")]

from conversion import base  # type: ignore[import-not-found]  # noqa: E402


def raw_configuration(folder: Path, *_: Any, **__: Any) -> Any:
    return json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))


base.ModelBase.load_hparams = staticmethod(raw_configuration)
for owner in (base.ModelBase, base.TextModel):
    if "get_vocab_base_pre" in vars(owner):
        owner.get_vocab_base_pre = lambda self, tokenizer: os.environ["UPSTREAM_PRE"]

if __name__ == "__main__":
    import convert_hf_to_gguf  # type: ignore[import-not-found]

    convert_hf_to_gguf.main()
