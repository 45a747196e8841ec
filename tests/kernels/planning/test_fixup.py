"""The torch model of the fixup."""

import math

import pytest
import torch

from attnfuzz.kernels.planning.fixup import fixup_zero_kv_rows


@pytest.mark.parametrize("max_seq_len", [2, 2**31 - 1, 2**40])
def test_a_large_stated_maximum_clears_whole_requests(max_seq_len: int) -> None:
    out, lse = torch.ones(5, 1, 2), torch.ones(5, 1)
    kv_lens, starts = torch.tensor([3, 0], dtype=torch.int32), torch.tensor([0, 2, 4], dtype=torch.int32)
    fixup_zero_kv_rows(out, lse, kv_lens, starts, max_seq_len)
    assert lse.flatten().tolist() == [1, 1, -math.inf, -math.inf, 1]
    assert out[:, 0, 0].tolist() == [1, 1, 0, 0, 1]
