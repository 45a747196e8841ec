"""Detection of stray writes: to inputs, compared byte by byte with copies, and to bytes that no tensor owns."""

import ctypes
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.kernels.interface.transfers import Pending

Difference = tuple[int, int] | None
"""The offset of the first differing byte and the number of differing bytes, or None."""

# PyDLL keeps the GIL: releasing it costs more than comparing a page.
_memcmp = ctypes.PyDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int


class Damage(msgspec.Struct, frozen=True):
    """`count` overwritten bytes around the tensor `name`, the first of them `offset` bytes from its start.

    `nbytes` is the tensor's extent: an offset below 0 is before it, one in [0, nbytes) in a gap between its elements,
    and one from `nbytes` on past its end.
    """

    name: str
    offset: int
    count: int
    nbytes: int

    def __str__(self) -> str:
        if self.offset < 0:
            where = f"before {self.name}, from {-self.offset} bytes before its start"
        elif self.offset < self.nbytes:
            where = f"in the gaps of {self.name}, from {self.offset} bytes after its start"
        else:
            where = f"after {self.name}, from {self.offset - self.nbytes} bytes past its end"
        return f"{self.count} bytes overwritten {where}"


class Seal:
    """Copies of the contents of tensors. `compare` finds each tensor's difference from its copy, and restores it.

    A changed input is a failure by itself; later launches and the reference should read the original. Copies are
    compared, not checksums: that is several times faster, and gives the first differing element.
    """

    def __init__(self, allocations: Sequence[Allocation], compare: Callable[[], Pending[list[Difference]]]) -> None:
        self._allocations, self._compare = allocations, compare

    def broken(self) -> Pending[list[tuple[str, int]]]:
        """Return the tensors changed so far, on a GPU also by queued work, each with its first differing element.

        Their contents are restored.
        """
        return self._compare().then(self._names)

    def _names(self, differences: list[Difference]) -> list[tuple[str, int]]:
        return [
            (allocation.name, difference[0] // allocation.itemsize)
            for allocation, difference in zip(self._allocations, differences, strict=True)
            if difference is not None
        ]


def differ(address: int, expected: int, nbytes: int) -> bool:
    """Return whether `nbytes` of host memory differ from those at another address."""
    return bool(_memcmp(address, expected, nbytes))


def difference(address: int, expected: int | bytes, nbytes: int) -> Difference:
    """Compare `nbytes` of host memory with the `expected` bytes, or those at that address."""
    if not _memcmp(address, expected, nbytes):
        return None
    found = ctypes.string_at(address, nbytes)
    wanted = expected if isinstance(expected, bytes) else ctypes.string_at(expected, nbytes)
    differ = np.frombuffer(found, np.uint8) != np.frombuffer(wanted, np.uint8)
    return int(differ.argmax()), int(differ.sum())
