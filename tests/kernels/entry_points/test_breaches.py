"""Each precondition, broken by one change to a legal call: its report, and that legal oddities are none."""

from typing import Any

import pytest
import torch
from entry_point_calls import (
    CALLS,
    PAGE_SIZE,
    PAGES,
    breaches,
    decode_call,
    fmha_v2_call,
    halves,
    int32,
    tables,
    workspace,
)

from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.native.ops import NATIVE

DECODE, CONTEXT, RAGGED, MLA = (op.name for op in (NATIVE.decode, NATIVE.context, NATIVE.ragged, NATIVE.mla_decode))
MASKED = "trtllm_batch_context_with_custom_mask"
XQA, FMHA_V2 = "xqa_batch_decode_with_kv_cache", "trtllm_fmha_v2_prefill"
MERGE, MERGE_IN_PLACE, FIXUP = "merge_state", NATIVE.merge_state_in_place.name, NATIVE.fixup.name


def apart(first: int, *rest: int) -> torch.Tensor:
    """int32 with a number that nobody means between any two."""
    spread = torch.full((2 * len(rest) + 2,), 1 << 20, dtype=torch.int32)
    spread[::2] = int32(first, *rest)
    return spread[::2]


def paged(*ids: int) -> torch.Tensor:
    """The legal page table with these ids first in the row of request 0."""
    table = tables()
    table[0, : len(ids)] = int32(*ids)
    return table


def dirty(nbytes: int) -> torch.Tensor:
    """A workspace of zeros but for the byte at 100."""
    found = torch.zeros(nbytes, dtype=torch.uint8)
    found[100] = 1
    return found


