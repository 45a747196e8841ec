"""Exact fp64 values."""

import torch

from attnfuzz.reference.problem import exact


def test_every_fp8_value_is_read_exactly_from_any_strides() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(16, 16).view(torch.float8_e4m3fn)
    for tensor in (codes, codes.T):
        torch.testing.assert_close(exact(tensor), tensor.double(), rtol=0, atol=0, equal_nan=True)
        assert exact(tensor).is_contiguous()
