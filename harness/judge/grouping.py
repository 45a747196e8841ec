"""Which of many numbers are equal, to within rounding."""

import torch


def grouped(numbers: torch.Tensor, tolerance: torch.Tensor) -> torch.Tensor:
    """The group of each of `numbers` [n], int64 [n], counted from 0 in rising order.

    A number is in the group of the next lower one if it is above it by its own `tolerance` [n] at most.
    """
    ordered, order = numbers.sort()
    starts = ordered.diff(prepend=ordered[:1]) > tolerance[order]
    return torch.empty_like(order).scatter_(0, order, starts.cumsum(0))
