"""An arena of host memory: slabs far apart in a reservation of inaccessible pages, pooled between cases."""

import ctypes
import mmap
import os
from typing import Self

from attnfuzz.harness.memory.slabs import OutOfMemory, Shelf, Spacing, size_class
from attnfuzz.reference.case import Guard

PAGE = mmap.PAGESIZE
"""Size of a page, the unit of protection."""

_PROT_NONE = 0
_MAP_NORESERVE = 0x4000
_MADV_DONTNEED = 4
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_mmap.restype = ctypes.c_void_p
_munmap = _libc.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_mprotect = _libc.mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Reservation:
    """`nbytes` of address space from `address` on, inaccessible at first. It uses no memory.

    The requested size is halved until the system grants it, down to `least`: address spaces differ (47 bits on x86-64,
    39 on some ARM kernels), and so do limits on virtual memory.
    """

    def __init__(self, nbytes: int, least: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        size = nbytes
        while (address := _mmap(None, size, _PROT_NONE, flags, -1, 0)) == _FAILED:
            if size // 2 < least:
                reason = os.strerror(ctypes.get_errno())
                raise OutOfMemory(
                    f"guarded memory needs {least >> 30} GiB of address space, not of memory ({reason}): "
                    "raise the limit on virtual memory (ulimit -v)"
                )
            size //= 2
        self.address: int = address
        self.nbytes = size

    def open(self, address: int, nbytes: int) -> None:
        """Make whole pages accessible. New ones hold zeros. Raises OutOfMemory."""
        self._protect(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE)

    def shut(self, address: int, nbytes: int) -> None:
        """Make whole pages inaccessible again, with their content kept."""
        self._protect(address, nbytes, _PROT_NONE)

    def discard(self, address: int, nbytes: int) -> None:
        """Return the memory of whole pages to the system."""
        if _madvise(address, nbytes, _MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), f"madvise of {nbytes} bytes failed")

    def close(self) -> None:
        """Free the address space: every tensor in it becomes invalid."""
        if _munmap(self.address, self.nbytes):
            raise OSError(ctypes.get_errno(), "munmap failed")

    def _protect(self, address: int, nbytes: int, protection: int) -> None:
        if _mprotect(address, nbytes, protection):
            reason = os.strerror(ctypes.get_errno())
            raise OutOfMemory(
                f"no memory for {nbytes} bytes of guarded memory ({reason}): "
                "draw smaller cases, run fewer jobs, or raise vm.max_map_count"
            )


_RESERVED = 32 << 40
"""Size of the address space: half of it holds POISON_ID times a page of 1 MiB, so that such an id faults inside."""

_LEAST = 1 << 30


class Slab:
    """A run of pages: `buffer` spans `capacity` bytes, of which the first or last pages are accessible for a tensor.

    A `hollow` slab has inaccessible pages among these.
    """

    __slots__ = ("address", "buffer", "capacity", "hollow", "opened", "start")

    def __init__(self, address: int, capacity: int) -> None:
        self.address = address
        self.capacity = capacity
        self.buffer = (ctypes.c_ubyte * capacity).from_address(address)
        self.start = 0
        self.opened = 0
        self.hollow = False


class Arena:
    """Memory for tensors that end or begin at an inaccessible page.

    `take` opens exactly the pages that a tensor needs, at the right or the left end of a slab, with at least GAP
    inaccessible bytes (and at least the slab's own size) on each side. A returned slab is reused for the next tensor of
    its size class, so the open pages depend on a tensor's size alone, not on history. Idle slabs keep at most `budget`
    bytes of memory; beyond it, the longest idle ones are freed.
    """

    def __init__(self, *, budget: int = 256 << 20, reserve: int = _RESERVED) -> None:
        self._reservation = Reservation(reserve, min(reserve, _LEAST))
        self._spacing = Spacing(
            self._reservation.address,
            self._reservation.nbytes,
            PAGE,
            "draw smaller cases, or raise the limit on virtual memory (ulimit -v)",
        )
        self._shelf: Shelf[Slab] = Shelf(budget)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, nbytes: int, guard: Guard, hole: tuple[int, int] = (0, 0)) -> Slab:
        """Take a slab with the pages for `nbytes` open at the guard's end, not cleared. Raises OutOfMemory.

        Whole pages between the two offsets of `hole` stay inaccessible, and use no memory.
        """
        pages = -(-nbytes // PAGE)
        needed = pages * PAGE
        capacity = size_class(pages) * PAGE
        slab = self._shelf.take(capacity) or Slab(self._spacing.place(capacity), capacity)
        start = slab.address + capacity - needed if guard is Guard.RIGHT else slab.address
        if slab.start != start or slab.opened != needed or slab.hollow or any(hole):
            self._shut(slab)
            slab.hollow = any(hole)
            try:
                self._open(start, needed, slab.address + capacity - nbytes if guard is Guard.RIGHT else start, hole)
            except OutOfMemory:
                self._shelf.put_cold(slab)
                raise
            slab.start, slab.opened = start, needed
        return slab

    def _open(self, start: int, nbytes: int, tensor: int, hole: tuple[int, int]) -> None:
        """Make the pages from `start` on accessible, except those in the hole of a tensor at the address `tensor`."""
        if not any(hole):
            self._reservation.open(start, nbytes)
            return
        first, end = (tensor + offset for offset in hole)
        self._reservation.open(start, first - start)
        self._reservation.open(end, start + nbytes - end)

    def give(self, slab: Slab) -> None:
        """Return a slab. Its tensor must not be used any more."""
        if slab.hollow:
            # Its size counts the addresses of the hole, so keeping it would evict all others.
            self._shut(slab)
            self._reservation.discard(slab.address, slab.capacity)
            self._shelf.put_cold(slab)
            return
        self._shelf.put(slab)
        for excess in self._shelf.excess():
            self._shut(excess)
            self._reservation.discard(excess.address, excess.capacity)

    def close(self) -> None:
        """Unmap everything: every tensor in the arena becomes invalid."""
        self._shelf.clear()
        self._reservation.close()

    def _shut(self, slab: Slab) -> None:
        if slab.opened:
            self._reservation.shut(slab.start, slab.opened)
            slab.opened = 0