BROKEN: list[tuple[str, dict[str, Any], tuple[str, ...], int, str]] = [
    # Metadata that is not what it is read as.
    (DECODE, {"seq_lens": torch.tensor([9, 0, 4])}, ("seq_lens",), -1, "seq_lens is int64 [3], but must be int32"),
    (CONTEXT, {"cum_seq_lens_q": apart(0, 2, 3, 6)}, ("cum_seq_lens_q",), -1, "cum_seq_lens_q has stride 2"),
    (MLA, {"block_tables": tables().T.contiguous().T}, ("block_tables",), -1, "block_tables has stride 3"),
    # A batch that the metadata has no rows for.
    (
        DECODE,
        {"query": torch.zeros(10, 4, 16), "out": None, "lse": None, "workspace_buffer": workspace(5, 2, 2, 16, 12)},
        ("query", "q_len_per_req", "block_tables", "seq_lens"),
        3,
        "a batch of 5, but block_tables and seq_lens describe 3 requests: requests 3 to 4 are read past their ends",
    ),
    (
        DECODE,
        {"seq_lens": int32(9, 0), "block_tables": tables()[:2]},
        ("query", "q_len_per_req", "block_tables", "seq_lens"),
        2,
        "which is a batch of 3, but block_tables and seq_lens describe 2 requests: request 2 is read past their ends",
    ),
    (
        CONTEXT,
        {"batch_size": 4},
        ("batch_size", "block_tables", "seq_lens", "cum_seq_lens_q", "cum_seq_lens_kv"),
        3,
        "batch_size is 4, but block_tables, seq_lens, cum_seq_lens_q and cum_seq_lens_kv describe 3 requests",
    ),
    (
        CONTEXT,
        {"batch_size": 2},
        ("batch_size", "block_tables", "seq_lens", "cum_seq_lens_q", "cum_seq_lens_kv"),
        2,
        "request 2 and all after it get no output",
    ),
    (
        RAGGED,
        {"batch_size": 4},
        ("batch_size", "seq_lens", "cum_seq_lens_q", "cum_seq_lens_kv"),
        3,
        "request 3 is read past their ends",
    ),
    (
        MLA,
        {"block_tables": tables()[:2]},
        ("query", "block_tables"),
        -1,
        "[3, 2, 4, 24], which is a batch of 3, but block_tables describes 2 requests: FlashInfer rejects the call",
    ),
    (MLA, {"seq_lens": int32(9, 0)}, ("query", "seq_lens"), 2, "request 2 is read past their ends"),
    (MLA, {"seq_lens": None}, ("seq_lens",), -1, "seq_lens is missing"),
    # Rows that are not shared out.
    (
        DECODE,
        {"query": torch.zeros(7, 4, 16), "out": None, "lse": None},
        ("query", "q_len_per_req"),
        -1,
        "query has 7 rows, no multiple of q_len_per_req 2: the last 1 of them",
    ),
    (
        CONTEXT,
        {"cum_seq_lens_q": int32(1, 2, 3, 6)},
        ("cum_seq_lens_q",),
        0,
        "cum_seq_lens_q starts at 1",
    ),
    (
        CONTEXT,
        {"cum_seq_lens_q": int32(0, 3, 2, 5)},
        ("cum_seq_lens_q",),
        1,
        "cum_seq_lens_q falls from 3 to 2 at request 1",
    ),
    (
        CONTEXT,
        {"cum_seq_lens_q": int32(0, 3, 6, 9)},
        ("cum_seq_lens_q", "query"),
        2,
        "cum_seq_lens_q puts request 2 in rows 6 to 8, but query has 8 rows",
    ),
    (
        CONTEXT,
        {"max_q_len": 1},
        ("max_q_len", "cum_seq_lens_q"),
        0,
        "request 0 has 2 queries, but max_q_len is 1 (and 1 more request)",
    ),
    (XQA, {"q_len_per_req": 2}, ("q_len_per_req", "q_cu_seq_lens"), 1, "has 3 queries, but q_len_per_req is 2"),
    (
        DECODE,
        {"q_len_per_req": None},
        ("q_len_per_req",),
        -1,
        "q_len_per_req is None, without cum_seq_lens_q",
    ),
    # Lengths and keys.
    (
        DECODE,
        {"seq_lens": int32(9, -3, -4)},
        ("seq_lens",),
        1,
        "seq_lens[1] is -3 (and 1 more request): read as the unsigned number",
    ),
    (
        DECODE,
        {"max_seq_len": 8, "workspace_buffer": workspace(3, 2, 2, 16, 8)},
        ("seq_lens", "max_seq_len"),
        0,
        "seq_lens[0] is 9, but max_seq_len is 8",
    ),
    (
        CONTEXT,
        {"cum_seq_lens_kv": int32(0, 8, 9, 13)},
        ("cum_seq_lens_kv", "seq_lens"),
        0,
        "cum_seq_lens_kv gives request 0 8 keys, seq_lens[0] is 9 (and 1 more request)",
    ),
    (
        RAGGED,
        {"key": torch.zeros(7, 4, 16), "value": torch.zeros(7, 4, 16)},
        ("cum_seq_lens_kv", "seq_lens", "key", "value"),
        2,
        "put the keys of request 2 in rows 5 to 7, but key and value have 7",
    ),
    # Masks.
    (
        MASKED,
        {"mask_indptr": torch.tensor([0, 3, 3, 5])},
        ("mask_indptr",),
        -1,
        "mask_indptr is int64 [4], but must be int32",
    ),
    (
        MASKED,
        {"mask_indptr": int32(0, 3)},
        ("batch_size", "mask_indptr"),
        1,
        "batch_size is 3, but mask_indptr describes 1 request: requests 1 to 2 are read past their ends",
    ),
    (
        MASKED,
        {"mask_indptr": int32(0, 3, 4, 6)},
        ("mask_indptr", "packed_custom_mask"),
        2,
        "mask_indptr puts the mask of request 2, of 3 * 4 bits, in bytes 4 to 5, but packed_custom_mask has 5",
    ),
    (MASKED, {"mask_indptr": int32(-1, 3, 3, 5)}, ("mask_indptr", "packed_custom_mask"), 0, "in bytes -1 to 1"),
    (MASKED, {"packed_custom_mask": torch.zeros(5)}, ("packed_custom_mask",), -1, "float32 [5], but must be uint8"),
    (MASKED, {"mask_indptr": None}, ("mask_indptr",), -1, "mask_indptr is missing"),
    (
        RAGGED,
        {"cum_seq_lens_kv": int32(1, 6, 6, 9), "key": torch.zeros(9, 4, 16), "value": torch.zeros(9, 4, 16)},
        ("cum_seq_lens_kv",),
        0,
        "cum_seq_lens_kv starts at 1",
    ),
    (
        RAGGED,
        {"q_seq_lens_cpu": int32(2, 1, 3)},
        ("q_seq_lens_cpu", "kv_seq_lens_cpu"),
        -1,
        "must be given together",
    ),
    (
        RAGGED,
        {"q_seq_lens_cpu": int32(2, 1, 3), "kv_seq_lens_cpu": int32(5, 1, 2)},
        ("kv_seq_lens_cpu",),
        -1,
        "kv_seq_lens_cpu is [5, 1, 2], the lengths of the requests are [5, 0, 3]",
    ),
    (
        FMHA_V2,
        {"input_layout": "PACKED_QKV", "qkv": torch.zeros(12, 3, 4, 16), "out": None},
        ("cum_seq_lens_kv", "seq_lens", "qkv"),
        2,
        "put the keys of request 2 in rows 9 to 12, but qkv has 12: they are read out of bounds",
    ),
    (
        FMHA_V2,
        {"input_layout": "PACKED"},
        ("input_layout",),
        -1,
        "input_layout is 'PACKED', but must be one of PACKED_QKV",
    ),
    # Pages.
    (
        DECODE,
        {"seq_lens": int32(17, 0, 4), "max_seq_len": 17, "block_tables": paged(5, 0, 6, 1)},
        ("seq_lens", "block_tables"),
        0,
        f"seq_lens[0] is 17, but a row of block_tables has 4 columns, for 4 pages of {PAGE_SIZE} tokens",
    ),
    (
        DECODE,
        {"block_tables": paged(5, 7, -1)},
        ("block_tables", "kv_cache"),
        0,
        "is page 7, which request 0 needs for its 9 keys, but kv_cache has pages 0 to 6 (and 1 more of its ids)",
    ),
    (FMHA_V2, {"block_tables": paged(99), "window_left": 3}, ("block_tables", "qkv[1]"), 0, "page 99"),
    # K and V as halves of one allocation.
    (FMHA_V2, halves(table=paged(99)), ("block_tables", "qkv[1][0]"), 0, "page 99"),
    (FMHA_V2, {**halves(), "block_tables": tables()}, ("block_tables",), -1, "but must be [requests, 2, columns]"),
    (FMHA_V2, {"block_tables": halves()["block_tables"]}, ("block_tables",), -1, "but must be [requests, columns]"),
    (MLA, {"block_tables": paged(-1)}, ("block_tables", "kv_cache"), 0, "block_tables[0, 0] is page -1"),
    (XQA, {"block_tables": paged(5, 0, 8)[:2]}, ("block_tables", "kv_cache"), 0, "block_tables[0, 2] is page 8"),
    (
        DECODE,
        {"block_tables": paged(5, 9, 6), "window_left": 4},
        ("block_tables", "kv_cache"),
        0,
        "block_tables[0, 1] is page 9",
    ),
    # Tensors that do not fit.
    (DECODE, {"query": torch.zeros(6, 5, 16), "out": None, "lse": None, "sinks": None}, ("query",), -1, "5 heads"),
    (DECODE, {"sinks": torch.zeros(3)}, ("sinks", "query"), -1, "sinks has 3 q heads, query has 4"),
    (DECODE, {"sinks": [torch.zeros(4, dtype=torch.bfloat16)]}, ("sinks[0]",), -1, "sinks[0] is bfloat16 [4]"),
    (RAGGED, {"value": torch.zeros(9, 4, 16)}, ("value", "key"), -1, "value has 9 kv tokens, key has 8"),
    (
        DECODE,
        {"kv_cache": (torch.zeros(7, 2, 4, 16), torch.zeros(7, 2, 4, 16, dtype=torch.float16))},
        ("kv_cache[0]", "kv_cache[1]"),
        -1,
        "kv_cache[0] is float32 and kv_cache[1] is float16: V is read as K's dtype",
    ),
    (
        DECODE,
        {"kv_cache": torch.zeros(7, 2, 2, 16, 4).transpose(3, 4)},
        ("kv_cache",),
        -1,
        "kv_cache has stride 4 in its last axis",
    ),
    (
        DECODE,
        {"out": torch.zeros(6, 4, 8)},
        ("out", "kv_cache[1]"),
        -1,
        "out has a vo dim of 8, kv_cache[1] has 16",
    ),
    (MLA, {"out": torch.zeros(3, 2, 4, 8)}, ("out",), -1, "out has head dim 8, the values have 16"),
    (DECODE, {"out": torch.zeros(5, 4, 16)}, ("out", "query"), -1, "out has 5 tokens, query has 6"),
    (
        DECODE,
        {"out_dtype": torch.float16},
        ("out", "out_dtype"),
        -1,
        "out is float32 [6, 4, 16], out_dtype says float16",
    ),
    (MLA, {"lse": torch.zeros(3, 4)}, ("lse", "query"), -1, "lse has 3 rows, query has 6"),
    (
        DECODE,
        {"lse": torch.zeros(6, 4, dtype=torch.float16)},
        ("lse",),
        -1,
        "lse is float16 [6, 4], but must be float32",
    ),
    (DECODE, {"kv_layout": "HDN"}, ("kv_layout",), -1, "kv_layout is 'HDN'"),
    (
        DECODE,
        {"seq_lens": int32(9, 0, 4).unsqueeze(1)},
        ("seq_lens",),
        -1,
        "seq_lens is int32 [3, 1], but must be [requests]",
    ),
    # Scales, windows and the workspace.
    (DECODE, {"bmm1_scale": float("nan")}, ("bmm1_scale",), -1, "bmm1_scale is nan"),
    (RAGGED, {"bmm2_scale": torch.tensor([float("inf")])}, ("bmm2_scale",), -1, "bmm2_scale is inf"),
    (CONTEXT, {"window_left": -2}, ("window_left",), -1, "window_left is -2"),
    (
        DECODE,
        {"workspace_buffer": decode_call()["workspace_buffer"][:-4]},
        ("workspace_buffer",),
        -1,
        "the kernel writes 4 past its end",
    ),
    (MLA, {"workspace_buffer": dirty(1 << 20)}, ("workspace_buffer",), -1, "a semaphore that is not zero, in byte 100"),
    (XQA, {"workspace_buffer": dirty(8 << 20)}, ("workspace_buffer",), -1, "a semaphore that is not zero, in byte 100"),
    (
        DECODE,
        {"multi_ctas_kv_counter_buffer": torch.zeros(60, dtype=torch.uint8)},
        ("multi_ctas_kv_counter_buffer",),
        -1,
        "has 60 bytes, 3 requests with 4 heads need 64: it is rejected",
    ),
    (
        MLA,
        {"multi_ctas_kv_counter_buffer": torch.zeros(65, dtype=torch.uint8)[1:]},
        ("multi_ctas_kv_counter_buffer",),
        -1,
        "or not aligned to 16 bytes",
    ),
    # States.
    (MERGE, {"s_b": torch.zeros(6, 4, dtype=torch.float16)}, ("s_b",), -1, "s_b is float16 [6, 4]"),
    (MERGE, {"v_b": torch.zeros(6, 4, 16).half()}, ("v_a", "v_b"), -1, "v_b is float16 [6, 4, 16], v_a is float32"),
    (MERGE_IN_PLACE, {"s_other": torch.zeros(5, 4)}, ("s_other", "v"), -1, "s_other has 5 tokens, v has 6"),
    (MERGE_IN_PLACE, {"mask": torch.ones(6)}, ("mask",), -1, "mask is float32 [6], but must be bool"),
    (FIXUP, {"kv_lens": torch.tensor([5, 0, 3])}, ("kv_lens",), -1, "kv_lens is int64 [3], but must be int32"),
    (FIXUP, {"cum_seq_lens": int32(0, 2, 3)}, ("cum_seq_lens", "kv_lens"), -1, "one more than the 3 of kv_lens is due"),
    (
        FIXUP,
        {"cum_seq_lens": int32(0, 2, 3, 9)},
        ("cum_seq_lens", "out"),
        2,
        "between rows 3 and 9 of out, which has 8",
    ),
    (FIXUP, {"max_seq_len": 0}, ("max_seq_len", "cum_seq_lens"), 1, "request 1 has no keys and 1 rows"),
]


