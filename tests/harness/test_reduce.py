"""The reducer reaches the smallest case, whatever it starts from, and never tries what cannot be."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from small_cases import step

from attnfuzz.harness.reduce import reduce
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import (
    Case,
    Guard,
    KvView,
    Launch,
    Mode,
    PageOrder,
    Pages,
    Request,
    Scales,
    Step,
    TableTail,
    ValueFamily,
    Views,
    Workspace,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout, Latent
from attnfuzz.reference.relation import Relation
from attnfuzz.reference.validity import validate

CAPTURE = step(Mode.DRAFT_EXTEND, stride=4, rows=8, launch=Launch.CAPTURE)
VERIFY = step(Mode.TARGET_VERIFY, *((4, kv) for kv in (70, 0, 33, 5, 41, 90)), stride=4, rows=10)
LARGE = Case(
    backend="any",
    geometry=Geometry(
        q_heads=12,
        kv_heads=3,
        head_dim_qk=72,
        head_dim_vo=72,
        page_size=32,
        dtype=DType.FLOAT16,
        kv_dtype=DType.FLOAT8_E4M3,
        kv_layout=KvLayout.NHD,
        window_left=40,
        sinks=True,
        soft_cap=30.0,
    ),
    steps=(
        CAPTURE,
        step(Mode.EXTEND, (9, 9), (5, 30), rows=16),
        VERIFY,
        replace(
            CAPTURE,
            requests=(Request(3, 2, 17), Request(0, 4, 60), Request(2, 1, 8), Request(5, 3, 3)),
            launch=Launch.REPLAY,
        ),
        Step(mode=Mode.DECODE, requests=(Request(1, 1, 31), Request(0, 1, 61)), padded_tokens=4, tokens_per_request=1),
        replace(CAPTURE, requests=(Request(0, 1, 61), Request(1, 4, 35)), launch=Launch.REPLAY),
    ),
    pages=Pages(order=PageOrder.SHUFFLED, tail=TableTail.STALE, spare=5, table_slack=3),
    values=ValueFamily.PEAKED,
    scales=Scales(softmax=0.5, k=1.7),
    views=Views(kv=KvView.PAIRED, table_gap=4),
    workspace=Workspace.DIRTY,
    max_len_slack=1000,
    chunk_capacity=30,
    guard=Guard.LEFT,
    seed=918273,
)
SMALLEST = Geometry(q_heads=1, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=1)


def empty_beside_long(case: Case) -> bool:
    """Whether a step has a request without KV and one with more than 40 keys."""
    return any(
        any(request.kv_len == 0 for request in step.requests) and any(request.kv_len > 40 for request in step.requests)
        for step in case.steps
    )


def padded_beyond(case: Case) -> bool:
    """Whether an eager verify has rows that belong to no request."""
    return any(
        step.mode is Mode.TARGET_VERIFY and step.launch is Launch.EAGER and step.padded_batch > len(step.requests)
        for step in case.steps
    )


def varying_replay(case: Case) -> bool:
    """Whether a graph is replayed with accept lengths that vary."""
    return any(
        step.launch is Launch.REPLAY and len({request.q_len for request in step.requests}) > 1 for step in case.steps
    )


def two_replays(case: Case) -> bool:
    """Whether a graph is replayed twice."""
    return sum(step.launch is Launch.REPLAY for step in case.steps) >= 2


@pytest.mark.parametrize(
    ("fails", "steps"),
    [
        (empty_beside_long, (step(Mode.TARGET_VERIFY, (1, 41), (1, 0), stride=1),)),
        (padded_beyond, (step(Mode.TARGET_VERIFY, (1, 0), stride=1, rows=2),)),
        (
            varying_replay,
            (
                replace(CAPTURE, padded_tokens=4, tokens_per_request=2),
                step(Mode.DRAFT_EXTEND, (2, 0), (1, 0), stride=2, launch=Launch.REPLAY),
            ),
        ),
        (
            two_replays,
            (
                replace(CAPTURE, padded_tokens=1, tokens_per_request=1),
                *(step(Mode.DRAFT_EXTEND, (1, 0), stride=1, launch=Launch.REPLAY),) * 2,
            ),
        ),
    ],
)
def test_a_large_case_becomes_the_smallest(fails: Callable[[Case], bool], steps: tuple[Step, ...]) -> None:
    assert reduce(LARGE, fails) == Case(backend="any", geometry=SMALLEST, steps=steps)


def test_features_that_the_failure_needs_are_kept() -> None:
    def fails(case: Case) -> bool:
        geometry = case.geometry
        return geometry.sinks and geometry.group == 4 and case.scales.k == 1.7 and case.pages.tail is TableTail.STALE

    reduced = reduce(LARGE, fails)
    assert reduced.geometry == replace(SMALLEST, q_heads=4, sinks=True)
    assert (reduced.scales, reduced.pages) == (Scales(k=1.7), Pages(tail=TableTail.STALE))


def test_pages_shrink_together_with_the_lengths_in_them() -> None:
    def fails(case: Case) -> bool:
        page = case.geometry.page_size
        return page > 1 and any(page < request.kv_len < 2 * page for step in case.steps for request in step.requests)

    reduced = reduce(LARGE, fails)
    assert reduced.geometry.page_size == 2
    assert [request.kv_len for request in reduced.steps[0].requests] == [3]


def test_latents_and_chunks_shrink_together() -> None:
    large = Case(
        backend="any",
        geometry=Geometry(q_heads=16, kv_heads=1, head_dim_qk=576, head_dim_vo=512, page_size=64, latent=Latent()),
        steps=(step(Mode.CHUNKED_PREFILL, *((3, 3 + prefix) for prefix in (0, 70, 31, 12))),),
        chunk_capacity=40,
    )

    def a_later_chunk_is_empty_for_some(case: Case) -> bool:
        return any(
            step.chunks(case.chunk_capacity) > 1
            and any(
                request.kv_len - request.q_len <= case.chunk_capacity // len(step.requests) for request in step.requests
            )
            for step in case.steps
        )

    reduced = reduce(large, a_later_chunk_is_empty_for_some)
    assert reduced.geometry == replace(
        SMALLEST, head_dim_qk=16, head_dim_vo=8, latent=Latent(rank=8, rope=8, nope=8, vo=8)
    )
    assert len(reduced.steps[0].requests) == 2
    assert sum(request.kv_len for request in reduced.steps[0].requests) < 50


def test_only_cases_that_are_possible_and_covered_are_tried() -> None:
    tried: list[Case] = []
    can = Capability(
        modes=Mode.of_kernels(),
        graph_modes=(Mode.DRAFT_EXTEND,),
        fp8_kv=True,
        windows=True,
        sinks=True,
        soft_cap=True,
        kv_scales=True,
        padding=True,
        page_sizes=(8, 16, 32),
        layouts=(KvLayout.NHD,),
        kv_views=tuple(KvView),
    )
    assert can.why_not(LARGE) is None

    def fails(case: Case) -> bool:
        tried.append(case)
        validate(case)
        assert can.why_not(case) is None
        return empty_beside_long(case)

    reduced = reduce(LARGE, fails, capability=can)
    assert (reduced.geometry.page_size, reduced.geometry.kv_layout) == (8, KvLayout.NHD)
    assert len(tried) == len(set(tried))


def test_the_budget_bounds_the_calls_and_the_smallest_case_is_kept() -> None:
    calls: list[Case] = []

    def fails(case: Case) -> bool:
        calls.append(case)
        return empty_beside_long(case)

    reduced = reduce(LARGE, fails, budget=5)
    assert len(calls) == 5
    assert reduced != LARGE
    assert empty_beside_long(reduced)
    assert reduce(LARGE, fails, budget=0) == LARGE


def test_a_stopped_search_keeps_the_smallest_case() -> None:
    calls: list[Case] = []

    def fails(case: Case) -> bool:
        calls.append(case)
        return True

    reduced = reduce(LARGE, fails, stop=lambda: len(calls) == 2)
    assert len(calls) == 2
    assert reduced == calls[-1]


def test_reduction_is_deterministic_and_ends_where_it_ends() -> None:
    reduced = reduce(LARGE, varying_replay)
    assert reduce(LARGE, varying_replay) == reduced
    assert reduce(reduced, varying_replay) == reduced


def test_few_calls_are_enough() -> None:
    calls: list[Case] = []

    def fails(case: Case) -> bool:
        calls.append(case)
        return empty_beside_long(case)

    reduce(LARGE, fails)
    assert len(calls) < 80


def test_a_failure_of_the_related_run_is_reduced_to_that_run() -> None:
    case = replace(LARGE, steps=(LARGE.steps[1],), relation=Relation.PADDING_ENLARGED)

    def padded_in_either_run(case: Case) -> bool:
        return case.relation is not None or any(step.padded_tokens > step.tokens + 2 for step in case.steps)

    smallest = reduce(case, padded_in_either_run)
    assert smallest.relation is None
    assert smallest.steps[0].padded_tokens == smallest.steps[0].tokens + 3


def test_a_relation_that_is_needed_stays() -> None:
    case = replace(LARGE, steps=(LARGE.steps[1],), relation=Relation.BATCH_PERMUTED)
    smallest = reduce(case, lambda case: case.relation is Relation.BATCH_PERMUTED)
    assert smallest.relation is Relation.BATCH_PERMUTED
    assert [len(step.requests) for step in smallest.steps] == [2]
