"""Runs of bytes in memory, which are written or compared many at a time."""

from typing import NamedTuple

PLAIN = (1 << 64) - 1


class ByteRun(NamedTuple):
    """`nbytes` of memory from `address` on, and their source or counterpart: the memory from `other` on.

    On a GPU, `other` may be a pattern of `mask + 1` bytes (a power of two), which is repeated and begins at the last
    multiple of 16 at or before `address`. A run is fastest there if both have the same alignment in 16 bytes.
    """

    address: int
    other: int
    nbytes: int
    mask: int = PLAIN
