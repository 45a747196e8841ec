"""A GPU kernel that accesses any address: a planted overrun, to measure whether overruns are detected."""

from pathlib import Path
from typing import Any

import torch

from attnfuzz.kernels.cuda import nvcc
from attnfuzz.kernels.interface.backend import Op

SOURCE = Path(__file__).with_suffix(".cu")


def stray(tensor: torch.Tensor, distance: int, *, write: bool, **others: Any) -> None:
    """Read or write the two bytes that lie `distance` bytes after the start of `tensor`, on its GPU.

    `others` are further tensor arguments of the kernel. Does not synchronise. Raises the errors of `nvcc.load`.
    """
    del others
    nvcc.load(SOURCE).stray(tensor.data_ptr() + distance, write, tensor.device.index)


STRAY = Op("stray", stray, frozenset({"out", "lse"}))