@pytest.mark.parametrize(("op", "changes", "arguments", "request_index", "text"), BROKEN)
def test_a_broken_precondition_is_the_only_thing_reported_with_its_arguments_values_and_source(
    op: str, changes: dict[str, Any], arguments: tuple[str, ...], request_index: int, text: str
) -> None:
    (breach,) = breaches(op, **changes)
    assert breach.arguments == arguments
    assert breach.request == request_index
    assert text in breach.text
    assert breach.source


LEGAL: list[tuple[str, dict[str, Any]]] = [
    (DECODE, {"seq_lens": int32(0, 0, 0)}),
    (DECODE, {"seq_lens": int32(1, 0, 1)}),
    (DECODE, {"max_seq_len": 1 << 20, "workspace_buffer": workspace(3, 2, 2, 16, 1 << 20)}),
    (DECODE, {"block_tables": paged(99, 0, 6), "window_left": 3}),
    (DECODE, {"seq_lens": torch.tensor([9, 0, 4], dtype=torch.uint32)}),
    (DECODE, {"out": None, "lse": None, "sinks": None}),
    (DECODE, {"bmm1_scale": 0.0, "bmm2_scale": torch.tensor(2.0)}),
    (DECODE, {"multi_ctas_kv_counter_buffer": torch.ones(64, dtype=torch.uint8)}),
    (DECODE, {"q_len_per_req": None, "max_q_len": 3, "cum_seq_lens_q": int32(0, 1, 4, 6)}),
    (CONTEXT, {"seq_lens": int32(1, 0, 1), "cum_seq_lens_kv": int32(0, 1, 1, 2)}),
    # Two requests with one mask, and that of a request without keys anywhere.
    (MASKED, {"mask_indptr": int32(0, 99, 0, 5)}),
    # Pages of 4: the requests have 9, 0 and 4 keys.
    (CONTEXT, {"cum_seq_lens_kv": int32(0, 3, 3, 4)}),
    (RAGGED, {"q_seq_lens_cpu": int32(2, 1, 3), "kv_seq_lens_cpu": int32(5, 0, 3).long()}),
    (MLA, {"lse": torch.zeros(3, 2, 4), "kv_cache": torch.zeros(7, 1, PAGE_SIZE, 24)}),
    (FIXUP, {"kv_lens": int32(0, 0, 0)}),
    (FMHA_V2, {"input_layout": "PACKED_QKV", "qkv": torch.zeros(13, 3, 4, 16), "out": None}),
    (FMHA_V2, halves()),
    (FMHA_V2, {"block_tables": paged(99, 0, 6), "window_left": 3, "mask_mode": "sliding_window"}),
]


