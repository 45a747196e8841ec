"""Which rows and keys each request of a call has, as the kernel takes them."""

from dataclasses import replace

import torch
from entry_point_calls import CALLS, PAGE_SIZE, context_call, decode_call, halves, int32, mla_call, tables

from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.meaning.entry_point import RequestSpan
from attnfuzz.kernels.native.ops import NATIVE

PAGED = (RequestSpan(0, 2, 9, (5, 0, 6)), RequestSpan(2, 2, 0), RequestSpan(4, 2, 4, (2,)))


def spans(op: str, **changes: object) -> tuple[RequestSpan, ...]:
    return ENTRY_POINTS[op].spans(CALLS[op](**changes))


def test_a_decode_shares_its_rows_out_evenly_and_takes_as_many_pages_as_the_keys_need() -> None:
    assert spans(NATIVE.decode.name) == PAGED
    assert spans(NATIVE.mla_decode.name) == PAGED


def test_the_layout_tells_the_page_size() -> None:
    pool = torch.zeros(7, 2, 2, PAGE_SIZE, 16)
    assert spans(NATIVE.decode.name, kv_cache=pool) == PAGED
    halved = spans(NATIVE.decode.name, kv_cache=pool, kv_layout="NHD")
    assert [len(span.pages) for span in halved] == [4, 0, 2]
    assert spans(NATIVE.mla_decode.name, kv_cache=torch.zeros(7, 1, PAGE_SIZE, 24)) == PAGED


def test_a_page_table_for_k_and_v_apart_gives_the_pages_of_k() -> None:
    apart = torch.stack((tables(), torch.full((3, 4), 1, dtype=torch.int32)), dim=1)
    assert spans(NATIVE.decode.name, block_tables=apart, uses_shared_paged_kv_idx=False) == PAGED


def test_a_decode_of_queries_of_different_lengths_follows_the_cumulative_ones() -> None:
    ragged = spans(NATIVE.decode.name, q_len_per_req=None, max_q_len=3, cum_seq_lens_q=int32(0, 1, 4, 6))
    assert [(span.first_row, span.q_len) for span in ragged] == [(0, 1), (1, 3), (4, 2)]
    packed = spans(NATIVE.mla_decode.name, query=torch.zeros(6, 4, 24), cum_seq_lens_q=int32(0, 1, 4, 6), max_q_len=3)
    assert [(span.first_row, span.q_len) for span in packed] == [(0, 1), (1, 3), (4, 2)]


def test_a_decode_given_a_q_length_takes_its_batch_from_that_whatever_the_cumulative_lengths_say() -> None:
    sent = spans(NATIVE.decode.name, q_len_per_req=1, max_q_len=3, cum_seq_lens_q=int32(0, 1, 4, 6))
    assert len(sent) == 6
    assert [span.inside for span in sent] == [True, True, True, False, False, False]


def test_a_context_call_has_the_batch_that_it_states() -> None:
    assert spans(NATIVE.context.name) == (
        RequestSpan(0, 2, 9, (5, 0, 6)),
        RequestSpan(2, 1, 0),
        RequestSpan(3, 3, 4, (2,)),
    )
    assert spans(NATIVE.context.name, batch_size=1) == (RequestSpan(0, 2, 9, (5, 0, 6)),)


def test_a_ragged_call_has_its_keys_where_the_cumulative_lengths_begin() -> None:
    assert spans(NATIVE.ragged.name) == (
        RequestSpan(0, 2, 5),
        RequestSpan(2, 1, 0, first_key=5),
        RequestSpan(3, 3, 3, first_key=5),
    )


def test_an_fmha_v2_call_has_pages_or_packed_keys_as_its_layout_says() -> None:
    name, paged = (
        "trtllm_fmha_v2_prefill",
        (RequestSpan(0, 2, 9, (5, 0, 6)), RequestSpan(2, 1, 0), RequestSpan(3, 3, 4, (2,))),
    )
    packed = (RequestSpan(0, 2, 9), RequestSpan(2, 1, 0, first_key=9), RequestSpan(3, 3, 4, first_key=9))
    query, rows = torch.zeros(8, 4, 16), torch.zeros(13, 2, 16)
    assert spans(name) == paged
    assert spans(name, input_layout="Q_PAGED_KV_HND", qkv=(query, torch.zeros(7, 2, 2, PAGE_SIZE, 16))) == paged
    assert spans(name, **halves()) == paged
    assert spans(name, input_layout="SEPARATE_Q_K_V", qkv=(query, rows, rows)) == packed
    assert spans(name, input_layout="CONTIGUOUS_Q_KV", qkv=(query, torch.stack((rows, rows), dim=1))) == packed
    assert spans(name, input_layout="PACKED_QKV", qkv=torch.zeros(13, 3, 4, 16)) == packed


def test_a_request_past_the_metadata_is_there_with_nothing_that_would_be_read_outside() -> None:
    longer = spans(NATIVE.decode.name, query=torch.zeros(8, 4, 16))
    assert longer == (*PAGED, RequestSpan(6, 2, 0, inside=False))
    assert spans(NATIVE.context.name, batch_size=4)[3] == RequestSpan(0, 0, 0, inside=False)
    assert spans(NATIVE.ragged.name, batch_size=4)[3] == RequestSpan(0, 0, 0, inside=False)


def test_a_request_whose_keys_need_more_columns_than_there_are_has_the_pages_that_are_there() -> None:
    cut = spans(NATIVE.decode.name, seq_lens=int32(17, 0, 4))
    assert cut == (replace(PAGED[0], kv_len=17, pages=(5, 0, 6, -1), inside=False), *PAGED[1:])


def test_a_length_below_zero_needs_no_page() -> None:
    assert spans(NATIVE.decode.name, seq_lens=int32(9, 0, -3))[2] == RequestSpan(4, 2, -3)


def test_lengths_of_another_dtype_are_taken_by_value() -> None:
    assert spans(NATIVE.decode.name, seq_lens=torch.tensor([9, 0, 4])) == PAGED


def test_sparse_calls_have_no_spans() -> None:
    heads = {"block_tables": tables().expand(2, 3, 4), "seq_lens": int32(9, 0, 4).expand(2, 3)}
    assert ENTRY_POINTS[NATIVE.decode.name].spans(decode_call(enable_block_sparse_attention=True, **heads)) == ()
    chosen = torch.zeros(3, 2, 8, dtype=torch.int32)
    assert ENTRY_POINTS[NATIVE.decode.name].spans(decode_call(sparse_top_k=8, block_tables=chosen)) == ()
    assert ENTRY_POINTS[NATIVE.mla_decode.name].spans(mla_call(sparse_mla_top_k=8, block_tables=chosen)) == ()
    assert not ENTRY_POINTS[NATIVE.mla_decode.name].breaches(
        mla_call(sparse_mla_top_k=8, block_tables=chosen, seq_lens=None)
    )


def test_merges_and_fixups_have_no_requests_with_keys() -> None:
    assert [spans(name) for name in ("merge_state", "merge_state_in_place", "fixup_zero_kv_rows")] == [(), (), ()]


def test_strided_tables_and_lengths_are_read_by_their_strides() -> None:
    gaps = torch.full((3, 6), 77, dtype=torch.int32)
    gaps[:, :4] = tables()
    spread = torch.zeros(6, dtype=torch.int32)
    spread[::2] = int32(9, 0, 4)
    assert spans(NATIVE.decode.name, block_tables=gaps[:, :4], seq_lens=spread[::2]) == PAGED
    assert len(ENTRY_POINTS[NATIVE.context.name].spans(context_call())) == 3
