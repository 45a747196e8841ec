"""An element's place in words, inside of a tensor, beyond its ends and in its gaps."""

import pytest
import torch
from entry_point_calls import CALLS, decode_call

from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.meaning.places import place_of
from attnfuzz.kernels.native.ops import NATIVE

DECODE, CONTEXT, RAGGED, MLA = (op.name for op in (NATIVE.decode, NATIVE.context, NATIVE.ragged, NATIVE.mla_decode))


def place(op: str, name: str, offset: int, **changes: object) -> str:
    return place_of(ENTRY_POINTS[op], CALLS[op](**changes), name, offset)


@pytest.mark.parametrize(
    ("op", "name", "offset", "words"),
    [
        (DECODE, "seq_lens", 1, "request 1"),
        (DECODE, "seq_lens", 3, "request 3 (of requests 0 to 2)"),
        (DECODE, "seq_lens", -1, "request -1 (of requests 0 to 2)"),
        (DECODE, "block_tables", 6, "request 1, column 2"),
        (DECODE, "block_tables", 12, "request 3 (of requests 0 to 2), column 0"),
        (DECODE, "query", 3 * 64 + 17, "row 3, head 1, element 1 (query 1 of request 1)"),
        (DECODE, "out", 6 * 64, "row 6 (of rows 0 to 5), head 0, element 0 (no request's)"),
        (DECODE, "lse", 4, "row 1, head 0 (query 1 of request 0)"),
        (DECODE, "kv_cache[0]", 6 * 128 + 1, "page 6, KV head 0, slot 0, element 1 (key 8 of request 0)"),
        (
            DECODE,
            "kv_cache[1]",
            6 * 128 + 64 + 32,
            "page 6, KV head 1, slot 2, element 0 (key 10 of request 0, past its last key 8)",
        ),
        (DECODE, "kv_cache[0]", 3 * 128, "page 3, KV head 0, slot 0, element 0 (no request's)"),
        (
            DECODE,
            "kv_cache[0]",
            7 * 128 + 16,
            "page 7 (of pages 0 to 6), KV head 0, slot 1, element 0 (no request's)",
        ),
        (CONTEXT, "kv_cache", 5 * 256 + 128, "page 5, V, KV head 0, slot 0, element 0 (key 0 of request 0)"),
        (CONTEXT, "cum_seq_lens_q", 4, "entry 4 (of entries 0 to 3)"),
        (CONTEXT, "out", 7 * 64, "row 7, head 0, element 0 (no request's)"),
        (RAGGED, "key", 6 * 64, "key row 6, KV head 0, element 0 (key 1 of request 2)"),
        (RAGGED, "value", 8 * 64, "key row 8 (of key rows 0 to 7), KV head 0, element 0 (no request's)"),
        (MLA, "query", 5 * 96, "request 2, query 1, head 0, element 0"),
        (MLA, "kv_cache", 2 * 96 + 24, "page 2, slot 1, element 0 (key 1 of request 2)"),
        ("merge_state_in_place", "v", 64, "row 1, head 0, element 0"),
    ],
)
def test_a_place_is_described_by_its_axes_and_its_request(op: str, name: str, offset: int, words: str) -> None:
    assert place(op, name, offset) == words


def test_a_page_that_is_not_there_is_reported_with_the_request_that_asks_for_it() -> None:
    table = torch.tensor([[5, 9, 6], [0, 0, 0], [9, 0, 0]], dtype=torch.int32)
    words = place(DECODE, "kv_cache[0]", 9 * 128 + 16, block_tables=table)
    assert words == (
        "page 9 (of pages 0 to 6), KV head 0, slot 1, element 0 (key 5 of request 0; 2 requests have this page)"
    )


def test_elements_between_strides_are_a_gap() -> None:
    gaps = torch.zeros(3, 6, dtype=torch.int32)[:, :4]
    assert place(DECODE, "block_tables", 6 + 4, block_tables=gaps) == "request 1, 1 element into the gap after it"
    assert place(DECODE, "block_tables", 6 + 5, block_tables=gaps) == "request 1, 2 elements into the gap after it"


def test_strides_are_followed_whatever_their_order() -> None:
    token_major = torch.zeros(7, 4, 2, 16).transpose(1, 2)
    cache = (token_major, token_major.clone())
    words = place(DECODE, "kv_cache[0]", 5 * 128 + 2 * 32 + 16, kv_cache=cache)
    assert words == "page 5, KV head 1, slot 2, element 0 (key 2 of request 0)"


def test_an_axis_that_has_the_largest_stride_is_reported_beyond_its_end() -> None:
    queries_first = torch.zeros(2, 3, 4, 24).transpose(0, 1)
    words = place(MLA, "query", 2 * 3 * 4 * 24, query=queries_first)
    assert words == "request 0, query 2 (of queries 0 to 1), head 0, element 0"


def test_q_k_and_v_in_one_tensor_are_reported_apart() -> None:
    qkv = torch.zeros(13, 3, 4, 16)
    words = place("trtllm_fmha_v2_prefill", "qkv", 3 * 192 + 64 + 16, input_layout="PACKED_QKV", qkv=qkv)
    assert words == "row 3, K, head 1, element 0 (query 0 of request 2)"


def test_an_empty_tensor_has_no_such_row() -> None:
    call = decode_call(sinks=torch.zeros(0))
    assert place_of(ENTRY_POINTS[DECODE], call, "sinks", 2) == "head 2 (of no head)"


def test_a_tensor_that_the_call_does_not_have_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="mask"):
        place(DECODE, "mask", 0)