@pytest.mark.parametrize(("op", "changes"), LEGAL)
def test_unusual_but_legal_arguments_are_no_breach(op: str, changes: dict[str, Any]) -> None:
    assert breaches(op, **changes) == ()


def test_pages_of_v_begin_where_v_does() -> None:
    (breach,) = breaches(FMHA_V2, **halves(PAGES - 1))
    assert (breach.arguments, breach.request) == (("block_tables",), 0)
    text = "block_tables[0, 1, 0] is page 11 of V, not 7 behind that of K, where V begins (and 1 more request)"
    assert breach.text == text


def test_v_lies_behind_k_by_whole_pages() -> None:
    query, (key, value) = halves()["qkv"]
    (breach,) = breaches(FMHA_V2, **{**halves(), "qkv": (query, (value, key))})
    assert breach.arguments == ("qkv[1][0]", "qkv[1][1]")
    assert "qkv[1][1] lies -3584 bytes behind qkv[1][0], not whole pages of 512 bytes" in breach.text


def test_halves_are_dense() -> None:
    query, paired = fmha_v2_call()["qkv"]
    (breach,) = breaches(FMHA_V2, **{**halves(), "qkv": (query, paired.unbind(dim=1))})
    assert breach.arguments == ("qkv[1][0]", "qkv[1][1]")
    assert "qkv[1][0] is not contiguous" in breach.text


