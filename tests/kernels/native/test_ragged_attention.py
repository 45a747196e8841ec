"""Ragged attention against fp64 attention, with every tensor flush against an unreadable page."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnfuzz.kernels.native import ops

RELATIVE = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
ABSOLUTE = 2e-5
STALE = 7.0


def ragged(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **arguments: Any) -> Any:
    """The kernel, with those arguments that do not matter filled in."""
    return ops.trtllm_ragged_attention_deepseek(
        query=query,
        key=key,
        value=value,
        workspace_buffer=torch.empty(0, dtype=torch.uint8),
        max_q_len=len(query),
        max_kv_len=len(key),
        bmm2_scale=0.5,
        o_sf_scale=1.0,
        enable_pdl=None,
        return_lse=True,
        **arguments,
    )


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_ragged_attention_matches_fp64_attention_and_leaves_rows_without_keys_unwritten(
    attention: Any, guarded: Any, data: st.DataObject
) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 2**16)))
    heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dim, value_dim = draw(st.sampled_from(((24, 16), (16, 16), (5, 9))))
    dtype = draw(st.sampled_from(tuple(RELATIVE)))
    q_lens = draw(st.lists(st.integers(0, 20), min_size=0, max_size=4))
    kv_lens = [draw(st.integers(0, 50)) for _ in q_lens]
    causal, mirrors = draw(st.booleans()), draw(st.booleans())
    window_left = draw(st.sampled_from((-1, 0, 5)))
    query = torch.randn(sum(q_lens), heads * group, dim).to(dtype)
    key = torch.randn(sum(kv_lens), heads, dim).to(dtype)
    value = torch.randn(sum(kv_lens), heads, value_dim).to(dtype)
    with guarded(right=draw(st.booleans())) as memory:
        out, lse = ragged(
            memory.copy(query),
            memory.copy(key, stride=(heads * (dim + 3), dim + 3, 1)),
            memory.copy(value),
            seq_lens=memory.copy(torch.tensor(kv_lens, dtype=torch.int32)),
            bmm1_scale=0.2,
            batch_size=len(q_lens),
            window_left=window_left,
            cum_seq_lens_q=memory.copy(torch.tensor([0, *q_lens]).cumsum(0).int()),
            cum_seq_lens_kv=memory.copy(torch.tensor([0, *kv_lens]).cumsum(0).int()),
            is_causal=causal,
            out=memory.copy(torch.full((len(query), heads * group, value_dim), STALE, dtype=dtype)),
            lse=memory.copy(torch.full((len(query), heads * group), STALE)),
            q_seq_lens_cpu=torch.tensor(q_lens, dtype=torch.int32) if mirrors else None,
            kv_seq_lens_cpu=torch.tensor(kv_lens, dtype=torch.int32) if mirrors else None,
        )
        # Copies, so that a failure can be printed after the guarded memory is gone.
        out, lse = out.clone(), lse.clone()
    row = kv_row = 0
    for q_len, kv_len in zip(q_lens, kv_lens, strict=True):
        rows, kv_rows = slice(row, row + q_len), slice(kv_row, kv_row + kv_len)
        row, kv_row = rows.stop, kv_rows.stop
        if kv_len == 0 and not mirrors:
            assert out[rows].eq(STALE).all()
            assert lse[rows].eq(STALE).all()
            continue
        expected, expected_lse = attention(
            query[rows], key[kv_rows], value[kv_rows], scale=0.2, window_left=window_left, causal=causal
        )
        torch.testing.assert_close(out[rows].double(), expected * 0.5, rtol=RELATIVE[dtype], atol=ABSOLUTE)
        torch.testing.assert_close(lse[rows].double(), expected_lse, rtol=1e-6, atol=ABSOLUTE)


def test_one_mirror_alone_is_rejected() -> None:
    lengths = torch.tensor([1], dtype=torch.int32)
    with pytest.raises(ValueError, match="given together"):
        ragged(
            torch.zeros(1, 1, 8),
            torch.zeros(1, 1, 8),
            torch.zeros(1, 1, 8),
            seq_lens=lengths,
            bmm1_scale=1.0,
            batch_size=1,
            window_left=-1,
            cum_seq_lens_q=torch.tensor([0, 1], dtype=torch.int32),
            cum_seq_lens_kv=torch.tensor([0, 1], dtype=torch.int32),
            is_causal=False,
            kv_seq_lens_cpu=lengths,
        )
