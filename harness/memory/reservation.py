"""A span of address space in which nothing is mapped until it is opened, page by page."""

import ctypes
import mmap
import os

PAGE = mmap.PAGESIZE
"""Bytes of a page: the grain of protection."""

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


class OutOfMemory(MemoryError):
    """Guarded memory can't grow; the message says which limit was met and what to do."""


class Reservation:
    """`nbytes` of address space from `address` on, all of it inaccessible at first.

    The size asked for is halved until the system grants it, down to `least`: address spaces differ (47 bits on x86-64,
    39 on some ARM kernels), and so do limits on virtual memory. It costs no memory, whatever its size.
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
        """Let whole pages be read and written. New ones hold zeros. OutOfMemory if the system has none left."""
        self._protect(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE)

    def shut(self, address: int, nbytes: int) -> None:
        """Make whole pages inaccessible again; they keep their content."""
        self._protect(address, nbytes, _PROT_NONE)

    def discard(self, address: int, nbytes: int) -> None:
        """Give the memory behind whole pages back to the system."""
        if _madvise(address, nbytes, _MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), f"madvise of {nbytes} bytes failed")

    def close(self) -> None:
        """Give the address space back: every tensor in it becomes invalid."""
        if _munmap(self.address, self.nbytes):
            raise OSError(ctypes.get_errno(), "munmap failed")

    def _protect(self, address: int, nbytes: int, protection: int) -> None:
        if _mprotect(address, nbytes, protection):
            reason = os.strerror(ctypes.get_errno())
            raise OutOfMemory(
                f"no memory for {nbytes} bytes of guarded memory ({reason}): "
                "draw smaller cases, run fewer jobs, or raise vm.max_map_count"
            )
