"""Proof that memory was not written: a copy of it, compared byte by byte."""

import ctypes
from collections.abc import Iterable
from typing import Protocol

from attnfuzz.harness.memory import raw_bytes
from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.kernels.transfers import Pending, done


class Seal(Protocol):
    """Remembers what tensors held when it was made."""

    def broken(self) -> Pending[list[tuple[str, int]]]:
        """The tensors that changed up to now, each with the first element (counted in memory) that differs.

        On a GPU, up to now means by anything that was queued so far.
        """
        ...


class CopySeal:
    """A seal over `allocations` in the host's memory.

    A copy and not a checksum: copying and comparing is several times faster than a checksum, and can say where.
    """

    def __init__(self, allocations: Iterable[Allocation]) -> None:
        self._sealed = [(each, ctypes.string_at(each.address, each.nbytes)) for each in allocations]

    def broken(self) -> Pending[list[tuple[str, int]]]:
        """As `Seal` says."""
        return done(
            [
                (allocation.name, _first_difference(allocation, before) // allocation.itemsize)
                for allocation, before in self._sealed
                if not raw_bytes.same_as(allocation.address, before)
            ]
        )


def _first_difference(allocation: Allocation, before: bytes) -> int:
    copy = ctypes.create_string_buffer(before, len(before))
    offset = raw_bytes.first_difference(allocation.address, ctypes.addressof(copy), len(before))
    assert offset is not None
    return offset
