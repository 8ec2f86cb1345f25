"""The data of a planned tensor, piece by piece: read, transformed, encoded. Pieces are independent of each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nextn.convert.plan import Payload
from nextn.convert.quantize import NotFiniteError, decode, encode
from nextn.convert.transforms import Floats, Run
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.types import BF16

# Elements of a piece: its float32 intermediates fit a processor's cache, its reads are large enough for a disk.
PIECE_ELEMENTS = 1024 * 1024


class Piece(NamedTuple):
    """A part of a tensor's data: the source rows it is made of, and its byte offset in the data."""

    payload: Payload
    runs: tuple[Run, ...]
    offset: int
    last: bool


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
    if recipe.function is None and dtypes == {info.type.name} and all(len(run.sources) == 1 for run in piece.runs):
        return memoryview(
            b"".join(run.sources[0].read(run.start * recipe.width, run.rows * recipe.width) for run in piece.runs)
        )
    try:
        with np.errstate(over="raise"):
            rows = [_values(run, recipe.width) for run in piece.runs]
            values = rows[0] if len(rows) == 1 else np.concatenate(rows)
            if recipe.function is not None:
                values = recipe.function(values)
        return encode(values.reshape(-1, info.ne[0]), info.type).reshape(-1).data
    except ArithmeticError as error:
        raise _unfit(piece, error) from error


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
