"""Comparing a tensor with its right contents, element by element. Scripts contain these functions."""

import torch


def over_bound(seen: torch.Tensor, right: torch.Tensor, bound: torch.Tensor | None) -> torch.Tensor:
    """Return the error of each element over its bound, in fp64: at most 1 if it is right.

    An infinite bound allows everything; any other requires NaN for NaN. Without bounds, all bits must be equal.
    """
    if bound is None:
        differs = bits(seen) != bits(right)
        return torch.where(differs, torch.inf, 0.0).double()
    found, due, most = seen.double(), right.double(), bound.double()
    allowed = (found == due) | (found.isnan() & due.isnan()) | most.isinf()
    errors = ((found - due).abs() / most).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return torch.where(allowed, 0.0, errors)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bits of each element as an integer, in the same shape."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    return tensor.view(integer)
