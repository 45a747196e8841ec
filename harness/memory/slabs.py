"""Slabs of memory: their addresses, their size classes, and their reuse."""

from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar

GAP = 16 << 20
"""Minimum number of inaccessible bytes on each side of a slab: more than a page of a KV pool, so that page id -1
faults.
"""

_FINE_CLASSES = 8
"""Number of pages up to which slabs come in every size; larger ones come in four sizes per power of two."""


class OutOfMemory(MemoryError):
    """Guarded memory can't grow. The message states the limit and the remedy."""


class NoAddresses(OutOfMemory):
    """A limited address space has no room for a tensor with a hole, which needs little memory."""


class Spacing:
    """Allocates addresses for slabs of whole pages of `page` bytes, in `nbytes` of address space from `address` on.

    Allocation begins in the middle, so that far offsets to either side stay inside. `remedy` is advice for when it is
    full.
    """

    def __init__(self, address: int, nbytes: int, page: int, remedy: str) -> None:
        self._nbytes = nbytes
        self._end = address + nbytes
        self._cursor = (address + nbytes // 2) // page * page
        self._remedy = remedy

    def place(self, capacity: int) -> int:
        """Return the address of a new slab, at least GAP and its own size from its neighbours. Raises OutOfMemory."""
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
    """Round a tensor's pages up to those of its slab."""
    if pages <= _FINE_CLASSES:
        return pages
    step = 1 << (pages.bit_length() - 3)
    return -(-pages // step) * step


class _Sized(Hashable, Protocol):
    @property
    def capacity(self) -> int: ...


SlabT = TypeVar("SlabT", bound=_Sized)


class Shelf(Generic[SlabT]):
    """Idle slabs by capacity, last in, first out; at most `budget` bytes of them stay warm (hold memory)."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._resting: dict[int, list[SlabT]] = {}
        self._warm: dict[SlabT, None] = {}
        self._warm_bytes = 0

    def take(self, capacity: int) -> SlabT | None:
        """Take a slab of exactly this capacity, warm or cold, or return None."""
        resting = self._resting.get(capacity)
        if not resting:
            return None
        slab = resting.pop()
        if slab in self._warm:
            self._chill(slab)
        return slab

    def put(self, slab: SlabT) -> None:
        """Put a warm slab back."""
        self.put_cold(slab)
        self._warm[slab] = None
        self._warm_bytes += slab.capacity

    def put_cold(self, slab: SlabT) -> None:
        """Put a slab without memory back, so that its addresses are not lost."""
        self._resting.setdefault(slab.capacity, []).append(slab)

    def excess(self) -> Iterator[SlabT]:
        """Yield the slabs that must free their memory, and are cold from then on."""
        while self._warm_bytes > self._budget:
            yield self._coldest()

    def all_warm(self) -> Iterator[SlabT]:
        """Yield all warm slabs, which are cold from then on."""
        while self._warm:
            yield self._coldest()

    def clear(self) -> None:
        """Drop every slab."""
        self._resting.clear()
        self._warm.clear()
        self._warm_bytes = 0

    def _coldest(self) -> SlabT:
        slab = next(iter(self._warm))
        self._chill(slab)
        return slab

    def _chill(self, slab: SlabT) -> None:
        del self._warm[slab]
        self._warm_bytes -= slab.capacity
