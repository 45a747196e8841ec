"""Comparing memory by address: the C library's memcmp, without a tensor operation's overhead."""

import ctypes

# PyDLL keeps the interpreter's lock: giving it up costs more than comparing a page.
_memcmp = ctypes.PyDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int


def same(one: int, other: int, nbytes: int) -> bool:
    """Whether `nbytes` at the address `one` equal those at the address `other`."""
    return not _memcmp(one, other, nbytes)


def same_as(address: int, content: bytes) -> bool:
    """Whether the bytes at `address` equal `content`."""
    return not _memcmp(address, content, len(content))


def first_difference(one: int, other: int, nbytes: int) -> int | None:
    """The smallest offset at which two runs of `nbytes` differ; None if they are equal. Halves the run each time."""
    if same(one, other, nbytes):
        return None
    start, size = 0, nbytes
    while size > 1:
        half = size // 2
        if same(one + start, other + start, half):
            start, size = start + half, size - half
        else:
            size = half
    return start
