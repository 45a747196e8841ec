"""Decode and context where drawn cases of the backends do not come."""

from math import log
from typing import Any

import pytest
import torch

from attnfuzz.kernels.native import ops
from attnfuzz.reference.attention import attend
from attnfuzz.reference.problem import Problem


@pytest.mark.parametrize("members", [1, 2])
def test_a_cache_in_one_tensor_holds_k_and_v_side_by_side_or_shares_them(members: int) -> None:
    torch.manual_seed(0)
    pool = torch.randn(3, members, 2, 4, 16)
    query = torch.randn(1, 2, 16)
    out, lse = ops.trtllm_batch_decode_with_kv_cache(
        query,
        pool,
        torch.zeros(8192, dtype=torch.uint8),
        torch.tensor([[2, 0]], dtype=torch.int32),
        torch.tensor([6], dtype=torch.int32),
        6,
        bmm1_scale=0.25,
        return_lse=True,
    )
    key, value = (pool[[2, 0], member].transpose(1, 2).reshape(8, 2, 16)[:6] for member in (0, members - 1))
    answer = attend(Problem(query, key, value, (1,), (6,), 0.25))
    torch.testing.assert_close(out.double(), answer.out, rtol=1e-6, atol=2e-5)
    torch.testing.assert_close(lse.double(), answer.lse / log(2), rtol=1e-6, atol=2e-5)


def test_offsets_do_not_overflow_32_bits() -> None:
    page_stride = 2**31 + 64
    pool = torch.empty(page_stride + 64, dtype=torch.float8_e4m3fn).as_strided((2, 1, 1, 16), (page_stride, 16, 16, 1))
    pool[1] = torch.ones(1, 1, 16).to(torch.float8_e4m3fn)
    out = ops.trtllm_batch_decode_with_kv_cache(
        torch.ones(1, 1, 16),
        (pool, pool),
        torch.zeros(8192, dtype=torch.uint8),
        torch.tensor([[1]], dtype=torch.int32),
        torch.tensor([1], dtype=torch.int32),
        1,
    )
    assert isinstance(out, torch.Tensor)
    assert out.eq(1).all()


def context() -> dict[str, Any]:
    """Two queries of a request with keys 0 to 3, which weigh alike and whose values are their numbers."""
    values = torch.arange(4.0).view(1, 1, 4, 1).expand(1, 1, 4, 8).contiguous()
    ones = {name: torch.tensor(length, dtype=torch.int32) for name, length in (("seq", [4]), ("cum", [0, 2]))}
    return {
        "query": torch.zeros(2, 1, 8),
        "kv_cache": (torch.zeros(1, 1, 4, 8), values),
        "workspace_buffer": torch.zeros(1, dtype=torch.uint8),
        "block_tables": torch.zeros(1, 1, dtype=torch.int32),
        "seq_lens": ones["seq"],
        "max_q_len": 2,
        "max_kv_len": 4,
        "bmm1_scale": 1.0,
        "bmm2_scale": 1.0,
        "batch_size": 1,
        "cum_seq_lens_q": ones["cum"],
        "cum_seq_lens_kv": ones["seq"],
    }


@pytest.mark.parametrize(("causal", "due"), [(True, [1.0, 1.5]), (False, [1.5, 1.5])])
def test_a_query_sees_the_keys_up_to_its_own_or_all(causal: bool, due: list[float]) -> None:
    out = ops.trtllm_batch_context_with_kv_cache(**context(), causal=causal)
    assert isinstance(out, torch.Tensor)
    assert out[:, 0, 0].tolist() == due


def test_a_query_under_a_packed_mask_sees_the_keys_that_are_set_and_masks_come_with_their_starts() -> None:
    masked = context() | {"packed_custom_mask": torch.tensor([0b00001010], dtype=torch.uint8)}
    out = ops.trtllm_batch_context_with_kv_cache(**masked, mask_indptr=torch.tensor([0, 1], dtype=torch.int32))
    assert isinstance(out, torch.Tensor)
    # The first query sees keys 1 and 3, the second none.
    assert out[:, 0, 0].tolist() == [2.0, 0.0]
    with pytest.raises(ValueError, match="packed_custom_mask and mask_indptr must be given together"):
        ops.trtllm_batch_context_with_kv_cache(**masked)


def test_a_cache_of_latents_may_have_an_axis_for_its_head() -> None:
    torch.manual_seed(0)
    pool, query = torch.randn(3, 4, 20), torch.randn(1, 2, 3, 20)
    outs = [
        ops.trtllm_batch_decode_with_kv_cache_mla(
            query=query,
            kv_cache=cache,
            workspace_buffer=torch.zeros(8192, dtype=torch.uint8),
            qk_nope_head_dim=16,
            kv_lora_rank=16,
            qk_rope_head_dim=4,
            block_tables=torch.tensor([[2, 0]], dtype=torch.int32),
            seq_lens=torch.tensor([6], dtype=torch.int32),
            max_seq_len=6,
        )
        for cache in (pool, pool.unsqueeze(1))
    ]
    torch.testing.assert_close(*outs, rtol=0, atol=0)
