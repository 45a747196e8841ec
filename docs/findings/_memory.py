"""Tensors at the end of accessible memory."""

import ctypes
import mmap

from _template import requirements

with requirements("torch"):
    import torch


def at_the_end_of_a_page(values):
    """Copy `values` to the end of a page that is followed by an inaccessible one."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0)
    there = memoryview(pages)[mmap.PAGESIZE - values.nbytes : mmap.PAGESIZE]
    return torch.frombuffer(there, dtype=values.dtype).copy_(values)
