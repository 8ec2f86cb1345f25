"""Whether the data of a file is where its header says.

Codes of the errors: misaligned, overlap, truncated, trailing-bytes, gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nextn.gguf_schema.container import padded
from nextn.gguf_schema.errors import InputError, counted, listed
from nextn.gguf_schema.header_reader import DOWNLOAD_AGAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nextn.gguf_schema.container import Header
    from nextn.gguf_schema.contents import TensorInfo


def layout_problems(header: Header) -> Iterator[InputError]:
    """What is wrong with the places of the data, in order of offset: `misaligned` and `overlap`, then one `truncated`
    for all tensors that reach past the end of the file, or `trailing-bytes` after the padding of the last.
    """
    name, size = header.source.name, header.source.size
    end, last = 0, ""
    cut = []
    for tensor in sorted(header.described, key=lambda tensor: tensor.offset):
        # An opaque tensor without a byte of its own shares its place with another, or lies past the end. One without
        # elements, which is an error of its own, takes no place.
        nbytes = 0 if 0 in tensor.ne else max(tensor.nbytes, 1)
        begin = header.data_offset + tensor.offset
        where = f"tensor {tensor.name!r}: data at byte {begin}"
        if tensor.offset % header.alignment:
            message = f"{where} has offset {tensor.offset}, want a multiple of {header.alignment}"
            yield InputError("misaligned", message, subject=name)
        if tensor.offset < end:
            message = f"{where} begins before that of {last!r} ends at byte {header.data_offset + end}"
            yield InputError("overlap", message, subject=name)
        if begin + nbytes > size:
            missing = begin + nbytes - size
            cut.append((tensor, f"{where} needs {nbytes} bytes, {max(size - begin, 0)} left: {missing} missing"))
        if tensor.offset + nbytes > end:
            end, last = tensor.offset + nbytes, tensor.name
    if cut:
        yield _truncated(header, cut, end)
    extra = size - header.data_offset - padded(end, header.alignment)
    if extra > 0:
        message = f"{extra} bytes from byte {size - extra} on belong to no tensor"
        yield InputError("trailing-bytes", message, subject=name)


def order_problems(header: Header) -> Iterator[InputError]:
    """A `gap` for each tensor that does not begin where the one before it in the header ends, padded.

    Data that begins earlier overlaps, or a gap came before it. Source: gguf.cpp refuses any other offset.
    """
    end = 0
    for tensor in header.described:
        if tensor.offset > end and tensor.offset % header.alignment == 0:
            message = (
                f"tensor {tensor.name!r}: offset {tensor.offset}, want {end}: "
                f"where the one before it in the header ends, padded to {header.alignment}"
            )
            yield InputError("gap", message, subject=header.source.name)
        end = padded(tensor.offset + tensor.nbytes, header.alignment)


def _truncated(header: Header, cut: Sequence[tuple[TensorInfo, str]], end: int) -> InputError:
    """The error about tensors that reach past the end of the file, of which data should end at `end`."""
    _, message = cut[0]
    if len(cut) > 1:
        missing = header.data_offset + end - header.source.size
        names = listed(repr(tensor.name) for tensor, _ in cut[1:])
        message += f"; with {counted(len(cut) - 1, 'tensor')} after it ({names}), {missing} in all"
    return InputError("truncated", message, subject=header.source.name, remedy=DOWNLOAD_AGAIN)
