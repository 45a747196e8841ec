"""The examples to which Hypothesis shrinks cases that fail a test."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from attnfuzz.reference.case import Case


def shrunk(
    drawn: SearchStrategy[Case], fails: Callable[[Case], bool], *, seed_of: int = 3, examples: int = 400
) -> Case:
    """The case that Hypothesis ends with when a test fails on every case of `drawn` that `fails`."""
    last: list[Case] = []

    @seed(seed_of)
    @settings(
        max_examples=examples,
        database=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=tuple(HealthCheck),
        deadline=None,
        report_multiple_bugs=False,
    )
    @given(drawn)
    def test(case: Case) -> None:
        if fails(case):
            last.append(case)
            raise AssertionError

    with pytest.raises(AssertionError):
        test()
    return last[-1]
