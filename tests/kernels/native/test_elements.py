"""Conversions between element types, bit for bit as torch has them: attention to a single key copies its value."""

import pytest
import torch

from attnfuzz.kernels.native import ops


def copied(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`value` [elements] read by a kernel in its own dtype, and written in `dtype`."""
    query_dtype = torch.float32 if value.dtype == torch.float8_e4m3fn else value.dtype
    out = ops.trtllm_batch_context_with_kv_cache(
        query=torch.zeros(1, 1, 1, dtype=query_dtype),
        kv_cache=(torch.zeros(1, 1, 1, 1).to(value.dtype), value.view(1, 1, 1, -1)),
        workspace_buffer=torch.empty(0),
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        seq_lens=torch.ones(1, dtype=torch.int32),
        max_q_len=1,
        max_kv_len=1,
        bmm1_scale=1.0,
        bmm2_scale=1.0,
        batch_size=1,
        cum_seq_lens_q=torch.tensor([0, 1], dtype=torch.int32),
        cum_seq_lens_kv=torch.tensor([0, 1], dtype=torch.int32),
        out_dtype=dtype,
    )
    assert isinstance(out, torch.Tensor)
    return out.flatten()


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal values, NaN in the same places. The sum with 0 that attention makes turns -0 into 0."""
    torch.testing.assert_close(actual, expected + 0.0, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_value_is_read_exactly(dtype: torch.dtype) -> None:
    value = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    assert_same_bits(copied(value, torch.float32), value.float())


def test_every_e4m3_value_is_read_exactly() -> None:
    value = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    assert_same_bits(copied(value, torch.float32), value.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_outputs_round_to_nearest_even_and_keep_nan(dtype: torch.dtype) -> None:
    exact = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).float()
    halfway = (exact.double() + torch.cat([exact[1:], exact[:1]]).double()).div(2).float()
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(-(2**31), 2**31, (100_000,), generator=generator).int().view(torch.float32)
    value = torch.cat([exact, halfway, random, torch.tensor([65519.9, 65520.0, -65520.0, 3.4e38, 1e-45, 2.0**-25])])
    assert_same_bits(copied(value, dtype), value.to(dtype))
