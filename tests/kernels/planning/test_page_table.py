"""Rows of a page table: what a request owns, what may be read beyond it, and what must not be."""

from collections.abc import Callable

import pytest
from small_cases import HEADS, step

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.plan import PageTable
from attnfuzz.reference.case import Case, Mode, Pages, TableTail, Views

BenchOf = Callable[..., Bench]


def case_of(tail: TableTail = TableTail.ZEROS, slack: int = 0, gap: int = 0) -> Case:
    return Case(
        backend="trtllm_mha",
        geometry=HEADS,
        steps=(step(Mode.DECODE, (1, 9), (1, 5)),),
        pages=Pages(tail=tail, table_slack=slack),
        views=Views(table_gap=gap),
    )


def table_of(case: Case, bench: Bench) -> PageTable:
    return PageTable(case, PagedKv(case, bench))


@pytest.mark.parametrize(
    ("tail", "beyond"), [(TableTail.ZEROS, {0}), (TableTail.MINUS_ONE, {-1}), (TableTail.POISON, {6})]
)
def test_owned_pages_come_first_then_readable_ones_then_the_tail(
    bench_of: BenchOf, tail: TableTail, beyond: set[int]
) -> None:
    case = case_of(tail)
    table = table_of(case, bench_of(case)).rows([0, 1], owned=[3, 1], reach=[3, 3], width=7)
    assert table[:, :3].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert set(table[:, 3:].flatten().tolist()) == beyond


def test_a_stale_tail_holds_pages_of_other_requests(bench_of: BenchOf) -> None:
    case = case_of(TableTail.STALE)
    table = table_of(case, bench_of(case)).rows([0], owned=[3], reach=[3], width=40)
    beyond = set(table[0, 3:].tolist())
    assert beyond <= {1, 2, 3, 4, 5}
    assert len(beyond) > 1


@pytest.mark.parametrize("tail", TableTail)
def test_a_padded_row_is_the_dummy_page_throughout(bench_of: BenchOf, tail: TableTail) -> None:
    case = case_of(tail)
    table = table_of(case, bench_of(case)).rows([None], owned=[0], reach=[1], width=5)
    assert table.tolist() == [[0] * 5]


def test_reach_ends_with_the_table(bench_of: BenchOf) -> None:
    case = case_of()
    assert table_of(case, bench_of(case)).rows([1], owned=[2], reach=[9], width=3).tolist() == [[4, 5, 0]]


def test_width_has_room_for_the_longest_the_slack_and_a_multiple(bench_of: BenchOf) -> None:
    plain, slack = case_of(), case_of(slack=3)
    assert [table_of(plain, bench_of(plain)).width(length) for length in (0, 1, 4, 5)] == [1, 1, 1, 2]
    assert table_of(slack, bench_of(slack)).width(5) == 5
    assert table_of(slack, bench_of(slack)).width(5, multiple=32) == 32


def test_a_gap_lies_between_the_rows(bench_of: BenchOf) -> None:
    case = case_of(gap=3)
    bench = bench_of(case)
    table = table_of(case, bench)
    rows = table.rows([0, 1], owned=[3, 2], reach=[3, 2], width=4)
    placed = table.place(bench, rows)
    assert placed.stride() == (7, 1)
    assert placed.tolist() == rows.tolist()
