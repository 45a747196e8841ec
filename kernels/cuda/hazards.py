"""Kernels with one mistake each, to see whether a tool of compute-sanitizer reports it."""

from pathlib import Path

import torch

from attnfuzz.kernels.cuda import nvcc

SOURCE = Path(__file__).with_suffix(".cu")

_THREADS = 64


def make(number: int) -> None:
    """Launch the kernel with this number, and wait for it.

    0: words of shared memory are read without a barrier; 1: half of the threads wait at one; 2: unwritten memory is
    read; 3: a write outside of an allocation. Raises the errors of `nvcc.load`, and RuntimeError if the device reports
    an error.
    """
    out, unwritten = (torch.empty(_THREADS, device="cuda") for _ in range(2))
    nvcc.load(SOURCE).make(number, out.data_ptr(), unwritten.data_ptr(), out.device.index)
    torch.cuda.synchronize()
