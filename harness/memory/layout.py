"""How a tensor lies in memory: strides, the elements that they span, and the gaps between them."""

from collections.abc import Sequence


def dense_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a row-major tensor without gaps."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last that a tensor reaches, both included; 0 for an empty tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def check_strides(name: str, shape: Sequence[int], stride: Sequence[int]) -> None:
    """Refuse strides that don't fit `shape`, are negative, or let two indices share an element.

    Raises:
        ValueError: says which tensor, and why.

    """
    if len(stride) != len(shape):
        raise ValueError(f"{name}: {len(stride)} strides for {len(shape)} dimensions")
    if min(stride, default=0) < 0:
        raise ValueError(f"{name}: stride {tuple(stride)} is negative: torch tensors can't have that")
    reach = 1
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True) if size > 1):
        if step < reach:
            raise ValueError(f"{name}: strides {tuple(stride)} make elements of shape {tuple(shape)} overlap")
        reach += (size - 1) * step
