"""Guarded memory for one case on the CPU: what backends allocate from, and what tells the judge of stray writes."""

import ctypes
from collections.abc import Iterator, Sequence

import torch

from attnfuzz.harness.memory import raw_bytes
from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.harness.memory.arena import Arena, Slab
from attnfuzz.harness.memory.placed import ByteSpan, PlacedMemory, Room
from attnfuzz.harness.memory.poison import Pattern
from attnfuzz.harness.memory.seal import CopySeal, Seal
from attnfuzz.kernels.transfers import Pending, done
from attnfuzz.reference.case import Guard, Outputs


class GuardedMemory(PlacedMemory):
    """`PlacedMemory` in an arena's pages: exactly those that a tensor needs are accessible."""

    def __init__(self, arena: Arena, guard: Guard, outputs: Outputs) -> None:
        super().__init__(torch.device("cpu"), guard, outputs)
        self._arena = arena

    def content(self, allocation: Allocation) -> bytes:
        """What a tensor and its gaps hold now."""
        return ctypes.string_at(allocation.address, allocation.nbytes)

    def _room(self, elements: int, dtype: torch.dtype) -> Room:
        nbytes = elements * dtype.itemsize
        slab = self._arena.take(nbytes, self._guard)
        offset = slab.capacity - nbytes if self._guard is Guard.RIGHT else 0
        # Over exactly the tensor's bytes: what copies a tensor's storage must not run into a closed page.
        flat = torch.frombuffer(slab.buffer, dtype=dtype, count=elements, offset=offset)
        return Room(flat, slab.start, slab.opened, slab)

    def _give(self, slabs: list[Slab]) -> None:
        for slab in slabs:
            self._arena.give(slab)

    def _write(self, pattern: Pattern, address: int, nbytes: int) -> None:
        pattern.write(address, nbytes)

    def _differences(self, spans: Sequence[ByteSpan]) -> Pending[list[tuple[int, int] | None]]:
        return done([None if _as_expected(span) else _difference(span) for span in spans])

    def _sealed(self, allocations: Sequence[Allocation]) -> Seal:
        return CopySeal(allocations)


def _as_expected(span: ByteSpan) -> bool:
    if isinstance(span.expected, Pattern):
        return span.expected.holds(span.address, span.nbytes)
    return raw_bytes.same(span.address, span.expected.data_ptr(), span.nbytes)


def _difference(span: ByteSpan) -> tuple[int, int]:
    offsets = list(_offsets(ctypes.string_at(span.address, span.nbytes), _bytes_of(span)))
    return offsets[0], len(offsets)


def _bytes_of(span: ByteSpan) -> bytes:
    if isinstance(span.expected, Pattern):
        return span.expected.content(span.nbytes)
    return ctypes.string_at(span.expected.data_ptr(), span.nbytes)


def _offsets(found: bytes, expected: bytes) -> Iterator[int]:
    return (offset for offset, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
