"""A cause that needs several queries, or requests, explains no failure that shows with one, and the other way round."""

from collections.abc import Callable

import pytest
from explained_causes import explained, lengths, one_request
from msgspec.structs import replace
from small_cases import step

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference.case import Case, Mode

ROWS = one_request(Mode.EXTEND, 2, 5, sinks=True)
ROW = one_request(Mode.EXTEND, 1, 5, sinks=True)
REQUESTS = replace(ROWS, steps=(step(Mode.EXTEND, (1, 5), (1, 7)),))
BOTH = replace(ROWS, steps=(step(Mode.EXTEND, (2, 5), (2, 7)),))
QUERIES = ("sinks", "several queries")


def in_later_rows(case: Case) -> bool:
    return max(q_len for q_len, _ in lengths(case)) > 1


def in_later_requests(case: Case) -> bool:
    return len(lengths(case)) > 1


def anywhere(case: Case) -> bool:
    return bool(lengths(case))


def under_sinks(*faults: Callable[[Case], bool]) -> Callable[[Case], list[tuple[Kind, str]]]:
    """A kernel with these faults, all of them under sinks alone."""

    def faulty(case: Case) -> list[tuple[Kind, str]]:
        wrong = case.geometry.sinks and any(fault(case) for fault in faults)
        return [(Kind.OUTPUT_MISMATCH, "out")] if wrong else []

    return faulty


@pytest.mark.parametrize("failing", [BOTH, REQUESTS])
def test_a_failure_of_one_query_is_none_of_a_cause_that_needs_several(failing: Case) -> None:
    assert not explained(under_sinks(in_later_rows, in_later_requests), failing, ROWS, QUERIES)


@pytest.mark.parametrize(("fault", "failing"), [(in_later_rows, ROWS), (in_later_requests, REQUESTS)])
def test_a_failure_that_needs_several_is_none_of_a_cause_that_shows_with_one(
    fault: Callable[[Case], bool], failing: Case
) -> None:
    def in_short_requests(case: Case) -> bool:
        return any(kv_len < 3 for _, kv_len in lengths(case))

    short = one_request(Mode.EXTEND, 1, 2, sinks=True)
    assert not explained(under_sinks(fault, in_short_requests), failing, short, ("sinks",))


@pytest.mark.parametrize(
    ("fault", "failing", "known", "needs"),
    [
        (in_later_rows, BOTH, ROWS, QUERIES),
        (in_later_requests, BOTH, REQUESTS, ("sinks", "several requests")),
        (anywhere, BOTH, ROW, ("sinks",)),
        (anywhere, ROW, BOTH, ("sinks",)),
    ],
)
def test_a_cause_explains_failures_that_need_the_same_counts(
    fault: Callable[[Case], bool], failing: Case, known: Case, needs: tuple[str, ...]
) -> None:
    assert explained(under_sinks(fault), failing, known, needs)


def test_a_decode_has_one_query_whatever_it_needs_elsewhere() -> None:
    decode = one_request(Mode.DECODE, 1, 5, sinks=True)

    def in_either_kernel(case: Case) -> bool:
        return case.steps[0].mode is Mode.DECODE or in_later_rows(case)

    assert explained(under_sinks(in_either_kernel), decode, ROWS, QUERIES)
