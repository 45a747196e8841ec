"""Lengths of a batch, in the forms that kernels take."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from attnfuzz.kernels.interface.backend import Bench


def running_sum(lengths: Iterable[int]) -> list[int]:
    """Return [0, a, a + b, ...], the cumulative lengths that kernels call cum_seq_lens."""
    return list(itertools.accumulate(lengths, initial=0))


def longest(lengths: Iterable[int]) -> int:
    """Return the maximum, but at least 1, because kernels divide by it."""
    return max(1, max(lengths, default=1))


def int32(values: Sequence[int] | Sequence[Sequence[int]]) -> torch.Tensor:
    """Return an int32 metadata tensor of one axis or two on the host."""
    # torch.tensor takes three times as long for a list.
    return torch.from_numpy(np.array(values, dtype=np.int32))


def place_int32(bench: Bench, name: str, values: Sequence[int]) -> torch.Tensor:
    """Return an int32 metadata tensor [len(values)] in guarded memory."""
    return bench.memory.copy(name, int32(values))
