"""GGUF bytes put together by hand, so that expectations do not come from the code under test."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)


def text(value: str | bytes) -> bytes:
    """A string: its length, then its bytes."""
    encoded = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def key(name: str | bytes, type_: int, payload: bytes) -> bytes:
    """A key with an encoded value."""
    return text(name) + struct.pack("<I", type_) + payload


def array_key(name: str, element: int, count: int, payload: bytes) -> bytes:
    """A key with an array of `count` encoded elements."""
    return key(name, ARRAY, struct.pack("<IQ", element, count) + payload)


def tensor(name: str | bytes, ne: Sequence[int], type_: int = 0, offset: int = 0) -> bytes:
    """A tensor description."""
    return text(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, type_, offset)


def header(keys: Sequence[bytes] = (), tensors: Sequence[bytes] = (), *, alignment: int = 32) -> bytes:
    """A version 3 header, padded."""
    raw = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors)
    return raw + bytes(-len(raw) % alignment)
