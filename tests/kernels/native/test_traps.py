"""The conventions that make a planner's mistake a wild access, each seen to have its effect (TRAPS.md)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from entry_point_calls import int32

from attnfuzz.kernels.native import ops

SIGSEGV = 11
READ, WRITE = 1, 2
POISON = 0x00BADBAD


def decode_arguments(memory: Any, rows: int, lengths: torch.Tensor) -> dict[str, Any]:
    """A decode of `rows` queries with one page of 4 keys for each entry of `lengths`."""
    return {
        "query": memory.copy(torch.randn(rows, 2, 8)),
        "kv_cache": memory.copy(torch.randn(len(lengths), 2, 1, 4, 8)),
        "workspace_buffer": memory.copy(torch.zeros(8192, dtype=torch.uint8)),
        "block_tables": memory.copy(torch.arange(len(lengths), dtype=torch.int32).unsqueeze(1)),
        "seq_lens": memory.copy(lengths),
        "max_seq_len": 4,
        "out": memory.copy(torch.full((rows, 2, 8), 7.0)),
    }


def end_of(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() + tensor.untyped_storage().nbytes()


@pytest.mark.slow
def test_decode_with_more_query_rows_than_metadata_reads_past_the_metadata(guarded: Any, dying: Any) -> None:
    with guarded(right=True) as memory:
        arguments = decode_arguments(memory, rows=3, lengths=int32(4, 4))
        death = dying(lambda: ops.trtllm_batch_decode_with_kv_cache(**arguments))
        assert (death.signal, death.access) == (SIGSEGV, READ)
        assert death.address == end_of(arguments["seq_lens"])


def test_decode_derives_its_batch_from_the_query_rows_rounded_down(guarded: Any) -> None:
    with guarded(right=True) as memory:
        arguments = decode_arguments(memory, rows=5, lengths=int32(4, 4))
        out = ops.trtllm_batch_decode_with_kv_cache(**arguments, q_len_per_req=2)
        assert isinstance(out, torch.Tensor)
        assert out[:4].ne(7).all()
        assert out[4].eq(7).all()


@pytest.mark.slow
def test_a_page_id_outside_of_the_pool_is_followed(guarded: Any, dying: Any) -> None:
    with guarded(right=False) as memory:
        arguments = decode_arguments(memory, rows=1, lengths=int32(4))
        arguments["block_tables"].fill_(-1)
        death = dying(lambda: ops.trtllm_batch_decode_with_kv_cache(**arguments))
        assert (death.signal, death.access) == (SIGSEGV, READ)
        pool = arguments["kv_cache"]
        assert death.address == pool.data_ptr() - pool.stride(0) * pool.element_size()


def test_page_table_columns_past_the_length_are_never_read(guarded: Any) -> None:
    with guarded(right=True) as memory:
        arguments = decode_arguments(memory, rows=1, lengths=int32(4))
        arguments["block_tables"] = memory.copy(int32(0, POISON, -1).unsqueeze(0))
        out = ops.trtllm_batch_decode_with_kv_cache(**arguments)
        assert isinstance(out, torch.Tensor)
        assert out.isfinite().all()


def test_rows_before_the_first_key_are_empty_and_negative_lengths_are_nan() -> None:
    query, pool = torch.randn(4, 1, 8), torch.randn(1, 2, 1, 4, 8)
    out, lse = ops.trtllm_batch_decode_with_kv_cache(
        query,
        pool,
        torch.zeros(8192, dtype=torch.uint8),
        torch.zeros(2, 1, dtype=torch.int32),
        int32(1, -3),
        4,
        q_len_per_req=2,
        return_lse=True,
    )
    assert out[0].eq(0).all()
    assert lse[0].isneginf().all()
    assert out[1].equal(pool[0, 1, :, 0])
    assert out[2:].isnan().all()


def context_arguments(memory: Any, q_lens: tuple[int, ...], rows: int) -> dict[str, Any]:
    """A context call over `rows` query rows, of which requests with one key each have q_lens."""
    cumulative = torch.tensor((0, *q_lens)).cumsum(0).int()
    return {
        "query": memory.copy(torch.randn(rows, 2, 8)),
        "kv_cache": memory.copy(torch.randn(len(q_lens), 2, 1, 4, 8)),
        "workspace_buffer": torch.empty(0),
        "block_tables": memory.copy(torch.arange(len(q_lens), dtype=torch.int32).unsqueeze(1)),
        "seq_lens": memory.copy(torch.full((len(q_lens),), 4, dtype=torch.int32)),
        "max_q_len": max(q_lens),
        "max_kv_len": 4,
        "bmm1_scale": 1.0,
        "bmm2_scale": 1.0,
        "batch_size": len(q_lens),
        "cum_seq_lens_q": memory.copy(cumulative),
        "cum_seq_lens_kv": memory.copy(cumulative),
        "out": memory.copy(torch.full((rows, 2, 8), 7.0)),
    }


def test_context_writes_no_row_outside_of_its_requests(guarded: Any) -> None:
    with guarded(right=True) as memory:
        arguments = context_arguments(memory, (1, 0, 2), rows=5)
        out = ops.trtllm_batch_context_with_kv_cache(**arguments)
        assert isinstance(out, torch.Tensor)
        assert out[:3].ne(7).all()
        assert out[3:].eq(7).all()


@pytest.mark.slow
def test_context_trusts_its_batch_size(guarded: Any, dying: Any) -> None:
    with guarded(right=True) as memory:
        arguments = context_arguments(memory, (1, 2), rows=5)
        death = dying(lambda: ops.trtllm_batch_context_with_kv_cache(**{**arguments, "batch_size": 3}))
        assert (death.signal, death.access) == (SIGSEGV, READ)
        assert death.address == end_of(arguments["cum_seq_lens_q"])


@pytest.mark.slow
def test_ragged_trusts_its_batch_size(guarded: Any, dying: Any) -> None:
    with guarded(right=True) as memory:
        arguments = {
            **{name: memory.copy(torch.randn(2, 1, 8)) for name in ("query", "key", "value", "out")},
            "workspace_buffer": torch.empty(0),
            "seq_lens": memory.copy(int32(1, 1)),
            "cum_seq_lens_q": memory.copy(int32(0, 1, 2)),
            "cum_seq_lens_kv": memory.copy(int32(0, 1, 2)),
            **dict.fromkeys(("max_q_len", "max_kv_len"), 1),
            **dict.fromkeys(("bmm1_scale", "bmm2_scale", "o_sf_scale"), 1.0),
            **dict.fromkeys(("is_causal", "return_lse", "enable_pdl"), False),
            "window_left": -1,
        }
        death = dying(lambda: ops.trtllm_ragged_attention_deepseek(**arguments, batch_size=3))
        assert (death.signal, death.access) == (SIGSEGV, READ)
        assert death.address == end_of(arguments["cum_seq_lens_q"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_cache": torch.zeros(1, 2, 1, 4, 9)}, "head dim"),
        ({"kv_cache": torch.zeros(1, 2, 3, 4, 8)}, "multiple of the 3 heads"),
        ({"kv_cache": torch.zeros(1, 2, 1, 4, 8).half()}, "dtype of query"),
        ({"kv_cache": torch.zeros(1, 1, 4, 8)}, "kv_cache must have 5 axes"),
        ({"seq_lens": torch.zeros(1, dtype=torch.int64)}, "seq_lens must be int32"),
        ({"block_tables": torch.zeros(1, 1)}, "block_tables must be int32"),
        ({"query": torch.zeros(1, 8, 2).transpose(1, 2)}, "query must be contiguous in its last axis"),
        ({"sinks": torch.zeros(3)}, r"sinks must be float32 of shape \[2\]"),
        ({"out": torch.zeros(1, 2, 7)}, r"out must have shape \[1, 2, 8\]"),
        ({"lse": torch.zeros(2, 2)}, r"lse must have shape \[1, 2\]"),
        ({"kv_layout": "DHN"}, "kv_layout must be HND or NHD"),
        ({"q_len_per_req": 0}, "q_len_per_req must be 1 or more"),
        ({"window_left": -2}, "window_left"),
        ({"workspace_buffer": torch.zeros(8193, dtype=torch.uint8)[1:]}, "aligned"),
    ],
)
def test_arguments_that_do_not_fit_are_rejected_by_name(guarded: Any, change: dict[str, Any], message: str) -> None:
    with guarded(right=True) as memory:
        arguments = decode_arguments(memory, rows=1, lengths=int32(4))
        with pytest.raises(ValueError, match=message):
            ops.trtllm_batch_decode_with_kv_cache(**{**arguments, **change})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("skip_softmax_threshold_scale_factor", 1.0),
        ("bmm1_scale", torch.ones(1)),
        ("bmm2_scale", torch.ones(1)),
        ("cum_seq_lens_q", int32(0, 1)),
        ("mask", torch.zeros(1, dtype=torch.uint16)),
        ("out_dtype", "nvfp4"),
        ("out", object()),
        ("uses_shared_paged_kv_idx", False),
        ("q_len_per_req", None),
    ],
)
def test_unsupported_arguments_are_rejected_by_name(guarded: Any, name: str, value: object) -> None:
    with guarded(right=True) as memory:
        arguments = decode_arguments(memory, rows=1, lengths=int32(4))
        with pytest.raises(NotImplementedError, match=name):
            ops.trtllm_batch_decode_with_kv_cache(**{**arguments, name: value})


def test_an_argument_that_flashinfer_lacks_is_a_type_error(guarded: Any) -> None:
    with guarded(right=True) as memory, pytest.raises(TypeError, match="no argument window"):
        ops.trtllm_batch_decode_with_kv_cache(**decode_arguments(memory, rows=1, lengths=int32(4)), window=1)


@pytest.mark.slow
def test_mla_decode_compares_page_table_rows_with_the_batch_but_not_lengths(guarded: Any, dying: Any) -> None:
    with guarded(right=True) as memory:
        arguments: dict[str, Any] = {
            "query": memory.copy(torch.randn(2, 1, 1, 12)),
            "kv_cache": memory.copy(torch.randn(2, 4, 12)),
            "workspace_buffer": memory.copy(torch.zeros(8192, dtype=torch.uint8)),
            "qk_nope_head_dim": 8,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "block_tables": memory.copy(int32(0, 1).unsqueeze(1)),
            "seq_lens": memory.copy(int32(4)),
            "max_seq_len": 4,
        }
        call: Callable[..., object] = ops.trtllm_batch_decode_with_kv_cache_mla
        death = dying(lambda: call(**arguments))
        assert (death.signal, death.access) == (SIGSEGV, READ)
        assert death.address == end_of(arguments["seq_lens"])
        with pytest.raises(ValueError, match="block_tables has 1 rows for 2 requests"):
            call(**{**arguments, "block_tables": memory.copy(int32(0).unsqueeze(1))})
