"""Whether two tensors share a byte, also where their strides interleave them."""

import torch

_MOST_BYTES = 1 << 28
"""Tensors that lie among each other in more memory than this are not looked at closely, and called apart."""


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a byte belongs to an element of both. A tensor on the meta device, which has no memory, has none."""
    if one.is_meta or other.is_meta:
        return False
    (begin, end), (other_begin, other_end) = _extent(one), _extent(other)
    first, last = max(begin, other_begin), min(end, other_end)
    if last <= first:
        return False
    if one.is_contiguous() and other.is_contiguous():
        return True
    nbytes = max(end, other_end) - min(begin, other_begin)
    if nbytes > _MOST_BYTES:
        return False
    taken = torch.zeros(nbytes, dtype=torch.bool)
    start = min(begin, other_begin)
    _bytes_of(one, taken, begin - start).fill_(True)
    return bool(_bytes_of(other, taken, other_begin - start).any())


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of the first byte of a tensor and of that behind its last."""
    if not tensor.numel():
        return 0, 0
    elements = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.itemsize


def _bytes_of(tensor: torch.Tensor, memory: torch.Tensor, offset: int) -> torch.Tensor:
    shape = (*tensor.shape, tensor.itemsize)
    stride = (*(step * tensor.itemsize for step in tensor.stride()), 1)
    return memory.as_strided(shape, stride, offset)
