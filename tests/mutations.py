"""Damaged GGUF headers: small real ones of the three families, and random changes that know where the fields are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from families import FAMILIES

from nextn.convert.pipeline import convert
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.container import encode_header
from nextn.gguf_schema.contents import ByteSource, Value
from nextn.gguf_schema.errors import InputError, NextnError
from nextn.gguf_schema.shards import open_gguf
from nextn.gguf_schema.types import ValueType
from nextn.validators.container import examine_sources
from nextn.validators.examine import examine_contents, judge
from nextn.validators.findings import Findings, Severity
from nextn.validators.structural import examine_small

# Tokens and merges that are left of a tokenizer: enough to be walked, few enough for thousands of headers a second.
TOKENS = 40

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
POWERS = [2**bits - less for bits in (15, 16, 24, 31, 32, 40, 63, 64) for less in (0, 1)]
EXTREMES = (0, 1, 2, 3, 7, 13, 31, 32, 33, 64, 255, *POWERS)


@dataclass(frozen=True)
class Field:
    """A part of a header: where it is, and how many bytes it has."""

    offset: int
    size: int

    @property
    def span(self) -> slice:
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class HeaderFile:
    """A file of which only the header is held; the data, whatever its size, is zero."""

    raw: bytes
    size: int
    name: str = "mutated.gguf"
    identity: str = ""

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the file; InputError when they are not there."""
        if offset + length > self.size:
            raise InputError("truncated", "ends early", subject=self.name)
        return self.raw[offset : offset + length].ljust(length, b"\0")


@dataclass(frozen=True)
class Header:
    """The bytes of a real header, how many bytes of data it describes, and its parts.

    `structure` are the numbers that decide where what follows is, `values` the others, `texts` the bytes of strings.
    """

    raw: bytes
    data_bytes: int
    structure: tuple[Field, ...]
    values: tuple[Field, ...]
    texts: tuple[Field, ...]
    keys: tuple[Field, ...]
    tensors: tuple[Field, ...]

    @property
    def file(self) -> HeaderFile:
        """The file without any damage."""
        return HeaderFile(self.raw, len(self.raw) + self.data_bytes)


class Walk:
    """Where the parts of a healthy header are; by the format description, not by the reader under test."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 4
        self.structure: list[Field] = []
        self.values: list[Field] = []
        self.texts: list[Field] = []
        self.number(self.structure, 4)
        n_tensors, n_keys = self.number(self.structure, 8), self.number(self.structure, 8)
        self.keys = [self.entry(self.key) for _ in range(n_keys)]
        self.tensors = [self.entry(self.tensor) for _ in range(n_tensors)]

    def number(self, fields: list[Field], size: int) -> int:
        fields.append(Field(self.at, size))
        self.at += size
        return int.from_bytes(self.raw[self.at - size : self.at], "little")

    def text(self) -> None:
        length = self.number(self.structure, 8)
        if length:
            self.texts.append(Field(self.at, length))
        self.at += length

    def entry(self, read: Callable[[], None]) -> Field:
        begin = self.at
        read()
        return Field(begin, self.at - begin)

    def key(self) -> None:
        self.text()
        element, count = self.number(self.structure, 4), 1
        if element == ARRAY:
            element, count = self.number(self.structure, 4), self.number(self.structure, 8)
        for _ in range(count):
            if element == STRING:
                self.text()
            else:
                self.number(self.values, SIZES[element])

    def tensor(self) -> None:
        self.text()
        for size in [8] * self.number(self.structure, 4) + [4, 8]:
            self.number(self.values, size)


@cache
def headers(roles: tuple[Role, ...] = (Role.MTP, Role.MTP_SHARED)) -> tuple[Header, ...]:
    """Headers of every family's files of these roles, with a short tokenizer."""
    made = []
    for family in FAMILIES.values():
        with TemporaryDirectory() as folder:
            for output in convert(family.checkpoint, Path(folder), roles, "q8_0").outputs:
                file = open_gguf(output.path)
                keys = {key: _short(value) for key, value in file.contents.keys.items()}
                raw = encode_header(keys, tuple(file.contents))
                walk = Walk(raw)
                data_bytes = file.headers[0].source.size - file.headers[0].data_offset
                parts = (walk.structure, walk.values, walk.texts, walk.keys, walk.tensors)
                made.append(Header(raw, data_bytes, *map(tuple, parts)))
    return tuple(made)


