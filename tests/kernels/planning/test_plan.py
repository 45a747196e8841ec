"""Plans: which rows a batch has, and what its metadata says."""

from collections.abc import Callable

import msgspec
import pytest
from small_cases import HEADS, step

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.lengths import longest, running_sum
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.plan import PageTable, Row, pad_queries, plan_rows
from attnfuzz.reference.case import Case, Launch, Mode, Pages, Step, TableTail


def test_lengths_sum_up_and_have_a_maximum_of_at_least_one() -> None:
    assert running_sum([2, 0, 3]) == [0, 2, 2, 5]
    assert running_sum([]) == [0]
    assert [longest(lengths) for lengths in ([], [0], [3, 5])] == [1, 1, 5]


@pytest.mark.parametrize(
    ("padded", "rows"),
    [
        (step(Mode.DECODE, (1, 9), rows=3), [(1, 9), (1, 1), (1, 1)]),
        (step(Mode.TARGET_VERIFY, (4, 9), rows=2, stride=4), [(4, 9), (4, 5)]),
        (step(Mode.DRAFT_EXTEND_V2, (4, 9), rows=2, stride=4), [(4, 9), (4, 1)]),
        (step(Mode.DRAFT_EXTEND, (2, 9), rows=6, stride=4), [(2, 9)]),
        (step(Mode.DRAFT_EXTEND, (2, 9), rows=2, stride=4, launch=Launch.REPLAY), [(2, 9), (4, 1)]),
        (step(Mode.EXTEND, (5, 9), rows=8), [(5, 9)]),
        (step(Mode.CHUNKED_PREFILL, (5, 9), (0, 0), rows=8), [(5, 9), (0, 0)]),
    ],
)
def test_padding_adds_rows_of_length_one_to_uniform_batches_and_graphs(
    padded: Step, rows: list[tuple[int, int]]
) -> None:
    assert [(row.q_len, row.kv_len) for row in Row.padded(padded)] == rows
    real = len(padded.requests)
    assert [row.slot for row in Row.padded(padded)] == [*range(real), *[None] * (len(rows) - real)]
    assert Row.padded(padded)[:real] == Row.real(padded)


def test_padded_queries_keep_the_last_query_at_the_last_key() -> None:
    rows = pad_queries([Row(0, 2, 9, 9), Row(1, 4, 6, 6), Row(None, 4, 1, 0)], 4)
    assert [(row.q_len, row.kv_len, row.owned) for row in rows] == [(4, 11, 9), (4, 6, 6), (4, 1, 0)]


def test_a_plan_has_exactly_the_rows_of_its_batch(bench_of: Callable[..., Bench]) -> None:
    planned = step(Mode.EXTEND, (3, 9), (0, 0), (2, 5), rows=8)
    pages = Pages(tail=TableTail.MINUS_ONE, table_slack=1)
    case = Case(backend="trtllm_mha", geometry=HEADS, steps=(planned,), pages=pages, max_len_slack=7)
    bench = bench_of(case)
    plan = plan_rows(case, bench, PageTable(case, PagedKv(case, bench)), Row.real(planned))
    assert plan.batch == 3
    assert plan.seq_lens.tolist() == [9, 0, 5]
    assert plan.cum_seq_lens_q.tolist() == [0, 3, 3, 5]
    assert plan.cum_seq_lens_kv.tolist() == [0, 9, 9, 14]
    assert plan.block_tables.tolist() == [[1, 2, 3, -1], [-1, -1, -1, -1], [4, 5, -1, -1]]
    assert (plan.max_q_len, plan.max_kv_len) == (10, 16)


def test_an_empty_batch_has_one_column_and_maxima_of_one(bench_of: Callable[..., Bench]) -> None:
    planned = step(Mode.EXTEND, (1, 0))
    case = msgspec.structs.replace(Case(backend="trtllm_mha", geometry=HEADS, steps=(planned,)))
    bench = bench_of(case)
    plan = plan_rows(case, bench, PageTable(case, PagedKv(case, bench)), Row.real(planned))
    assert plan.block_tables.shape == (1, 1)
    assert (plan.max_q_len, plan.max_kv_len) == (1, 1)
