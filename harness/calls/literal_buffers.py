"""Buffers with literal contents, in the form that is easiest to read."""

import ctypes
import re

import torch

from attnfuzz.reference.calls import Buffer, pack
from attnfuzz.reference.dtypes import DType

READABLE = 256
"""Integer buffers of up to this many elements are written as numbers, longer ones as zeros or bits."""


_SOURCE_LINE = re.compile(r"(.*\.py:\d+)(_\d+)?")


def requested_by(name: str) -> str:
    """Return the line of an engine after which a buffer is named, since it requested the memory; "" without one."""
    found = _SOURCE_LINE.fullmatch(name)
    return found[1] if found else ""


def literal_buffer(name: str, dtype: DType, content: bytes, offset: int = 0) -> Buffer:
    """Make a buffer with this content: as numbers if it is short, as zeros if possible, else as bits."""
    size = len(content) // dtype.itemsize
    if dtype in (DType.INT32, DType.INT64) and size <= READABLE:
        values = torch.frombuffer(bytearray(content), dtype=dtype.torch_dtype).tolist() if content else []
        return Buffer(name=name, dtype=dtype, size=size, offset=offset, values=tuple(values))
    if size > READABLE and content.count(0) == len(content):
        return Buffer(name=name, dtype=dtype, size=size, offset=offset, zeros=True)
    return Buffer(name=name, dtype=dtype, size=size, offset=offset, bits=pack(content))


def changed_buffer(name: str, dtype: DType, before: bytes, after: bytes) -> Buffer:
    """Return a write from the first to the last differing element."""
    old, new = (torch.frombuffer(bytearray(content), dtype=dtype.bits) for content in (before, after))
    differ = (old != new).byte()
    first, last = int(differ.argmax()), len(differ) - 1 - int(differ.flip(0).argmax())
    return literal_buffer(name, dtype, after[first * dtype.itemsize : (last + 1) * dtype.itemsize], offset=first)


def with_content(buffer: Buffer, content: torch.Tensor, offset: int = 0) -> Buffer:
    """Return a buffer, or a write to `offset`, like `buffer` but with `content` [size] of its dtype."""
    if content.is_floating_point() and 0 < content.numel() <= READABLE:
        wide = content.float()
        if bool((wide == wide.round()).all()) and bool(wide.isfinite().all()):
            numbers = tuple(int(number) for number in wide.tolist())
            # By bits: there is a negative zero.
            if torch.equal(torch.tensor(numbers, dtype=content.dtype).view(torch.uint8), content.view(torch.uint8)):
                return Buffer(name=buffer.name, dtype=buffer.dtype, size=len(numbers), offset=offset, values=numbers)
    dense = content.contiguous()
    return literal_buffer(buffer.name, buffer.dtype, ctypes.string_at(dense.data_ptr(), dense.nbytes), offset)