def _short(value: Value) -> Value:
    if value.type is not ValueType.ARRAY:
        return value
    return Value(value.type, tuple(value.items)[:TOKENS], value.element)


def mutated(random: Random, whole: tuple[Header, ...]) -> HeaderFile:
    """A header with one to four changes, and sometimes with too little or too much data."""
    header = random.choice(whole)
    raw = bytearray(header.raw)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        random.choice(MUTATIONS)(random, header, raw)
    size = len(raw) + header.data_bytes
    if random.random() < 0.2:
        anywhere = random.randrange(len(raw) + 1), random.randrange(size + 1)
        size = random.choice((len(raw), *anywhere, size + 1000, 1 << 45))
    return HeaderFile(bytes(raw[:size]), size)


def judged(files: Sequence[ByteSource], *, foretell: bool = True) -> str:
    """How the examination of a file or set ends: `healthy`, `warnings`, `errors`, or the code of the error.

    Forecast and estimate, which take as long as all the rest, are made if wanted.
    """
    findings = Findings()
    try:
        container = examine_sources(files)
        findings = container.findings
        if container.whole:
            examine_small(container.file, findings)
            examined = examine_contents(container.file.contents, findings)
            findings = Findings((judge(examined) if foretell else examined).findings)
    except NextnError as error:
        return error.code
    found = {finding.severity for finding in findings}
    return "errors" if Severity.ERROR in found else "warnings" if Severity.WARNING in found else "healthy"


def _structure(random: Random, header: Header, raw: bytearray) -> None:
    """Another count, length or type."""
    _number(random, random.choice(header.structure), raw)


def _value(random: Random, header: Header, raw: bytearray) -> None:
    """Another value, dimension, type of tensor or offset."""
    _number(random, random.choice(header.values), raw)


def _number(random: Random, field: Field, raw: bytearray) -> None:
    old = int.from_bytes(raw[field.span], "little")
    new = random.choice((*EXTREMES, old + 1, old - 1, old * 2, old ^ 1 << random.randrange(64), random.getrandbits(64)))
    raw[field.span] = (new % 2**64).to_bytes(8, "little")[: field.size]


def _text(random: Random, header: Header, raw: bytearray) -> None:
    """Another name or string of the same length: one that is there elsewhere, or one letter changed."""
    field = random.choice(header.texts)
    others = [text for text in header.texts if text.size == field.size]
    raw[field.span] = header.raw[random.choice(others).span]
    if random.random() < 0.5:
        raw[(field.offset + random.randrange(field.size)) % len(raw)] = random.choice(b"abkl._019 \0")


def _bytes(random: Random, _: Header, raw: bytearray) -> None:
    """Other bytes anywhere."""
    for _ in range(random.randint(1, 8)):
        raw[random.randrange(len(raw))] = random.getrandbits(8)


def _entry(random: Random, header: Header, raw: bytearray) -> None:
    """A key or tensor twice, or no more, or in the place of another; mostly counted right."""
    entries, count = random.choice(((header.keys, slice(16, 24)), (header.tensors, slice(8, 16))))
    one, other = random.choice(entries), random.choice(entries)
    more = random.randint(-1, 1)
    if more > 0:
        raw[other.offset : other.offset] = raw[one.span]
    elif more < 0:
        del raw[one.span]
    else:
        raw[other.span] = raw[one.span]
    if random.random() < 0.8:
        raw[count] = ((int.from_bytes(raw[count], "little") + more) % 2**64).to_bytes(8, "little")


def _cut(random: Random, _: Header, raw: bytearray) -> None:
    """Bytes taken out, or put in."""
    place, length = random.randrange(len(raw)), random.choice((1, 4, 8, 100))
    if random.random() < 0.5:
        del raw[place : place + length]
    else:
        raw[place:place] = random.randbytes(length)


MUTATIONS = (_structure, _value, _value, _value, _text, _text, _entry, _entry, _bytes, _cut)
