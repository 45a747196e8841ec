"""Slabs at rest: taken again by the next tensor of their size, and within a budget of memory."""

from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar


class _Sized(Hashable, Protocol):
    @property
    def capacity(self) -> int: ...


SlabT = TypeVar("SlabT", bound=_Sized)


class Shelf(Generic[SlabT]):
    """Slabs that no tensor lives in, by their capacity. Those put back last are taken first.

    A warm one still holds memory. Beyond `budget` bytes of it, those that rested longest have to give theirs up.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._resting: dict[int, list[SlabT]] = {}
        self._warm: dict[SlabT, None] = {}
        self._warm_bytes = 0

    def take(self, capacity: int) -> SlabT | None:
        """A slab of exactly this capacity, warm or cold; None if there is none."""
        resting = self._resting.get(capacity)
        if not resting:
            return None
        slab = resting.pop()
        if slab in self._warm:
            self._chill(slab)
        return slab

    def put(self, slab: SlabT) -> None:
        """Take a warm slab back."""
        self.put_cold(slab)
        self._warm[slab] = None
        self._warm_bytes += slab.capacity

    def put_cold(self, slab: SlabT) -> None:
        """Take a slab back that got no memory, so that its addresses are not lost."""
        self._resting.setdefault(slab.capacity, []).append(slab)

    def excess(self) -> Iterator[SlabT]:
        """The slabs that have to give up their memory; they count as cold from then on."""
        while self._warm_bytes > self._budget:
            yield self._coldest()

    def all_warm(self) -> Iterator[SlabT]:
        """Every warm slab, likewise."""
        while self._warm:
            yield self._coldest()

    def clear(self) -> None:
        """Forget every slab."""
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
