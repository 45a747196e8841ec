"""Queries: how they lie in memory, and where a request's begin."""

from collections.abc import Callable

import msgspec
import pytest
import torch
from small_cases import HEADS, step

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.queries import draw_queries, packed_rows, place_queries
from attnfuzz.reference.case import Case, Mode, QueryView, Views
from attnfuzz.reference.dtypes import DType


def case_of(view: QueryView = QueryView.CONTIGUOUS) -> Case:
    geometry = msgspec.structs.replace(HEADS, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16)
    steps = (step(Mode.DECODE, (1, 9)), step(Mode.DECODE, (1, 9)))
    return Case(backend="trtllm_mha", geometry=geometry, steps=steps, views=Views(query=view))


@pytest.mark.parametrize(
    ("view", "stride"),
    [
        (QueryView.CONTIGUOUS, (64, 16, 1)),
        (QueryView.FUSED_QKV, (64 + 2 * 32, 16, 1)),
        (QueryView.HEAD_GAP, (4 * 24, 24, 1)),
    ],
)
def test_views_have_their_strides_and_the_same_values(
    bench_of: Callable[..., Bench], view: QueryView, stride: tuple[int, ...]
) -> None:
    case = case_of(view)
    queries = draw_queries(case, 0, 5, 16)
    placed = place_queries(case, bench_of(case), queries)
    assert placed.stride() == stride
    assert placed.dtype == torch.bfloat16
    assert torch.equal(placed, queries)


def test_each_step_has_queries_of_its_own_that_padding_does_not_change() -> None:
    case = case_of()
    assert not torch.equal(draw_queries(case, 0, 3, 16), draw_queries(case, 1, 3, 16))
    assert torch.equal(draw_queries(case, 0, 3, 16), draw_queries(case, 0, 9, 16)[:3])
    assert bool(draw_queries(case, 0, 9, 16).isfinite().all())


def test_packed_requests_follow_each_other() -> None:
    assert packed_rows(step(Mode.EXTEND, (3, 3), (0, 2), (2, 9))) == [0, 3, 3]
