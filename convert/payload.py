"""The data of a planned tensor, piece by piece: read, transformed, encoded. Pieces are independent of each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nextn.convert.plan import Payload
from nextn.convert.quantize import NotFiniteError, decode, encode
from nextn.convert.source_tensor import SourceTensor
from nextn.convert.transforms import Floats, Run
from nextn.gguf_schema.contents import ByteSource
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.types import BF16

# Elements of a piece: its float32 intermediates fit a processor's cache, its reads are large enough for a disk.
PIECE_ELEMENTS = 1024 * 1024
# Bytes that are read at once where nothing is computed.
READ_BYTES = 4 << 20
# Bytes that are copied before the progress is told.
COPY_BYTES = 64 << 20


class Piece(NamedTuple):
    """A part of a tensor's data: the source rows it is made of, and its byte offset in the data."""

    payload: Payload
    runs: tuple[Run, ...]
    offset: int
    last: bool


class Extent(NamedTuple):
    """A part of a verbatim tensor's data: where it is, its length, and its byte offset in the data."""

    payload: Payload
    source: ByteSource
    start: int
    nbytes: int
    offset: int
    last: bool

    def read(self) -> memoryview:
        """The bytes."""
        return memoryview(self.source.read(self.start, self.nbytes))


def extents(payload: Payload, source: SourceTensor, size: int) -> Iterator[Extent]:
    """The extents of a verbatim tensor in order, of `size` bytes each."""
    for offset in range(0, source.nbytes, size):
        length = min(size, source.nbytes - offset)
        last = offset + length == source.nbytes
        yield Extent(payload, source.source, source.offset + offset, length, offset, last)


def pieces(payload: Payload, elements: int = PIECE_ELEMENTS) -> Iterator[Piece]:
    """The pieces of a tensor in order."""
    done, type_, recipe = 0, payload.info.type, payload.recipe
    for runs in recipe.chunks(elements):
        offset = type_.row_bytes(done)
        done += sum(run.rows * len(run.sources) for run in runs) * recipe.width
        yield Piece(payload, runs, offset, done == payload.info.elements)


def piece_bytes(piece: Piece) -> memoryview:
    """The bytes of a piece.

    Raises InputError when a source cannot be read, when a finite value becomes infinite in the output type, or when a
    value that is not finite would ruin a block.
    """
    info, recipe = piece.payload.info, piece.payload.recipe
    dtypes = {source.dtype for run in piece.runs for source in run.sources}
    if recipe.function is None and dtypes == {info.type.name}:
        return memoryview(b"".join(_stored_rows(run, recipe.width) for run in piece.runs))
    try:
        with np.errstate(over="raise"):
            rows = [_values(run, recipe.width) for run in piece.runs]
            values = rows[0] if len(rows) == 1 else np.concatenate(rows)
            if recipe.function is not None:
                values = recipe.function(values)
        return encode(values.reshape(-1, info.ne[0]), info.type).reshape(-1).data
    except ArithmeticError as error:
        raise _unfit(piece, error) from error


def _stored_rows(run: Run, width: int) -> bytes:
    """The bytes of rows as they are stored, those of several sources side by side."""
    parts = [source.read(run.start * width, run.rows * width) for source in run.sources]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.frombuffer(part, np.uint8).reshape(run.rows, -1) for part in parts], axis=1).tobytes()


def _unfit(piece: Piece, error: ArithmeticError) -> InputError:
    """The error of a value that the output type cannot hold; the remedy is a type that can, when there is one."""
    info, sources = piece.payload.info, [source for run in piece.runs for source in run.sources]
    # Only such values can be too large for BF16, whose range is nearly that of F32.
    wide = any(source.dtype == "F64" or source.scale is not None for source in sources)
    wider = "f32" if wide or info.type == BF16 else "bf16"
    code, message = "overflow", str(error)
    remedy = f"keep it wider: --tensor-type '^{re.escape(info.name)}$={wider}'"
    if isinstance(error, NotFiniteError):
        code = "not-finite"
        remedy = f"the checkpoint may be damaged; --tensor-type '^{re.escape(info.name)}$={wider}' passes them on"
    elif isinstance(error, FloatingPointError):
        message = f"a value is beyond float32, in which everything is computed ({error})"
        remedy = "no type can hold it: the checkpoint is damaged, or not scaled as config.json says"
    return InputError(code, f"{message} (made from {sources[0].name})", subject=info.name, remedy=remedy)


def _values(run: Run, width: int) -> Floats:
    start, count = run.start * width, run.rows * width
    parts = [decode(source, start, count).reshape(run.rows, width) for source in run.sources]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
