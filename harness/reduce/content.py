"""Contents of buffers, as readable numbers if possible."""

import ctypes

import torch

from attnfuzz.harness.calls.trace import READABLE, literal_buffer
from attnfuzz.reference.calls import Buffer


def with_content(buffer: Buffer, content: torch.Tensor, offset: int = 0) -> Buffer:
    """Return a buffer, or a write to `offset`, like `buffer` but with `content` [size] of its dtype."""
    if content.is_floating_point() and 0 < content.numel() <= READABLE:
        wide = content.float()
        if bool((wide == wide.round()).all()) and bool(wide.isfinite().all()):
            numbers = tuple(int(number) for number in wide.tolist())
            # Compared as bits, because there is a negative zero.
            if torch.equal(torch.tensor(numbers, dtype=content.dtype).view(torch.uint8), content.view(torch.uint8)):
                return Buffer(name=buffer.name, dtype=buffer.dtype, size=len(numbers), offset=offset, values=numbers)
    dense = content.contiguous()
    return literal_buffer(buffer.name, buffer.dtype, ctypes.string_at(dense.data_ptr(), dense.nbytes), offset)
