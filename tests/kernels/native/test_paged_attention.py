"""Decode, context and MLA decode against fp64 attention, with every tensor flush against an unreadable page."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnfuzz.kernels.native import ops
from attnfuzz.kernels.native.ops import workspace_bytes

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RELATIVE = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
ABSOLUTE = 2e-5


def paged(
    lengths: list[int], heads: int, page: int, dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """A pool [pages, heads, page, dim] that is NaN but for the requests' keys, its shuffled page table, the keys."""
    width = max((-(-max(length, 0) // page) for length in lengths), default=0) + 1
    pages = torch.randperm(len(lengths) * width + 1)
    pool = torch.full((len(pages), heads, page, dim), torch.nan).to(dtype)
    table = torch.full((len(lengths), width), 0x00BADBAD, dtype=torch.int32)
    keys = []
    for row, length in enumerate(lengths):
        key = torch.randn(length, heads, dim).to(dtype)
        keys.append(key)
        for column in range(-(-length // page)):
            part = key[column * page : (column + 1) * page]
            table[row, column] = pages[row * width + column]
            pool[pages[row * width + column], :, : len(part)] = part.transpose(0, 1)
    return pool, table, keys


def strided(draw: Callable[[Any], Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides for `shape` with contiguous last axis and gaps before the others."""
    stride = [1]
    for size in reversed(shape[1:]):
        stride.insert(0, size * stride[0] + draw(st.sampled_from((0, 0, 1, 7))))
    return tuple(stride)


def assert_near(out: torch.Tensor, lse: torch.Tensor, expected: torch.Tensor, expected_lse: torch.Tensor) -> None:
    """`out` is right but for the rounding of its dtype and of fp32 sums, `lse` but for the latter."""
    torch.testing.assert_close(out.double(), expected, rtol=RELATIVE[out.dtype], atol=ABSOLUTE)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-6, atol=ABSOLUTE)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["decode", "context"])
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_paged_attention_matches_fp64_attention(kernel: str, attention: Any, guarded: Any, data: st.DataObject) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 2**16)))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    dim, value_dim = draw(st.sampled_from(((16, 16), (8, 8), (33, 33), (24, 16))))
    page = draw(st.sampled_from((1, 2, 4, 16)))
    dtype = draw(st.sampled_from(DTYPES))
    kv_dtype = draw(st.sampled_from((dtype, torch.float8_e4m3fn)))
    lengths = draw(st.lists(st.integers(0, 90), min_size=0, max_size=4))
    uniform = draw(st.integers(1, 5))
    q_lens = [uniform if kernel == "decode" else draw(st.integers(0, 40)) for _ in lengths]
    window_left = draw(st.sampled_from((-1, -1, 0, 3, 40)))
    nhd, right = draw(st.booleans()), draw(st.booleans())
    causal = kernel == "decode" or draw(st.booleans())
    scale, output_scale = draw(st.sampled_from((0.1, 0.3))), draw(st.sampled_from((1.0, 0.5)))
    slack = draw(st.sampled_from((0, 100)))
    maximum = max(lengths, default=0) + slack

    state = torch.get_rng_state()
    key_pool, table, keys = paged(lengths, kv_heads, page, dim, kv_dtype)
    torch.set_rng_state(state)
    value_pool, _, values = paged(lengths, kv_heads, page, value_dim, kv_dtype)
    query = torch.randn(sum(q_lens), kv_heads * group, dim).to(dtype)
    sinks = torch.randn(kv_heads * group) if draw(st.booleans()) else None
    with guarded(right=right) as memory:
        pools = []
        for pool in (key_pool, value_pool):
            axes = (0, 2, 1, 3) if nhd else (0, 1, 2, 3)
            view = pool.permute(axes)
            pools.append(memory.copy(view, stride=strided(draw, tuple(view.shape))))
        bytes_used = workspace_bytes(
            batch=len(lengths),
            q_len=uniform,
            q_heads=kv_heads * group,
            kv_heads=kv_heads,
            head_dim_vo=value_dim,
            max_seq_len=maximum,
        )
        workspace = memory.copy(torch.zeros(bytes_used.total, dtype=torch.uint8))
        workspace[bytes_used.semaphores :] = 0xFF
        out_shape = (len(query), kv_heads * group, value_dim)
        arguments = {
            "query": memory.copy(query, stride=strided(draw, tuple(query.shape))),
            "kv_cache": tuple(pools),
            "workspace_buffer": workspace,
            "block_tables": memory.copy(table, stride=(table.shape[1] + draw(st.sampled_from((0, 3))), 1)),
            "seq_lens": memory.copy(torch.tensor(lengths, dtype=torch.int32)),
            "bmm1_scale": scale,
            "bmm2_scale": output_scale,
            "window_left": window_left,
            "sinks": None if sinks is None else memory.copy(sinks),
            "kv_layout": "NHD" if nhd else "HND",
            "out": memory.copy(torch.empty(out_shape, dtype=dtype), stride=strided(draw, out_shape)),
            "lse": memory.copy(torch.empty(out_shape[:2]), stride=(out_shape[1] + 2, 1)),
            "return_lse": True,
        }
        if kernel == "decode":
            out, lse = ops.trtllm_batch_decode_with_kv_cache(**arguments, max_seq_len=maximum, q_len_per_req=uniform)
        else:
            cumulative = memory.copy(torch.tensor([0, *q_lens]).cumsum(0).int())
            out, lse = ops.trtllm_batch_context_with_kv_cache(
                **arguments,
                max_q_len=max(q_lens, default=0),
                max_kv_len=maximum,
                batch_size=len(lengths),
                cum_seq_lens_q=cumulative,
                cum_seq_lens_kv=cumulative,
                causal=causal,
            )
        # Copies, so that a failure can be printed after the guarded memory is gone.
        out, lse, semaphores = out.clone(), lse.clone(), workspace[: bytes_used.semaphores].clone()
    assert not semaphores.any()
    row = 0
    for q_len, key, value in zip(q_lens, keys, values, strict=True):
        rows = slice(row, row + q_len)
        expected, expected_lse = attention(
            query[rows], key, value, scale=scale, window_left=window_left, causal=causal, sinks=sinks
        )
        assert_near(out[rows], lse[rows], expected * output_scale, expected_lse)
        row += q_len


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_mla_decode_matches_fp64_attention(attention: Any, guarded: Any, data: st.DataObject) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 2**16)))
    heads, rank, rope = draw(st.integers(1, 5)), draw(st.sampled_from((8, 32))), 4
    page = draw(st.sampled_from((1, 4, 32)))
    dtype = draw(st.sampled_from(DTYPES))
    kv_dtype = draw(st.sampled_from((dtype, torch.float8_e4m3fn)))
    lengths = draw(st.lists(st.integers(0, 90), min_size=1, max_size=3))
    q_len, four_axes = draw(st.integers(1, 5)), draw(st.booleans())
    pool, table, keys = paged(lengths, 1, page, rank + rope, kv_dtype)
    query = torch.randn(len(lengths), q_len, heads, rank + rope).to(dtype)
    used = workspace_bytes(
        batch=len(lengths), q_len=q_len, q_heads=heads, kv_heads=1, head_dim_vo=rank, max_seq_len=max(lengths)
    )
    with guarded(right=draw(st.booleans())) as memory:
        out, lse = ops.trtllm_batch_decode_with_kv_cache_mla(
            query=memory.copy(query),
            kv_cache=memory.copy(pool if four_axes else pool[:, 0]),
            workspace_buffer=memory.copy(torch.zeros(used.total, dtype=torch.uint8)),
            qk_nope_head_dim=rank,
            kv_lora_rank=rank,
            qk_rope_head_dim=rope,
            block_tables=memory.copy(table),
            seq_lens=memory.copy(torch.tensor(lengths, dtype=torch.int32)),
            max_seq_len=max(lengths),
            bmm1_scale=0.2,
            bmm2_scale=0.5,
            return_lse=True,
        )
        out, lse = out.clone(), lse.view(len(lengths), q_len, heads).clone()
    for row, key in enumerate(keys):
        expected, expected_lse = attention(query[row], key, key[..., :rank], scale=0.2)
        assert_near(out[row], lse[row], expected * 0.5, expected_lse)


@pytest.mark.parametrize("members", [1, 2])
def test_a_cache_in_one_tensor_holds_k_and_v_side_by_side_or_shares_them(attention: Any, members: int) -> None:
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
    assert_near(out, lse, *attention(query, key, value, scale=0.25))


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


def test_a_query_under_a_packed_mask_sees_the_keys_that_are_set_and_masks_come_with_their_starts() -> None:
    query = torch.zeros(2, 1, 8)
    values = torch.arange(4.0).view(1, 1, 4, 1).expand(1, 1, 4, 8).contiguous()
    ones = {name: torch.tensor(length, dtype=torch.int32) for name, length in (("seq", [4]), ("cum", [0, 2]))}
    arguments: dict[str, Any] = {
        "query": query,
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
        "packed_custom_mask": torch.tensor([0b00001010], dtype=torch.uint8),
    }
    starts = torch.tensor([0, 1], dtype=torch.int32)
    out = ops.trtllm_batch_context_with_kv_cache(**arguments, mask_indptr=starts)
    assert isinstance(out, torch.Tensor)
    # The first query sees keys 1 and 3, the second none.
    assert out[:, 0, 0].tolist() == [2.0, 0.0]
    with pytest.raises(ValueError, match="packed_custom_mask and mask_indptr must be given together"):
        ops.trtllm_batch_context_with_kv_cache(**arguments)
