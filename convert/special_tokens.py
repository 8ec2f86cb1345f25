"""Special token ids and the flags that say which of them are added to a prompt.

Source of the rules: gguf-py/gguf/vocab.py (`SpecialVocab`) and conversion/base.py (`_set_vocab_glm`) of llama.cpp
b11549.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from nextn.convert.checkpoint import shown
from nextn.gguf_schema.contents import Value, boolean, u32
from nextn.validators.findings import Findings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Style = Literal["gpt2", "glm"]

# In the order in which ids are looked up, which is the order of the keys.
SEARCHED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
ID_KEYS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
    "eom": "tokenizer.ggml.eom_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "sep": "tokenizer.ggml.seperator_token_id",  # the format's own spelling
    "pad": "tokenizer.ggml.padding_token_id",
    "mask": "tokenizer.ggml.mask_token_id",
}
FLAG_KEYS = {kind: f"tokenizer.ggml.add_{kind}_token" for kind in ("bos", "eos", "sep")}
# What a style adds after both passes, by the text of an added token.
STYLE_TOKENS: dict[Style, tuple[tuple[str, str], ...]] = {
    "gpt2": (),
    "glm": (("bos", "[gMASK]"), ("eot", "<|user|>"), ("unk", "<|endoftext|>"), ("eom", "<|observation|>")),
}
TEXTS = ("single", "pair")  # what a template is for: one text, or two
DEFAULT_ID = 11  # what llama.cpp takes for bos and eos of a gpt2 vocabulary without the key


@dataclass
class SpecialTokens:
    """What has been found so far: ids and flags by kind, in order of discovery.

    `texts` holds the text that the tokenizer configuration, or later a template, names for a kind.
    """

    added_ids: Mapping[str, int]
    vocab_size: int
    texts: dict[str, str | None] = field(default_factory=dict)
    searched: tuple[str, ...] = SEARCHED
    ids: dict[str, int] = field(default_factory=dict)
    flags: dict[str, bool] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)

    def keys(self) -> dict[str, Value]:
        """The keys to write: ids, then flags; kinds that GGUF has no key for are left out."""
        ids = {ID_KEYS[kind]: u32(id_) for kind, id_ in self.ids.items() if kind in ID_KEYS}
        flags = {FLAG_KEYS[kind]: boolean(flag) for kind, flag in self.flags.items() if kind in FLAG_KEYS}
        return ids | flags

    def offer(self, kind: str, id_: int, origin: str) -> None:
        """Take an id for a kind that has none yet; an id outside the vocabulary is dropped with a warning."""
        if kind in self.ids:
            return
        if not 0 <= id_ < self.vocab_size:
            self.findings.warn(
                "special-token-range", origin, f"the {kind} id {id_} is outside the vocabulary and not written"
            )
            return
        self.ids[kind] = id_


def find_special_tokens(
    post_processor: object,
    tokenizer_config: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    added_ids: Mapping[str, int],
    vocab_size: int,
    style: Style,
    default_bos: bool,
) -> SpecialTokens:
    """Ids and flags from tokenizer.json's post-processor, tokenizer_config.json, config.json and the style, in turn.

    The first id found for a kind stays. `default_bos` says whether a reader assumes a bos where none is written.
    """
    found = SpecialTokens(added_ids, vocab_size)
    found.texts = {kind: _token_text(tokenizer_config.get(f"{kind}_token")) for kind in SEARCHED}
    found.texts["bos"] = found.texts["bos"] or found.texts["cls"]
    found.texts["eos"] = found.texts["eos"] or found.texts["sep"]
    _read_post_processor(found, post_processor)
    if tokenizer_config:
        _read_tokenizer_config(found, tokenizer_config)
    _read_config(found, config)
    for kind, text in STYLE_TOKENS[style]:
        if text in added_ids:
            found.offer(kind, added_ids[text], "tokenizer.json")
        elif kind not in found.ids:
            found.findings.warn(
                "special-token-missing", "tokenizer.json", f"has no added token {text!r}: no {kind} is written"
            )
    for kind in ("bos", "eos") if default_bos else ("eos",):
        if kind not in found.ids:
            found.findings.warn(
                "special-token-missing",
                ID_KEYS[kind],
                f"no {kind} token is named by tokenizer_config.json or config.json; llama.cpp takes id {DEFAULT_ID}",
            )
    return found


def _token_text(entry: object) -> str | None:
    match entry:
        case str(text) | {"content": str(text)}:
            return text or None
    return None


def _read_tokenizer_config(found: SpecialTokens, tokenizer_config: Mapping[str, Any]) -> None:
    origin = "tokenizer_config.json"
    for kind in found.searched:
        flag = tokenizer_config.get(f"add_{kind}_token")
        if isinstance(flag, bool) and found.flags.setdefault(kind, flag) is not flag:
            found.findings.warn(
                "special-token-flag",
                origin,
                f"add_{kind}_token is {flag}, but the post-processor says {not flag}; the post-processor wins",
            )
        text = found.texts.get(kind)
        if text is None:
            continue
        if text in found.added_ids:
            found.offer(kind, found.added_ids[text], origin)
        elif kind in ID_KEYS:
            found.findings.warn(
                "special-token-missing", origin, f"{kind}_token {text!r} is not an added token: it gives no id"
            )


def _read_config(found: SpecialTokens, config: Mapping[str, Any]) -> None:
    text_config = config.get("text_config")
    for kind in found.searched:
        id_ = config.get(f"{kind}_token_id")
        if id_ is None and isinstance(text_config, dict):
            id_ = text_config.get(f"{kind}_token_id")
        # A list names several end tokens; the format has one place per kind.
        if type(id_) is int:
            found.offer(kind, id_, "config.json")


def _read_post_processor(found: SpecialTokens, post_processor: object) -> None:
    if not isinstance(post_processor, dict):
        return
    processors = post_processor.get("processors", [post_processor])
    for processor in processors if isinstance(processors, list) else [processors]:
        match processor:
            case {"type": "ByteLevel"}:
                found.flags.setdefault("bos", False)
                found.flags.setdefault("eos", False)
            case {"type": "TemplateProcessing"} if all(isinstance(processor.get(key) or [], list) for key in TEXTS):
                _read_template(found, *(processor.get(key) or [] for key in TEXTS))
            case _:
                kind = shown(processor.get("type") if isinstance(processor, dict) else processor)
                found.findings.warn("post-processor", "tokenizer.json", f"the post-processor {kind} is not understood")


def _read_template(found: SpecialTokens, single: Sequence[object], pair: Sequence[object]) -> None:
    leading = _special(single[0]) if len(single) > 1 else None
    trailing = _special(single[-1]) if len(single) > 1 else None
    if leading is not None:
        _take_leading(found, leading)
    if trailing is not None:
        _take_trailing(found, trailing)
    if leading is not None and pair and _special(pair[0]) == leading:
        pair = pair[1:]
    if trailing is not None and pair and _special(pair[-1]) == trailing:
        pair = pair[:-1]
    match pair:
        case [{"Sequence": {"id": "A"}}, *between, {"Sequence": {"id": "B"}}] if between:
            found.flags["sep"] = _separates(found, between, trailing)


def _take_leading(found: SpecialTokens, text: str) -> None:
    found.texts["bos"] = found.texts["bos"] or text
    found.flags["bos"] = text in (found.texts["bos"], found.texts["cls"])
    if not found.flags["bos"]:
        found.findings.warn(
            "special-token-flag",
            "tokenizer.json",
            f"the post-processor starts a text with {text!r}, but bos is {found.texts['bos']!r}; add_bos is false",
        )


def _take_trailing(found: SpecialTokens, text: str) -> None:
    found.flags["eos"] = True
    previous = found.texts["eos"]
    if text == previous:
        return
    found.texts["eos"] = text
    free = next((kind for kind in ("eot", "eom") if kind not in found.searched), None)
    if free is None:
        found.findings.warn(
            "special-token-flag", "tokenizer.json", f"{text!r} replaces {previous!r} as eos, which gets lost"
        )
        return
    found.searched += (free,)
    found.texts[free] = previous


def _separates(found: SpecialTokens, between: Sequence[object], trailing: str | None) -> bool:
    """Whether what stands between two texts is a separator: `A sep B`, or `A sep eos B` (RoBERTa's two tokens)."""
    separators = {found.texts["sep"], found.texts["eos"]} - {None}
    first = _special(between[0]) in separators and trailing is None
    second = len(between) == 2 and _special(between[1]) in separators
    if first or second:
        found.texts["sep"] = found.texts["sep"] or found.texts["eos"]
    return first or second


def _special(entry: object) -> str | None:
    match entry:
        case {"SpecialToken": {"id": str(text)}}:
            return text
    return None
