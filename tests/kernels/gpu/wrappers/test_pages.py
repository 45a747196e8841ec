"""Lists of pages against a plain account of the tokens on them."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from small_cases import HEADS, drawn, step

from attnfuzz.kernels.gpu.wrappers.paged import PageLists, last_page_len
from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.page_ids import DUMMY_PAGE
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.plan import PageTable, Row
from attnfuzz.reference.case import Case, Mode, Tombstone

BenchOf = Callable[[Case], Bench]


def placed(case: Case, bench: Bench, rows: list[Row]) -> tuple[PagedKv, PageLists]:
    kv = PagedKv(case, bench)
    return kv, PageLists.of(case, PageTable(case, kv), rows)


@pytest.mark.parametrize(("kv_len", "left"), [(0, 0), (1, 1), (3, 3), (4, 4), (5, 1), (8, 4)])
def test_a_last_page_is_full_before_another_begins(kv_len: int, left: int) -> None:
    assert last_page_len(kv_len, 4) == left


def test_lists_of_a_padded_batch_name_owned_pages_and_then_the_dummy_page(bench_of: BenchOf) -> None:
    padded = step(Mode.TARGET_VERIFY, (4, 9), (4, 0), (4, 8), stride=4, rows=4)
    case = Case(backend="trtllm_mha", geometry=HEADS, steps=(padded,))
    _, lists = placed(case, bench_of(case), Row.padded(padded))
    assert lists.qo_indptr.tolist() == [0, 4, 8, 12, 16]
    assert lists.kv_indptr.tolist() == [0, 3, 3, 5, 7]
    assert lists.kv_indices.tolist() == [1, 2, 3, 4, 5, DUMMY_PAGE, DUMMY_PAGE]
    assert lists.last_page_len.tolist() == [1, 0, 4, 1]


def test_every_token_of_a_drawn_request_is_on_its_list_and_no_other(bench_of: BenchOf) -> None:
    for each_drawn in drawn("trtllm_mha", 40):
        # FlashInfer's wrappers have no pools of windows.
        case = replace(each_drawn, pages=replace(each_drawn.pages, tombstone=Tombstone.NONE))
        for each in case.steps:
            rows = Row.real(each)
            kv, lists = placed(case, bench_of(case), rows)
            begins, ids, last = (part.tolist() for part in (lists.kv_indptr, lists.kv_indices, lists.last_page_len))
            assert len(ids) == begins[-1]
            for index, row in enumerate(rows):
                pages = ids[begins[index] : begins[index + 1]]
                assert row.slot is not None
                assert pages == kv.pages[row.slot][: len(pages)]
                tokens = (len(pages) - 1) * kv.page_size + last[index] if pages else last[index]
                assert tokens == row.kv_len


def test_a_batch_without_any_key_has_an_empty_list(bench_of: BenchOf) -> None:
    empty = step(Mode.DECODE, (1, 0), (1, 0))
    case = Case(backend="trtllm_mha", geometry=replace(HEADS, page_size=16), steps=(empty,))
    _, lists = placed(case, bench_of(case), Row.real(empty))
    assert lists.kv_indices.shape == (0,)
    assert lists.kv_indptr.tolist() == [0, 0, 0]
    assert lists.last_page_len.tolist() == [0, 0]
