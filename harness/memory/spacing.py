"""Where slabs lie in a span of address space, and which sizes they come in."""

from attnfuzz.harness.memory.reservation import OutOfMemory

GAP = 16 << 20
"""Inaccessible bytes on each side of a slab, at the least: more than a page of a KV pool, so that page id -1 faults."""

_FINE_CLASSES = 8
"""Slabs of up to this many pages come in every size; larger ones in four sizes per power of two."""


class Spacing:
    """Hands out addresses in `nbytes` of address space from `address` on, for slabs of whole pages of `page` bytes.

    It begins in the middle, so that far offsets to either side stay inside. `remedy` is what to do when it is full.
    """

    def __init__(self, address: int, nbytes: int, page: int, remedy: str) -> None:
        self._nbytes = nbytes
        self._end = address + nbytes
        self._cursor = (address + nbytes // 2) // page * page
        self._remedy = remedy

    def place(self, capacity: int) -> int:
        """The address of a new slab, at least GAP bytes and its own size from its neighbours. OutOfMemory if full."""
        gap = max(GAP, capacity)
        address = self._cursor + gap
        end = address + capacity + gap
        if end > self._end:
            raise OutOfMemory(
                f"no address space for {capacity} bytes of guarded memory among the {self._nbytes >> 30} GiB reserved: "
                f"{self._remedy}"
            )
        self._cursor = end
        return address


def size_class(pages: int) -> int:
    """The pages of the slab that serves a tensor of so many."""
    if pages <= _FINE_CLASSES:
        return pages
    step = 1 << (pages.bit_length() - 3)
    return -(-pages // step) * step
