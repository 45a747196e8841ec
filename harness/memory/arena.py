"""Slabs of memory that lie far apart in a reservation of inaccessible pages, pooled between cases."""

import ctypes
from types import TracebackType
from typing import Self

from attnfuzz.harness.memory.reservation import PAGE, OutOfMemory, Reservation
from attnfuzz.reference.case import Guard

_RESERVED = 32 << 40
"""Bytes of address space: half of it holds POISON_ID times a page of 1 MiB, so that such an id faults inside."""

GAP = 16 << 20
"""Inaccessible bytes on each side of a slab, at the least: more than a page of a KV pool, so that page id -1 faults."""

_LEAST = 1 << 30
_FINE_CLASSES = 8
"""Slabs of up to this many pages come in every size; larger ones in four sizes per power of two."""


class Slab:
    """Up to `capacity` bytes of pages, of which the first or the last are open: those that one tensor needs.

    `buffer` spans the whole capacity, whether open or not.
    """

    __slots__ = ("address", "buffer", "capacity", "opened", "start")

    def __init__(self, address: int, capacity: int) -> None:
        self.address = address
        self.capacity = capacity
        self.buffer = (ctypes.c_ubyte * capacity).from_address(address)
        self.start = 0
        self.opened = 0


class Arena:
    """Memory for tensors that touch an inaccessible page.

    `take` opens exactly the pages that a tensor needs, at the right or the left end of a slab, between at least GAP
    bytes (and at least the slab's own size) of inaccessible ones. A slab that was given back is taken again for the
    next tensor of its size class, so which pages are open depends on a tensor's size alone, not on what came before.
    Slabs at rest keep at most `budget` bytes of memory; beyond it, those that rested longest give theirs up.
    """

    def __init__(self, *, budget: int = 256 << 20, reserve: int = _RESERVED) -> None:
        self._reservation = Reservation(reserve, min(reserve, _LEAST))
        # From the middle on, so that far offsets to either side stay inside.
        self._cursor = _whole_pages(self._reservation.address + self._reservation.nbytes // 2)
        self._budget = budget
        self._free: dict[int, list[Slab]] = {}
        self._warm: dict[Slab, None] = {}
        self._warm_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def resting_bytes(self) -> int:
        """Bytes of memory that slabs hold while no tensor lives in them."""
        return self._warm_bytes

    def take(self, nbytes: int, guard: Guard) -> Slab:
        """A slab with the pages for `nbytes` open, flush with the guard: at its right end or its left.

        What it holds is left over from its last use. OutOfMemory if there is no address space or memory left.
        """
        pages = -(-nbytes // PAGE)
        needed = pages * PAGE
        capacity = _size_class(pages) * PAGE
        resting = self._free.get(capacity)
        if resting:
            slab = resting.pop()
            if slab in self._warm:
                del self._warm[slab]
                self._warm_bytes -= capacity
        else:
            slab = self._new_slab(capacity)
        start = slab.address + capacity - needed if guard is Guard.RIGHT else slab.address
        if slab.start != start or slab.opened != needed:
            self._shut(slab)
            self._reservation.open(start, needed)
            slab.start, slab.opened = start, needed
        return slab

    def give(self, slab: Slab) -> None:
        """Take a slab back: its tensor must not be used any more."""
        self._free.setdefault(slab.capacity, []).append(slab)
        self._warm[slab] = None
        self._warm_bytes += slab.capacity
        while self._warm_bytes > self._budget:
            self._cool(next(iter(self._warm)))

    def close(self) -> None:
        """Unmap everything: every tensor in the arena becomes invalid."""
        self._free.clear()
        self._warm.clear()
        self._reservation.close()

    def _new_slab(self, capacity: int) -> Slab:
        gap = max(GAP, capacity)
        address = self._cursor + gap
        end = address + capacity + gap
        if end > self._reservation.address + self._reservation.nbytes:
            raise OutOfMemory(
                f"no address space for {capacity} bytes of guarded memory among the {self._reservation.nbytes >> 30} "
                "GiB reserved: draw smaller cases, or raise the limit on virtual memory (ulimit -v)"
            )
        self._cursor = end
        return Slab(address, capacity)

    def _cool(self, slab: Slab) -> None:
        del self._warm[slab]
        self._warm_bytes -= slab.capacity
        self._shut(slab)
        self._reservation.discard(slab.address, slab.capacity)

    def _shut(self, slab: Slab) -> None:
        if slab.opened:
            self._reservation.shut(slab.start, slab.opened)
            slab.opened = 0


def _size_class(pages: int) -> int:
    if pages <= _FINE_CLASSES:
        return pages
    step = 1 << (pages.bit_length() - 3)
    return -(-pages // step) * step


def _whole_pages(nbytes: int) -> int:
    return nbytes // PAGE * PAGE