def test_intervals_of_keys_are_those_of_their_request_and_never_go_back() -> None:
    def found(starts: tuple[int, ...], ends: tuple[int, ...]) -> list[str]:
        given = {"variable_window_token_starts": int32(*starts), "variable_window_token_ends": int32(*ends)}
        return [each.text.partition(":")[0] for each in breaches(CONTEXT, **given)]

    # Requests of 2, 1 and 3 queries and 9, 0 and 4 keys, and two rows of padding.
    assert found((0, 2, 0, 0, 0, 3, 0, 0), (8, 8, -1, 0, 2, 3, -1, -1)) == []
    assert found((0, 2, 0, 0, 0, 3, 0, 0), (8, 9, -1, 0, 2, 3, -1, -1)) == [
        "the intervals of request 0 are not of its 9 keys"
    ]
    assert found((0, 2, 0, 2, 1, 3, 0, 0), (8, 8, -1, 2, 2, 3, -1, -1)) == [
        "an interval of request 2 begins or ends before that of the query before"
    ]


def test_a_gap_between_the_rows_of_a_page_table_is_legal() -> None:
    gaps = torch.full((3, 6), 77, dtype=torch.int32)
    gaps[:, :4] = tables()
    assert breaches(DECODE, block_tables=gaps[:, :4]) == ()


