"""Text and token ids by the vocabulary of a GGUF file, as llama.cpp b11549 reads it (src/llama-vocab.cpp).

A `tokenizers` tokenizer is built from the keys and the pre-tokenizer table; nothing of the checkpoint is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.models import BPE

from nextn.gguf_schema.contents import Contents, Scalar, Value
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.pretokenizers import PRETOKENIZERS
from nextn.gguf_schema.vocabulary import DEFAULT_SPECIAL_ID, END_KEYS, END_TEXTS, FIM_END, TokenType

PREFIX = "tokenizer.ggml."
# Tokens of these types stand in a text as they are, and are never made of pieces of it.
LITERAL = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)


class Text:
    """The vocabulary of a model.

    Raises InputError when the file has none, one that llama.cpp would not load, or one that is not byte-level BPE of a
    known pre-tokenizer type.
    """

    def __init__(self, contents: Contents) -> None:
        self._keys: Mapping[str, Value] = contents.keys
        self._name = contents.name
        model, pre = self._text("model"), self._text("pre")
        if model != "gpt2" or pre not in PRETOKENIZERS:
            message = f"has a vocabulary of model {model!r} and pre-tokenizer {pre!r}, which cannot be read here"
            remedy = "give token ids (--tokens) instead of text"
            raise InputError("unknown-tokenizer", message, subject=contents.name, remedy=remedy)
        self._pre = PRETOKENIZERS[pre]
        self.tokens = [str(token) or f"[EMPTY_{index}]" for index, token in enumerate(self._items("tokens"))]
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        if len(self._ids) < len(self.tokens):
            twice = next(token for index, token in enumerate(self.tokens) if self._ids[token] != index)
            raise self._bad(f"has token {twice[:80]!r} twice")
        self._types: Sequence[Scalar] = [TokenType.NORMAL] * len(self.tokens)
        if f"{PREFIX}token_type" in self._keys:
            self._types = list(self._items("token_type"))
        if len(self._types) < len(self.tokens):
            raise self._bad(f"has {len(self._types)} types for {len(self.tokens)} tokens")

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with BOS ahead of it and EOS behind it where the file says so.

        Literal tokens are cut out of it first, those with the longest text first. InputError for half a surrogate pair.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError("not-text", f"holds U+{ord(text[error.start]):04X}, which is no character") from error
        ids = [self.bos] if self.adds_bos and self.bos is not None else []
        for part in self._parts(text):
            ids += [part] if isinstance(part, int) else self._tokenizer.encode(part, add_special_tokens=False).ids
        return [*ids, self.eos] if self.adds_eos and self.eos is not None else ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, control tokens included; U+FFFD for bytes that are no character, and unknown ids."""
        return b"".join(map(self._piece, ids)).decode(errors="replace")

    @property
    def adds_bos(self) -> bool:
        """Whether a prompt begins with BOS."""
        return self._flag("add_bos_token")

    @property
    def adds_eos(self) -> bool:
        """Whether a prompt ends with EOS."""
        return self._flag("add_eos_token")

    @property
    def bos(self) -> int | None:
        """The id of BOS; None when the vocabulary has none."""
        return self._special(f"{PREFIX}bos_token_id", DEFAULT_SPECIAL_ID if self._pre.default_bos else None)

    @property
    def eos(self) -> int | None:
        """The id of EOS; None when the vocabulary has none."""
        return self._special(END_KEYS[0], DEFAULT_SPECIAL_ID)

    @cached_property
    def ends(self) -> frozenset[int]:
        """The ids that end a generation: by their keys, and by their texts."""
        by_key = {self.eos, *(self._special(key) for key in END_KEYS[1:])}
        found = self._ends_by_text | {index for index in by_key if index is not None}
        return frozenset(found - {self._ids[text] for text in self._no_ends({self.tokens[i] for i in found})})

    @staticmethod
    def _no_ends(texts: set[str]) -> set[str]:
        """Which of the texts of end tokens end nothing: some vocabularies have them beside their real end."""
        dropped = set()
        if {"<|call|>", "<|calls|>"} & texts and {"<|return|>", "<|flush|>"} & texts:
            dropped.add("<|end|>")
        if {"<|tool_response>", "<|plamo:eos|>"} & texts:
            dropped.add("</s>")
        return dropped & texts

    @cached_property
    def _ends_by_text(self) -> set[int]:
        """Tokens with the texts of ends, and one token for each fill-in-the-middle end."""
        found = {self._ids[text] for text in END_TEXTS if text in self._ids}
        for key, names in FIM_END.items():
            index = self._special(key)
            known = [self._ids[name] for name in names if name in self._ids]
            found |= set(known[:1]) if index is None else {index}
        return found

    @cached_property
    def _literals(self) -> dict[str, int]:
        """Literal tokens, longest first: those of such a type, and ends whatever their type is."""
        ids = {index for index in range(len(self.tokens)) if self._types[index] in LITERAL} | self._ends_by_text
        # As text it is plain where it is no end.
        if "</s>" in self._ids and self._ids["</s>"] in self._ends_by_text - self.ends:
            ids.discard(self._ids["</s>"])
        return {self.tokens[index]: index for index in sorted(ids, key=lambda i: (-len(self.tokens[i].encode()), i))}

    def _parts(self, text: str) -> Iterator[str | int]:
        """A text in order: literal tokens, and what is between them."""
        parts: list[str | int] = [text]
        for literal, index in self._literals.items():
            if literal in text:
                parts = [piece for part in parts for piece in _cut(part, literal, index)]
        return (part for part in parts if part != "")

    def _piece(self, index: int) -> bytes:
        """The bytes of a token in a text."""
        if not 0 <= index < len(self.tokens):
            return "\ufffd".encode()
        token = self.tokens[index]
        if token in self._literals:
            return token.encode()
        if self._types[index] != TokenType.NORMAL and token not in END_TEXTS:
            return b""
        return b"".join(BYTES.get(character) or character.encode() for character in token)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        # Of equal merges the first counts; one without a right side is never met.
        pairs = dict.fromkeys(_pair(str(merge)) for merge in self._items("merges"))
        merges = [(left, right) for left, right in pairs if right]
        # The package would abort.
        for left, right in merges:
            for token in (left, right, left + right):
                if token not in self._ids:
                    raise self._bad(f"has a merge of {left[:80]!r} and {right[:80]!r}, but no token {token[:80]!r}")
        tokenizer = Tokenizer(BPE(self._ids, merges, ignore_merges=self._pre.ignore_merges))
        splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in self._pre.regexes]
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_])
        return tokenizer

    def _text(self, name: str) -> str:
        value = self._keys.get(PREFIX + name)
        return str(value.value) if value is not None else ""

    def _flag(self, name: str) -> bool:
        value = self._keys.get(PREFIX + name)
        return value is not None and value.value is True

    def _special(self, key: str, default: int | None = None) -> int | None:
        """The id that a key tells; the default when it is absent or tells none. InputError when it is no number."""
        value = self._keys.get(key)
        index = default if value is None else value.value
        if index is not None and not isinstance(index, int):
            raise self._bad(f"has {key} of type {value.type_name if value else None}")
        return next((i for i in (index, default) if i is not None and 0 <= i < len(self.tokens)), None)

    def _items(self, name: str) -> Sequence[Scalar]:
        value = self._keys.get(PREFIX + name)
        if value is None:
            raise InputError("no-vocabulary", f"has no {PREFIX}{name}", subject=self._name)
        return value.items

    def _bad(self, what: str) -> InputError:
        remedy = "nextn validate says what else is wrong with the file"
        return InputError("bad-vocabulary", what, subject=self._name, remedy=remedy)


def _cut(part: str | int, literal: str, index: int) -> Iterator[str | int]:
    """A part with a token's id wherever its text stood."""
    if isinstance(part, int):
        yield part
        return
    first, *others = part.split(literal)
    yield first
    for other in others:
        yield from (index, other)


def _pair(merge: str) -> tuple[str, str]:
    """The two sides of a merge: it is cut at the first space behind its first character."""
    left, _, right = merge[1:].partition(" ")
    return merge[:1] + left, right


def _byte_alphabet() -> dict[str, bytes]:
    """What byte each character of a token stands for: those that can be seen are themselves, the others follow 255.

    Source: bytes_to_unicode of GPT-2's encoder.py.
    """
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unseen = [byte for byte in range(256) if byte not in seen]
    characters = [*map(chr, seen), *(chr(256 + n) for n in range(len(unseen)))]
    return {character: bytes([byte]) for character, byte in zip(characters, [*seen, *unseen], strict=True)}


BYTES = _byte_alphabet()
