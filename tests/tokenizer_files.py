"""Small hand-made tokenizers: a folder of text files to convert, and what came out of it in short."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nextn.convert.tokenizer import TokenizerKeys, tokenizer_keys
from nextn.gguf_schema.pretokenizers import PRETOKENIZERS

if TYPE_CHECKING:
    from pathlib import Path

    from nextn.convert.special_tokens import Style

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def pre_tokenizer(*regexes: str) -> dict[str, Any]:
    splits = [{"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": False} for r in regexes]
    return {"type": "Sequence", "pretokenizers": [*splits, BYTE_LEVEL]}


def added(id_: int, content: str, *, special: bool = True, normalized: bool = False) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized, "special": special}
    return {"id": id_, "content": content, **flags}


def model(**changes: object) -> dict[str, Any]:
    vocab = {"a": 0, "b": 1, "ab": 2, "Ġ": 3}
    return {"type": "BPE", "ignore_merges": False, "vocab": vocab, "merges": [["a", "b"]], **changes}


def tokenizer(**changes: object) -> dict[str, Any]:
    return {
        "version": "1.0",
        "added_tokens": [added(4, "<s>"), added(5, "</s>"), added(6, "<x>")],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer(*PRETOKENIZERS["qwen35"].regexes),
        "post_processor": None,
        "decoder": {**BYTE_LEVEL, "add_prefix_space": True, "use_regex": True},
        "model": model(),
        **changes,
    }


@dataclass
class Folder:
    """A checkpoint's text files; `files` maps further names to texts."""

    path: Path
    tokenizer: dict[str, Any] = field(default_factory=tokenizer)
    tokenizer_config: dict[str, Any] | None = field(default_factory=lambda: {"bos_token": "<s>", "eos_token": "</s>"})
    config: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def convert(self, *, vocab_size: int = 8, style: Style = "gpt2", pre: str | None = None) -> TokenizerKeys:
        (self.path / "tokenizer.json").write_text(json.dumps(self.tokenizer), encoding="utf-8")
        if self.tokenizer_config is not None:
            (self.path / "tokenizer_config.json").write_text(json.dumps(self.tokenizer_config), encoding="utf-8")
        for name, text in self.files.items():
            (self.path / name).parent.mkdir(exist_ok=True)
            (self.path / name).write_text(text, encoding="utf-8")
        return tokenizer_keys(self.path, self.config, vocab_size, style=style, pre=pre)


def found(result: TokenizerKeys, part: str) -> dict[str, Any]:
    """The keys whose names end with `part`, shortened to what is before it, in order."""
    prefix = "tokenizer.ggml."
    return {
        key.removeprefix(prefix).removesuffix(part): value.value
        for key, value in result.keys.items()
        if key.startswith(prefix) and key.endswith(part)
    }


def rules(result: TokenizerKeys) -> list[str]:
    return [finding.rule for finding in result.findings]