def test_a_wrong_batch_size_is_reported_before_its_consequences() -> None:
    found = breaches(
        CONTEXT, batch_size=4, max_kv_len=8, block_tables=paged(7), out=torch.zeros(7, 4, 16), window_left=-2
    )
    assert [breach.arguments[0] for breach in found] == ["batch_size", "seq_lens", "block_tables", "out", "window_left"]


def test_lengths_are_not_judged_where_they_are_no_int32() -> None:
    assert [breach.arguments for breach in breaches(DECODE, seq_lens=torch.tensor([99, -1, 4]))] == [("seq_lens",)]


def test_results_that_overlap_inputs_are_reported() -> None:
    query = torch.zeros(6, 4, 16)
    (breach,) = breaches(DECODE, query=query, out=query)
    assert breach.arguments == ("out", "query")
    shared = torch.zeros(6, 4, 16)
    (breach,) = breaches(MERGE_IN_PLACE, v=shared, v_other=shared)
    assert breach.arguments == ("v", "v_other")


def test_results_interleaved_with_inputs_without_overlap_are_legal() -> None:
    rows = torch.zeros(6, 8, 16)
    assert breaches(DECODE, query=rows[:, :4], out=rows[:, 4:]) == ()
    assert breaches(DECODE, query=rows[:, :4], out=rows[:, 3:7])[0].arguments == ("out", "query")


@pytest.mark.parametrize("op", CALLS)
def test_a_call_is_judged_by_its_numbers_and_shapes_where_contents_are_not_at_hand(op: str) -> None:
    def pictured(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(pictured, value))
        return value.to("meta") if isinstance(value, torch.Tensor) and value.dtype != torch.int32 else value

    assert ENTRY_POINTS[op].breaches({name: pictured(value) for name, value in CALLS[op]().items()}) == ()
    for name, changes, arguments, *_, text in BROKEN:
        contents = [value for value in changes.values() if isinstance(value, torch.Tensor)]
        if name == op and not any(
            value.dtype in (torch.int64, torch.uint8) or value.numel() == 1 for value in contents
        ):
            call = {key: pictured(value) for key, value in CALLS[op](**changes).items()}
            (breach,) = ENTRY_POINTS[op].breaches(call)
            assert (breach.arguments, text in breach.text) == (arguments, True)


def test_lengths_without_content_are_reported_as_such() -> None:
    (breach,) = breaches(DECODE, seq_lens=int32(9, 0, 4).to("meta"))
    assert breach.text == "seq_lens is int32 [3] without contents, but must have some"


def test_every_source_and_text_is_one_line() -> None:
    for op, changes, *_ in BROKEN:
        for breach in ENTRY_POINTS[op].breaches(CALLS[op](**changes)):
            assert "\n" not in breach.text + breach.source
