"""Arguments of FlashInfer's wrappers."""

import math

from _template import requirements

with requirements("flashinfer-python"):
    import torch


def ints(*numbers):
    """Return metadata of a plan, int32 on the GPU."""
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


def workspace(mebibytes=128):
    """Return a workspace, by default as large as the docstrings recommend."""
    return torch.zeros(mebibytes << 20, dtype=torch.uint8, device="cuda")


def two_keys(dim, page, filling=0.0):
    """Return a query of two heads, and a page in layout HND that holds `filling` after two keys.

    Their logits, scaled by 1 / sqrt(dim), are 0 and ln 3, so their weights are 1/4 and 3/4. Their values are 0 and 1.
    """
    query = torch.zeros(1, 2, dim, dtype=torch.bfloat16, device="cuda")
    query[..., 0] = math.sqrt(dim)
    kv_cache = torch.full((1, 2, 1, page, dim), filling, dtype=torch.bfloat16, device="cuda")
    kv_cache[0, :, 0, :2] = 0
    kv_cache[0, 0, 0, 1, 0] = math.log(3)
    kv_cache[0, 1, 0, 1] = 1
    return query, kv_cache
