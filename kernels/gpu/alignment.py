"""Addresses that kernels on a GPU need and that torch's allocator gives: guarded tensors begin anywhere."""

import torch


def aligned(tensor: torch.Tensor, nbytes: int = 16) -> torch.Tensor:
    """Return a tensor, or a copy of it, at an address that is a multiple of `nbytes`, at most 512."""
    return tensor if tensor.data_ptr() % nbytes == 0 else tensor.clone()
