"""Text and token ids by the vocabulary of a GGUF file, as llama.cpp b11549 reads it.

A `tokenizers` tokenizer is built from the keys and the pre-tokenizer table; nothing of the checkpoint is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from nextn.gguf_schema.contents import Contents, Scalar, Value
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.pretokenizers import PRETOKENIZERS
from nextn.gguf_schema.vocabulary import DEFAULT_SPECIAL_ID, END_KEYS, END_TEXTS, FIM_END, TokenType

PREFIX = "tokenizer.ggml."


class Text:
    """The vocabulary of a model.

    Raises InputError when the file has none, or one that is not byte-level BPE of a known pre-tokenizer type.
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
        self.tokens = [str(token) for token in self._items("tokens")]
        self._types = [int(kind) for kind in self._items("token_type")]
        self._ids = {token: index for index, token in enumerate(self.tokens)}

    def encode(self, text: str) -> list[int]:
        """The ids of a text; the tokens that control and users defined are cut out of it first. BOS goes ahead of it
        where the file says so.
        """
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self.bos, *ids] if self.adds_bos and self.bos is not None else ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, control tokens included."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    @property
    def adds_bos(self) -> bool:
        """Whether a prompt begins with BOS."""
        value = self._keys.get(f"{PREFIX}add_bos_token")
        return value is not None and value.value is True

    @property
    def bos(self) -> int | None:
        """The id of BOS; None when the vocabulary has none."""
        value = self._keys.get(f"{PREFIX}bos_token_id")
        if value is None:
            return DEFAULT_SPECIAL_ID if self._pre.default_bos else None
        return _id(value)

    @cached_property
    def ends(self) -> frozenset[int]:
        """The ids that end a generation: by their keys, and by their texts."""
        found = {_id(self._keys[key]) for key in END_KEYS if key in self._keys}
        if END_KEYS[0] not in self._keys:
            found.add(DEFAULT_SPECIAL_ID)
        texts = {text for text in END_TEXTS if text in self._ids}
        # Tokens that some vocabularies have beside their real end.
        if {"<|return|>", "<|call|>"} <= texts or ({"<|call|>", "<|calls|>"} & texts and "<|flush|>" in texts):
            texts.discard("<|end|>")
        if "<|tool_response>" in texts or "<|plamo:eos|>" in self._ids:
            texts.discard("</s>")
        found |= {self._ids[text] for text in texts}
        for key, names in FIM_END.items():
            if key in self._keys:
                found.add(_id(self._keys[key]))
            else:
                found |= {self._ids[name] for name in names if name in self._ids}
        return frozenset(found)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        merges = [_pair(str(merge)) for merge in self._items("merges")]
        tokenizer = Tokenizer(BPE(self._ids, merges, ignore_merges=self._pre.ignore_merges))
        splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in self._pre.regexes]
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_])
        tokenizer.decoder = decoders.ByteLevel()
        cut_out = (TokenType.CONTROL, TokenType.USER_DEFINED)
        special = [token for token, kind in zip(self.tokens, self._types, strict=True) if kind in cut_out]
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in special])
        return tokenizer

    def _text(self, name: str) -> str:
        value = self._keys.get(PREFIX + name)
        return str(value.value) if value is not None else ""

    def _items(self, name: str) -> Sequence[Scalar]:
        value = self._keys.get(PREFIX + name)
        if value is None:
            raise InputError("no-vocabulary", f"has no {PREFIX}{name}", subject=self._name)
        return value.items


def _id(value: Value) -> int:
    return int(value.items[0])


def _pair(merge: str) -> tuple[str, str]:
    """The two sides of a merge: it is cut at the first space behind its first character."""
    left, _, right = merge[1:].partition(" ")
    return merge[:1] + left, right
