"""Comparing the arrays of two files, above all their vocabularies: those in files as they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nextn.gguf_schema.contents import Scalar
from nextn.gguf_schema.values import StoredArray

PADDING = "[PAD"  # how converters name the tokens that only fill a vocabulary up


def same_items(a: Sequence[Scalar], b: Sequence[Scalar]) -> bool:
    """Whether two arrays are equal."""
    if isinstance(a, StoredArray) and isinstance(b, StoredArray) and a.element is b.element:
        return (a.length, a.nbytes) == (b.length, b.nbytes) and a.raw() == b.raw()
    return tuple(a) == tuple(b)


def first_difference(a: Sequence[Scalar], b: Sequence[Scalar]) -> int:
    """The first index at which two arrays differ: the length of the shorter one when it begins the other."""
    return next(_differences(a, b), min(len(a), len(b)))


def _differences(a: Sequence[Scalar], b: Sequence[Scalar]) -> Iterator[int]:
    return (index for index, (one, other) in enumerate(zip(a, b, strict=False)) if one != other)


def only_padding(a: Sequence[Scalar], b: Sequence[Scalar], index: int) -> bool:
    """Whether two token tables are alike but for padding at the end of one, by their first difference."""
    longer = a if len(a) > len(b) else b
    return index >= min(len(a), len(b)) and all(str(token).startswith(PADDING) for token in longer[index:])


def same_vocabulary(a: Sequence[Scalar], b: Sequence[Scalar]) -> bool:
    """Whether ids mean the same tokens in two files."""
    return same_items(a, b) or only_padding(a, b, first_difference(a, b))
