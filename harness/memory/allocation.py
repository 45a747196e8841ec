"""The layout of tensors in memory, and faulting addresses described relative to them."""

from collections.abc import Iterable, Sequence

import msgspec

from attnfuzz.harness.memory.poison import POISON_ID
from attnfuzz.reference.case import Guard


def dense_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a row-major tensor without gaps."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return the number of elements that a tensor spans, gaps included; 0 for an empty tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def check_strides(name: str, shape: Sequence[int], stride: Sequence[int]) -> None:
    """Check that strides fit `shape`, are not negative, and don't overlap elements.

    Raises:
        ValueError: with the tensor and the reason.
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


NEAR = 64 << 10
"""Distance from a tensor, or its own size if that is larger, within which a stray access is attributed to it.

An access that is farther away used a wild index: which tensor is nearest is chance, and changes from run to run.
"""

_INT = 1 << 32

_FAR = 256 * _INT
"""Distance of a pointer with another upper half, in bytes."""

NULL_BYTES = 1 << 16
"""Addresses below this are offsets from a null pointer (by default, Linux never maps them for a program)."""


class Allocation(msgspec.Struct, frozen=True):
    """One tensor in memory.

    `nbytes` spans the first to the last element, gaps included; `stride` is in elements; `dtype` is torch's name
    ("bfloat16"). The address is 0 for a tensor without elements: torch passes kernels a null pointer for those. `hole`
    are the start and the end of the bytes without memory, whole pages, relative to the address.
    """

    name: str
    address: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    stride: tuple[int, ...]
    guard: Guard
    hole: tuple[int, int] = (0, 0)

    def distance(self, address: int) -> int:
        """Return the number of bytes from this tensor to `address`: 0 inside of it."""
        if address < self.address:
            return self.address - address
        return max(0, address - (self.address + self.nbytes) + 1)

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The (address, size) of each part with memory, in order."""
        first, end = self.hole
        if first == end:
            return ((self.address, self.nbytes),)
        return (self.address, first), (self.address + end, self.nbytes - end)

    def index(self, address: int, axis: int) -> int:
        """Return the index along `axis` that reaches `address` if all others are 0. A stray address is out of range."""
        return (address - self.address) // (self.stride[axis] * self.itemsize)


class Location(msgspec.Struct, frozen=True):
    """An address in words: `place` is a tensor's name, or a fixed phrase for addresses that belong to none.

    `index` is the index along the largest axis of that tensor, of `size` entries; None without a tensor.
    """

    place: str
    relation: str
    index: int | None = None
    size: int | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.relation}"


def locate(allocations: Iterable[Allocation], address: int) -> Location:
    """Attribute an access to a tensor, with the address's relation to it: "8 bytes past the end"."""
    everything = list(allocations)
    if address < NULL_BYTES:
        return _near_null(everything, address)
    placed = [allocation for allocation in everything if allocation.nbytes]
    nearest = min(placed, key=lambda allocation: allocation.distance(address), default=None)
    if nearest is None:
        return Location("unmapped memory", f"{address:#x}, with no tensor on record")
    distance = nearest.distance(address)
    poisoned = next((allocation for allocation in placed if _indexed_with_poison(allocation, address)), None)
    if distance and poisoned is not None:
        return Location(poisoned.name, f"{_side(poisoned, address)} (indexed with poison, {POISON_ID:#010x})")
    if distance <= max(NEAR, nearest.nbytes):
        return _near(nearest, address)
    cut = next((allocation for allocation in placed if _pointed_to_in_32_bits(allocation, address)), None)
    if cut is not None:
        return Location(cut.name, f"{address:#x}, as if its pointer had been cut to 32 bits")
    nearest_words = f"{_side(nearest, address)} of {nearest.name}"
    return Location("unmapped memory", f"{address:#x}, far from every tensor (nearest: {nearest_words})")


def _indexed_with_poison(allocation: Allocation, address: int) -> bool:
    return any(allocation.index(address, axis) == POISON_ID for axis, step in enumerate(allocation.stride) if step)


def _pointed_to_in_32_bits(allocation: Allocation, address: int) -> bool:
    """Return whether the address is one in the tensor, of which a caller passed an int of 32 bits.

    The upper half is its sign in a register, and anything on the stack. An index that wraps keeps nearly all of it.
    """
    if abs(allocation.address - address) < _FAR or allocation.nbytes > _INT // 16:
        return False
    return allocation.distance(allocation.address // _INT * _INT + address % _INT) == 0


def _near_null(allocations: list[Allocation], address: int) -> Location:
    offset = f"null pointer + {address} bytes"
    empty = [allocation.name for allocation in allocations if not allocation.nbytes]
    if len(empty) == 1:
        return Location(empty[0], f"{offset} (it has no elements)")
    hint = f" (tensors without elements: {', '.join(empty)})" if empty else ""
    return Location("null pointer", offset + hint)


def _near(allocation: Allocation, address: int) -> Location:
    side = _side(allocation, address)
    sizes = [(allocation.stride[axis], axis) for axis, size in enumerate(allocation.shape) if size > 1]
    axis = max(sizes, default=(1, 0))[1]
    if not allocation.shape or not allocation.stride[axis]:
        return Location(allocation.name, side)
    index, size = allocation.index(address, axis), allocation.shape[axis]
    unit = "element" if len(allocation.shape) == 1 else "row" if axis == 0 else "index"
    along = f" along axis {axis}" if axis else ""
    return Location(allocation.name, f"{side} ({unit} {index} of {size}{along})", index, size)


def _side(allocation: Allocation, address: int) -> str:
    offset = address - allocation.address
    if offset < 0:
        return f"{-offset} bytes before the start"
    if offset >= allocation.nbytes:
        return f"{offset - allocation.nbytes} bytes past the end"
    if allocation.hole[0] <= offset < allocation.hole[1]:
        return f"{offset} bytes inside, in pages that no request owns"
    return f"{offset} bytes inside"
