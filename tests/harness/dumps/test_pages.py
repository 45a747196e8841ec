"""A pool is cut to the pages that lengths refer to, and every id leads where it led before."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnfuzz.harness.dumps.pool import PageMap, in_ranges
from attnfuzz.kernels.entry_points import RequestSpan

TOTAL = 10


def span(kv_len: int, *pages: int) -> RequestSpan:
    return RequestSpan(first_row=0, q_len=1, kv_len=kv_len, pages=pages)


def mapped(table: list[list[int]], *spans: RequestSpan) -> tuple[PageMap, list[list[int]]]:
    tensor = torch.tensor(table, dtype=torch.int32)
    pages = PageMap.of(TOTAL, spans, tensor)
    new = pages.renumbered(tensor)
    assert new.dtype == torch.int32
    return pages, new.tolist()


def test_kept_pages_are_numbered_anew_in_their_order() -> None:
    pages, table = mapped([[7, 2], [2, 9]], span(8, 7, 2), span(5, 2, 9))
    assert pages.kept == (2, 7, 9)
    assert pages.pages == 3
    assert table == [[1, 0], [0, 2]]


def test_a_page_that_nobody_needs_becomes_the_spare_one() -> None:
    pages, table = mapped([[7, 3, 4], [2, 2, 7]], span(4, 7), span(8, 2, 2))
    assert pages.kept == (2, 7)
    assert pages.spare
    assert table == [[1, 2, 2], [0, 0, 1]]


def test_ids_outside_of_the_pool_stay_as_far_outside() -> None:
    pages, table = mapped([[7, TOTAL], [-1, TOTAL + 5]], span(8, 7, TOTAL), span(8, -1, TOTAL + 5))
    assert pages.kept == (7,)
    assert not pages.spare
    assert table == [[0, 1], [-1, 6]]


def test_a_pool_that_nobody_needs_keeps_a_page_that_can_be_read() -> None:
    pages, table = mapped([[0], [-1]], span(0), span(0))
    assert (pages.kept, pages.pages) == ((), 1)
    assert table == [[0], [-1]]
    assert PageMap.of(TOTAL, [], torch.zeros(0, 4, dtype=torch.int32)).pages == 1


def test_slots_past_the_last_token_of_a_page_are_not_covered() -> None:
    pages, _ = mapped([[7, 2], [2, 9]], span(6, 7, 2), span(3, 2))
    covered = pages.covered([span(3, 2), span(6, 7, 2)], 4)
    # Page 2 is shared, and covered as far as the longer of both reaches; page 9 is the spare one.
    assert covered.tolist() == [[True] * 3 + [False], [True] * 4, [False] * 4]


@settings(database=None, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.integers(-3, TOTAL + 3), min_size=4, max_size=4), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), min_size=5, max_size=5),
)
def test_pages_are_the_same_after_renumbering_if_and_only_if_they_were_before(
    table: list[list[int]], needed: list[int]
) -> None:
    spans = [span(4 * n, *row[:n]) for row, n in zip(table, needed, strict=False)]
    pages, new = mapped(table, *spans)
    for old_row, new_row in zip(table, new, strict=True):
        for old, renumbered in zip(old_row, new_row, strict=True):
            if old in pages.kept:
                assert pages.kept[renumbered] == old
            elif 0 <= old < TOTAL:
                assert renumbered == len(pages.kept)
            else:
                assert renumbered - (0 if old < 0 else pages.pages) == old - (0 if old < 0 else TOTAL)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([], ""),
        ([4], "4"),
        ([1, 2, 3, 7, 9, 10], "1 to 3, 7, 9 to 10"),
        (list(range(0, 60, 2)), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 18 more"),
    ],
)
def test_numbers_are_told_in_ranges(numbers: list[int], words: str) -> None:
    assert in_ranges(numbers) == words
