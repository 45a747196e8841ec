"""An explanation has to predict rows and runs on which it was not fitted; what does not is not said."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from wrong_rows import Change, answering, cut, right_row, two_requests

from attnfuzz.harness.judge.explain.claim import Aspect, Stake
from attnfuzz.harness.judge.explain.inquiry import Explanation, Inquiry
from attnfuzz.harness.judge.explain.sampled_rows import SampledRow
from attnfuzz.harness.judge.explain.wrong_row import WrongRow
from attnfuzz.harness.report.misread_keys import misread_keys
from attnfuzz.reference.mistake import Mistake
from attnfuzz.reference.problem import Problem

PLACES = [(token, head) for token in range(4) for head in range(4)]


def rows(problem: Problem, change: Change, wrong: Callable[[WrongRow], bool] = lambda _: True) -> list[SampledRow]:
    """All rows of an output; those that are `wrong` have the answer to another problem."""
    right = [right_row(problem, token=token, head=head) for token, head in PLACES]
    return [SampledRow(answering(row, change) if wrong(row) else row, wrong(row)) for row in right]


def concluded(first: list[SampledRow], further: dict[Stake, list[SampledRow]]) -> Explanation | None:
    worst = next(each.row for each in first if each.wrong)
    inquiry = Inquiry(worst, first, Aspect.OUT, out_failed=True)
    for stake, seen in further.items():
        inquiry.test(stake, seen)
    return inquiry.conclusion()


def times(factor: float) -> Change:
    return lambda row: replace(row.alone(row.seen), bmm1_scale=row.problem.bmm1_scale * factor)


def one_lower(row: WrongRow) -> Problem:
    return row.alone(row.seen[:-1])


def test_a_claim_confirmed_with_other_values_is_reported() -> None:
    found = concluded(
        rows(two_requests(), one_lower),
        {Stake.VALUES: rows(two_requests(seed=6), one_lower), Stake.LENGTHS: rows(two_requests(more=7), one_lower)},
    )
    assert found is not None
    assert found.mistakes == (Mistake.CAUSAL_LIMIT,)
    assert found.words.replace("\n", " ") == "as if the causal limit were one lower: the row's own key is not seen"
    assert max(map(len, found.words.splitlines())) <= 76


def test_a_factor_that_other_values_change_is_not_reported() -> None:
    first = rows(two_requests(), times(1.3))
    assert concluded(first, {Stake.VALUES: rows(two_requests(seed=6), times(1.3))}) is not None
    assert concluded(first, {Stake.VALUES: rows(two_requests(seed=6), times(1.4))}) is None


def test_a_claim_refuted_by_other_values_is_not_reported() -> None:
    right = rows(two_requests(seed=6), one_lower, wrong=lambda _: False)
    assert concluded(rows(two_requests(), one_lower), {Stake.VALUES: right}) is None


def test_a_rule_that_longer_requests_refute_gives_way_to_the_keys() -> None:
    # The key that is missing is the last of 70: of longer requests it is another than the own key of the last row.
    def of_request_0(row: WrongRow) -> bool:
        return row.token == 2

    first, missing = rows(two_requests(), cut(range(69, 70)), of_request_0), cut(range(69, 70))
    again = rows(two_requests(seed=6), missing, of_request_0)
    longer = rows(two_requests(more=7), missing, of_request_0)
    found = concluded(first, {Stake.VALUES: again, Stake.LENGTHS: longer})
    assert found is not None
    assert found.words.startswith("as if key 69 were missing")
    assert found.keys is not None
    assert misread_keys(found.keys, 16) == [("skipped", "skips", [(69, 70)])]


def test_the_request_that_it_is_about_is_named() -> None:
    def of_request_0(row: WrongRow) -> bool:
        return row.request == 0

    found = concluded(
        rows(two_requests(), one_lower, of_request_0),
        {Stake.VALUES: rows(two_requests(seed=6), one_lower, of_request_0)},
    )
    assert found is not None
    assert found.words.replace("\n", " ").endswith("(in request 0)")


@pytest.mark.parametrize("shown", [1, 4])
def test_without_a_further_run_other_rows_have_to_confirm(shown: int) -> None:
    def first_ones(row: WrongRow) -> bool:
        return row.token == 0 and row.head < shown

    assert (concluded(rows(two_requests(), one_lower, first_ones), {}) is not None) == (shown > 1)


def test_an_lse_that_is_right_beside_a_wrong_output_is_pointed_out() -> None:
    def with_right_lse(problem: Problem) -> list[SampledRow]:
        return [SampledRow(replace(row, lse=row.truth.lse), wrong) for row, wrong in rows(problem, no_sink)]

    found = concluded(with_right_lse(sinks()), {Stake.VALUES: with_right_lse(sinks(seed=6))})
    assert found is not None
    assert found.words == "as if the sink were ignored; but the LSE does not agree"


def sinks(seed: int = 5) -> Problem:
    return replace(two_requests(seed=seed), sinks=torch.tensor([1.0, 2.0, 3.0, 4.0]))


def no_sink(row: WrongRow) -> Problem:
    return replace(row.alone(row.seen), sinks=None)
